"""Rows of a hard-attention model computed outside any word: projections, scores and outputs, each with its error.

Theorem 1 looks at every value that a row may take, not at one word. The functions here run the model's own formulas on
such rows. They also bound how far the same quantities may be from their exact values, here or in any other program of
the same model, by a running error analysis to first order in the unit roundoff u: a sum of m products is off by at most
m u sum |a_i b_i|, in any order and with or without fused operations, plus what the errors of its operands contribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.errors import no_rule
from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.layers import position_embedding
from jaxsens.models.maps import activation, layer_norm
from jaxsens.models.parameters import LayerParameters, NormParameters, TransformerParameters, needed
from jaxsens.models.scores import projected, scores, turned
from jaxsens.models.trace import after_attention
from jaxsens.precision import numerics
from jaxsens.theory.rules import SCORES, position_parts, score_terms

SAFETY = 6.0
"""Scores this many errors apart are ordered. Two scores, each within one error of its exact value in both programs,
make four. The checker asks for these four. The rest covers what it rounds itself, and terms of second order."""

_STEEPEST = 1.2
"""An upper bound on the derivative of every activation in `rules.ACTIVATIONS`: 1.13 for gelu, 1.10 for silu."""

RESTRICT = "restrict"
"""Who refuses, in the messages of refusals."""


class Projections(NamedTuple):
    """Query, key and value of every head and row, and the errors of each."""

    queries: Float[np.ndarray, "heads m c"]
    keys: Float[np.ndarray, "heads m c"]
    values: Float[np.ndarray, "heads m c"]
    query_errors: Float[np.ndarray, "heads m c"]
    key_errors: Float[np.ndarray, "heads m c"]
    value_errors: Float[np.ndarray, "heads m c"]


@dataclass(frozen=True)
class HardModel:
    """A model at one length.

    Attributes:
        config, parameters: the model's.
        n: the length.
    """

    config: TransformerConfig
    parameters: TransformerParameters
    n: int

    @property
    def unit(self) -> float:
        """The unit roundoff."""
        return float(np.finfo(self.config.dtype).eps) / 2

    @property
    def tiny(self) -> float:
        """The smallest normal number: programs may take smaller ones for 0."""
        return float(np.finfo(self.config.dtype).tiny)

    def embedded(
        self, positions: Int[np.ndarray, " m"], symbols: Int[np.ndarray, " m"]
    ) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]:
        """y^(0) of symbols at positions, and its errors."""
        config, parameters, n = self.config, self.parameters, self.n
        with numerics(config.dtype):
            placed = np.asarray(position_embedding(config, parameters, n))
        embedding = np.asarray(parameters.embedding)
        parts = position_parts(RESTRICT, config, parameters, n)
        size = sum((np.abs(part) for part in parts), np.zeros((n, config.width)))
        x = embedding[symbols] + placed[positions]
        size = np.abs(embedding[symbols]).astype(np.float64) + size[positions]
        each = self.unit * size + 2 * self.tiny * (size > 0)
        return x, (len(config.position_terms) + 3) * each

    def projections(
        self, k: int, x: Float[np.ndarray, "m d"], errors: Float[np.ndarray, "m d"], positions: np.ndarray
    ) -> Projections:
        """Queries, keys and values of rows at positions, in layer k."""
        rows = len(x)
        padded = _padded_size(rows)
        with numerics(self.config.dtype):
            found = _projections(
                self.config.layer(k),
                self.n,
                self.parameters.layers[k],
                _padded(x, padded),
                _padded(errors, padded),
                _padded(positions, padded),
            )
            return Projections(*(np.asarray(each)[:, :rows] for each in found))

    def scores(
        self,
        k: int,
        queries: Float[np.ndarray, "heads q c"],
        keys: Float[np.ndarray, "heads m c"],
        query_positions: Int[np.ndarray, " q"],
        key_positions: Int[np.ndarray, " m"],
    ) -> Float[np.ndarray, "heads q m"]:
        """The scores of queries at positions with keys at positions, in layer k and the model's dtype."""
        rows, columns = queries.shape[1], keys.shape[1]
        more, wide = _padded_size(rows), _padded_size(columns)
        with numerics(self.config.dtype):
            found = _scores(
                self.config.layer(k),
                self.n,
                self.parameters.layers[k],
                _padded(queries, more, 1),
                _padded(keys, wide, 1),
                _padded(query_positions, more),
                _padded(key_positions, wide),
            )
            return np.asarray(found)[:, :rows, :columns]

    def margins(self, k: int, found: Projections) -> Float[np.ndarray, "heads m"]:
        """How far apart two scores of a query must be for their order to be certain in every program.

        One number for all keys of a query, by the largest size and error that a key has in each coordinate.
        """
        layer, parameters, unit = self.config.layer(k), self.parameters.layers[k], self.unit
        size = np.abs(found.keys).max(axis=1, initial=0.0)[:, None, :].astype(np.float64)
        wrong = found.key_errors.max(axis=1, initial=0.0)[:, None, :]
        queries, errors = np.abs(found.queries).astype(np.float64), found.query_errors
        width = layer.head_width
        match layer.scores:
            case "additive":
                weight = np.abs(np.asarray(needed(parameters.additive, "additive"), np.float64))[:, None, :]
                each = errors + wrong + 2 * unit * (queries + size) + (width + 8) * unit + 4 * self.tiny
                error = (each * weight).sum(axis=-1) + 4 * width * self.tiny
            case "dot-product":
                each = errors * size + queries * wrong + (width + 3) * unit * queries * size
                error = (each.sum(axis=-1) + 4 * width * self.tiny) / np.sqrt(width) + self.tiny
            case _:
                raise no_rule(RESTRICT, "score", layer.scores, SCORES)
        _, alibi = score_terms(RESTRICT, layer)
        if alibi is not None:
            error = error + 4 * unit * alibi.slopes(layer.heads)[:, None] * self.n
        return SAFETY * error

    def finished(
        self,
        k: int,
        x: Float[np.ndarray, "m d"],
        errors: Float[np.ndarray, "m d"],
        heads: Float[np.ndarray, "heads m c"],
        head_errors: Float[np.ndarray, "heads m c"],
    ) -> tuple[Float[np.ndarray, "m d"], Float[np.ndarray, "m d"]]:
        """Layer k's output on rows x whose heads put out `heads`, and its errors."""
        rows = len(x)
        padded = _padded_size(rows)
        with numerics(self.config.dtype):
            found = _finished(
                self.config.layer(k),
                self.parameters.layers[k],
                _padded(x, padded),
                _padded(errors, padded),
                _padded(heads, padded, 1),
                _padded(head_errors, padded, 1),
            )
            y, wrong = (np.asarray(each)[:rows] for each in found)
        return y, wrong


def _padded_size(rows: int) -> int:
    """Sizes are rounded up to powers of two, so that few programs are compiled."""
    return max(128, 1 << (rows - 1).bit_length())


def _padded(array: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
    """Fills up with copies of the first row, which bring in no number that was not there before."""
    missing = size - array.shape[axis]
    if missing == 0:
        return array
    return np.concatenate([array, np.repeat(array.take([0], axis), missing, axis)], axis)


@partial(jax.jit, static_argnums=(0, 1))
def _projections(
    layer: LayerConfig, n: int, parameters: LayerParameters, x: Array, errors: Array, positions: Array
) -> tuple[Array, ...]:
    z = x
    if layer.layer_norm == "pre":
        z = layer_norm(layer, parameters.attention_norm, x)
        errors = _norm_errors(layer, parameters.attention_norm, x, errors)
    made, wrong = [], []
    for matrices in (parameters.query, parameters.key, parameters.value):
        made.append(projected(layer, z, matrices))
        wrong.append(jax.vmap(lambda matrix: _product_errors(z, errors, matrix))(matrices))
    rotary, _ = score_terms(RESTRICT, layer)
    for which in (0, 1):
        if rotary is not None:
            wrong[which] = _pair_sums(_turn_errors(made[which], wrong[which]))
        made[which] = turned(layer, made[which], positions, n)
    return (*made, *wrong)


def _unit(x: Array) -> float:
    return float(jnp.finfo(x.dtype).eps) / 2


def _tiny(x: Array) -> float:
    return float(jnp.finfo(x.dtype).tiny)


def _product_errors(x: Array, errors: Array, matrix: Array) -> Array:
    """The errors of x @ matrix: rounding, and each product, sum or weight that may be taken for 0."""
    size = jnp.abs(matrix)
    met = ((x != 0) | (errors > 0)).astype(x.dtype)
    lost = (_tiny(x) * (4 + jnp.abs(x)) * met) @ (size > 0).astype(x.dtype)
    return lost + errors @ size + (x.shape[-1] + 1) * _unit(x) * (jnp.abs(x) @ size)


def _turn_errors(x: Array, errors: Array) -> Array:
    return errors + 4 * _unit(x) * jnp.abs(x) + 8 * _tiny(x) * (1 + jnp.abs(x)) * (errors > 0)


def _pair_sums(x: Array) -> Array:
    pairs = jnp.sum(x.reshape(*x.shape[:-1], -1, 2), axis=-1)
    return jnp.repeat(pairs, 2, axis=-1)


@partial(jax.jit, static_argnums=(0, 1))
def _scores(
    layer: LayerConfig,
    n: int,
    parameters: LayerParameters,
    queries: Array,
    keys: Array,
    query_positions: Array,
    key_positions: Array,
) -> Array:
    return scores(layer, parameters, queries, keys, query_positions, key_positions, n)


@partial(jax.jit, static_argnums=0)
def _finished(
    layer: LayerConfig, parameters: LayerParameters, x: Array, errors: Array, heads: Array, head_errors: Array
) -> tuple[Array, Array]:
    nothing = jnp.zeros((0,), x.dtype)
    trace, y = after_attention(layer, parameters, x, x, nothing, nothing, nothing, nothing, heads)
    unit = _unit(x)
    wrong = errors + jnp.sum(jax.vmap(_product_errors)(heads, head_errors, parameters.output), axis=0)
    added = jnp.einsum("hmc,hcd->md", jnp.abs(heads), jnp.abs(parameters.output))
    size, tiny = jnp.abs(x) + added, _tiny(x)
    wrong = wrong + (layer.heads + 1) * (unit * size + 2 * tiny * (size > 0))
    if layer.layer_norm == "post":
        wrong = _norm_errors(layer, parameters.attention_norm, trace.attended, wrong)
    if not layer.feed_forward:
        return y, wrong
    inner, of_inner = trace.c, wrong
    if layer.layer_norm == "pre":
        inner = layer_norm(layer, parameters.feed_forward_norm, trace.c)
        of_inner = _norm_errors(layer, parameters.feed_forward_norm, trace.c, wrong)
    h = needed(trace.h, "w1")
    of_hidden = _product_errors(inner, of_inner, needed(parameters.w1, "w1"))
    of_hidden = of_hidden + 2 * unit * jnp.abs(h) + 2 * tiny
    a = activation(layer, h)
    of_hidden = _STEEPEST * of_hidden + 8 * unit * jnp.abs(h) + 8 * tiny
    wrong = wrong + _product_errors(a, of_hidden, needed(parameters.w2, "w2"))
    mapped = needed(trace.mapped, "w2")
    wrong = wrong + 2 * unit * (jnp.abs(mapped) + jnp.abs(mapped - trace.c))
    wrong = wrong + 4 * tiny * (mapped != trace.c)
    if layer.layer_norm == "post":
        wrong = _norm_errors(layer, parameters.feed_forward_norm, mapped, wrong)
    return y, wrong


def _norm_errors(layer: LayerConfig, parameters: NormParameters | None, x: Array, errors: Array) -> Array:
    """The errors of layer normalisation: an error in x is divided by the deviation, and moves the deviation too."""
    if parameters is None:
        raise TypeError("layer normalisation needs its parameters")
    d, unit = x.shape[-1], _unit(x)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    deviation = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + layer.layer_norm_epsilon)
    moved = errors + jnp.mean(errors + (d + 1) * unit * jnp.abs(x), axis=-1, keepdims=True)
    tiny = _tiny(x)
    moved = moved + unit * jnp.abs(centred) + 8 * tiny
    spread = jnp.sqrt(jnp.mean(moved**2, axis=-1, keepdims=True)) + (d + 6) * unit * deviation
    spread = spread + 8 * tiny / deviation
    z = jnp.abs(centred) / deviation
    wrong = (moved + z * spread) / deviation + 3 * unit * z
    scale, bias = jnp.abs(parameters.scale), jnp.abs(parameters.bias)
    return wrong * scale + 2 * unit * (z * scale + bias) + tiny * (8 + z)
