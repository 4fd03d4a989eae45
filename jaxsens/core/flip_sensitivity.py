"""`jaxsens.flip_sensitivity`: measures the sensitivity of a model to every single-symbol flip of an input."""

from __future__ import annotations

import dataclasses
import functools
import signal
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from jaxtyping import Bool, Int

from jaxsens.core import checks
from jaxsens.core.base import inputs, stopping
from jaxsens.core.base.errors import FLIP_BYTES, TOKEN_BYTES, PrecisionWarning, check_fits, collecting
from jaxsens.core.base.inputs import FEWER_FLIPS, SHORTER
from jaxsens.core.base.programs import as_arrays, numerics, versions
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.choose import PlannedRun, choose, of_process, warn_if_long
from jaxsens.core.engines.options import AskedEngine, Auto, Difference
from jaxsens.core.engines.request import Request, Valid
from jaxsens.core.engines.vmap import compiled_output
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import as_inputs, as_model, as_texts, encoded, name_of, pieces_of
from jaxsens.core.models.transformer.module import activation_bytes
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.placement.run import PROGRESS, Finished, Measuring, Progress, progress_of
from jaxsens.core.results import rounding
from jaxsens.core.results.measured import MeasuredFlips, Provenance, Remaining, RequestRecord, requested
from jaxsens.core.results.result import FlipSensitivity, MeasurementInterrupted, check_texts, each_text


class CallOptions(TypedDict, total=False):
    """The arguments of `flip_sensitivity` that have names alone."""

    readout: int | Literal["auto", "last", "mean"] | None
    engine: AskedEngine | Any
    placement: Placement | None
    progress: Callable[[int, int], object] | bool | None


@overload
def flip_sensitivity(  # pyright: ignore[reportOverlappingOverload] - a list of texts is no array
    model: Any, tokens: list[str], flips: Any = ..., measure: Any = ..., **options: Unpack[CallOptions]
) -> list[FlipSensitivity]: ...
@overload
def flip_sensitivity(
    model: Any, tokens: Any, flips: Any = ..., measure: Any = ..., **options: Unpack[CallOptions]
) -> FlipSensitivity: ...
@naming_arguments
def flip_sensitivity(
    model: Any,
    tokens: Any,
    flips: Flips | Any = None,
    measure: Measure | Any = "l2",
    *,
    readout: int | Literal["auto", "last", "mean"] | None = "auto",
    engine: AskedEngine | Any = "auto",
    placement: Placement | None = None,
    progress: Callable[[int, int], object] | bool | None = None,
) -> FlipSensitivity | list[FlipSensitivity]:
    """Measures ||y_r(x) - y_r(x')||, or another distance, for every x' that differs from x in one symbol.

    Arithmetic is in the model's dtype; float64 parameters are used in float64 regardless of JAX's global setting.
    Matrix products have `highest` precision: JAX's defaults on GPUs (TF32) and TPUs (bfloat16) keep only two to three
    digits, and a flip's effect is O(1/n). Programs are compiled once per shape, so a second input of the same length
    starts immediately. Memory stays within the budget at any n.

    >>> import jax.numpy as jnp
    >>> flip_sensitivity(lambda tokens: tokens.sum() / 4.0, jnp.array([0, 1, 1, 0]), 2).max
    0.25

    Args:
        model: a jaxsens model, a Flax NNX module, a Linen module with variables (bound, or `(module, variables)`),
            an Equinox module, a pair `(function, parameters)`, which is called as function(parameters, tokens), or any
            callable from tokens (n,) to an output vector (or number), or to rows (n, d) of which `readout` selects one.
            Reuse function objects: a new function for each call is compiled for each call. The arrays of a pair or a
            module are arguments of the compiled program; those that a function closes over are its constants: a call
            is refused once such a variable is bound to another array, but one that is changed in place is not noticed.
        tokens: integers (n,), or (batch, n) for several inputs of one length; a sample is drawn from the flips of all.
            For a model that encodes text, such as a published one, also a text; or a list of texts, which are measured
            one after another and have a result, and a sample, each.
        flips: what is flipped, and by what: `Substitute`, `Neighbours`, `Mask`, `Delete`, `Insert`, `Repeat` or
            `Pairs`; the name of one; a number k for the symbols 0 .. k - 1; ids, or a mapping of positions to ids
            (`Substitute`). By default the symbols of the model's alphabet, or `Neighbours(8)` for a model that encodes
            text. `partial.remaining` of an interrupted call stands for the flips that it did not finish.
        measure: what is measured of the change in the output: `L2`, `L1`, `LInf`, `Cosine`, `KL`, `Decision`,
            `Function`, `Comparison` or `LogProbability`; or the name of one. All keep the digits of a small change.
        readout: where the model reads its output: a 0-based position (0: a leading [CLS] symbol), "last", "mean" over
            all positions, or None if unspecified. It selects the row if the model returns rows (n, d), and is then
            required. If the model returns a vector, it only sets the position not flipped by default: the last for
            "auto", and none for "mean" and None. For a jaxsens model, "auto" is the readout of its config.
        engine: how: `Vmap`, `Incremental`, `Difference`, or one that a package brings, as `FirstOrder`; the name of
            one; or "auto", the best exact one of the first three.
        placement: on which devices, in which batches, within which memory (`Placement`). Results depend on it only by
            rounding.
        progress: a function called with (flips done, flips in all) about once a second; True for a bar on standard
            error, False for nothing. By default, a bar on a terminal if the measurement takes over two seconds. Each of
            several texts is followed by itself.

    Returns:
        A `FlipSensitivity`: values and resolutions of the flips, statistics, which engine ran and why; a list of them
        for a list of texts, also of one. For `partial.remaining` it is again a partial result, that of these flips:
        `partial.joined(rest)` is that of an uninterrupted call, bit for bit except where flips end up in other batches,
        whose products may be summed in another order. Model, tokens, options, versions and device must be those of the
        interrupted call; `placement` may differ. An interrupted estimate keeps no flips, and begins again.

    Warns:
        DurationWarning: before a measurement that will take more than half a minute, with about how long, unless
            `progress` is a function or False.
        PrecisionWarning: if the input is longer than the length up to which the model is exact in its dtype
            (`model.exact_length`), or if a jaxsens transformer's attention scores are too large for its dtype: the
            largest score times eps is above 1, a factor of e between attention weights. Use float64, or a higher
            temperature. Also if the changes of some flips are smaller than what the arithmetic resolves.
        EstimateWarning: if estimates are far from the flips that were measured.
        UnchangedWarning: if the change is exactly 0 under every flip, with the likely reasons.

    Raises:
        InputError: for unusable arguments, all of them together, before any long work; for a model that cannot be
            measured; for an engine that does not serve what is asked (`EngineRefusal`); and for outputs that are not
            finite.
        MeasurementInterrupted: on Ctrl-C, with the finished flips.
    """
    texts = as_texts(tokens)
    tokens = encoded(model, texts)
    adapted, partial = as_model(model), flips.partial if isinstance(flips, Remaining) else None
    request = Request(flips if partial is None else partial.asked.flips, measure, engine, readout)
    with collecting("flip_sensitivity") as problems:
        where = checked_placement(placement, problems, adapted.mesh)
        inputs.progress(progress, 2, PROGRESS, problems)
        if tokens is not texts and isinstance(texts, list | tuple):
            check_texts(tokens, adapted, request, problems)
            options = CallOptions(readout=readout, engine=engine, placement=placement, progress=progress)
            return each_text(lambda text: flip_sensitivity(model, text, flips, measure, **options), texts)
        words = as_inputs(adapted, tokens, problems)
        valid = request.validated(adapted, words, problems)
    about = name_of(model), pieces_of(model, texts, words)
    with progress_of(progress) as report, numerics(adapted.dtype):
        return _measured(valid, (where, partial, *about), report, progress is None or progress is True)


def compile_ahead(
    model: Any,
    tokens: Int[np.ndarray, "batch n"],
    flips: Flips,
    measure: Measure,
    engine: AskedEngine,
    placement: Placement | None,
) -> None:
    """Compiles what `flip_sensitivity` of these arguments runs, as far as is known before a flip is measured, in any
    thread: it warns of nothing, and runs the unflipped inputs alone. Estimates are not compiled for."""
    adapted, request = as_model(model), Request(flips, measure, engine, "auto")
    with collecting("flip_sensitivity") as problems:
        where = checked_placement(placement, problems, adapted.mesh)
        valid = request.validated(adapted, as_inputs(adapted, tokens, problems), problems)
    with numerics(adapted.dtype):
        call = _planned(valid, (where, None, None, None), False)
        if call.engine.exact and where.group is None:
            _values(call, None, compiles=True)


@dataclasses.dataclass
class _Call:
    """What a call measures, and how far it is.

    Attributes:
        run: what runs.
        engine: the options of its engine.
        output: the shape and the dtype of the model's output.
        tokens: the inputs.
        flips: all flips.
        partial: the result that it completes; None for a call of its own.
        name: the model's name.
        pieces: what stands for each symbol in a text; None if the model encodes none.
        finished: the values so far.
        unflipped: the outputs that are measured of the first input, when they are known.
    """

    run: PlannedRun
    engine: AskedEngine
    output: tuple[checks.Shape, str]
    tokens: Int[np.ndarray, "batch n"]
    flips: FlipTable
    placement: Placement
    partial: MeasuredFlips | None
    name: str | None
    pieces: tuple[tuple[str, ...], ...] | None
    finished: Finished = dataclasses.field(default_factory=Finished)
    unflipped: np.ndarray | None = None

    @functools.cached_property
    def request(self) -> RequestRecord:
        """What is recorded of the request. It holds digests, which take longer than a short input."""
        options = self.run.kind, self.run.engine.measure, self.engine
        return requested(self.run.model, self.tokens, self.flips, options, self.output)

    @property
    def empty(self) -> FlipSensitivity:
        """The result without values."""
        nothing, measure, scale = np.full(len(self.flips), np.nan), self.run.engine.measure, None
        if self.unflipped is not None and measure.unflipped is not None:
            scale = checks.unflipped_value(measure, self.unflipped)
        origin = Provenance(self.output[1], versions(), self.name, scale)
        measured = nothing, nothing, self.flips, self.tokens, self.request, self.run.choice, origin
        names = self.run.model.names_of(self.tokens, self.flips.symbols)
        return FlipSensitivity(*measured, names=names, pieces=self.pieces)

    @functools.cached_property
    def remaining(self) -> Int[np.ndarray, " remaining"]:
        """The numbers of the flips to measure."""
        return np.arange(len(self.flips)) if self.partial is None else Remaining(self.partial).of(self.empty)

    def part(self, done: Bool[np.ndarray, " flips"]) -> FlipSensitivity:
        """Returns the result on the flips that are done."""
        chosen, (values, resolution) = np.flatnonzero(done), self.finished.values[done].reshape(-1, 2).T
        return dataclasses.replace(
            self.empty,
            values=values if self.run.engine.measure.signed else np.abs(values),
            resolution=resolution,
            flips=self.flips.part(self.remaining[chosen]),
            engine=self.run.choice.after(self.finished.fallbacks, len(self.flips)),
        )


def _planned(valid: Valid, about: tuple[Any, ...], warns: bool) -> _Call:
    """Returns what is measured: the model is checked, an engine chosen, and flips are listed."""
    (model, selection, measure, engine), (placement, partial, *_) = valid, about
    count, kind, tokens, n = _check_size(valid), selection.kind, selection.tokens, selection.tokens.shape[1]
    model, shape, dtype = checks.traced_model(model, tokens[0], measure, kind.longer)
    output_of = functools.partial(compiled_output, model.apply, model.parameters)
    eps = float(np.finfo(model.dtype).eps)
    measure = measure.prepared(lambda: np.array([*map(output_of, tokens)], float), model.outputs, eps)
    if placement.group is None:  # several processes may have begun with other calls
        before = None if partial is None else partial.asked.engine
        engine = of_process(model, engine, kind, measure, n, before)
    run = choose(model, engine, kind, measure, n, len(tokens), count=count)
    if warns:  # else the caller follows, or wants nothing of it
        warn_if_long(run, count - (0 if partial is None else len(partial)), stacklevel=5)
    checks.check_calls(model, tokens, shape, kind.longer)
    call = _Call(run, engine, (shape, dtype), tokens, selection.flips(), *about)
    if measure.function is not None:
        checks.checked_function(measure, *call.output)
    return call


def _measured(valid: Valid, about: tuple[Any, ...], report: Progress | None, warns: bool) -> FlipSensitivity:
    """Returns the result.

    Raises:
        MeasurementInterrupted: on Ctrl-C, with the finished flips.
    """
    call = _planned(valid, about, warns)
    if call.placement.group is not None:
        tokens = call.tokens
        call.placement.agree((tokens.shape, tokens.tobytes(), call.request, call.partial is None))
    try:
        with stopping.noting(signal.SIGINT):
            result = _values(call, report)
            if result.estimated is None:
                _check(call, result)
    except MeasurementInterrupted:
        raise
    except KeyboardInterrupt as stop:
        done = call.finished.done
        # Never all flips: when all are measured they are not yet checked, and nobody must take them for whole.
        done[-1:] &= not done.all()
        raise MeasurementInterrupted(call.part(done), getattr(stop, "signal", signal.SIGINT)) from None
    if call.engine.exact:
        rounding.warn_if_unresolved(result, stacklevel=5)
    return result


def _values(call: _Call, report: Progress | None, compiles: bool = False) -> FlipSensitivity:
    """Returns the values of flips, exact or estimated. If it only `compiles`, without a warning, there are none."""
    run, flips, placement = call.run, call.flips, call.placement
    model, engine, tokens, bound = run.model, run.engine, call.tokens, None
    some = flips.part(call.remaining)
    if call.engine.exact:
        estimate, parameters = None, as_arrays(model.parameters)
        engine, bound = rounding.rounding_of(engine, model, tokens, flips, parameters, placement)
    else:
        estimate = call.engine.estimate(model, engine.measure, run.n, placement.budget())
        parameters = estimate.first
    passed = rounding.forward_pass(model, tokens, engine, parameters, placement)
    message = rounding.unreliable(model, run.n, passed, engine.widens)
    if message is not None and not compiles:
        warnings.warn(message, PrecisionWarning, stacklevel=5)
    if model.config is None:  # else its vocabulary and its lengths are known
        checks.check_flips(model, tokens, flips, run.kind.longer)
    call.unflipped = passed.output if engine.outputs is None else passed.output[list(engine.outputs)]
    if engine.measure.function is not None:
        checks.unflipped_value(engine.measure, call.unflipped)
    if estimate is not None:
        return estimate.result(call.empty, placement, report, passed.first)
    work = engine, parameters, tokens, some.inputs, some.positions, some.symbols
    Measuring(*work, placement, report, bound, call.finished, passed.first, compiles).numbers()
    return call.part(np.full(len(some), not compiles))


def _check(call: _Call, result: FlipSensitivity) -> None:
    """Rejects a model that was measured wrongly in batches, and warns if nothing changed at all.

    A jaxsens transformer is neither called nor warned of: with hard attention, exact zeros are what is measured.
    """
    model, arguments = call.run.model, (call.tokens, result.flips, call.run.kind.longer)
    checks.check_finite(result.values, result.positions, result.measure)
    moved = checks.check_alone(model, *arguments, result.values, call.run.engine)
    changed = np.any(result.values) or (call.partial is not None and np.any(call.partial.values))
    if model.config is None and len(result) and not changed:
        checks.warn_of_no_change(len(result), result.measure, moved, stacklevel=6)


_PREPARED_BYTES = 160
"""Bytes for each number of an input's rows that the difference engine prepares, in float64 and rounded, with the tables
of positions: 163 to 230 were measured at one layer."""


def _check_size(valid: Valid) -> int:
    """Returns the number of flips, after rejecting more than fit in this machine's memory, before they are listed.

    Raises:
        InputError: with the bytes that the flips take.
    """
    model, selection, _, engine = valid
    tokens, counted = selection.tokens, selection.number()
    table = counted * FLIP_BYTES * selection.kind.row
    needed = table + tokens.size * TOKEN_BYTES
    if model.config is not None:
        needed += activation_bytes(model.config, tokens.shape[1])
        # For a float32 model no other engine resolves inputs so long that this matters.
        of_auto = isinstance(engine, Auto) and model.config.dtype == "float32"
        if of_auto or isinstance(engine, Difference):
            needed += tokens.shape[1] * model.config.width * _PREPARED_BYTES
    what, remedy = f"a measurement of {counted} flips", FEWER_FLIPS if 2 * table > needed else SHORTER
    with collecting("flip_sensitivity") as problems:
        check_fits("tokens", f"shape {tokens.shape}", needed, what, remedy, problems)
    return counted
