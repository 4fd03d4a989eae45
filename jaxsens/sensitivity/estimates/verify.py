"""Measures some flips exactly, in float64, to check an estimate of all of them."""

from __future__ import annotations

import warnings

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxsens.asked.engines import FirstOrder
from jaxsens.asked.measures import Norm
from jaxsens.base.errors import EstimateWarning
from jaxsens.base.precision import numerics
from jaxsens.sensitivity.engines.difference import engine as difference
from jaxsens.sensitivity.engines.difference.engine import DifferenceEngine
from jaxsens.sensitivity.engines.engine import Engine
from jaxsens.sensitivity.engines.first_order.engine import FirstOrderEngine
from jaxsens.sensitivity.engines.incremental import IncrementalEngine, incremental_engine
from jaxsens.sensitivity.engines.vmap import VmapEngine, compiled_output
from jaxsens.sensitivity.estimates.estimate import combinations
from jaxsens.sensitivity.estimates.widening import with_parameters_in
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.placement import placement
from jaxsens.sensitivity.results.estimated import RANDOM
from jaxsens.sensitivity.results.result import FlipSensitivity
from jaxsens.sensitivity.subjects.adapters import Measurable

FAR_OFF = 0.3
"""A median error of the estimate above this raises an `EstimateWarning`."""

ROUNDINGS = 64
"""The roundings, of the sum of all outputs' sizes, by which two outputs in float64 may differ for no reason."""

_NAMES: dict[type[Engine], str] = {
    DifferenceEngine: "difference",
    IncrementalEngine: "incremental",
    VmapEngine: "vmap",
}


def exact_engine(subject: Measurable, engine: FirstOrderEngine) -> Engine:
    """Returns the engine for a few exact flips: "difference" up to two layers, where a flip takes O(n); else a forward
    pass for each, or what the flip changes of it."""
    config, measure = subject.config, engine.measure
    # A norm is taken of the changes of combinations, which already are those of the chosen outputs.
    outputs = None if engine.of_norm else engine.outputs
    if config is not None and config.layers <= 2 and difference.refusal(config) is None:
        return DifferenceEngine(measure, outputs, config)
    return incremental_engine(subject, measure, outputs) or VmapEngine(measure, outputs, subject.apply)


def verified(
    engine: FirstOrderEngine,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    chosen: Int[np.ndarray, " verified"],
    asked: FirstOrder,
    devices: placement.Placement,
    progress: placement.Progress | None,
) -> tuple[Float[np.ndarray, " verified"], Float[np.ndarray, " verified"], str]:
    """Measures the flips with the given indices exactly.

    Returns:
        The exact norms; the same in the combinations that were estimated, which differ with a sketch; and how they were
        measured. With a scalar or a change function, both are its signed values.

    Raises:
        Interrupted: on Ctrl-C.
    """
    n = words.shape[1]
    wide = with_parameters_in(subject, n, np.float64)
    runner = exact_engine(wide, engine)
    where = flips.inputs[chosen], flips.positions[chosen], flips.symbols[chosen]
    how = f"{_NAMES[type(runner)]} in {wide.dtype}"
    with numerics(wide.dtype):
        parameters = jax.device_put(wide.parameters)
        measuring = placement.Measuring(runner, parameters, words, *where, devices, progress)
        norm = engine.measure
        if not isinstance(norm, Norm):
            values = measuring.numbers()[0][:, 0].astype(np.float64)
            return values, values, how
        changes = measuring.changes()[0].astype(np.float64)
    picked = changes if engine.outputs is None else changes[:, list(engine.outputs)]
    exact = norm.of_array(picked)
    if asked.sketch is None:
        return exact, exact, how
    return exact, norm.of_array(changes @ combinations(asked, engine, changes.shape[1]).T), how


def _within_rounding(result: FlipSensitivity, subject: Measurable) -> bool:
    """Returns whether at least half of the random sample differs from its estimates by the rounding of float64 only.

    A mask may hide every path from a flip to the readout. The estimate is then 0, as it should be, and a forward pass
    for each flip gives the rounding of a subtraction.
    """
    estimated = result.estimated
    if estimated is None:
        return False
    outputs = [compiled_output(subject.apply, subject.parameters, word) for word in result.tokens]
    size = max(float(np.sum(np.abs(np.asarray(output, np.float64)))) for output in outputs)
    drawn = estimated.stratum == RANDOM
    off = np.abs(estimated.estimates - estimated.compared)[drawn]
    return bool(np.median(off) <= ROUNDINGS * np.finfo(np.float64).eps * size)


def warn_if_far(result: FlipSensitivity, subject: Measurable, stacklevel: int) -> None:
    """Issues an `EstimateWarning` if the estimate's median error, on the random sample, is above `FAR_OFF`, and more
    than the rounding of what it is compared with."""
    accuracy = result.accuracy
    if accuracy is None or not accuracy.median_error > FAR_OFF:
        return
    if not _within_rounding(result, subject):
        warnings.warn(
            f"n = {result.n}: the first-order estimate is off by {accuracy.median_error:.0%} in the median of "
            f"{accuracy.count} flips measured exactly, so weights of deep layers are far from O(1/n). Use "
            'engine="auto", which is exact; result.max and result.mean_interval() hold',
            EstimateWarning,
            stacklevel=stacklevel,
        )
