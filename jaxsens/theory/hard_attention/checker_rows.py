"""The checker's own arithmetic: a layer on rows outside any word, in plain NumPy float64, with bounds on rounding.

Each row comes with a bound on how far its computed value may be from the exact one in the model's program, to first
order in the model's unit roundoff u: sums of m products are off by at most m u sum |a_i b_i|, plus what their
operands bring in. Numbers below the dtype's smallest normal one may be taken for 0, which the bounds count too. Sums
are added up in one order for all rows, so that equal rows give equal results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsens.models.config import LayerConfig
from jaxsens.models.positions import Alibi, CoordinateTerm, Learned, Rotary, Sinusoidal
from jaxsens.models.transformer import Transformer
from jaxsens.theory.hard_attention.checker_ties import Identity


@dataclass(frozen=True)
class Rows:
    """Vectors at positions, with bounds on their errors, and the largest number met on the way."""

    positions: np.ndarray
    x: np.ndarray
    bound: np.ndarray
    identity: Identity
    largest: float


def _array(parameter: Any) -> np.ndarray:
    return np.asarray(parameter, np.float64)


def _roundoff(model: Transformer) -> float:
    return 2.0**-24 if model.config.dtype == "float32" else 2.0**-53


def _tiny(model: Transformer) -> float:
    """The smallest normal number: programs may take smaller ones for 0."""
    return float(np.finfo(model.config.dtype).tiny)


def _largest(*arrays: np.ndarray) -> float:
    """The largest size in the arrays; infinite if some number is not finite."""
    found = [float(np.abs(each).max(initial=0)) for each in arrays]
    return max(found) if np.isfinite(found).all() else np.inf


def _times(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """x @ matrix, every row in the same order of additions."""
    total = np.zeros((len(x), matrix.shape[1]))
    for c in range(matrix.shape[0]):
        total += x[:, c, None] * matrix[c]
    return total


def _times_bound(x: np.ndarray, bound: np.ndarray, matrix: np.ndarray, u: float, tiny: float) -> np.ndarray:
    """The bound of x @ matrix: rounding, and each product, sum or weight that may be taken for 0."""
    lost = tiny * (2 + np.abs(x)) * ((x != 0) | (bound > 0)) @ (matrix != 0)
    return (bound + (matrix.shape[0] + 1) * u * np.abs(x)) @ np.abs(matrix) + lost


def embedded_rows(model: Transformer, n: int, positions: np.ndarray, symbols: np.ndarray) -> Rows:
    """Symbols at positions, before the first layer."""
    config, parameters = model.config, model.parameters
    x = _array(parameters.embedding)[symbols]
    size, identity = np.abs(x), Identity.given(x)
    coordinate = 0
    for term in config.position_terms:
        if isinstance(term, Sinusoidal):
            added = term.values(n, config.width)
            alike = Identity.given(added)
        elif isinstance(term, Learned):
            added = _array(parameters.learned)[:n]
            alike = Identity.given(added)
        elif isinstance(term, CoordinateTerm):
            values, vector = term.values(n)[:, None], _array(parameters.components)[coordinate, None]
            added = values * vector
            alike = Identity.given(values).times(values, vector, added)
            coordinate += 1
        else:
            continue
        identity = identity.plus(x, alike[positions], added[positions])
        x = x + added[positions]
        size = size + np.abs(added[positions])
    each = _roundoff(model) * size + _tiny(model) * (size > 0)
    return Rows(positions, x, (len(config.position_terms) + 3) * each, identity, _largest(size))


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values of rows in one layer, (heads, rows, width), and what is to be known of their scores.

    Attributes:
        margin: (heads, rows): the error of a query's scores, for the worst key.
        value_identity, key_identity: of each head's values and keys.
        largest: the largest number met, in the worst order of additions.
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
    key_identity: list[Identity]
    value_identity: list[Identity]
    largest: float

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
        """Whether the keys of `others` equal that of `entry` in every program, wherever the query is not zero."""
        if any(isinstance(term, Alibi) for term in self.layer.position_scores):
            return np.zeros(len(others), bool)
        return self.key_identity[head].same(entry, others, self.used[head, query])


def attention_rows(model: Transformer, n: int, k: int, rows: Rows) -> Attention:
    """Queries, keys and values of rows in layer k."""
    layer, parameters = model.config.layer(k), model.parameters.layers[k]
    u, tiny = _roundoff(model), _tiny(model)
    z, bound, identity, sizes = rows.x, rows.bound, rows.identity, [np.array(rows.largest)]
    if layer.layer_norm == "pre":
        sizes.append((np.abs(z) * 2) ** 2 * z.shape[1])
        z, bound = _normalised(layer, parameters.attention_norm, z, bound, u, tiny)
        identity = identity.mixed(z)
    made, bounds = [], []
    for matrices in (parameters.query, parameters.key, parameters.value):
        each = list(_array(matrices))
        made.append(np.stack([_times(z, matrix) for matrix in each]))
        bounds.append(np.stack([_times_bound(z, bound, matrix, u, tiny) for matrix in each]))
        sizes += [np.abs(z) @ np.abs(matrix) for matrix in each]
    identities = [
        [identity.times(z, matrix, y) for matrix, y in zip(_array(matrices), made[which], strict=True)]
        for which, matrices in ((1, parameters.key), (2, parameters.value))
    ]
    for term in layer.position_scores:
        if isinstance(term, Rotary):
            angles = term.angles(n, layer.head_width)[rows.positions]
            for which in (0, 1):
                made[which], bounds[which] = _turned(made[which], bounds[which], angles, u, tiny)
            identities[0] = [each.turned(rows.positions) for each in identities[0]]
    (queries, keys, values), (q_bound, k_bound, v_bound) = made, bounds
    size, wrong = np.abs(keys).max(axis=1)[:, None], k_bound.max(axis=1)[:, None]
    width, additive = layer.head_width, None
    if layer.scores == "additive":
        additive = _array(parameters.additive)
        each = q_bound + wrong + 2 * u * (np.abs(queries) + size) + (width + 8) * u + 4 * tiny
        sizes.append(np.abs(additive).sum(axis=-1))
        margin = (each * np.abs(additive)[:, None, :]).sum(axis=-1) + 4 * width * tiny
    else:
        each = q_bound * size + np.abs(queries) * (wrong + (width + 3) * u * size)
        sizes.append((np.abs(queries) * size).sum(axis=-1))
        margin = (each.sum(axis=-1) + 4 * width * tiny) / np.sqrt(width) + tiny
    for term in layer.position_scores:
        if isinstance(term, Alibi):
            margin = margin + 4 * u * term.slopes(layer.heads)[:, None] * n
    used = (queries != 0) | (q_bound > 0) if additive is None else np.ones(queries.shape, bool)
    return Attention(
        layer=layer,
        n=n,
        additive=additive,
        positions=rows.positions,
        queries=queries,
        keys=keys,
        values=values,
        values_bound=v_bound,
        margin=margin,
        used=used,
        key_identity=identities[0],
        value_identity=identities[1],
        largest=_largest(*sizes, margin),
    )


def _turned(
    x: np.ndarray, bound: np.ndarray, angles: np.ndarray, u: float, tiny: float
) -> tuple[np.ndarray, np.ndarray]:
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    turned[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    own = bound + 4 * u * np.abs(x) + 4 * tiny * (1 + np.abs(x)) * (bound > 0)
    return turned, np.repeat(own[..., 0::2] + own[..., 1::2], 2, axis=-1)


def finished_rows(
    model: Transformer, k: int, rows: Rows, found: Attention, own: np.ndarray, won: np.ndarray
) -> Rows:
    """Layer k's output on the rows `own` when `won` (heads, rows; -1 for none) win their heads."""
    layer, parameters = model.config.layer(k), model.parameters.layers[k]
    u, tiny = _roundoff(model), _tiny(model)
    x, bound, identity, sizes = rows.x[own], rows.bound[own], rows.identity[own], [np.array(found.largest)]
    size, total = np.abs(x), x
    for head, matrix in enumerate(_array(parameters.output)):
        some = (won[head] >= 0)[:, None]
        b = np.where(some, found.values[head, won[head]], 0)
        b_bound = np.where(some, found.values_bound[head, won[head]], 0)
        held, added = found.value_identity[head][won[head]], _times(b, matrix)
        zero = Identity(np.where(some, held.names, -1 - len(found.values[head])), held.exact | ~some)
        of_head = Identity.of(b, zero.names, zero.exact)
        identity = identity.plus(total, of_head.times(b, matrix, added), added)
        total = total + added
        bound = bound + _times_bound(b, b_bound, matrix, u, tiny)
        size = size + np.abs(b) @ np.abs(matrix)
    bound = bound + (layer.heads + 1) * (u * size + tiny * (size > 0))
    sizes.append(size)
    x = total
    if layer.layer_norm == "post":
        sizes.append((np.abs(x) * 2) ** 2 * x.shape[1])
        x, bound = _normalised(layer, parameters.attention_norm, x, bound, u, tiny)
        identity = identity.mixed(x)
    if layer.feed_forward:
        inner, of_inner, inside = x, bound, identity
        if layer.layer_norm == "pre":
            sizes.append((np.abs(x) * 2) ** 2 * x.shape[1])
            inner, of_inner = _normalised(layer, parameters.feed_forward_norm, x, bound, u, tiny)
            inside = identity.mixed(inner)
        w1, w2 = _array(parameters.w1), _array(parameters.w2)
        product = _times(inner, w1)
        b1, b2 = (np.tile(_array(b), (len(x), 1)) for b in (parameters.b1, parameters.b2))
        hidden = product + b1
        inside = inside.times(inner, w1, product).plus(product, Identity.given(b1), b1)
        of_hidden = _times_bound(inner, of_inner, w1, u, tiny) + 2 * u * np.abs(hidden) + 2 * tiny
        of_hidden = 1.2 * of_hidden + 8 * u * np.abs(hidden) + 8 * tiny
        active = _activated(layer, hidden)
        sizes += [np.abs(inner) @ np.abs(w1) + np.abs(b1), np.abs(active) @ np.abs(w2) + np.abs(b2)]
        if layer.activation == "gelu":
            sizes.append(np.abs(hidden) ** 3)
        inside = Identity.of(active, inside.names, inside.exact & (layer.activation == "relu"))
        product = _times(active, w2)
        added = product + b2
        inside = inside.times(active, w2, product).plus(product, Identity.given(b2), b2)
        bound = bound + _times_bound(active, of_hidden, w2, u, tiny)
        bound = bound + 2 * u * (np.abs(x + added) + np.abs(added)) + 2 * tiny * (added != 0)
        identity = identity.plus(x, inside, added)
        x = x + added
        if layer.layer_norm == "post":
            sizes.append((np.abs(x) * 2) ** 2 * x.shape[1])
            x, bound = _normalised(layer, parameters.feed_forward_norm, x, bound, u, tiny)
            identity = identity.mixed(x)
    return Rows(rows.positions[own], x, bound, identity, _largest(*sizes, x, bound))


def _normalised(
    layer: LayerConfig, parameters: Any, x: np.ndarray, bound: np.ndarray, u: float, tiny: float
) -> tuple[np.ndarray, np.ndarray]:
    d = x.shape[1]
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + layer.layer_norm_epsilon)
    off = bound + (bound + (d + 1) * u * np.abs(x)).mean(axis=1, keepdims=True) + u * np.abs(centred)
    off = off + 4 * tiny
    spread = np.sqrt((off**2).mean(axis=1, keepdims=True)) + (d + 6) * u * deviation + 4 * tiny / deviation
    z = centred / deviation
    of_z = (off + np.abs(z) * spread) / deviation + 3 * u * np.abs(z)
    scale, bias = _array(parameters.scale), _array(parameters.bias)
    wrong = of_z * np.abs(scale) + 2 * u * (np.abs(z * scale) + np.abs(bias)) + tiny * (4 + np.abs(z))
    return z * scale + bias, wrong


def _activated(layer: LayerConfig, h: np.ndarray) -> np.ndarray:
    if layer.activation == "relu":
        return np.maximum(h, 0)
    if layer.activation == "gelu":
        return 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    if layer.activation == "silu":
        return h / (1 + np.exp(-h))
    return np.tanh(h)
