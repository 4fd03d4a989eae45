"""Rows of a hard-attention model computed outside any word: projections, scores and outputs, each with its error.

Theorem 1 looks at every value that a row may take, not at one word. The functions here run the model's own formulas on
such rows. They also bound how far the same quantities may be from their exact values, here or in any other program of
the same model, by a running error analysis to first order in the unit roundoff u: a sum of m products is off by at most
m u sum |a_i b_i|, in any order and with or without fused operations, plus what the errors of its operands contribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import no_rule, rule_for
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.choices import ACTIVATIONS
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.parameters import (
    LayerParameters,
    NormParameters,
    TransformerParameters,
    needed,
)
from jaxsens.core.models.transformer.trace import after_attention, layer_norm, projected, scores, turned
from jaxsens.theory.rules import SCORES, largest_added, position_parts, score_terms

SAFETY = 6.0
"""Scores this many errors apart are ordered. Two scores, each within one error of its exact value in both programs,
make four. The checker asks for these four. The rest covers what it rounds itself, and terms of second order."""

_STEEPEST = 1.2
"""An upper bound on the derivative of every activation in `rules.ACTIVATIONS`: 1.13 for gelu, 1.10 for silu."""

RESTRICT = "restrict"
"""Who refuses, in the messages of refusals."""


class Inexact(NamedTuple):
    """Numbers of a shape, and bounds on their rounding errors."""

    x: Any
    errors: Any

    def at(self, index: Any) -> Inexact:
        """Some of the numbers."""
        return Inexact(self.x[index], self.errors[index])


class Projections(NamedTuple):
    """Query, key and value of every head and row: (heads, m, c)."""

    queries: Inexact
    keys: Inexact
    values: Inexact


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

    def embedded(self, positions: Int[np.ndarray, " m"], symbols: Int[np.ndarray, " m"]) -> Inexact:
        """y^(0) of symbols at positions, (m, d)."""
        config, parameters, n = self.config, self.parameters, self.n
        with numerics(config.dtype):
            placed = np.asarray(parameters.position_embedding(config, n))
        embedding = np.asarray(parameters.embedding)
        parts = position_parts(config, parameters, n)
        size = sum((np.abs(part) for part in parts), np.zeros((n, config.width)))
        x = embedding[symbols] + placed[positions]
        size = np.abs(embedding[symbols]).astype(np.float64) + size[positions]
        each = _unit(x) * size + 2 * _tiny(x) * (size > 0)
        return Inexact(x, (len(config.position_terms) + 3) * each)

    def projections(self, k: int, rows: Inexact, positions: Int[np.ndarray, " m"]) -> Projections:
        """Queries, keys and values of rows (m, d) at positions, in layer k."""
        padded = _padded(rows.x), _padded(rows.errors), _padded(positions)
        with numerics(self.config.dtype):
            found = _projections(self.config.layer(k), self.n, self.parameters.layers[k], *padded)
            return jax.tree.map(lambda each: np.asarray(each)[:, : len(positions)], found)

    def scores(
        self,
        k: int,
        queries: Float[np.ndarray, "heads q c"],
        keys: Float[np.ndarray, "heads m c"],
        query_positions: Int[np.ndarray, " q"],
        key_positions: Int[np.ndarray, " m"],
    ) -> Float[np.ndarray, "heads q m"]:
        """The scores of queries at positions with keys at positions, in layer k and the model's dtype."""
        pairs = _padded(queries, 1), _padded(keys, 1), _padded(query_positions), _padded(key_positions)
        with numerics(self.config.dtype):
            found = _scores(self.config.layer(k), self.parameters.layers[k], *pairs, n=self.n)
            return np.asarray(found)[:, : queries.shape[1], : keys.shape[1]]

    def margins(self, k: int, found: Projections) -> Float[np.ndarray, "heads m"]:
        """How far apart two scores of a query must be for their order to be certain in every program.

        One number for all keys of a query, by the largest size and error that a key has in each coordinate.
        """
        layer, parameters = self.config.layer(k), self.parameters.layers[k]
        unit, tiny = _unit(found.keys.x), _tiny(found.keys.x)
        size = np.abs(found.keys.x).max(axis=1, initial=0.0)[:, None, :].astype(np.float64)
        wrong = found.keys.errors.max(axis=1, initial=0.0)[:, None, :]
        queries, errors = np.abs(found.queries.x).astype(np.float64), found.queries.errors
        width = layer.head_width
        match layer.scores:
            case "additive":
                weight = np.abs(np.asarray(needed(parameters.additive, "additive"), np.float64))[:, None, :]
                each = errors + wrong + 2 * unit * (queries + size) + (width + 8) * unit + 4 * tiny
                error = (each * weight).sum(axis=-1) + 4 * width * tiny
            case "dot-product":
                each = errors * size + queries * wrong + (width + 3) * unit * queries * size
                error = (each.sum(axis=-1) + 4 * width * tiny) / np.sqrt(width) + tiny
            case _:
                raise no_rule(RESTRICT, "score", layer.scores, SCORES)
        error = error + 4 * unit * largest_added(layer, parameters, self.n)[:, None]
        return SAFETY * error

    def finished(self, k: int, rows: Inexact, heads: Inexact) -> Inexact:
        """Layer k's output on rows (m, d) whose heads put out `heads` (heads, m, c)."""
        padded = _padded(rows.x), _padded(rows.errors), _padded(heads.x, 1), _padded(heads.errors, 1)
        with numerics(self.config.dtype):
            found = _finished(self.config.layer(k), self.parameters.layers[k], *padded)
            return Inexact(*(np.asarray(each)[: len(rows.x)] for each in found))


def _padded(array: np.ndarray, axis: int = 0) -> np.ndarray:
    """Filled up along an axis with copies of the first row, which bring in no number that was not there before.

    Sizes are rounded up to powers of two, so that few programs are compiled.
    """
    size = array.shape[axis]
    missing = max(128, 1 << (size - 1).bit_length()) - size
    if missing == 0:
        return array
    return np.concatenate([array, np.repeat(array.take([0], axis), missing, axis)], axis)


@partial(jax.jit, static_argnums=(0, 1))
def _projections(
    layer: LayerConfig, n: int, parameters: LayerParameters, x: Array, errors: Array, positions: Array
) -> Projections:
    z = x
    if layer.layer_norm == "pre":
        z = layer_norm(layer, parameters.attention_norm, x)
        errors = _norm_errors(layer, parameters.attention_norm, x, errors)
    rotary = score_terms(layer).turns
    found = []
    for matrices in (parameters.query, parameters.key, parameters.value):
        made = projected(layer, z, matrices)
        wrong = jax.vmap(lambda matrix: _product_errors(z, errors, matrix))(matrices)
        if rotary is not None and len(found) < 2:  # queries and keys are turned, values are not
            wrong = wrong + 4 * _unit(x) * jnp.abs(made) + 8 * _tiny(x) * (1 + jnp.abs(made)) * (wrong > 0)
            wrong = jnp.repeat(wrong[..., 0::2] + wrong[..., 1::2], 2, axis=-1)
        found.append(Inexact(turned(layer, made, positions, n) if len(found) < 2 else made, wrong))
    return Projections(*found)


def _unit(x: Array | np.ndarray) -> float:
    return float(jnp.finfo(x.dtype).eps) / 2


def _tiny(x: Array | np.ndarray) -> float:
    """The smallest normal number: programs may take smaller ones for 0."""
    return float(jnp.finfo(x.dtype).tiny)


def _product_errors(x: Array, errors: Array, matrix: Array) -> Array:
    """The errors of x @ matrix: rounding, and each product, sum or weight that may be taken for 0."""
    size = jnp.abs(matrix)
    met = ((x != 0) | (errors > 0)).astype(x.dtype)
    lost = (_tiny(x) * (4 + jnp.abs(x)) * met) @ (size > 0).astype(x.dtype)
    return lost + errors @ size + (x.shape[-1] + 1) * _unit(x) * (jnp.abs(x) @ size)


_scores = jax.jit(scores, static_argnames=("layer", "n"))


@partial(jax.jit, static_argnums=0)
def _finished(
    layer: LayerConfig, parameters: LayerParameters, x: Array, errors: Array, heads: Array, head_errors: Array
) -> tuple[Array, Array]:
    after = after_attention(layer, parameters, x, heads)
    unit = _unit(x)
    wrong = errors + jnp.sum(jax.vmap(_product_errors)(heads, head_errors, parameters.output), axis=0)
    added = jnp.einsum("hmc,hcd->md", jnp.abs(heads), jnp.abs(parameters.output))
    size, tiny = jnp.abs(x) + added, _tiny(x)
    wrong = wrong + (layer.heads + 1) * (unit * size + 2 * tiny * (size > 0))
    if layer.layer_norm == "post":
        wrong = _norm_errors(layer, parameters.attention_norm, after.attended, wrong)
    if not layer.feed_forward:
        return after.y, wrong
    inner, of_inner = after.c, wrong
    if layer.layer_norm == "pre":
        inner = layer_norm(layer, parameters.feed_forward_norm, after.c)
        of_inner = _norm_errors(layer, parameters.feed_forward_norm, after.c, wrong)
    h = needed(after.h, "w1")
    of_hidden = _product_errors(inner, of_inner, needed(parameters.w1, "w1"))
    of_hidden = of_hidden + 2 * unit * jnp.abs(h) + 2 * tiny
    a = rule_for(RESTRICT, "activation", layer.activation, ACTIVATIONS)(h)
    of_hidden = _STEEPEST * of_hidden + 8 * unit * jnp.abs(h) + 8 * tiny
    wrong = wrong + _product_errors(a, of_hidden, needed(parameters.w2, "w2"))
    mapped = needed(after.mapped, "w2")
    wrong = wrong + 2 * unit * (jnp.abs(mapped) + jnp.abs(mapped - after.c))
    wrong = wrong + 4 * tiny * (mapped != after.c)
    if layer.layer_norm == "post":
        wrong = _norm_errors(layer, parameters.feed_forward_norm, mapped, wrong)
    return after.y, wrong


def _norm_errors(layer: LayerConfig, parameters: NormParameters | None, x: Array, errors: Array) -> Array:
    """The errors of layer normalisation: an error in x is divided by the deviation, and moves the deviation too."""
    parameters = needed(parameters, "layer normalisation")
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
