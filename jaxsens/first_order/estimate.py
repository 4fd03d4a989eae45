"""First-order estimates: which models they serve, which combinations of the outputs are estimated, at what cost, and
the estimates themselves, in blocks of combinations, in float32 at least. Some flips are measured in float64 besides.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Int8

from jaxsens.core.base.errors import EngineRefusal, EstimateWarning, InputError, check_fits, collecting
from jaxsens.core.base.programs import abstract_of, cached, numerics, program_key
from jaxsens.core.checks import traced_model
from jaxsens.core.choose import PlannedRun, choose, here
from jaxsens.core.engines.engine import Cost, EngineChoice
from jaxsens.core.engines.one_key.run import costs_of_layers, weighting_refusal
from jaxsens.core.engines.options import Auto
from jaxsens.core.engines.vmap import OutputEngine, VmapEngine, compiled_output
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model, TransformerApply
from jaxsens.core.models.transformer.layered import LAST_OTHER
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.program import Ready
from jaxsens.core.placement.run import Measuring, Progress
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.results.statistics import ESTIMATED, RANDOM, TOP, Estimated
from jaxsens.first_order.engine import FirstOrderEngine, PreparedEstimate
from jaxsens.first_order.options import NAME, EstimateOptions

REMEDY = "measure a function of the output, or fewer flips"

MANY_OUTPUTS = 64
"""More outputs than these are sketched by default: a backward pass for each takes as long as exact engines do."""

SKETCH = 32
"""Of so many combinations: a norm's relative standard error is at most 1/8."""

OUTPUTS_AT_ONCE = 2**22
"""Changes of outputs from which a distance or a change function is computed at once."""

FAR_OFF = 0.3
"""A median error of the estimate above this raises an `EstimateWarning`."""

FAR_OFF_90 = 1.0
"""So does a 90 % quantile of it above this: the median hides a tenth of flips of which an estimate says nothing. Above
sigmoid attention whose rows are not normalised, scores grow with n, and that tenth is off by several times itself."""

ROUNDINGS = 64
"""The roundings, of the sum of all outputs' sizes, by which two outputs in float64 may differ for no reason."""

LARGEST_BLOCK = 64
"""Combinations of outputs estimated at once: more hardly share more work."""


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

    Half of them, rounded down, have the largest sizes among the finite estimates, earlier flips first if sizes are
    equal. The others are drawn from the remaining flips, uniformly without replacement, by
    `numpy.random.default_rng(seed)`. If there are no more flips than `verify`, all are measured.
    """
    flips = len(estimates)
    verify = min(verify, flips)
    order = np.argsort(-np.abs(estimates), kind="stable")
    stratum = np.full(flips, ESTIMATED, np.int8)
    stratum[order[: verify // 2]] = TOP
    others = np.sort(order[verify // 2 :])
    stratum[np.random.default_rng(seed).choice(others, verify - verify // 2, replace=False)] = RANDOM
    return stratum


def combination_count(asked: EstimateOptions, engine: FirstOrderEngine, size: int) -> tuple[int, int]:
    """Returns how many of `size` outputs are measured, and the number of their combinations that are estimated: each
    output by itself, or fewer; 1 for a scalar."""
    outputs = len(engine.outputs or range(size))
    if engine.scalar is not None:
        return outputs, 1
    default = SKETCH if outputs > MANY_OUTPUTS and engine.measure.order == 2 else outputs
    return outputs, min(outputs, asked.sketch or default)


def combinations(
    asked: EstimateOptions, engine: FirstOrderEngine, size: int, block: range | None = None
) -> Float[np.ndarray, "combinations outputs"]:
    """Returns the combinations of `size` outputs that are estimated, or those of a block of their numbers, in float64.
    Numbers from `combination_count` on, and a scalar, give rows of zeros.

    A sketch has orthonormal rows times sqrt(outputs / combinations), so that the expected squared norm is the true one.
    Its norm's relative standard error is at most 1 / sqrt(2 combinations).
    """
    outputs, count = combination_count(asked, engine, size)
    chosen = [*(engine.outputs or range(size))]
    block = range(count) if block is None else block
    wanted = np.zeros((len(block), size))
    if engine.scalar is not None:
        return wanted
    known = range(block.start, min(block.stop, count))
    if count == outputs:
        wanted[np.arange(len(known)), chosen[known.start : known.stop]] = 1
    else:
        wanted[: len(known), chosen] = _frame(outputs, count, asked.seed)[known.start : known.stop]
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


@cached
def abstract_estimate(
    engine: FirstOrderEngine, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> PreparedEstimate:
    """Returns shapes and dtypes of what the engine prepares for an input of length n, by the `program_key`.

    Raises:
        EngineRefusal: if the model, or the scalar function, has no derivative.
    """
    del wide  # 64-bit types are on: another program
    try:
        parameters = abstract_of(structure, shapes)
        return jax.eval_shape(engine.prepare, parameters, jax.ShapeDtypeStruct((n,), jnp.int32))
    except InputError:
        raise
    except Exception as error:
        what = "this model" if engine.scalar is None else "this model or measure"
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise EngineRefusal(
            f'engine = "{NAME}": it cannot serve {what}: it needs the derivative, which JAX does not know ({said}); '
            'use engine="vmap"'
        ) from error


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
        engine = first_order_engine(run.model, asked, run.engine.measure)
        outputs, combined = combination_count(asked, engine, output_size(run.model, run.n))
        of = f"{combined} combinations of " if engine.scalar is None and combined < outputs else ""
        choice = EngineChoice(NAME, f"an estimate of {of}{outputs} output{'s' if outputs > 1 else ''}")
        given = {field.name: getattr(run, field.name) for field in fields(PlannedRun)}
        return cls(**{**given, "engine": engine, "choice": choice, "combined": combined})

    @cached_property
    def parameters(self) -> Any:
        """Those of a block, abstract."""
        with numerics(self.model.dtype):
            size = block_size(self.engine, self.model.parameters, self.n, self.combined, self.platform.memory)
            rows = jax.ShapeDtypeStruct((size, output_size(self.model, self.n)), jnp.result_type(float))
        return self.model.parameters, rows

    @cached_property
    def cost(self) -> Cost:
        """That of all blocks together."""
        blocks = -(-self.combined // self.parameters[1].shape[0])
        tokens = jax.ShapeDtypeStruct((self.n,), jnp.int32)
        with numerics(self.model.dtype):
            one = self.engine.cost(self.parameters, tokens, self.platform)
        return replace(one, prepare=blocks * one.prepare, per_flip=blocks * one.per_flip)

    @cached_property
    def prepared(self) -> PreparedEstimate:
        with numerics(self.model.dtype):
            return abstract_estimate(self.engine, *program_key(self.parameters, self.n))

    @property
    def memory(self) -> int:
        return super().memory + (0 if self.engine.of_norm else table_bytes(self.flips, self.combined))


def estimated_instead(asked: EstimateOptions, run: PlannedRun) -> str | None:
    """Returns what the first-order engine would cost and give up, or None if it cannot serve the model."""
    try:
        estimate = PlannedEstimate.of(asked, run)
        estimate.prepared  # noqa: B018 - refuses a model without a derivative
    except EngineRefusal:
        return None
    outputs, _ = combination_count(asked, estimate.engine, output_size(run.model, run.n))
    costs = (replace(estimate, combined=count).cost for count in (outputs, 1))
    whole, alone = (cost.seconds(here(run.platform), 1, run.flips) for cost in costs)
    return (
        f'engine="{NAME}" would take about {whole:.2g} s for all outputs, {alone:.2g} s for a scalar, '
        "besides the verified flips; the other flips would be estimates, whose error it measures on a sample"
    )


class Blocks:
    """The combinations of an estimate, in blocks of equal size, for inputs of length n, within half a memory budget.

    Attributes:
        model: the model, with parameters in float32 at least: sums over n rows would lose the digits of narrower ones.
        parameters: those, on the device.
        outputs: the number of outputs.
        count: the number of combinations.
        sketch: the same if they are random; None if each output, or a scalar, is estimated.
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
        chosen, self.count = combination_count(asked, engine, self.outputs)
        self.sketch = self.count if engine.scalar is None and self.count < chosen else None
        size = block_size(engine, self.parameters, n, self.count, budget)
        self.each = tuple(range(first, first + size) for first in range(0, self.count, size))
        self.first = self.pair(0)
        abstract_estimate(engine, *program_key(self.first, n))

    def pair(self, k: int) -> tuple[Any, Any]:
        """Returns the engine's parameters for block k."""
        rows = combinations(self.asked, self.engine, self.outputs, self.each[k])
        return self.parameters, jax.device_put(np.asarray(rows, jnp.result_type(float)))

    def result(
        self,
        whole: FlipSensitivity,
        devices: Placement,
        progress: Progress | None,
        ready: Ready | None,
    ) -> FlipSensitivity:
        """Returns the estimates, with some flips measured. An interrupted estimate keeps nothing: it is begun again.

        Raises:
            InputError: for estimates that are not finite.
        """
        flips, words, asked = whole.flips, whole.tokens, self.asked
        values = self.estimated(words, flips, devices, progress, ready)
        bad = ~np.isfinite(values)
        if bad.any():  # derivatives overflow where the model's output, which was checked before, does not
            raise InputError.of(
                "engine",
                NAME,
                f"its estimate is not finite for {int(bad.sum())} of {len(values)} flips, first at position "
                f"{int(flips.positions[np.argmax(bad), 0])}, while the model's output is finite: the estimate "
                'overflows, not the model. Use dtype="float64", engine="auto", which measures every flip, or a model '
                "with layer normalisation",
            )
        stratum = strata(np.abs(values), asked.verify, asked.seed)
        chosen = np.flatnonzero(stratum)
        exact, compared, how = self.verified(words, flips, chosen, devices)
        of = "" if self.sketch is None else f"{self.sketch} random combinations of the outputs; "
        known, found = np.full(len(flips), np.nan), values.copy()
        known[chosen], found[chosen] = compared, exact
        result = replace(
            whole,
            values=found if whole.measure.signed else np.abs(found),
            resolution=np.zeros(len(flips)),
            engine=EngineChoice(
                NAME, f"asked for; {of}{len(chosen)} of {len(flips)} flips verified by {how}"
            ),
            estimated=Estimated(values, stratum, known, self.sketch),
        )
        warn_if_far(result, self.given, stacklevel=7)
        return result

    def estimated(
        self,
        words: Int[np.ndarray, "batch n"],
        flips: FlipTable,
        devices: Placement,
        progress: Progress | None = None,
        ready: Ready | None = None,
    ) -> Float[np.ndarray, " flips"]:
        """Returns the estimated measure of each flip, in float64; with a scalar or a change function, its signed value.

        Norms are accumulated block by block, so that memory does not grow with the outputs. Distances and change
        functions are computed from the estimated changes of all outputs. `ready` is the first input as it is prepared
        for the first block, if it is at hand.

        Raises:
            InputError: if the changes of all outputs are needed and do not fit in memory.
        """
        engine, count = self.engine, self.count
        together = engine.scalar is None and not engine.of_norm
        if together:
            with collecting("flip_sensitivity") as problems:
                what = f"the estimated change of {count} outputs by {len(flips)} flips"
                check_fits("measure", engine.measure, table_bytes(len(flips), count), what, REMEDY, problems)
        total = np.zeros((len(flips), count) if together else len(flips))
        for k, block in enumerate(self.each):
            pair, first = (self.pair(k), None) if k else (self.first, ready)

            def told(done: int, total: int, k: int = k) -> None:
                if progress:  # in flips of all blocks together
                    progress((k * total + done) // len(self.each), total)

            where = flips.inputs, flips.positions, flips.symbols
            measuring = Measuring(engine, pair, words, *where, devices, progress and told, first=first)
            changes = measuring.changes()[0].astype(np.float64)
            if engine.scalar is not None:
                return changes[:, 0]
            if together:
                total[:, block.start : block.stop] = changes[:, : count - block.start]
            else:
                total = engine.measure.combined(total, engine.measure.of_array(changes))
        if not together:
            return total
        found, at_once = np.empty(len(flips)), max(1, OUTPUTS_AT_ONCE // count)
        for b in np.unique(flips.inputs):
            y = jnp.asarray(compiled_output(self.model.apply, self.model.parameters, words[b]))
            own = np.flatnonzero(flips.inputs == b)
            for chosen in np.split(own, range(at_once, len(own), at_once)):
                dy = jnp.asarray(total[chosen], y.dtype)  # of the chosen outputs alone
                none = jnp.zeros(len(dy), y.dtype)
                found[chosen] = engine.measure.of_changes(engine.chosen(y), dy, none)[0]
        return found

    def verified(
        self,
        words: Int[np.ndarray, "batch n"],
        flips: FlipTable,
        chosen: Int[np.ndarray, " verified"],
        devices: Placement,
    ) -> tuple[Float[np.ndarray, " verified"], Float[np.ndarray, " verified"], str]:
        """Measures the flips with the given indices exactly.

        Returns:
            The norms; with a scalar or a change function, its signed values. The same in the combinations that were
            estimated, which differ with a sketch. And how they were measured.
        """
        n, engine, norm = words.shape[1], self.engine, self.engine.measure
        wide = with_parameters_in(self.given, n, np.float64)
        where = [flips.inputs[chosen], flips.positions[chosen], flips.symbols[chosen]]
        inputs, which = np.unique(where[0], return_inverse=True)
        with numerics(wide.dtype):
            run = choose(wide, Auto(1), Substitute(), norm, n, len(inputs), count=len(chosen))
            runner, how = run.engine, f"{run.choice.name} in {wide.dtype}"
            order, passes = np.arange(len(chosen)), engine.of_norm and isinstance(runner, VmapEngine)
            # A norm is taken of the changes of combinations, which already are those of the chosen outputs.
            if engine.of_norm:
                runner = OutputEngine(norm, None, wide.apply) if passes else replace(runner, outputs=None)
            if passes:  # the output of an input is that on a flip which puts there what there is
                own = inputs, np.zeros((len(inputs), 1), int), words[inputs, :1]
                where = [np.concatenate(pair) for pair in zip(own, where, strict=True)]
                order = np.argsort(where[0], kind="stable")
            b, places, symbols = (part[order] for part in where)
            parameters = jax.device_put(wide.parameters)
            measuring = Measuring(runner, parameters, words, b, places, symbols, devices)
            if not engine.of_norm:
                values = measuring.numbers()[0][:, 0].astype(np.float64)
                return values, values, how
            changes = measuring.changes()[0].astype(np.float64)[np.argsort(order)]
        if passes:
            changes = changes[len(inputs) :] - changes[: len(inputs)][which]
        exact = norm.of_array(changes if engine.outputs is None else changes[:, list(engine.outputs)])
        if self.sketch is None:
            return exact, exact, how
        return exact, norm.of_array(changes @ combinations(self.asked, engine, changes.shape[1]).T), how


def warn_if_far(result: FlipSensitivity, model: Model, stacklevel: int) -> None:
    """Issues an `EstimateWarning` if the estimate's error on the random sample, or on the largest estimates, is above
    `FAR_OFF` in the median or `FAR_OFF_90` in a tenth, and more than the rounding of what it is compared with."""
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
