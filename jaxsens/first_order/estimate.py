"""First-order estimates: which models they serve, which combinations of the outputs are estimated, at what cost.
They are computed in float32 at least, and verified in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int8

from jaxsens.core.base.errors import EngineRefusal, InputError
from jaxsens.core.base.programs import abstract_of, cached, numerics, program_key
from jaxsens.core.checks import traced_model
from jaxsens.core.choose import PlannedRun, here
from jaxsens.core.engines.engine import Cost, EngineChoice
from jaxsens.core.engines.one_key.run import costs_of_layers, weighting_refusal
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model, TransformerApply
from jaxsens.core.models.transformer.layered import LAST_OTHER
from jaxsens.core.results.statistics import ESTIMATED, RANDOM, TOP
from jaxsens.first_order.engine import FirstOrderEngine, PreparedEstimate
from jaxsens.first_order.options import NAME, EstimateOptions


def with_parameters_in(model: Model, n: int, dtype: Any) -> Model:
    """Returns the model with floating-point parameters narrower than `dtype`, float32 or float64, in it; or unchanged
    if it has none, or does not run on them."""
    dtype = np.dtype(dtype)

    def narrow(leaf: Any) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.finfo(leaf.dtype).bits < 8 * dtype.itemsize

    if not any(map(narrow, jax.tree.leaves(model.parameters))):
        return model
    parameters = jax.tree.map(
        lambda leaf: np.asarray(leaf).astype(dtype) if narrow(leaf) else leaf, model.parameters
    )
    if model.config is not None:
        config = model.config.replace(dtype=dtype.name)
        return replace(model, config=config, parameters=parameters, apply=TransformerApply(config))
    wide = replace(model, parameters=parameters)
    try:
        with numerics(wide.dtype):
            traced_model(wide, n)
    except Exception:  # noqa: BLE001 - the model is the user's: whatever it raises, it runs as it is
        return model
    return wide


def strata(estimates: Float[np.ndarray, " flips"], verify: int, seed: int) -> Int8[np.ndarray, " flips"]:
    """Returns the stratum of every flip, of which `verify` are to be measured exactly.

    Half of them, rounded down, have the largest sizes among the estimates, earlier flips first if sizes are equal. The
    others are drawn from the remaining flips, uniformly without replacement, by `numpy.random.default_rng(seed)`. If
    there are no more flips than `verify`, all are measured.

    Args:
        estimates: finite numbers; their signs do not matter.
        verify: the number of flips to measure.
        seed: of the draw.
    """
    flips = len(estimates)
    verify = min(verify, flips)
    order = np.argsort(-np.abs(estimates), kind="stable")
    stratum = np.full(flips, ESTIMATED, np.int8)
    stratum[order[: verify // 2]] = TOP
    others = np.sort(order[verify // 2 :])
    stratum[np.random.default_rng(seed).choice(others, verify - verify // 2, replace=False)] = RANDOM
    return stratum


LARGEST_BLOCK = 64
"""Combinations of outputs estimated at once: more hardly share more work."""


def sketch_of(asked: EstimateOptions, engine: FirstOrderEngine, size: int) -> int | None:
    """Returns how many random combinations of `size` outputs are estimated; None for each output, and for a scalar."""
    if engine.scalar is not None:
        return None
    return asked.combined(engine.measure, len(engine.outputs or range(size)))


def combination_count(asked: EstimateOptions, engine: FirstOrderEngine, size: int) -> int:
    """Returns the number of combinations of `size` outputs that are estimated."""
    if engine.scalar is not None:
        return 1
    return sketch_of(asked, engine, size) or len(engine.outputs or range(size))


def combinations(
    asked: EstimateOptions, engine: FirstOrderEngine, size: int, block: range | None = None
) -> Float[np.ndarray, "combinations outputs"]:
    """Returns the combinations of `size` outputs that are estimated, or those of a block of their numbers, in float64.
    Numbers from `combination_count` on, and a scalar, give rows of zeros.

    A sketch has orthonormal rows times sqrt(outputs / combinations), so that the expected squared norm is the true one.
    Its norm's relative standard error is at most 1 / sqrt(2 combinations).
    """
    count, chosen = combination_count(asked, engine, size), np.asarray(engine.outputs or range(size))
    block = range(count) if block is None else block
    wanted = np.zeros((len(block), size))
    if engine.scalar is not None:
        return wanted
    known = range(block.start, min(block.stop, count))
    if count == len(chosen):
        wanted[np.arange(len(known)), chosen[known.start : known.stop]] = 1
    else:
        wanted[: len(known), chosen] = _frame(len(chosen), count, asked.seed)[known.start : known.stop]
    return wanted


@lru_cache(maxsize=1)
def _frame(outputs: int, combinations: int, seed: int) -> Float[np.ndarray, "combinations outputs"]:
    """Returns random orthonormal rows times sqrt(outputs / combinations), uniform over all such frames."""
    normal = np.random.default_rng(seed).normal(size=(outputs, combinations))
    directions, triangle = np.linalg.qr(normal)
    return np.sqrt(outputs / combinations) * (directions * np.sign(np.diag(triangle))).T


def first_order_engine(model: Model, asked: EstimateOptions, measure: Measure) -> FirstOrderEngine:
    """Returns the engine for a model. The chosen outputs enter by `combinations`.

    Raises:
        EngineRefusal: if the model's attention is not visible, or of a kind without a rule; and for a measure that
            cannot be estimated so.
    """

    def refusal(why: str) -> EngineRefusal:
        return EngineRefusal(f'engine = "{NAME}": {why}')

    refused = asked.refusal(measure)
    if refused is not None:
        raise refusal(refused)
    layered, readout = model.layered, model.readout
    if layered is None:
        raise refusal(
            "it cannot serve this model: its attention is not visible; give a jaxsens transformer, "
            'or a pair (jaxsens.Layered, parameters); or use engine="vmap"'
        )
    why = weighting_refusal("the first-order engine", layered)
    if layered.mesh is not None:
        why = "it keeps a copy of what layers read, and the model's parameters are split over devices"
    if model.config is not None and model.config.centred_scores:
        why = "it forms plain scores, which lose the digits that centred scores keep"
    if why is not None:
        raise refusal(f'it cannot serve this model: {why}; use engine="vmap"')
    if readout is None:
        raise refusal("readout = None; give the row that is read")
    remedy = None
    if str(readout).startswith(LAST_OTHER):
        remedy = "a flip can move this row; give its position as readout, for one that stays"
    elif readout == "mean" and layered.pools:
        remedy = 'the output is no sum over rows, but the scores of their mean; use engine="vmap"'
    if remedy is not None:
        raise refusal(f"readout = {readout!r}: {remedy}")
    return FirstOrderEngine(measure, measure.coordinates(model.outputs), layered, readout)


def output_size(model: Model, n: int) -> int:
    """Returns the number of outputs, by tracing."""
    # Newer versions of JAX warn of a shape in float64 where they do not compute in it.
    with numerics(model.dtype):
        return jax.eval_shape(model.apply, model.parameters, jax.ShapeDtypeStruct((n,), jnp.int32)).size


def abstract_estimate(engine: FirstOrderEngine, parameters: Any, n: int) -> PreparedEstimate:
    """Returns shapes and dtypes of what the engine prepares for an input of length n.

    Raises:
        EngineRefusal: if the model, or the scalar function, has no derivative.
    """
    try:
        return _abstract_estimate(engine, *program_key(parameters, n))
    except InputError:
        raise
    except Exception as error:
        what = "this model" if engine.scalar is None else "this model or measure"
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise EngineRefusal(
            f'engine = "{NAME}": it cannot serve {what}: it needs the derivative, which JAX does not know ({said}); '
            'use engine="vmap"'
        ) from error


@cached
def _abstract_estimate(
    engine: FirstOrderEngine, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> PreparedEstimate:
    del wide  # 64-bit types are on: another program
    parameters = abstract_of(structure, shapes)
    return jax.eval_shape(engine.prepare, parameters, jax.ShapeDtypeStruct((n,), jnp.int32))


def block_size(engine: FirstOrderEngine, parameters: Any, n: int, count: int, budget: int) -> int:
    """Returns how many of `count` combinations to estimate at once, within half the memory budget.

    Blocks are of equal size, so that they share a compilation. Memory is linear in n and in the combinations.
    """
    model = engine.layered.at_length(n)
    costs = costs_of_layers(model, parameters, n)
    # What a layer keeps for the flips, and what passes through it: of queries, keys and values, and of rows.
    cached = sum(one.attended + 2 * (2 * one.queries + one.attended) // model.layers for one in costs)
    widest = max((leaf.dtype.itemsize for leaf in jax.tree.leaves(parameters)), default=4)
    bytes_each = 2 * n * (cached + max((one.width for one in costs), default=1)) * widest
    fitting = max(1, int(budget / 2 / bytes_each))
    blocks = -(-count // min(fitting, LARGEST_BLOCK))
    return -(-count // blocks)


def table_bytes(flips: int, count: int) -> int:
    """Returns the memory for the estimated change of `count` outputs by all flips at once, and of those of a block."""
    return 2 * 8 * flips * count


@dataclass(frozen=True)
class PlannedEstimate(PlannedRun):
    """A run that estimates.

    Attributes:
        combined: how many combinations of the outputs are estimated.
    """

    engine: FirstOrderEngine
    combined: int = 1

    @classmethod
    def of(cls, asked: EstimateOptions, run: PlannedRun) -> PlannedEstimate:
        """Returns an estimate of the flips of a run.

        Raises:
            EngineRefusal: as `first_order_engine` does.
        """
        engine, size = first_order_engine(run.model, asked, run.engine.measure), output_size(run.model, run.n)
        outputs, combined = len(engine.outputs or range(size)), combination_count(asked, engine, size)
        of = f"{combined} combinations of " if asked.combined(run.engine.measure, outputs) else ""
        choice = EngineChoice(NAME, f"an estimate of {of}{outputs} output{'s' if outputs > 1 else ''}")
        given = {field.name: getattr(run, field.name) for field in fields(PlannedRun)}
        return cls(**{**given, "engine": engine, "choice": choice, "combined": combined})

    @cached_property
    def _block(self) -> tuple[Cost, Any]:
        return self.of_count(self.combined)

    @cached_property
    def parameters(self) -> Any:
        return self._block[1]

    @cached_property
    def cost(self) -> Cost:
        return self._block[0]

    @cached_property
    def prepared(self) -> PreparedEstimate:
        with numerics(self.model.dtype):
            return abstract_estimate(self.engine, self.parameters, self.n)

    @property
    def memory(self) -> int:
        return super().memory + (0 if self.engine.of_norm else table_bytes(self.flips, self.combined))

    def of_count(self, count: int) -> tuple[Cost, Any]:
        """Returns the cost of so many combinations, in all blocks together, and the parameters of a block, abstract."""
        parameters, platform = self.model.parameters, self.platform
        with numerics(self.model.dtype):
            size = block_size(self.engine, parameters, self.n, count, platform.memory)
            rows = jax.ShapeDtypeStruct((size, output_size(self.model, self.n)), jnp.result_type(float))
            tokens, blocks = jax.ShapeDtypeStruct((self.n,), jnp.int32), -(-count // size)
            one = self.engine.cost((parameters, rows), tokens, platform)
        cost = replace(one, prepare=blocks * one.prepare, per_flip=blocks * one.per_flip)
        return cost, (parameters, rows)


def estimated_instead(asked: EstimateOptions, run: PlannedRun) -> str | None:
    """Returns what the first-order engine would cost and give up, or None if it cannot serve the model."""
    try:
        estimate = PlannedEstimate.of(asked, run)
        estimate.prepared  # noqa: B018 - refuses a model without a derivative
    except EngineRefusal:
        return None
    outputs = len(estimate.engine.outputs or range(output_size(run.model, run.n)))
    costs = (estimate.of_count(count)[0] for count in (outputs, 1))
    whole, alone = (cost.seconds(here(run.platform), 1, run.flips) for cost in costs)
    return (
        f'engine="{NAME}" would take about {whole:.2g} s for all outputs, {alone:.2g} s for a scalar, '
        "besides the verified flips; the other flips would be estimates, whose error it measures on a sample"
    )
