"""The first-order engine: an estimate of every flip's effect at any depth, in O(layers n^2 width) for each output.

The flipped row is followed exactly through all layers. In each layer it moves one key and one value of every other row,
for which attention has a closed form. What those rows pass on to the output is linear: the derivative with respect to
what they attended to, times its change. In the last layer only the readout row counts, and it is exact.

While weights are O(1/n), as under Hahn's Lemma 5, what is left out is O(1/n) of the change. The error is not known from
the estimate alone: `jaxsens.first_order.estimate` measures it.

Derivatives are taken layer by layer from the top. With p_jw the weight of key w in row j, b_j = sum_w p_jw v_w and g_j
the derivative with respect to b_j, softmax passes on

    to the value v_w     sum_j p_jw g_j
    to the score s_jw    p_jw (g_j . v_w - g_j . b_j),     and from there to the query j and the key w.

A sink, whose score is constant and whose value is 0, adds nothing to either. In sigmoid attention the score s_jw gets
p_jw (1 - p_jw) (g_j . v_w). Weights are recomputed in tiles; nothing n x n is stored. A tile's weights are shared by
all outputs of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.programs import Platform, compiled_for
from jaxsens.core.engines.engine import Changed, Cost, Engine, FlipBlock
from jaxsens.core.engines.one_key.one_moved_key import attended_by_moved_rows, changes_of_rows, passed_on
from jaxsens.core.engines.one_key.run import (
    ONE_MOVED_KEY,
    LayerRun,
    Run,
    costs_of_layers,
    run,
    summed_over_blocks,
)
from jaxsens.core.measures.formulas import as_vector, change_of
from jaxsens.core.models.parts.weighting import Sigmoid, Tempered, Weighting
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layered import (
    EqualLayers,
    Layered,
    ModelLayer,
    Stack,
    embedded_rows,
    groups_of,
    layer_of,
    over_rows,
    readout_row,
)
from jaxsens.core.models.transformer.layers import LayeredTransformer, layered_transformer

ROWS, KEYS = 256, 128
"""Query rows and keys of a tile: its products for one output stay in a core's cache."""

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
        """Runs the model, and takes the derivatives of the combinations with respect to b, from the top: in all layers
        that other rows pass on, which with a readout row are those before the last, where only that row counts.

        O(layers n^2 outputs width) operations; the result takes n width outputs numbers a layer.
        """
        n = tokens.shape[0]
        model, row = self.layered.at_length(n), readout_row(self.readout, n)
        own = model.apart(parameters[0])
        groups = groups_of(model, own, n, range(model.layers - (row is not None)))
        kept = run(model, own, tokens, groups, row)
        prepared = PreparedEstimate(kept, ())
        if not groups:
            return prepared
        read, found = self._linear_read(parameters, prepared), []
        if row is None or kept.last is None:
            outputs = jax.eval_shape(read, kept.y[0]).size
            gy = over_rows(jax.jacrev(read), kept.y, most=_many(outputs, kept.y.shape[1])) / n
        else:
            last = layer_of(model, own, model.layers - 1, n)
            gx, g = through_merge(last, kept.last, jnp.asarray([row]), jax.jacrev(read)(kept.y[row])[None])
            gy = through_attention(last, kept.last, row, g).at[row].add(gx[0])
        for group, stack, layers in reversed([*zip(groups, kept.stacks, kept.groups, strict=True)]):

            def layer(
                gy: Array, given: tuple[Array, LayerRun], group: EqualLayers = group, stack: Stack = stack
            ) -> tuple[Array, Array]:
                k, kept = given
                here = group.layer(model, own, n, stack, k)
                gx, g = through_merge(here, kept, jnp.arange(n), gy)

                def below() -> Array:
                    return (gx + through_attention(here, kept, None, g)).astype(gy.dtype)

                if group.start:
                    gx = below()
                elif len(group.layers) > 1:  # nothing is below the first layer
                    gx = jax.lax.cond(k > 0, below, lambda: gy)
                return gx.astype(gy.dtype), g.transpose(0, 2, 3, 1)

            gy, of_group = jax.lax.scan(layer, gy, (group.numbers, layers), reverse=True)
            found.append(of_group)
        return replace(prepared, gradients=tuple(reversed(found)))

    def output(self, parameters: tuple[Any, Any], prepared: PreparedEstimate) -> Float[Array, " outputs"]:
        kept = prepared.run
        row, (read, _) = readout_row(self.readout, len(kept.y)), self._maps(parameters, len(kept.y))
        return read(kept.y[row]) if row is not None else jnp.mean(jax.vmap(read)(kept.y), axis=0)

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
        groups = groups_of(model, own, n, range(model.layers - (row is not None)))
        given = groups, kept.stacks, kept.groups, prepared.gradients
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
        if row is None:  # the flipped row alone has an exact effect on the mean of all rows' outputs
            (read, combined), old = self._maps(parameters, n), kept.y[positions]
            steps = jax.vmap(lambda y, new: change_of(read, y, new - y))(old, moved) / n
            mean = self.output(parameters, prepared)
            return total + jax.vmap(lambda step: change_of(combined, mean, step))(steps)
        # The flipped row's effect on the readout row, through the last layer and the readout, is exact. It passes
        # through that layer only in blocks with a flip of the readout row itself.
        read, y, last = self._linear_read(parameters, prepared), kept.y[row], kept.last
        itself = positions == row

        def of_itself(new: Float[Array, "flips width"]) -> Array:
            return jax.vmap(lambda one: change_of(read, y, one - y))(new)

        if last is None:
            return total + jnp.where(itself[:, None], of_itself(moved), 0)
        layer = layer_of(model, parameters[0], model.layers - 1, n)
        qkv = layer.projected(moved, positions)
        db = changes_of_rows(layer, last, jnp.asarray([row]), positions, qkv[1:])[:, 0]

        def to_outputs(b: Float[Array, "heads value_width"]) -> Array:
            return read(model.merge(parameters[0], layer.k, last.x[row], b))

        of_others = jax.vmap(lambda step: change_of(to_outputs, last.b[:, row], step))(db)

        def with_itself() -> Array:
            new = layer.merged(moved, attended_by_moved_rows(layer, last, positions, qkv))
            return jnp.where(itself[:, None], of_itself(new), of_others)

        return total + jax.lax.cond(jnp.any(itself), with_itself, lambda: of_others)

    def _maps(
        self, parameters: tuple[Any, Any], n: int
    ) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Returns the functions from a row of the last layer to the output, a vector in float32 at least, and from the
        output to its combinations."""
        model, scalar = self.layered.at_length(n), self.scalar

        def combined(output: Array) -> Array:
            return parameters[1] @ output if scalar is None else jnp.reshape(scalar(output), (1,))

        return lambda y: as_vector(model.read(parameters[0], y)), combined

    def _linear_read(
        self, parameters: tuple[Any, Any], prepared: PreparedEstimate
    ) -> Callable[[Array], Array]:
        """Returns a function of one row, whose derivative is that of the combinations with respect to the row.

        For a mean over rows it is linear in the row's output: the derivative of the combinations at the mean.
        """
        n = prepared.run.tokens.shape[0]
        read, combined = self._maps(parameters, n)
        if readout_row(self.readout, n) is not None:
            return lambda y: combined(read(y))
        jacobian = jax.jacrev(combined)(self.output(parameters, prepared))
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


def through_merge(
    layer: ModelLayer, kept: LayerRun, rows: Int[Array, " m"], gy: Float[Array, "m outputs width"]
) -> tuple[Float[Array, "m outputs width"], Float[Array, "heads outputs m value_width"]]:
    """Returns the derivatives with respect to the rows' inputs and what they attended to."""

    def one(x: Array, b: Array, g: Array) -> tuple[Array, Array]:
        _, pull = jax.vjp(lambda x, b: layer.model.merge(layer.parameters, layer.k, x, b), x, b)
        return jax.vmap(pull)(g)

    gx, gb = over_rows(one, kept.x[rows], kept.b[:, rows].swapaxes(0, 1), gy, most=_many(*gy.shape[1:]))
    return gx, gb.transpose(2, 1, 0, 3)


def through_attention(
    layer: ModelLayer,
    kept: LayerRun,
    row: int | None,
    g: Float[Array, "heads outputs m value_width"],
) -> Float[Array, "n outputs width"]:
    """Returns the derivative with respect to the layer's input rows, from that with respect to b of all rows, or of the
    given one."""
    attention, outputs, columns = layer.attention, g.shape[1], jnp.arange(layer.n)

    def one_head(given: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        """Returns the derivatives (outputs, n, ...) with respect to one head's queries, keys and values."""
        if row is None:
            return _of_all_rows(layer, *given)
        (head, g, q, k, v, b, normaliser), here = given, jnp.asarray([row])
        s, pull = jax.vjp(lambda q, k: layer.scores(head, q, k, here, columns), q[here], k)
        seen = attention.sees(here[:, None], columns[None, :])
        p, slope = _weights_and_slopes(attention.weighting, s, normaliser[here], seen)
        to_q, to_k = jax.vmap(pull)(slope * (g @ v.T + _offset(attention.weighting, g, b[here])))
        return jnp.zeros((outputs, *q.shape), g.dtype).at[:, row].set(to_q[:, 0]), to_k, p[0][:, None] * g

    of_heads = kept.queries, kept.keys, kept.values, kept.b, kept.normaliser
    gq, gk, gv = jax.lax.map(one_head, (jnp.arange(attention.heads), g, *of_heads))
    sharing = attention.heads // (attention.key_heads or attention.heads)
    gq, gk, gv = (
        part.reshape(-1, each, *part.shape[1:]).sum(1).transpose(2, 0, 1, 3)
        for part, each in ((gq, 1), (gk, sharing), (gv, sharing))
    )

    def one(x: Array, i: Array, gq: Array, gk: Array, gv: Array) -> Array:
        _, pull = jax.vjp(lambda row: layer.model.project(layer.parameters, layer.k, row, i), x)
        return jax.vmap(lambda *parts: pull(parts)[0], in_axes=1)(gq, gk, gv)

    return over_rows(one, kept.x, jnp.arange(layer.n), gq, gk, gv, most=_many(outputs, kept.x.shape[1]))


def _offset(
    weighting: Weighting, g: Float[Array, "outputs m value_width"], b: Float[Array, "m value_width"]
) -> Float[Array, "outputs m 1"]:
    """Returns -g . b, or 0 for weights that other keys do not enter."""
    own = jnp.sum(g * b, axis=-1, keepdims=True)
    return jnp.zeros_like(own) if isinstance(weighting, Sigmoid) else -own


def _of_all_rows(
    layer: ModelLayer,
    head: Int[Array, ""],
    g: Float[Array, "outputs n value_width"],
    q: Float[Array, "n head_width"],
    k: Float[Array, "n head_width"],
    v: Float[Array, "n value_width"],
    b: Float[Array, "n value_width"],
    normaliser: Float[Array, " n"],
) -> tuple[Array, Array, Array]:
    """A head's derivatives from those of all rows.

    A tile is transposed, keys by rows, which makes products for keys and values fast. With as many outputs as a
    head is wide, that for queries is g_j^T C_j, with C_j = sum_w p_jw (v_w - b_j) k_w^T shared by all outputs.
    """
    (outputs, n, width), attention, weighting = g.shape, layer.attention, layer.attention.weighting
    # One more column takes g . b off: (g, -g . b) . (v, 1).
    g = jnp.concatenate([g, _offset(weighting, g, b)], axis=-1)
    v = jnp.concatenate([v, jnp.ones_like(v[:, :1])], axis=-1)
    shared = outputs >= q.shape[1] and layer.bilinear
    pairs = (k[:, :, None] * v[:, None]).reshape(n, -1)

    def tile(columns: Array, new: Array, rows: Array, new_rows: Array, carry: tuple[Array, ...]) -> Any:
        """Adds the tile of these rows and keys; rows and keys seen before count 0. to_k and to_v are of the keys."""
        gq, to_k, to_v = carry
        q_rows, of_keys, normalisers = _part(q, rows), _part(k, columns), _part(normaliser, rows)
        s, pull = jax.vjp(lambda q, k: layer.scores(head, q, k, rows, columns), q_rows, of_keys)
        counted = attention.sees(rows[:, None], columns[None, :]) & new_rows[:, None] & new[None, :]
        p, slope = _weights_and_slopes(weighting, s, normalisers, counted)
        # Without a barrier, XLA would fold the transposition into products that are then several times slower.
        by_keys, turned = jax.lax.optimization_barrier((p.T, slope.T))
        values = _part(v, columns)
        factors = _factors(layer, rows, q.shape[1]).astype(q.dtype)[:, None] if layer.bilinear else 1.0

        def through(ds: Float[Array, "k m"]) -> tuple[Array, ...]:
            """From the tile's scores to its queries, unless they are shared, and to its keys."""
            if not layer.bilinear:
                return pull(ds.T)
            to_keys = ds @ (factors * q_rows)
            return (to_keys,) if shared else (factors * (of_keys.T @ ds).T, to_keys)

        def one(o: Array) -> tuple[Array, ...]:
            mine = jax.lax.dynamic_slice(g, (o, rows[0], 0), (1, len(rows), width + 1))[0]
            return *through(turned * (values @ mine.T)), by_keys @ mine[:, :width]

        *to_q, of_k, of_v = jax.lax.map(one, jnp.arange(outputs))
        own = slope @ _part(pairs, columns) if shared else to_q[0]
        gq = _added(gq, rows, own, axis=0 if shared else 1)
        return gq, to_k + of_k, to_v + of_v

    def of_keys(columns: Array, new: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        gq, gk, gv = carry
        empty = (jnp.zeros((len(part), len(columns), part.shape[2]), part.dtype) for part in (gk, gv))
        seeing = attention.rows_that_see((columns[0], columns[-1] + 1), n)
        gq, to_k, to_v = summed_over_blocks(partial(tile, columns, new), n, ROWS, (gq, *empty), seeing)
        return gq, _added(gk, columns, to_k, axis=1), _added(gv, columns, to_v, axis=1)

    gq = jnp.zeros(pairs.shape if shared else (outputs, *q.shape), g.dtype)
    gk, gv = (jnp.zeros((outputs, n, part), g.dtype) for part in (k.shape[1], width))
    gq, gk, gv = summed_over_blocks(of_keys, n, KEYS, (gq, gk, gv))
    if shared:
        gq = jnp.einsum("rcx,orx->orc", gq.reshape(n, -1, width + 1), g)
        gq = gq * _factors(layer, jnp.arange(n), q.shape[1])[:, None]
    return gq, gk, gv


def _part(whole: Float[Array, "n ..."], rows: Int[Array, " m"]) -> Float[Array, "m ..."]:
    """Returns successive rows, without a gather."""
    return jax.lax.dynamic_slice_in_dim(whole, rows[0], len(rows))


def _added(whole: Array, rows: Int[Array, " m"], part: Array, axis: int = 0) -> Array:
    """Returns the whole with a part added to successive rows."""
    old = jax.lax.dynamic_slice_in_dim(whole, rows[0], len(rows), axis)
    return jax.lax.dynamic_update_slice_in_dim(whole, old + part, rows[0], axis)


def _factors(layer: ModelLayer, rows: Int[Array, " m"], width: int) -> Float[Array, " m"]:
    """Returns the factor of each row's dot products in its scores."""
    weighting, scale = layer.attention.weighting, layer.attention.scale
    if not isinstance(weighting, Tempered):
        raise no_rule("the first-order engine", "weighting", weighting, ONE_MOVED_KEY)
    inverse = weighting.inverse_temperatures(rows, layer.n, jnp.result_type(float))
    return inverse * (width**-0.5 if scale is None else scale)


def _weights_and_slopes(
    weighting: Weighting, s: Float[Array, "m k"], normaliser: Float[Array, " m"], counted: Bool[Array, "m k"]
) -> tuple[Float[Array, "m k"], Float[Array, "m k"]]:
    """Returns the weights of the keys that count, and the factor of the derivative with respect to their scores."""
    if isinstance(weighting, Sigmoid):
        p = jnp.where(counted, jax.nn.sigmoid(s), 0)
        return p, p * jax.nn.sigmoid(-s)
    p = jnp.where(counted, jnp.exp(jnp.where(counted, s - normaliser[:, None], 0)), 0)
    return p, p


def _many(outputs: int, width: int) -> int:
    """Rows whose per-row derivatives are taken at once: each has as many as there are outputs."""
    return max(1, min(2**12, compiled_for().mapped_rows(width) or 2**12) // outputs)
