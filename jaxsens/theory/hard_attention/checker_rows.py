"""The checker's own arithmetic: a layer on rows outside any word, in plain NumPy float64, with bounds on rounding.

Each row comes with a bound on how far its computed value may be from the exact one in the model's program, to first
order in the model's unit roundoff u: sums of m products are off by at most m u sum |a_i b_i|, plus what their
operands bring in. Sums are added up in one order for all rows, so that equal rows give equal results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsens.models.config import LayerConfig
from jaxsens.models.positions import Alibi, CoordinateTerm, Learned, Rotary, Sinusoidal
from jaxsens.models.transformer import Transformer


@dataclass(frozen=True)
class Rows:
    """Vectors at positions, with bounds on their errors."""

    positions: np.ndarray
    x: np.ndarray
    bound: np.ndarray


def _array(parameter: Any) -> np.ndarray:
    return np.asarray(parameter, np.float64)


def _roundoff(model: Transformer) -> float:
    return 2.0**-24 if model.config.dtype == "float32" else 2.0**-53


def _times(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """x @ matrix, every row in the same order of additions."""
    total = np.zeros((len(x), matrix.shape[1]))
    for c in range(matrix.shape[0]):
        total += x[:, c, None] * matrix[c]
    return total


def _times_bound(x: np.ndarray, bound: np.ndarray, matrix: np.ndarray, u: float) -> np.ndarray:
    return (bound + (matrix.shape[0] + 1) * u * np.abs(x)) @ np.abs(matrix)


def embedded_rows(model: Transformer, n: int, positions: np.ndarray, symbols: np.ndarray) -> Rows:
    """Symbols at positions, before the first layer."""
    config, parameters = model.config, model.parameters
    x = _array(parameters.embedding)[symbols]
    size = np.abs(x)
    coordinate = 0
    for term in config.position_terms:
        if isinstance(term, Sinusoidal):
            added = term.values(n, config.width)
        elif isinstance(term, Learned):
            added = _array(parameters.learned)[:n]
        elif isinstance(term, CoordinateTerm):
            added = term.values(n)[:, None] * _array(parameters.components)[coordinate]
            coordinate += 1
        else:
            continue
        x = x + added[positions]
        size = size + np.abs(added[positions])
    return Rows(positions, x, (len(config.position_terms) + 3) * _roundoff(model) * size)


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values of rows in one layer, (heads, rows, width), and what is to be known of their scores.

    Attributes:
        margin: (heads, rows): the error of a query's scores, for the worst key.
    """

    layer: LayerConfig
    n: int
    additive: np.ndarray | None
    positions: np.ndarray
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    values_bound: np.ndarray
    margin: np.ndarray
    used: np.ndarray

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """(heads, queries, rows): the scores of some rows' queries with all keys."""
        q = self.queries[:, queries]
        if self.additive is not None:
            found = np.zeros((q.shape[0], q.shape[1], self.keys.shape[1]))
            for c in range(q.shape[2]):
                hidden = np.tanh(q[:, :, None, c] + self.keys[:, None, :, c])
                found += hidden * self.additive[:, None, None, c]
        else:
            found = q @ self.keys.transpose(0, 2, 1) / np.sqrt(self.layer.head_width)
        for term in self.layer.position_scores:
            if isinstance(term, Alibi):
                distance = np.abs(self.positions[queries][:, None] - self.positions[None, :])
                found -= term.slopes(self.layer.heads)[:, None, None] * distance
        return found

    def seen(self, row: int) -> np.ndarray:
        """Which rows the query at position `row` sees."""
        keys = self.positions
        return {
            "none": np.ones(len(keys), bool),
            "future": keys <= row,
            "past": keys >= row,
            "strict-future": keys < row,
            "strict-past": keys > row,
        }[self.layer.mask]

    def same_key(self, head: int, query: int, entry: int, others: np.ndarray) -> np.ndarray:
        """Whether the keys of `others` equal that of `entry` wherever the query is not zero."""
        if any(isinstance(term, Alibi) for term in self.layer.position_scores):
            return np.zeros(len(others), bool)
        used = self.used[head, query]
        return (self.keys[head, others][:, used] == self.keys[head, entry][used]).all(axis=-1)


def attention_rows(model: Transformer, n: int, k: int, rows: Rows) -> Attention:
    """Queries, keys and values of rows in layer k."""
    layer, parameters, u = model.config.layer(k), model.parameters.layers[k], _roundoff(model)
    z, bound = rows.x, rows.bound
    if layer.layer_norm == "pre":
        z, bound = _normalised(layer, parameters.attention_norm, z, bound, u)
    made, bounds = [], []
    for matrices in (parameters.query, parameters.key, parameters.value):
        made.append(np.stack([_times(z, matrix) for matrix in _array(matrices)]))
        bounds.append(np.stack([_times_bound(z, bound, matrix, u) for matrix in _array(matrices)]))
    for term in layer.position_scores:
        if isinstance(term, Rotary):
            angles = term.angles(n, layer.head_width)[rows.positions]
            for which in (0, 1):
                made[which], bounds[which] = _turned(made[which], bounds[which], angles, u)
    (queries, keys, values), (q_bound, k_bound, v_bound) = made, bounds
    size, wrong = np.abs(keys).max(axis=1)[:, None], k_bound.max(axis=1)[:, None]
    width, additive = layer.head_width, None
    if layer.scores == "additive":
        additive = _array(parameters.additive)
        each = q_bound + wrong + 2 * u * (np.abs(queries) + size) + (width + 8) * u
        margin = (each * np.abs(additive)[:, None, :]).sum(axis=-1)
    else:
        each = q_bound * size + np.abs(queries) * (wrong + (width + 3) * u * size)
        margin = each.sum(axis=-1) / np.sqrt(width)
    for term in layer.position_scores:
        if isinstance(term, Alibi):
            margin = margin + 4 * u * term.slopes(layer.heads)[:, None] * n
    used = (queries != 0) | (q_bound > 0) if additive is None else np.ones(queries.shape, bool)
    return Attention(layer, n, additive, rows.positions, queries, keys, values, v_bound, margin, used)


def _turned(x: np.ndarray, bound: np.ndarray, angles: np.ndarray, u: float) -> tuple[np.ndarray, np.ndarray]:
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    turned[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    own = bound + 4 * u * np.abs(x)
    return turned, np.repeat(own[..., 0::2] + own[..., 1::2], 2, axis=-1)


def finished_rows(
    model: Transformer, k: int, rows: Rows, found: Attention, own: np.ndarray, won: np.ndarray
) -> Rows:
    """Layer k's output on the rows `own` when `won` (heads, rows; -1 for none) win their heads."""
    layer, parameters, u = model.config.layer(k), model.parameters.layers[k], _roundoff(model)
    x, bound = rows.x[own], rows.bound[own]
    size, total = np.abs(x), x
    for head, matrix in enumerate(_array(parameters.output)):
        some = (won[head] >= 0)[:, None]
        b = np.where(some, found.values[head, won[head]], 0)
        b_bound = np.where(some, found.values_bound[head, won[head]], 0)
        total = total + _times(b, matrix)
        bound = bound + _times_bound(b, b_bound, matrix, u)
        size = size + np.abs(b) @ np.abs(matrix)
    bound = bound + (layer.heads + 1) * u * size
    x = total
    if layer.layer_norm == "post":
        x, bound = _normalised(layer, parameters.attention_norm, x, bound, u)
    if layer.feed_forward:
        inner, of_inner = x, bound
        if layer.layer_norm == "pre":
            inner, of_inner = _normalised(layer, parameters.feed_forward_norm, x, bound, u)
        w1, w2 = _array(parameters.w1), _array(parameters.w2)
        hidden = _times(inner, w1) + _array(parameters.b1)
        of_hidden = _times_bound(inner, of_inner, w1, u) + 2 * u * np.abs(hidden)
        of_hidden = 1.2 * of_hidden + 8 * u * np.abs(hidden)
        active = _activated(layer, hidden)
        added = _times(active, w2) + _array(parameters.b2)
        bound = bound + _times_bound(active, of_hidden, w2, u) + 2 * u * (np.abs(x + added) + np.abs(added))
        x = x + added
        if layer.layer_norm == "post":
            x, bound = _normalised(layer, parameters.feed_forward_norm, x, bound, u)
    return Rows(rows.positions[own], x, bound)


def _normalised(
    layer: LayerConfig, parameters: Any, x: np.ndarray, bound: np.ndarray, u: float
) -> tuple[np.ndarray, np.ndarray]:
    d = x.shape[1]
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + layer.layer_norm_epsilon)
    off = bound + (bound + (d + 1) * u * np.abs(x)).mean(axis=1, keepdims=True) + u * np.abs(centred)
    spread = np.sqrt((off**2).mean(axis=1, keepdims=True)) + (d + 6) * u * deviation
    z = centred / deviation
    of_z = (off + np.abs(z) * spread) / deviation + 3 * u * np.abs(z)
    scale, bias = _array(parameters.scale), _array(parameters.bias)
    wrong = of_z * np.abs(scale) + 2 * u * (np.abs(z * scale) + np.abs(bias))
    return z * scale + bias, wrong


def _activated(layer: LayerConfig, h: np.ndarray) -> np.ndarray:
    if layer.activation == "relu":
        return np.maximum(h, 0)
    if layer.activation == "gelu":
        return 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    if layer.activation == "silu":
        return h / (1 + np.exp(-h))
    return np.tanh(h)
