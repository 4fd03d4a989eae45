"""Estimates the effect of every flip, in blocks of combinations of the outputs, and measures some of them exactly."""

from __future__ import annotations

import dataclasses
import signal
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import EstimateWarning, InputError, check_fits, collecting
from jaxsens.core.base.programs import numerics
from jaxsens.core.choose import choose
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.engines.options import Auto
from jaxsens.core.engines.vmap import OutputEngine, VmapEngine, compiled_output
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.models.adapters import Model
from jaxsens.core.placement import placement
from jaxsens.core.placement.program import Ready
from jaxsens.core.placement.run import Measuring, Progress
from jaxsens.core.results.result import FlipSensitivity, MeasurementInterrupted
from jaxsens.core.results.statistics import RANDOM, TOP, Estimated
from jaxsens.first_order.engine import FirstOrderEngine
from jaxsens.first_order.estimate import (
    abstract_estimate,
    block_size,
    combination_count,
    combinations,
    output_size,
    sketch_of,
    strata,
    table_bytes,
    with_parameters_in,
)
from jaxsens.first_order.options import NAME, EstimateOptions

REMEDY = "measure a function of the output, or fewer flips"

OUTPUTS_AT_ONCE = 2**22
"""Changes of outputs from which a distance or a change function is computed at once."""

FAR_OFF = 0.3
"""A median error of the estimate above this raises an `EstimateWarning`."""

FAR_OFF_90 = 1.0
"""So does a 90 % quantile of it above this: the median hides a tenth of flips of which an estimate says nothing. Above
sigmoid attention whose rows are not normalised, scores grow with n, and that tenth is off by several times itself."""

ROUNDINGS = 64
"""The roundings, of the sum of all outputs' sizes, by which two outputs in float64 may differ for no reason."""


class Blocks:
    """The combinations of an estimate, in blocks of equal size, for inputs of length n, within half a memory budget.

    Attributes:
        model: the model, with parameters in float32 at least: sums over n rows would lose the digits of narrower ones.
        parameters: those, on the device.
        outputs: the number of outputs.
        count: the number of combinations.
        each: which of them each block has; the last may exceed them.
        first: the engine's parameters for the first block.

    Raises:
        EngineRefusal: if the model, or the scalar function, has no derivative.
    """

    def __init__(
        self, engine: FirstOrderEngine, model: Model, n: int, asked: EstimateOptions, budget: int
    ) -> None:
        self.engine, self.asked, self.given = engine, asked, model
        self.model = with_parameters_in(model, n, np.float32)
        self.parameters = jax.tree.map(jnp.asarray, self.model.parameters)
        self.outputs = output_size(self.model, n)
        self.count = combination_count(asked, engine, self.outputs)
        size = block_size(engine, self.parameters, n, self.count, budget)
        self.each = tuple(range(first, first + size) for first in range(0, self.count, size))
        self.first = self.pair(0)
        abstract_estimate(engine, self.first, n)

    def pair(self, k: int) -> tuple[Any, Any]:
        """Returns the engine's parameters for block k."""
        rows = combinations(self.asked, self.engine, self.outputs, self.each[k])
        return self.parameters, jax.device_put(np.asarray(rows, jnp.result_type(float)))

    def result(
        self,
        whole: FlipSensitivity,
        devices: placement.Placement,
        progress: Progress | None,
        ready: Ready | None,
    ) -> FlipSensitivity:
        """Returns the estimates, with some flips measured. An interrupted estimate keeps nothing: it is begun again.

        Raises:
            MeasurementInterrupted: on Ctrl-C, without flips.
        """
        flips, words, asked = whole.flips, whole.tokens, self.asked
        try:
            with stopping.noting(signal.SIGINT):
                values = estimated(self, words, flips, devices, progress, ready)
                check_estimates_finite(values, flips.positions[:, 0])
                stratum = strata(np.abs(values), asked.verify, asked.seed)
                chosen = np.flatnonzero(stratum)
                exact, compared, how, size = verified(
                    self.engine, self.given, words, flips, chosen, asked, devices
                )
        except KeyboardInterrupt as stop:
            nothing = np.zeros(0)
            empty = dataclasses.replace(
                whole,
                values=nothing,
                resolution=nothing,
                flips=flips.part(slice(0)),
                engine=EngineChoice(NAME, "asked for; interrupted, begin it again"),
            )
            raise MeasurementInterrupted(empty, getattr(stop, "signal", signal.SIGINT)) from None
        sketch = sketch_of(asked, self.engine, self.outputs)
        of = "" if sketch is None else f"{sketch} random combinations of the outputs; "
        known, found = np.full(len(flips), np.nan), values.copy()
        known[chosen], found[chosen] = compared, exact
        result = dataclasses.replace(
            whole,
            values=found if whole.measure.signed else np.abs(found),
            resolution=np.zeros(len(flips)),
            engine=EngineChoice(
                NAME, f"asked for; {of}{len(chosen)} of {len(flips)} flips verified by {how}"
            ),
            estimated=Estimated(values, stratum, known, sketch),
        )
        warn_if_far(result, self.given, size, stacklevel=7)
        return result


def estimated(
    blocks: Blocks,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    devices: placement.Placement,
    progress: Progress | None = None,
    ready: Ready | None = None,
) -> Float[np.ndarray, " flips"]:
    """Returns the estimated measure of each flip, in float64; with a scalar or a change function, its signed value.

    Norms are accumulated block by block, so that memory does not grow with the outputs. Distances and change functions
    are computed from the estimated changes of all outputs. `ready` is the first input as it is prepared for the first
    block, if it is at hand.

    Raises:
        InputError: if the changes of all outputs are needed and do not fit in memory.
        KeyboardInterrupt: on Ctrl-C; what was estimated is then lost.
    """
    engine, count = blocks.engine, blocks.count
    together = engine.scalar is None and not engine.of_norm
    if together:
        with collecting("flip_sensitivity") as problems:
            what = f"the estimated change of {count} outputs by {len(flips)} flips"
            check_fits("measure", engine.measure, table_bytes(len(flips), count), what, REMEDY, problems)
    total = np.zeros((len(flips), count) if together else len(flips))
    for k, block in enumerate(blocks.each):
        pair, first = (blocks.pair(k), None) if k else (blocks.first, ready)

        def told(done: int, total: int, k: int = k) -> None:
            if progress:  # in flips of all blocks together
                progress((k * total + done) // len(blocks.each), total)

        where = flips.inputs, flips.positions, flips.symbols
        measuring = Measuring(engine, pair, words, *where, devices, progress and told, first=first)
        changes = measuring.changes()[0].astype(np.float64)
        if engine.scalar is not None:
            return changes[:, 0]
        if together:
            total[:, block.start : block.stop] = changes[:, : count - block.start]
        else:
            total = engine.measure.combined(total, engine.measure.of_array(changes))
    return _of_changes(engine, blocks.model, words, flips, total) if together else total


def _of_changes(
    engine: FirstOrderEngine,
    model: Model,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    changes: Float[np.ndarray, "flips chosen"],
) -> Float[np.ndarray, " flips"]:
    """Returns the measure or the value of the change function of every flip, from the estimated changes of outputs."""
    found, at_once = np.empty(len(flips)), max(1, OUTPUTS_AT_ONCE // changes.shape[1])
    for b in np.unique(flips.inputs):
        y = jnp.asarray(compiled_output(model.apply, model.parameters, words[b]))
        own = np.flatnonzero(flips.inputs == b)
        for chosen in np.split(own, range(at_once, len(own), at_once)):
            dy = jnp.asarray(changes[chosen], y.dtype)
            old, new = engine.chosen(y), engine.chosen(dy)
            found[chosen] = engine.measure.of_changes(old, new, jnp.zeros(len(dy), y.dtype))[0]
    return found


def check_estimates_finite(
    estimates: Float[np.ndarray, " flips"], positions: Int[np.ndarray, " flips"]
) -> None:
    """Rejects first-order estimates that are not finite: derivatives overflow where the model's output, which was
    checked before, does not."""
    bad = ~np.isfinite(estimates)
    if bad.any():
        raise InputError.of(
            "engine",
            NAME,
            f"its estimate is not finite for {int(bad.sum())} of {len(estimates)} flips, first "
            f"at position {int(positions[np.argmax(bad)])}, while the model's output is finite: the estimate "
            'overflows, not the model. Use dtype="float64", engine="auto", which measures every flip, or a model with '
            "layer normalisation",
        )


def verified(
    engine: FirstOrderEngine,
    model: Model,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    chosen: Int[np.ndarray, " verified"],
    asked: EstimateOptions,
    devices: placement.Placement,
) -> tuple[Float[np.ndarray, " verified"], Float[np.ndarray, " verified"], str, float | None]:
    """Measures the flips with the given indices exactly.

    Returns:
        The norms; with a scalar or a change function, its signed values. The same in the combinations that were
        estimated, which differ with a sketch. How they were measured. And the largest sum of all outputs' sizes on any
        input; None if outputs themselves were not computed.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    n, norm, size = words.shape[1], engine.measure, None
    wide = with_parameters_in(model, n, np.float64)
    where = [flips.inputs[chosen], flips.positions[chosen], flips.symbols[chosen]]
    inputs, which = np.unique(where[0], return_inverse=True)
    with numerics(wide.dtype):
        run = choose(wide, Auto(1), Substitute(), norm, n, len(inputs), count=len(chosen))
    runner, how = run.engine, f"{run.choice.name} in {wide.dtype}"
    order, passes = np.arange(len(chosen)), engine.of_norm and isinstance(runner, VmapEngine)
    # A norm is taken of the changes of combinations, which already are those of the chosen outputs.
    if passes:
        runner = OutputEngine(norm, None, wide.apply)
    elif engine.of_norm:
        runner = dataclasses.replace(runner, outputs=None)
    if passes:  # the output of an input is that on a flip which puts there what there is
        own = inputs, np.zeros((len(inputs), 1), int), words[inputs, :1]
        where = [np.concatenate(pair) for pair in zip(own, where, strict=True)]
        order = np.argsort(where[0], kind="stable")
    with numerics(wide.dtype):
        parameters, (b, places, symbols) = jax.device_put(wide.parameters), (part[order] for part in where)
        measuring = Measuring(runner, parameters, words, b, places, symbols, devices)
        if not engine.of_norm:
            values = measuring.numbers()[0][:, 0].astype(np.float64)
            return values, values, how, None
        changes = measuring.changes()[0].astype(np.float64)[np.argsort(order)]
    if passes:
        y = changes[: len(inputs)]
        changes, size = changes[len(inputs) :] - y[which], float(np.max(np.sum(np.abs(y), axis=1)))
    exact = norm.of_array(changes if engine.outputs is None else changes[:, list(engine.outputs)])
    if sketch_of(asked, engine, changes.shape[1]) is None:
        return exact, exact, how, size
    compared = norm.of_array(changes @ combinations(asked, engine, changes.shape[1]).T)
    return exact, compared, how, size


def warn_if_far(result: FlipSensitivity, model: Model, size: float | None, stacklevel: int) -> None:
    """Issues an `EstimateWarning` if the estimate's error on the random sample, or on the largest estimates, is above
    `FAR_OFF` in the median or `FAR_OFF_90` in a tenth, and more than the rounding of what it is compared with. `size`
    is that of `verified`."""
    found, estimated = result.accuracy, result.estimated
    if found is None or estimated is None:
        return
    far = []
    for stratum, which, median in (
        (RANDOM, f"{found.count} random flips", found.median_error),
        (TOP, f"the {found.largest_count} largest estimates", found.largest_error),
    ):
        own = estimated.stratum == stratum
        exact = estimated.compared[own]
        off = np.abs(estimated.estimates[own] - exact)
        errors = off / np.maximum(np.abs(exact), 1e-200)
        tenth = float(np.quantile(errors, 0.9)) if len(errors) else 0.0
        if not (median > FAR_OFF or tenth > FAR_OFF_90):
            continue
        if size is None:
            outputs = [compiled_output(model.apply, model.parameters, word) for word in result.tokens]
            size = max(float(np.sum(np.abs(np.asarray(output, np.float64)))) for output in outputs)
        # A mask may hide every path from a flip to the readout. The estimate is then 0, as it should be, and a forward
        # pass for each flip gives the rounding of a subtraction.
        if np.median(off) > ROUNDINGS * np.finfo(np.float64).eps * size:
            far.append(
                f"by {median:.0%} in the median of {which}, and by over {tenth:.0%} in a tenth of them"
            )
    if far:
        warnings.warn(
            f"n = {result.n}: the first-order estimate is off {'; '.join(far)}, which were measured exactly, so "
            'weights of deep layers are far from O(1/n). Use engine="auto", which is exact; result.max and '
            "result.mean_interval() hold",
            EstimateWarning,
            stacklevel=stacklevel,
        )
