"""`jaxsens.flip_sensitivity`: measures the sensitivity of a model to every single-symbol flip of an input."""

from __future__ import annotations

import dataclasses
import signal
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int

from jaxsens import inputs, stopping
from jaxsens.errors import PrecisionWarning, Problems, collecting
from jaxsens.inputs import FEWER_FLIPS, MEASURES, SHORTER, Measure
from jaxsens.memory import FLIP_BYTES, TOKEN_BYTES, check_fits
from jaxsens.models.transformer import activation_bytes
from jaxsens.precision import numerics
from jaxsens.sensitivity import placement
from jaxsens.sensitivity.adapters import Measurable, checked_input, measurable
from jaxsens.sensitivity.alone import called_alone, check_alone, warn_of_no_change
from jaxsens.sensitivity.candidates import Candidates, Selection, Wanted, select
from jaxsens.sensitivity.choice import check_measuring, choose
from jaxsens.sensitivity.doubt import output_doubts
from jaxsens.sensitivity.edits import Edit
from jaxsens.sensitivity.engine import ChangeFunction, Engine, EngineChoice, Scalar
from jaxsens.sensitivity.estimated import Estimated, strata
from jaxsens.sensitivity.explain import warn_if_long
from jaxsens.sensitivity.first_order.engine import FirstOrderEngine
from jaxsens.sensitivity.first_order.estimate import NAME, Estimation, check_estimation, estimated
from jaxsens.sensitivity.first_order.verify import verified, warn_if_far
from jaxsens.sensitivity.flips import DELETED, Flips, Sample
from jaxsens.sensitivity.functions import FUNCTIONS, SIGNED, check_functions, checked_function
from jaxsens.sensitivity.index_check import check_reads
from jaxsens.sensitivity.measures import DECISION
from jaxsens.sensitivity.output import check_estimates_finite, check_finite, checked_output
from jaxsens.sensitivity.premises import premises
from jaxsens.sensitivity.progress import telling
from jaxsens.sensitivity.refined import HOW, refined
from jaxsens.sensitivity.resolution import beyond_precision, checked_scores, warn_if_unresolved
from jaxsens.sensitivity.result import AskedArguments, FlipSensitivity
from jaxsens.sensitivity.resuming import (
    MeasurementInterrupted,
    check_resumable,
    fingerprint,
    handed_over,
    merged,
    taken_over,
    weights_of,
)
from jaxsens.sensitivity.several_lengths import PROGRESS, of_several_lengths
from jaxsens.versions import versions


@of_several_lengths
def flip_sensitivity(
    model: Any,
    tokens: Any,
    alphabet_size: int | None = None,
    *,
    symbols: Sequence[int] | None = None,
    positions: Sequence[int] | Sample | None = None,
    flips: Sequence[tuple[int, int]] | None = None,
    candidates: Candidates | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    readout: int | Literal["auto", "last", "mean"] | None = "auto",
    norm: Measure = "l2",
    threshold: float = 0.0,
    outputs: Sequence[int] | Literal["all"] | None = None,
    scalar: Scalar | None = None,
    change: ChangeFunction | None = None,
    engine: Literal["auto", "vmap", "incremental", "difference", "first-order"] = "auto",
    sketch: int | None = None,
    verify: int = 64,
    seed: int = 0,
    batch_size: int | None = None,
    memory_budget: int | None = None,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], object] | bool | None = None,
    resume: FlipSensitivity | None = None,
) -> FlipSensitivity:
    """Measures ||y_r(x) - y_r(x')||, or another distance, for every x' that differs from x in one symbol.

    Arithmetic is in the model's dtype; float64 parameters are used in float64 regardless of JAX's global setting.
    Matrix products have `highest` precision: JAX's defaults on GPUs (TF32) and TPUs (bfloat16) keep only two to three
    digits, and a flip's effect is O(1/n). Programs are compiled once per shape, so a second input of the same length
    starts immediately. Memory stays within the budget at any n.

    Args:
        model: a jaxsens model, a Flax NNX module, a Linen module with variables (bound, or `(module, variables)`),
            an Equinox module, a pair `(function, parameters)`, which is called as function(parameters, tokens), or any
            callable from tokens (n,) to an output vector (or number), or to rows (n, d) of which `readout` selects one.
            Reuse function objects: a new function for each call is compiled for each call. The arrays of a pair or a
            module are arguments of the compiled program; those that a function closes over are its constants.
        tokens: integers (n,), or (batch, n) for several inputs, or a list of inputs of several lengths, which are
            measured one after another: the result is that of `jaxsens.concat`. For a model that encodes text, such as a
            published one, also a text, or a list of texts. A sample is then divided among the inputs in proportion to
            their flips, at least two for each; `verify` flips are measured exactly for each.
        alphabet_size: flips insert symbols 0 .. alphabet_size - 1; known for jaxsens models. Larger tokens (the
            end-of-sequence symbol, id alphabet_size) are never inserted, and positions that hold one are not flipped.
        symbols: insert these symbols instead, also at positions with larger tokens.
        positions: 0-based positions to flip, or `jaxsens.sample(count, seed)` for a random sample of the flips.
            By default all except the readout position, which reaches the output through the skip connection and changes
            it by O(1) in every model, and positions with special symbols, of models that have some.
        flips: exactly these flips of every input: pairs (position, symbol).
        candidates: what to insert, instead of `symbols` or an alphabet: a sequence of symbols, as `symbols`; a mapping
            of positions to their symbols, which says the positions too; `jaxsens.neighbours(k)`, for every position the
            k symbols most like its own; `jaxsens.masking()`, the model's mask symbol; `jaxsens.deletion()`, nothing;
            `jaxsens.insertion()`, one symbol more before the position; `jaxsens.repetition(times)`, copies of the
            symbol that stands there; or `jaxsens.sample(count)`, a random sample of the flips to the model's alphabet,
            at `positions` or where flips are by default. Symbols that a model reserves (special and unused ones) are
            inserted only by name: by `flips`, `symbols`, a sequence, a mapping, `insertion([...])` or `masking`.
        groups: positions to flip together, such as those of the pieces of a word: [(3, 4, 5), (9,)]. The j-th flip of a
            group inserts the j-th candidate of each of its positions; a mapping gives them all equally many. No
            position is in two groups. Served by "vmap", as deletions, insertions and repetitions are.
        readout: where the model reads its output: a 0-based position (0: a leading [CLS] symbol), "last", "mean" over
            all positions, or None if unspecified. It selects the row if the model returns rows (n, d), and is then
            required. If the model returns a vector, it only sets the position not flipped by default: the last for
            "auto", and none for "mean" and None. For a jaxsens model, "auto" is the readout of its config.
        norm: "l2", "l1" or "linf" of the output's change; "cosine": 1 - cos(y, y'), from 0 to 2; "kl":
            KL(softmax(y) || softmax(y')) in nats; or "decision": 1 if the largest output is another one (the first of
            equals; of a single output, if it crosses the threshold), otherwise 0, whose sum over the flips of an input
            is its Boolean sensitivity (`FlipSensitivity.sensitive_flips`). All keep the digits of a small change.
            "first-order" estimates all but decisions.
        threshold: for norm="decision" of a single output: the decision is whether the output is above it.
        outputs: the output coordinates that are measured, or "all". By default those that the model designates
            (`model.outputs` of a jaxsens transformer, as compiled ones have), or all if it designates none.
        scalar: measure the signed change of this function f of the output instead of a norm: the log-probability of
            symbol 3 is `lambda y: jax.nn.log_softmax(y)[3]`. f gets the whole output, a vector in the model's dtype (or
            float64, where an engine measures in it), and returns one floating-point number; it is written with
            jax.numpy. The result's `changes` hold f(y_r(x')) - f(y_r(x)), its `norms` their sizes. "difference" keeps
            the digits of small changes where f is smooth, and subtracts elsewhere. Neither `outputs` nor another `norm`
            can be given with it. Reuse function objects: a new one for each call is compiled for each call.
        change: measure f(y_r(x), y_r(x')), any function of both outputs that returns one floating-point number, such as
            `lambda y, new: jnp.linalg.norm(new - y)`. It is written, checked and reused as `scalar`, and excludes
            `scalar`, `outputs` and another `norm`. The result's `changes` are its values, its `norms` their sizes.
            "difference" keeps the digits of small changes where f is smooth, and gives f the sum of y and the change
            elsewhere. "first-order" gives it y and the estimated change of every output.
        engine: "vmap", the specification: one forward pass per flip; "incremental": what a flip changes of that pass,
            for softmax or sigmoid attention that is visible (jaxsens transformers, and pairs of a `jaxsens.Layered` and
            its parameters); "difference": carries the change through a jaxsens transformer
            exactly, without subtracting outputs; or "auto": "difference" if only that is accurate, otherwise the one
            estimated to be fastest for several inputs, including compilation. The choice is the same on every machine;
            `jaxsens.explain` reports it with the reason and the cost. "first-order" estimates the effect of every flip
            in O(n^2) at any depth, for the same attention as "incremental", and also measures some flips exactly; the
            result says for each norm whether it is `exact`, and its `accuracy`. "auto" is always exact.
        sketch: for "first-order" and the l2 norm: estimate this many random combinations of the outputs instead of all.
            It takes as many backward passes; the norm's relative standard error is at most 1 / sqrt(2 sketch).
        verify: for "first-order": the number of flips measured exactly, half of them the largest estimates.
        seed: for "first-order": the seed of the sketch and of the sample of verified flips.
        batch_size: the number of flips per batch on each device; by default a fast size that fits the budget.
        memory_budget: bytes of temporary memory on each device; by default 2 GiB on CPU, 8 GiB on an accelerator.
        mesh: the devices to spread the flips over; by default all of this process. A single CPU device uses one thread
            per core. Results depend on the devices and the batch size only by rounding. In a distributed job,
            `jaxsens.global_mesh()` shares the flips between the processes, all of which make the same call and return
            the whole result; a mesh of several processes has one axis. Ctrl-C, or the scheduler's SIGTERM, in one
            process stops all of them with the same partial result. Without a mesh each process measures all flips.
        progress: a function called with (flips done, flips in all) about once a second; True for a bar on standard
            error, False for nothing. By default, a bar on a terminal if the measurement takes over two seconds.
        resume: the result of an interrupted call (`MeasurementInterrupted.partial`, possibly saved and loaded). Its
            flips are reused and the others measured. The result is that of an uninterrupted call, up to rounding if
            flips end up in other batches. Model, tokens, options, versions and device must be those of the
            interrupted call, and f the same program; `batch_size`, `memory_budget` and `mesh` may differ. An
            interrupted estimate keeps no flips, and begins again.

    Returns:
        A `FlipSensitivity`: norms, positions and symbols of the flips, statistics, which engine ran and why.

    Warns:
        DurationWarning: before a measurement that will take more than half a minute, with about how long, unless
            `progress` is a function or False.

        PrecisionWarning: if the input is longer than the length up to which the model is exact in its dtype
            (`model.exact_length`), or if a jaxsens transformer's attention scores are too large for its dtype: the
            largest score times eps is above 1, a factor of e between attention weights. Use float64, or a higher
            temperature.

        UnchangedWarning: if nothing that is measured changed under any flip, of a model that is no jaxsens transformer;
            it says the likely reasons. For measures other than norms, only if the outputs of a few flips are unchanged.

        EstimateWarning: if the median error of a first-order estimate, on its random sample, is above 30 %.

    Raises:
        MeasurementInterrupted: on Ctrl-C, with the finished flips, including norms that are not finite.
        InputError: naming each unusable argument and the remedy; also for an f that does not return one finite number
            for the unflipped output; for a model whose output is not finite, differs
            between two identical calls, is not a vector, or has a size that depends on n; for a model that indexes
            beyond an array under any flip (`jax.experimental.checkify`), which JAX would clamp; for a model that
            gives another value when a few of the flips are measured once more, alone; and for a partial result of
            another call, naming all differences.
    """
    partial = check_resumable(resume)
    subject = measurable(model)
    with collecting("flip_sensitivity") as problems:
        words, subject = checked_input(subject, tokens, readout, problems)
        wanted = Wanted(alphabet_size, symbols, positions, flips, candidates, groups)
        selection = select(wanted, subject, words, problems)
        check_measuring(norm, outputs, engine, batch_size, memory_budget, mesh, problems, (NAME,), MEASURES)
        estimation = Estimation(sketch, verify, seed)
        check_estimation(engine, norm, scalar, change, estimation, problems)
        check_functions(scalar, change, norm, outputs, problems)
        threshold = _checked_threshold(threshold, norm, problems)
        inputs.progress(progress, 2, PROGRESS, problems)
    counted = _check_size(subject, words, selection, engine)
    chosen = subject.chosen_outputs(outputs) if scalar is None and change is None else None
    name = engine if partial is None else partial.engine.name  # a result is completed as it was begun
    edit, wished = selection.edit, (name, norm, chosen, words.shape[1], scalar, change, selection.edit)
    tell = _telling_duration(progress, words.shape, counted, wished)
    with numerics(subject.dtype):
        subject, dtype = checked_output(subject, words, chosen, norm, edit, threshold, tell)
        runner, choice = choose(subject, *wished)
        runner = dataclasses.replace(runner, threshold=threshold)
        output = _warn_of_rounding(subject, words, runner)
        listed = selection.flips(words)
        told = check_reads(subject, words, listed, edit)
        choice = choice if told is None else dataclasses.replace(choice, why=f"{choice.why}; {told}")
        asked = _asked(subject, words, listed, engine, (scalar, change), selection)
        call = _described(subject, words, selection, listed, runner, dtype, asked, (model, output))
        devices = placement.Placement.over(mesh, batch_size, memory_budget)
        _agree(devices, words, asked, norm, threshold, chosen, estimation, partial is None)
        if isinstance(runner, FirstOrderEngine):
            return _estimated(subject, words, listed, call, runner, estimation, partial, devices, progress)
        found = _measured(subject, words, listed, edit, call, runner, choice, partial, devices, progress)
    warn_if_unresolved(found, stacklevel=4)
    return found


def _telling_duration(
    progress: Any, shape: tuple[int, ...], flips: int, wished: tuple[Any, ...]
) -> Callable[[Measurable], None]:
    """Returns what is called with the model before it is run, and warns if the flips will take long; unless the caller
    follows the progress, or wants nothing of it. `wished` are the arguments of `choose` but the first."""

    def tell(measured: Measurable) -> None:
        if progress is None or progress is True:
            warn_if_long(lambda: choose(measured, *wished)[0], measured, shape, flips, stacklevel=5)

    return tell


def _agree(devices: placement.Placement, words: np.ndarray, *asked: Any) -> None:
    """Has the processes of a distributed job compare what they were asked to measure."""
    if devices.group is not None:
        devices.agree((words.shape, words.tobytes(), *asked))


def _checked_threshold(threshold: Any, norm: Any, problems: Problems) -> float:
    """Returns the threshold of a decision; 0 after an error."""
    if not inputs.is_real(threshold) or not np.isfinite(threshold):
        problems.add("threshold", threshold, "a finite number")
        return 0.0
    if threshold and norm != DECISION:
        problems.add("threshold", threshold, f'with norm="{DECISION}" only; leave it out')
    return float(threshold)


def _warn_of_rounding(subject: Measurable, words: np.ndarray, runner: Engine) -> np.ndarray:
    """Warns if the input is too long for a model that promises to be exact, or the scores too large for the dtype.
    Returns the output on the first input.

    Raises:
        InputError: if the output on one of the inputs is not finite.
    """
    blurred, output = checked_scores(subject, words, runner.widens)
    said = beyond_precision(subject, words.shape[1]) or blurred
    if said is not None:
        warnings.warn(said, PrecisionWarning, stacklevel=4)
    return called_alone(subject, words[0]) if output is None else output


def _asked(
    subject: Measurable,
    words: np.ndarray,
    flips: Flips,
    engine: str,
    functions: tuple[Scalar | None, ChangeFunction | None],
    selection: Selection,
) -> AskedArguments:
    """Returns the arguments that no other field of the result has. It runs `functions`, which are `scalar` and
    `change`, on the output of every input.

    Raises:
        InputError: for a function that does not give one finite number.
    """
    scalar, change = (
        None if function is None else checked_function(argument, subject, words, function)
        for argument, function in zip(FUNCTIONS, functions, strict=True)
    )
    weights = weights_of(subject)
    return AskedArguments(
        model=fingerprint(subject, words.shape[1], weights),
        weights=weights,
        engine=engine,
        symbols=selection.symbols,
        positions=selection.positions,
        candidates=selection.candidates,
        groups=selection.groups,
        sample=selection.drawn,
        flips=tuple(np.bincount(flips.inputs, minlength=len(words)).tolist()),
        scalar=scalar,
        change=change,
    )


def _described(
    subject: Measurable,
    words: np.ndarray,
    selection: Selection,
    flips: Flips,
    runner: Engine,
    dtype: str,
    asked: AskedArguments,
    called: tuple[Any, np.ndarray],
) -> dict[str, Any]:
    """Returns the fields of a result that say what was measured. `resume=` requires them to be equal. `called` is the
    model as it was given, and its output on the first input."""
    return {
        **premises(*called, runner, len(words)),
        "tokens": words,
        "alphabet": selection.alphabet,
        "population": flips.population,
        "populations": tuple(flips.populations.tolist()),
        "readout": subject.readout,
        "norm": _measured_by(runner),
        "outputs": runner.outputs,
        "dtype": dtype,
        "versions": versions(),
        "asked": asked,
        "names": _names(subject, words, flips),
        "joint": flips.joint,
        "copies": selection.edit.copies,
        "threshold": runner.threshold,
    }


def _names(subject: Measurable, words: np.ndarray, flips: Flips) -> dict[int, str] | None:
    """Returns how to write every symbol of the inputs and flips; None for a model that knows numbers only."""
    if subject.token_names is None:
        return None
    inserted = flips.symbols if flips.joint is None else flips.joint.insertions
    ids = [one for one in np.union1d(words, inserted).tolist() if one != DELETED]
    return dict(zip(ids, subject.token_names(ids), strict=True))


def _measured_by(runner: Engine) -> str:
    """Returns what a result calls its norm."""
    functions = zip(FUNCTIONS, (runner.scalar, runner.change), strict=True)
    return next((argument.name for argument, given in functions if given is not None), runner.norm)


def _measured(
    subject: Measurable,
    words: np.ndarray,
    flips: Flips,
    edit: Edit,
    call: dict[str, Any],
    runner: Engine,
    choice: EngineChoice,
    partial: FlipSensitivity | None,
    devices: placement.Placement,
    progress: Callable[[int, int], object] | bool | None,
) -> FlipSensitivity:
    """Returns the result on all flips, reusing those of `partial` and measuring the others.

    Raises:
        MeasurementInterrupted: on Ctrl-C, with the finished flips.
    """
    known = np.zeros(0, int) if partial is None else taken_over(partial, call, flips)
    begun = _Begun(flips, call, choice, partial, known)
    rest, so_far = begun.rest, placement.Finished()
    parameters = jax.tree.map(jnp.asarray, subject.parameters)
    if flips.joint is not None:
        parameters = (
            parameters,
            jnp.asarray(flips.joint.members(words.shape[1])),
            jnp.asarray(flips.joint.insertions),
        )
    first, second = flips.edits
    try:
        with handed_over(lambda: begun.unfinished(so_far)):
            with stopping.noting(signal.SIGINT), telling(progress) as told:
                values, elsewhere = placement.measure(
                    runner,
                    parameters,
                    words,
                    flips.inputs[rest],
                    first[rest],
                    second[rest],
                    devices,
                    _counting_from(len(known), told),
                    output_doubts(subject, words),
                    so_far,
                )
            values = begun.with_known(values)
            check_finite(values[:, 0], flips.positions, call["norm"])
            values, elsewhere = _refined(runner, subject, words, flips, edit, values, elsewhere)
    except KeyboardInterrupt as stop:
        number = getattr(stop, "signal", signal.SIGINT)
        raise MeasurementInterrupted(begun.unfinished(so_far), number) from stop
    return begun.result(values, np.ones(len(flips), bool), elsewhere)


@dataclasses.dataclass(frozen=True)
class _Begun:
    """A measurement of flips that has begun: what its result has besides values.

    Attributes:
        flips: all flips.
        call: the fields that are known before anything is measured.
        choice: the engine and why.
        partial: the result of the interrupted call that is completed, or None.
        known: which flips that result holds.
    """

    flips: Flips
    call: dict[str, Any]
    choice: EngineChoice
    partial: FlipSensitivity | None
    known: Int[np.ndarray, " known"]

    @property
    def rest(self) -> Int[np.ndarray, " rest"]:
        """The flips that are not known."""
        return np.delete(np.arange(len(self.flips)), self.known)

    def with_known(self, values: Float[np.ndarray, "rest 2"]) -> Float[np.ndarray, "flips 2"]:
        """Returns the values of all flips, from those of the rest."""
        if self.partial is None:
            return values
        before = np.stack([self.partial.values, self.partial.known_resolution], axis=1)
        return merged(self.known, before, self.rest, values)

    def result(
        self,
        values: Float[np.ndarray, "flips 2"],
        finished: Bool[np.ndarray, " flips"],
        elsewhere: dict[str, int],
    ) -> FlipSensitivity:
        """Returns the result on the finished flips."""
        flips, choice = self.flips, self.choice if self.partial is None else self.partial.engine
        values, resolution = values[finished].T
        return FlipSensitivity(
            norms=np.abs(values),
            resolution=resolution,
            changes=values if self.call["norm"] in SIGNED else None,
            inputs=flips.inputs[finished],
            positions=flips.positions[finished],
            symbols=flips.symbols[finished],
            insertion=None if flips.insertion is None else flips.insertion[finished],
            engine=choice.after(elsewhere, len(flips)),
            **self.call,
        )

    def unfinished(self, so_far: placement.Finished) -> FlipSensitivity:
        """Returns the partial result. It has never all flips: when all are measured, they are not yet checked, and the
        last is left out, so that nobody takes it for whole."""
        found, rest, finished = so_far.copy(), self.rest, np.ones(len(self.flips), bool)
        nothing = np.full((len(rest), 2), np.nan, np.float32), np.zeros(len(rest), bool)
        values, done = nothing if found.values is None or found.done is None else (found.values, found.done)
        finished[rest] = done
        finished[-1:] &= not finished.all()
        return self.result(self.with_known(values), finished, found.elsewhere)


def _refined(
    runner: Engine,
    subject: Measurable,
    words: np.ndarray,
    flips: Flips,
    edit: Edit,
    values: Float[np.ndarray, "flips 2"],
    elsewhere: dict[str, int],
) -> tuple[Float[np.ndarray, "flips 2"], dict[str, int]]:
    """Returns the values with those of `refined` flips in their place, and the counts with theirs.

    Before, it rejects a model that was measured wrongly in batches; after, it warns if nothing changed at all. A
    jaxsens transformer is neither called nor warned of: with hard attention, exact zeros are what is measured.
    """
    moved = check_alone(subject, words, flips, edit, values[:, 0], runner)
    with stopping.noting(signal.SIGINT):
        flips_found, found = refined(runner, subject, words, flips, edit, values)
    if len(flips_found):
        values, elsewhere = values.astype(np.float64), {**elsewhere, HOW: len(flips_found)}
        values[flips_found] = found
    if subject.config is None and not np.any(values[:, 0]):
        warn_of_no_change(len(values), _measured_by(runner), moved, stacklevel=6)
    return values, elsewhere


def _estimated(
    subject: Measurable,
    words: np.ndarray,
    flips: Flips,
    call: dict[str, Any],
    runner: FirstOrderEngine,
    asked: Estimation,
    partial: FlipSensitivity | None,
    devices: placement.Placement,
    progress: Callable[[int, int], object] | bool | None,
) -> FlipSensitivity:
    """Returns the result of the first-order engine. An interrupted estimate keeps nothing: it is begun again.

    Raises:
        MeasurementInterrupted: on Ctrl-C, without flips.
    """
    if partial is not None:
        taken_over(partial, call, flips)
    columns = {name: getattr(flips, name) for name in ("inputs", "positions", "symbols")}
    try:
        with stopping.noting(signal.SIGINT), telling(progress) as told:
            values = estimated(runner, subject, words, flips, asked, devices, told)
            check_estimates_finite(values, flips.positions)
            stratum = strata(np.abs(values), asked.verify, asked.seed)
            chosen = np.flatnonzero(stratum)
            exact, compared, how = verified(runner, subject, words, flips, chosen, asked, devices, None)
    except KeyboardInterrupt as stop:
        nothing = {name: column[:0] for name, column in columns.items()}
        engine = EngineChoice(NAME, "asked for; interrupted, begin it again")
        empty = FlipSensitivity(norms=np.zeros(0), engine=engine, **nothing, **call)
        raise MeasurementInterrupted(empty, getattr(stop, "signal", signal.SIGINT)) from stop
    known, changes = np.full(len(flips), np.nan), values.copy()
    known[chosen], changes[chosen] = compared, exact
    result = FlipSensitivity(
        norms=np.abs(changes),
        changes=changes if call["norm"] in SIGNED else None,
        engine=EngineChoice(NAME, f"asked for; {len(chosen)} of {len(flips)} flips verified by {how}"),
        estimated=Estimated(values, stratum, known, asked.sketch),
        **columns,
        **call,
    )
    warn_if_far(result, subject, stacklevel=5)
    return result


def _counting_from(known: int, progress: placement.Progress | None) -> placement.Progress | None:
    """Returns the progress function over all flips, of which `known` are done."""
    return progress and (lambda done, total: progress(known + done, known + total))


_PREPARED_BYTES = 160
"""Bytes for each number of an input's rows that the difference engine prepares, in float64 and rounded, with the tables
of positions: 163 to 230 were measured at one layer."""


def _check_size(subject: Measurable, words: np.ndarray, selection: Selection, engine: str) -> int:
    """Returns the number of flips, after rejecting more than fit in this machine's memory, before they are listed.

    Raises:
        InputError: with the bytes that the flips take.
    """
    counted = selection.entries(words)
    needed = counted * FLIP_BYTES + words.size * TOKEN_BYTES
    if subject.config is not None:
        needed += activation_bytes(subject.config, words.shape[1])
        # For a float32 model no other engine resolves inputs so long that this matters.
        if engine == "difference" or (engine == "auto" and subject.config.dtype == "float32"):
            needed += words.shape[1] * subject.config.width * _PREPARED_BYTES
    with collecting("flip_sensitivity") as problems:
        what = f"a measurement of {counted} flips"
        remedy = FEWER_FLIPS if 2 * counted * FLIP_BYTES > needed else SHORTER
        check_fits("tokens", f"shape {words.shape}", needed, what, remedy, problems)
    return counted
