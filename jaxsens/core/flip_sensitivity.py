"""`jaxsens.flip_sensitivity`: measures the sensitivity of a model to every single-symbol flip of an input."""

from __future__ import annotations

import dataclasses
import signal
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np
from jaxtyping import Bool

from jaxsens.core.base import inputs, stopping
from jaxsens.core.base.errors import FLIP_BYTES, TOKEN_BYTES, PrecisionWarning, check_fits, collecting
from jaxsens.core.base.inputs import FEWER_FLIPS, SHORTER
from jaxsens.core.base.programs import as_arrays, numerics, versions
from jaxsens.core.base.registry import read
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.checks.check import (
    check_alone,
    check_calls,
    check_finite,
    traced_model,
    warn_of_no_change,
)
from jaxsens.core.checks.functions import unflipped_value
from jaxsens.core.checks.indices import check_flips
from jaxsens.core.choose import PlannedRun, choose, of_process
from jaxsens.core.engines.options import AskedEngine, Auto, Difference
from jaxsens.core.engines.vmap import compiled_output
from jaxsens.core.explain import warn_if_long
from jaxsens.core.flips.flips import Flips
from jaxsens.core.flips.selection import Selection, default_flips, select
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model, as_model, checked_input
from jaxsens.core.models.texts import encoded, pieces_of, with_token
from jaxsens.core.models.transformer.module import activation_bytes
from jaxsens.core.placement.placement import Placement, checked_placement
from jaxsens.core.placement.progress import PROGRESS, progress_of
from jaxsens.core.placement.run import Finished, Measuring, Progress
from jaxsens.core.results.interrupted import MeasurementInterrupted, check_texts, each_text
from jaxsens.core.results.measured import MeasuredFlips, Provenance
from jaxsens.core.results.request import name_of, requested
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.results.resuming import Remaining
from jaxsens.core.results.rounding import (
    beyond_precision,
    forward_pass,
    rounding_of,
    unresolved_scores,
    warn_if_unresolved,
)


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
    texts, tokens = tokens, encoded(model, tokens)
    adapted, partial = as_model(model), flips.partial if isinstance(flips, Remaining) else None
    with collecting("flip_sensitivity") as problems:
        default = default_flips(adapted) if partial is None else partial.asked.flips
        kind = read(Flips, flips, problems) if flips is not None and partial is None else default
        what, how = read(Measure, measure, problems), read(AskedEngine, engine, problems)
        where = checked_placement(placement, problems, adapted.mesh)
        inputs.progress(progress, 2, PROGRESS, problems)
        if tokens is not texts and isinstance(texts, list | tuple):
            check_texts(tokens, adapted, kind, readout, problems)
            options = CallOptions(readout=readout, engine=engine, placement=placement, progress=progress)
            return each_text(lambda text: flip_sensitivity(model, text, flips, measure, **options), texts)
        batch, adapted = checked_input(adapted, tokens, readout, problems)
        selection = None if kind is None else select(kind, adapted, batch, problems)
    if selection is None:
        raise TypeError("unusable flips without an error")
    about = name_of(model), pieces_of(model, texts, batch)
    call = _Call(with_token(model, what), how, where, progress, partial, *about)
    with progress_of(progress) as report:
        return _measured(adapted, selection, call, report)


@dataclasses.dataclass(frozen=True)
class _Call:
    """The arguments of a call, checked.

    Attributes:
        partial: the result that the call completes; None for a call of its own.
        name: the model's name.
        pieces: what stands for each symbol in a text; None if the model encodes none.
    """

    measure: Measure
    engine: AskedEngine
    placement: Placement
    progress: Callable[[int, int], object] | bool | None
    partial: MeasuredFlips | None
    name: str | None
    pieces: tuple[tuple[str, ...], ...] | None


def _measured(model: Model, selection: Selection, call: _Call, report: Progress | None) -> FlipSensitivity:
    """Returns the result on inputs of one length: the model is checked, an engine chosen, flips listed and measured."""
    tokens, kind, partial, placement = selection.tokens, selection.kind, call.partial, call.placement
    count, n = _check_size(model, selection, call.engine), tokens.shape[1]
    with numerics(model.dtype):
        eps = float(np.finfo(model.dtype).eps)
        measure = call.measure.prepared(lambda: _outputs(model, tokens), model.outputs, eps)
        engine = call.engine
        if placement.group is None:  # several processes may have begun with other calls
            before = None if partial is None else partial.asked.engine
            engine = of_process(model, engine, kind, measure, n, before)
        model, shape, dtype = traced_model(model, tokens[0], measure, kind.longer)
        run = choose(model, engine, kind, measure, n, len(tokens), count=count)
        if call.progress is None or call.progress is True:  # else the caller follows, or wants nothing of it
            warn_if_long(run, count - (0 if partial is None else len(partial)), stacklevel=4)
        check_calls(model, tokens, shape, kind.longer)
        flips = selection.flips()
        request = requested(model, tokens, flips, (kind, measure, engine), (shape, dtype))
        placement.agree((tokens.shape, tokens.tobytes(), request, partial is None))
        nothing, origin = np.full(len(flips), np.nan), Provenance(dtype, versions(), call.name)
        names = model.names_of(tokens, flips.symbols)
        measured = nothing, nothing, flips, tokens, request, run.choice, origin
        empty = FlipSensitivity(*measured, names=names, pieces=call.pieces)
        result = _Measurement(run, engine, empty, placement, partial).result(report)
    if engine.exact:
        warn_if_unresolved(result, stacklevel=4)
    return result


def _outputs(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Returns the outputs on the inputs, a row for each."""
    outputs = [compiled_output(model.apply, model.parameters, word) for word in tokens]
    return np.asarray(outputs, np.float64)


@dataclasses.dataclass
class _Measurement:
    """A measurement of all flips, or of those that `partial` lacks: what runs, and the result without values."""

    run: PlannedRun
    engine: AskedEngine
    empty: FlipSensitivity
    placement: Placement
    partial: MeasuredFlips | None
    finished: Finished = dataclasses.field(default_factory=Finished)

    def __post_init__(self) -> None:
        every = np.arange(len(self.empty))
        self.flips = every if self.partial is None else Remaining(self.partial).of(self.empty)

    def result(self, report: Progress | None) -> FlipSensitivity:
        """Runs the engine.

        Raises:
            MeasurementInterrupted: on Ctrl-C, with the finished flips.
        """
        try:
            with stopping.noting(signal.SIGINT):
                return self._checked(self._values(report))
        except MeasurementInterrupted:
            raise
        except KeyboardInterrupt as stop:
            done = self.finished.done
            # Never all flips: when all are measured they are not yet checked, and nobody must take them for whole.
            done[-1:] &= not done.all()
            raise MeasurementInterrupted(self._part(done), getattr(stop, "signal", signal.SIGINT)) from None

    def _values(self, report: Progress | None) -> FlipSensitivity:
        model, empty, engine, placement = self.run.model, self.empty, self.run.engine, self.placement
        tokens, flips, n, rounding = empty.tokens, empty.flips, self.run.n, None
        if self.engine.exact:
            estimate, parameters = None, as_arrays(model.parameters)
            engine, rounding = rounding_of(engine, model, tokens, flips, parameters, placement)
        else:
            estimate = self.engine.estimate(model, engine.measure, n, placement.budget())
            parameters = estimate.first
        passed = forward_pass(model, tokens, engine, parameters, placement)
        message = beyond_precision(model, n) or unresolved_scores(model, n, passed, engine.widens)
        if message is not None:
            warnings.warn(message, PrecisionWarning, stacklevel=6)
        check_flips(model, tokens, flips, empty.asked.flips.longer)
        if engine.measure.unflipped is not None:
            first = passed.output if engine.outputs is None else passed.output[list(engine.outputs)]
            scale = unflipped_value(engine.measure, first)
            self.empty = empty = dataclasses.replace(empty, run=dataclasses.replace(empty.run, scale=scale))
        if estimate is not None:
            return estimate.result(empty, placement, report, passed.first)
        some = flips.part(self.flips)
        work = engine, parameters, tokens, some.inputs, some.positions, some.symbols
        Measuring(*work, placement, report, rounding, self.finished, passed.first).numbers()
        return self._part(np.ones(len(some), bool))

    def _part(self, done: Bool[np.ndarray, " flips"]) -> FlipSensitivity:
        """Returns the result on the flips that are done."""
        chosen, (values, resolution) = np.flatnonzero(done), self.finished.values[done].reshape(-1, 2).T
        return dataclasses.replace(
            self.empty,
            values=values if self.empty.measure.signed else np.abs(values),
            resolution=resolution,
            flips=self.empty.flips.part(self.flips[chosen]),
            engine=self.empty.engine.after(self.finished.fallbacks, len(self.empty)),
        )

    def _checked(self, result: FlipSensitivity) -> FlipSensitivity:
        """Rejects a model that was measured wrongly in batches, and warns if nothing changed at all.

        A jaxsens transformer is neither called nor warned of: with hard attention, exact zeros are what is measured.
        """
        model, partial = self.run.model, self.partial
        if result.estimated is not None:
            return result
        check_finite(result.values, result.positions, result.measure)
        arguments = result.tokens, result.flips, result.asked.flips.longer
        moved = check_alone(model, *arguments, result.values, self.run.engine)
        changed = np.any(result.values) or (partial is not None and np.any(partial.values))
        if model.config is None and len(result) and not changed:
            warn_of_no_change(len(result), result.measure, moved, stacklevel=7)
        return result


_PREPARED_BYTES = 160
"""Bytes for each number of an input's rows that the difference engine prepares, in float64 and rounded, with the tables
of positions: 163 to 230 were measured at one layer."""


def _check_size(model: Model, selection: Selection, engine: AskedEngine) -> int:
    """Returns the number of flips, after rejecting more than fit in this machine's memory, before they are listed.

    Raises:
        InputError: with the bytes that the flips take.
    """
    tokens, counted = selection.tokens, selection.number()
    table = counted * FLIP_BYTES * selection.kind.row
    needed = table + tokens.size * TOKEN_BYTES
    if model.config is not None:
        needed += activation_bytes(model.config, tokens.shape[1])
        # For a float32 model no other engine resolves inputs so long that this matters.
        of_auto = isinstance(engine, Auto) and model.config.dtype == "float32"
        if of_auto or isinstance(engine, Difference):
            needed += tokens.shape[1] * model.config.width * _PREPARED_BYTES
    with collecting("flip_sensitivity") as problems:
        what = f"a measurement of {counted} flips"
        remedy = FEWER_FLIPS if 2 * table > needed else SHORTER
        check_fits("tokens", f"shape {tokens.shape}", needed, what, remedy, problems)
    return counted
