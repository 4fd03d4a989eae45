"""The first-order engine: an estimate of every flip's effect at any depth, in O(layers n^2 width) for each output.

The flipped row is followed exactly through all layers. In each layer it moves one key and one value of every other row,
for which attention has a closed form. What those rows pass on to the output is linear: the derivative with respect to
what they attended to, times its change. In the last layer only the readout row counts, and it is exact.

While weights are O(1/n), as under Hahn's Lemma 5, what is left out is O(1/n) of the change. The error is not known from
the estimate alone: `jaxsens.first_order.estimate` measures it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxsens.core.base.programs import Platform
from jaxsens.core.engines.engine import Changed, Cost, Engine, FlipBlock
from jaxsens.core.engines.one_key.one_moved_key import attended_by_moved_rows, changes_of_rows, passed_on
from jaxsens.core.engines.one_key.run import Run, costs_of_layers, run
from jaxsens.core.measures.formulas import as_vector, change_of
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import (
    EqualLayers,
    Layered,
    Stack,
    embedded_rows,
    groups_of,
    layer_of,
    readout_row,
)
from jaxsens.core.models.transformer.layers import LayeredTransformer, layered_transformer
from jaxsens.first_order.gradients import attended_gradients

Places: TypeAlias = Int[Array, " flips"]
FlippedRows: TypeAlias = Float[Array, "flips width"]
"""The row of each flip, at its position."""

EFFICIENCY = 0.2
"""The share of a large matrix product's rate that the engine reaches on CPU."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PreparedEstimate:
    """The unflipped run, and the derivatives of the outputs with respect to what rows attended to, by group
    of layers."""

    run: Run
    gradients: tuple[Float[Array, "layers heads n value_width outputs"], ...]


@dataclass(frozen=True)
class FirstOrderEngine(Engine):
    """Estimates the change of combinations of outputs. Its parameters are a pair: the model's, and the combinations.

    Combinations are (combinations, outputs), each a weighted sum of outputs. With a `scalar` there is a single one, the
    scalar itself, and the second of the pair is ignored. Memory is O(n width (layers + combinations layers)).

    Attributes:
        layered: the model.
        readout: the row that is read: "last", a position, or "mean".
    """

    layered: Layered
    readout: int | str
    prepares_for_measure: ClassVar[bool] = True

    @property
    def own_config(self) -> TransformerConfig | None:
        """That of a jaxsens transformer; a class that a user derives from one is another model."""
        config = self.layered.config if isinstance(self.layered, LayeredTransformer) else None
        return config if config and self.layered == layered_transformer(config) else None

    def for_config(self, config: TransformerConfig) -> FirstOrderEngine:
        return replace(self, layered=layered_transformer(config))

    @property
    def of_norm(self) -> bool:
        """Whether a norm is measured, which is the norm of those of its parts."""
        return self.measure.estimate == "parts"

    @property
    def scalar(self) -> Callable[[Array], Array] | None:
        """The function of the output that is measured; None for another measure."""
        return self.measure.function if self.measure.estimate == "derivative" else None

    def prepare(self, parameters: tuple[Any, Any], tokens: Int[Array, " n"]) -> PreparedEstimate:
        n = tokens.shape[0]
        model = self.layered.at_length(n)
        own = model.apart(parameters[0])
        row, groups = readout_row(self.readout, n), self._groups(own, n)
        kept = run(model, own, tokens, groups, row)
        if not groups:
            return PreparedEstimate(kept, ())
        read = self._linear_read(parameters, kept)
        return PreparedEstimate(kept, attended_gradients(model, own, kept, groups, row, read))

    def _groups(self, own: Any, n: int) -> tuple[EqualLayers, ...]:
        """Returns the groups of layers in which all rows count."""
        model = self.layered.at_length(n)
        return groups_of(model, own, n, range(model.layers - (readout_row(self.readout, n) is not None)))

    def output(self, parameters: tuple[Any, Any], prepared: PreparedEstimate) -> Float[Array, " outputs"]:
        return self._output(parameters, prepared.run)

    def sizes(self, prepared: PreparedEstimate) -> Float[Array, " layers"]:
        """Those of a model's softmax layers; 0 for sigmoid ones."""
        kept = prepared.run
        found = [jnp.max(jnp.abs(group.normaliser), axis=(1, 2)) for group in kept.groups]
        last = [] if kept.last is None else [jnp.max(jnp.abs(kept.last.normaliser))[None]]
        return jnp.concatenate([jnp.zeros(0), *found, *last])

    def changed(self, parameters: tuple[Any, Any], prepared: PreparedEstimate, block: FlipBlock) -> Changed:
        """Returns the estimated changes, and no error: that of the method is far larger, and is seen on the flips that
        are measured besides."""
        changes = self.changes(parameters, prepared, block)
        return changes, jnp.zeros(changes.shape[:1], changes.dtype)

    def changes(
        self, parameters: tuple[Any, Any], prepared: PreparedEstimate, block: FlipBlock
    ) -> Float[Array, "flips combinations"]:
        kept, (positions, symbols) = prepared.run, block.single
        n = kept.tokens.shape[0]
        model, row = self.layered.at_length(n), readout_row(self.readout, n)
        own = model.apart(parameters[0])
        moved = embedded_rows(model, own, symbols, positions)
        outputs = parameters[1].shape[0]
        total = jnp.zeros((len(positions), outputs), kept.y.dtype)
        given = self._groups(own, n), kept.stacks, kept.groups, prepared.gradients
        for group, stack, layers, gradients in zip(*given, strict=True):

            def through(
                carry: Any,
                given: Any,
                group: EqualLayers = group,
                stack: Stack = stack,
                gradients: Array = gradients,
            ) -> tuple[Any, None]:
                (total, moved), (k, kept) = carry, given
                layer = group.layer(model, own, n, stack, k)

                def g(head: Array, first: Array, m: int) -> Array:
                    sizes = 1, 1, m, *gradients.shape[3:]
                    return jax.lax.dynamic_slice(gradients, (k, head, first, 0, 0), sizes)[0, 0]

                qkv = layer.projected(moved, positions)
                total += passed_on(layer, kept, g, outputs, positions, qkv[1:]).astype(total.dtype)
                after = layer.merged(moved, attended_by_moved_rows(layer, kept, positions, qkv))
                return (total, after.astype(moved.dtype)), None

            (total, moved), _ = jax.lax.scan(through, (total, moved), (group.numbers, layers))
        if row is None:
            return total + self._change_of_mean(parameters, kept, positions, moved)
        return total + self._change_of_row(parameters, kept, row, positions, moved)

    def _change_of_row(
        self, parameters: tuple[Any, Any], kept: Run, row: int, positions: Places, moved: FlippedRows
    ) -> Float[Array, "flips combinations"]:
        """Returns the exact effect of the flipped row on the readout row, through the last layer and the readout.

        `moved` are the flipped rows before the last layer. They pass through it only in blocks with a flip of the
        readout row itself.
        """
        n, own = kept.tokens.shape[0], parameters[0]
        model, read, y = self.layered.at_length(n), self._linear_read(parameters, kept), kept.y[row]
        last = model.layers - 1

        def of_itself(new: FlippedRows) -> Array:
            return jax.vmap(lambda one: change_of(read, y, one - y))(new)

        if kept.last is None:
            return jnp.where((positions == row)[:, None], of_itself(moved), 0)
        layer, run_of_it = layer_of(model, own, last, n), kept.last
        qkv = layer.projected(moved, positions)
        db = changes_of_rows(layer, run_of_it, jnp.asarray([row]), positions, qkv[1:])[:, 0]

        def through(b: Float[Array, "heads value_width"]) -> Array:
            return read(model.merge(own, last, run_of_it.x[row], b))

        of_others = jax.vmap(lambda step: change_of(through, run_of_it.b[:, row], step))(db)

        def with_itself() -> Array:
            new = layer.merged(moved, attended_by_moved_rows(layer, run_of_it, positions, qkv))
            return jnp.where((positions == row)[:, None], of_itself(new), of_others)

        return jax.lax.cond(jnp.any(positions == row), with_itself, lambda: of_others)

    def _change_of_mean(
        self, parameters: tuple[Any, Any], kept: Run, positions: Places, moved: FlippedRows
    ) -> Float[Array, "flips combinations"]:
        """Returns the exact effect of the flipped row alone on a function of the mean of all rows' outputs."""
        n = kept.tokens.shape[0]
        (read, combined), old = self._maps(parameters, n), kept.y[positions]
        steps = jax.vmap(lambda y, new: change_of(read, y, new - y))(old, moved) / n
        mean = self._output(parameters, kept)
        return jax.vmap(lambda step: change_of(combined, mean, step))(steps)

    def _output(self, parameters: tuple[Any, Any], kept: Run) -> Float[Array, " outputs"]:
        n = kept.tokens.shape[0]
        row, (read, _) = readout_row(self.readout, n), self._maps(parameters, n)
        return read(kept.y[row]) if row is not None else jnp.mean(jax.vmap(read)(kept.y), axis=0)

    def _maps(
        self, parameters: tuple[Any, Any], n: int
    ) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Returns the functions from a row of the last layer to the output, a vector in float32 at least, and from the
        output to its combinations."""
        model, scalar = self.layered.at_length(n), self.scalar

        def combined(output: Array) -> Array:
            return parameters[1] @ output if scalar is None else jnp.reshape(scalar(output), (1,))

        return lambda y: as_vector(model.read(parameters[0], y)), combined

    def _linear_read(self, parameters: tuple[Any, Any], kept: Run) -> Callable[[Array], Array]:
        """Returns a function of one row, whose derivative is that of the combinations with respect to the row.

        For a mean over rows it is linear in the row's output: the derivative of the combinations at the mean.
        """
        n = kept.tokens.shape[0]
        read, combined = self._maps(parameters, n)
        if readout_row(self.readout, n) is not None:
            return lambda y: combined(read(y))
        jacobian = jax.jacrev(combined)(self._output(parameters, kept))
        return lambda y: jacobian @ read(y)

    def preferred_batch(self, n: int, platform: Platform) -> int:
        """Some hundred flips: their matrix products are large, and tiles of weights stay in cache."""
        return platform.estimated_flips

    def cost(
        self, parameters: tuple[Any, Any], tokens: Int[Array, " n"] | jax.ShapeDtypeStruct, platform: Platform
    ) -> Cost:
        """Counts the products of attention, forward and backward, and of the sums over rows, and the row maps.

        The second of `parameters` gives the number of combinations.
        """
        n, outputs = tokens.shape[0], parameters[1].shape[0]
        model = self.layered.at_length(n)
        whole = range(model.layers if readout_row(self.readout, n) is None else model.layers - 1)
        prepare = per_flip = block = 0.0
        for k, costs in enumerate(costs_of_layers(model, parameters[0], n)):
            pairs, of_rows = costs.pair, costs.row
            prepare += n * ((n if k in whole else 1) * pairs + of_rows)
            per_flip += n * pairs * (k in whole) + of_rows
            if k in whole:
                prepare += n * outputs * (2 * of_rows + (1.5 * n * pairs if k else 0))
                per_flip += n * (2 * pairs + outputs * pairs / 2)
            block = max(block, self.preferred_batch(n, platform) * outputs * pairs * 4)
        return Cost(prepare, per_flip, int(block), EFFICIENCY, compiling=4.9 + 0.1 * model.layers)
