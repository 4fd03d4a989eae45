"""Measures some flips exactly, in float64, beside an estimate of all of them."""

from __future__ import annotations

import warnings

import jax
import numpy as np
from jaxtyping import Float, Int

from jaxsens.errors import EstimateWarning
from jaxsens.precision import numerics
from jaxsens.sensitivity import incremental, placement
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.difference import engine as difference
from jaxsens.sensitivity.difference.engine import DifferenceEngine
from jaxsens.sensitivity.engine import Engine
from jaxsens.sensitivity.first_order.engine import FirstOrderEngine
from jaxsens.sensitivity.first_order.estimate import Estimation, combined_norm
from jaxsens.sensitivity.first_order.widening import with_parameters_in
from jaxsens.sensitivity.flips import Flips
from jaxsens.sensitivity.incremental import IncrementalEngine
from jaxsens.sensitivity.result import FlipSensitivity
from jaxsens.sensitivity.vmap_engine import VmapEngine

FAR_OFF = 0.3
"""A median error of the estimate above this raises an `EstimateWarning`."""

_NAMES: dict[type[Engine], str] = {
    DifferenceEngine: "difference",
    IncrementalEngine: "incremental",
    VmapEngine: "vmap",
}


def exact_engine(subject: Measurable, engine: FirstOrderEngine) -> Engine:
    """Returns the engine for a few exact flips: "difference" up to two layers, where a flip takes O(n); else a forward
    pass for each, or what the flip changes of it."""
    config = subject.config
    if config is not None and config.layers <= 2 and difference.refusal(config) is None:
        return DifferenceEngine(engine.norm, None, config, scalar=engine.scalar)
    if config is not None and incremental.refusal(config) is None:
        return IncrementalEngine(engine.norm, None, config, scalar=engine.scalar)
    return VmapEngine(engine.norm, None, subject.apply, scalar=engine.scalar)


def verified(
    engine: FirstOrderEngine,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: Flips,
    chosen: Int[np.ndarray, " verified"],
    asked: Estimation,
    devices: placement.Placement,
    progress: placement.Progress | None,
) -> tuple[Float[np.ndarray, " verified"], Float[np.ndarray, " verified"], str]:
    """Measures the flips with the given indices exactly.

    Returns:
        The exact norms; the same in the combinations that were estimated, which differ with a sketch; and how they were
        measured. With a scalar, both are its signed changes.

    Raises:
        Interrupted: on Ctrl-C.
    """
    n = words.shape[1]
    wide = with_parameters_in(subject, n, np.float64)
    runner = exact_engine(wide, engine)
    where = flips.inputs[chosen], flips.positions[chosen], flips.symbols[chosen]
    how = f"{_NAMES[type(runner)]} in {wide.dtype}"
    with numerics(wide.dtype):
        parameters = jax.tree.map(jax.numpy.asarray, wide.parameters)
        given = runner, parameters, words, *where, devices, progress
        if engine.scalar is not None:
            values = placement.measure(*given)[0].astype(np.float64)
            return values, values, how
        changes = placement.measure_changes(*given)[0].astype(np.float64)
    picked = changes if engine.outputs is None else changes[:, list(engine.outputs)]
    zero = np.zeros(len(chosen))
    exact = combined_norm(zero, picked, engine.norm)
    if asked.sketch is None:
        return exact, exact, how
    sketched = combined_norm(zero, changes @ asked.combinations(engine, changes.shape[1]).T, engine.norm)
    return exact, sketched, how


def warn_if_far(result: FlipSensitivity, stacklevel: int) -> None:
    """Issues an `EstimateWarning` if the estimate's median error, on the random sample, is above `FAR_OFF`."""
    accuracy = result.accuracy
    if accuracy is not None and accuracy.median_error > FAR_OFF:
        warnings.warn(
            f"n = {result.n}: the first-order estimate is off by {accuracy.median_error:.0%} in the median of "
            f"{accuracy.count} flips measured exactly, so weights of deep layers are far from O(1/n). Use "
            'engine="auto", which is exact; result.mean and result.max hold, with a wider interval',
            EstimateWarning,
            stacklevel=stacklevel,
        )
