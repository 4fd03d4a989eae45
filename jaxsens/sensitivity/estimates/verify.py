"""Measures some flips exactly, in float64, to check an estimate of all of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.asked.formulas import as_vector
from jaxsens.asked.measures import Norm
from jaxsens.base.errors import EstimateWarning
from jaxsens.base.precision import numerics
from jaxsens.sensitivity.engines.difference import engine as difference
from jaxsens.sensitivity.engines.difference.engine import DifferenceEngine
from jaxsens.sensitivity.engines.engine import Engine, FlipBlock, PreparedPass
from jaxsens.sensitivity.engines.first_order.engine import FirstOrderEngine
from jaxsens.sensitivity.engines.first_order.options import FirstOrder
from jaxsens.sensitivity.engines.incremental import IncrementalEngine, incremental_engine
from jaxsens.sensitivity.engines.one_key.layer_costs import LayerCosts, costs_of_layers
from jaxsens.sensitivity.engines.vmap import VmapEngine, compiled_output
from jaxsens.sensitivity.estimates.estimate import combinations, sketch_of
from jaxsens.sensitivity.estimates.widening import with_parameters_in
from jaxsens.sensitivity.flips.flip_table import FlipTable
from jaxsens.sensitivity.placement import placement
from jaxsens.sensitivity.results.estimated import RANDOM, TOP
from jaxsens.sensitivity.results.result import FlipSensitivity
from jaxsens.sensitivity.subjects.adapters import Measurable

FAR_OFF = 0.3
"""A median error of the estimate above this raises an `EstimateWarning`."""

FAR_OFF_90 = 1.0
"""So does a 90 % quantile of it above this: the median hides a tenth of flips of which an estimate says nothing. Above
sigmoid attention whose rows are not normalised, scores grow with n, and that tenth is off by several times itself."""

MANY_OPERATIONS = 2e12
"""Forward passes of this many operations take so long that an engine which compiles later takes less in all."""

ROUNDINGS = 64
"""The roundings, of the sum of all outputs' sizes, by which two outputs in float64 may differ for no reason."""


class Verified(NamedTuple):
    """What was measured exactly of some flips.

    Attributes:
        exact: the norms; with a scalar or a change function, its signed values.
        compared: the same in the combinations that were estimated, which differ with a sketch.
        how: how they were measured.
        size: the largest sum of all outputs' sizes on any input; None if outputs themselves were not computed.
    """

    exact: Float[np.ndarray, " verified"]
    compared: Float[np.ndarray, " verified"]
    how: str
    size: float | None


@dataclass(frozen=True)
class OutputEngine(VmapEngine):
    """Forward passes alone: what it returns as the changes of outputs are the outputs themselves."""

    compiles_preparation: ClassVar[bool] = False

    def prepare(self, parameters: Any, tokens: Int[Array, " n"]) -> PreparedPass:
        del parameters
        nothing = jax.device_put(np.zeros(0))
        return PreparedPass(tokens, nothing, nothing, nothing)  # of which only the first is looked at

    def changes(self, parameters: Any, prepared: PreparedPass, block: FlipBlock) -> Array:
        return jax.vmap(as_vector)(self._flipped(parameters, prepared, block))


_NAMES: dict[type[Engine], str] = {
    DifferenceEngine: "difference",
    IncrementalEngine: "incremental",
    VmapEngine: "vmap",
    OutputEngine: "vmap",
}


def exact_engine(
    subject: Measurable, engine: FirstOrderEngine, costs: list[LayerCosts], n: int, flips: int
) -> Engine:
    """Returns the engine for a few exact flips: "difference" up to two layers, where a flip takes O(n); else a forward
    pass for each or, where these take longer than it takes to compile, what the flip changes of one.

    `costs` are those of the model's layers, and n is the length of the input."""
    config, measure = subject.config, engine.measure
    # A norm is taken of the changes of combinations, which already are those of the chosen outputs.
    outputs = None if engine.of_norm else engine.outputs
    if config is not None and config.layers <= 2 and difference.refusal(config) is None:
        return DifferenceEngine(measure, outputs, config)
    if flips * n * sum(n * one.pair + one.row for one in costs) > MANY_OPERATIONS:
        shortened = incremental_engine(subject, measure, outputs)
        if shortened is not None:
            return shortened
    return (OutputEngine if engine.of_norm else VmapEngine)(measure, outputs, subject.apply)


def verified(
    engine: FirstOrderEngine,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    chosen: Int[np.ndarray, " verified"],
    asked: FirstOrder,
    devices: placement.Placement,
    progress: placement.Progress | None,
) -> Verified:
    """Measures the flips with the given indices exactly.

    Raises:
        Interrupted: on Ctrl-C.
    """
    n, size = words.shape[1], None
    wide = with_parameters_in(subject, n, np.float64)
    costs = costs_of_layers(
        engine.layered.at_length(n), with_parameters_in(subject, n, np.float32).parameters, n
    )
    runner = exact_engine(wide, engine, costs, n, len(chosen))
    where = flips.inputs[chosen], flips.positions[chosen], flips.symbols[chosen]
    how = f"{_NAMES[type(runner)]} in {wide.dtype}"
    with numerics(wide.dtype):
        parameters, norm = jax.device_put(wide.parameters), engine.measure
        if isinstance(runner, OutputEngine):
            changes, size = _of_passes(runner, parameters, words, where, devices, progress)
        else:
            measuring = placement.Measuring(runner, parameters, words, *where, devices, progress)
            if not isinstance(norm, Norm):
                values = measuring.numbers()[0][:, 0].astype(np.float64)
                return Verified(values, values, how, None)
            changes = measuring.changes()[0].astype(np.float64)
    if not isinstance(norm, Norm):
        raise TypeError("only a norm is taken of outputs' changes")
    exact = norm.of_array(changes if engine.outputs is None else changes[:, list(engine.outputs)])
    if sketch_of(asked, engine, changes.shape[1]) is None:
        return Verified(exact, exact, how, size)
    compared = norm.of_array(changes @ combinations(asked, engine, changes.shape[1]).T)
    return Verified(exact, compared, how, size)


def _of_passes(
    runner: OutputEngine,
    parameters: Any,
    words: Int[np.ndarray, "batch n"],
    where: tuple[Int[np.ndarray, " flips"], ...],
    devices: placement.Placement,
    progress: placement.Progress | None,
) -> tuple[Float[np.ndarray, "flips outputs"], float]:
    """Returns the changes of all outputs under some flips, and `Verified.size`, by one program: the output of an input
    is that on a flip which puts there what there is."""
    inputs, which = np.unique(where[0], return_inverse=True)
    alone = inputs, np.zeros_like(inputs), words[inputs, 0]
    inputs_of, places, symbols = (np.concatenate(pair) for pair in zip(alone, where, strict=True))
    order = np.argsort(inputs_of, kind="stable")
    given = inputs_of[order], places[order], symbols[order]
    found = placement.Measuring(runner, parameters, words, *given, devices, progress).changes()[0]
    outputs = np.empty(found.shape, np.float64)
    outputs[order] = found
    y = outputs[: len(inputs)]
    return outputs[len(inputs) :] - y[which], float(np.max(np.sum(np.abs(y), axis=1)))


def _within_rounding(result: FlipSensitivity, subject: Measurable, size: float | None, stratum: int) -> bool:
    """Returns whether at least half of a stratum differs from its estimates by the rounding of float64 only.

    A mask may hide every path from a flip to the readout. The estimate is then 0, as it should be, and a forward pass
    for each flip gives the rounding of a subtraction.
    """
    estimated = result.estimated
    if estimated is None:
        return False
    if size is None:
        outputs = [compiled_output(subject.apply, subject.parameters, word) for word in result.tokens]
        size = max(float(np.sum(np.abs(np.asarray(output, np.float64)))) for output in outputs)
    own = estimated.stratum == stratum
    off = np.abs(estimated.estimates - estimated.compared)[own]
    return bool(np.median(off) <= ROUNDINGS * np.finfo(np.float64).eps * size)


def warn_if_far(result: FlipSensitivity, subject: Measurable, size: float | None, stacklevel: int) -> None:
    """Issues an `EstimateWarning` if the estimate's error on the random sample, or on the largest estimates, is above
    `FAR_OFF` in the median or `FAR_OFF_90` in a tenth, and more than the rounding of what it is compared with. `size`
    is `Verified.size`."""
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
        errors = np.abs(estimated.estimates[own] - exact) / np.maximum(np.abs(exact), 1e-200)
        tenth = float(np.quantile(errors, 0.9)) if len(errors) else 0.0
        if (median > FAR_OFF or tenth > FAR_OFF_90) and not _within_rounding(result, subject, size, stratum):
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
