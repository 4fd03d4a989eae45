"""One layer's ranges over all words, and the norm of what a flip changes, for layers of every kind.

`through` carries two things through a layer: for every (position, own symbol) a box that holds y over all words,
and for every flip position i a number off_i >= ||y_j(x) - y_j(x')||_2 for all j /= i. Flipping moves a row's
attention in two stages. First all keys but i and the row's own query move, key i and its value keep the old symbol:

    d b = sum_m w_m [(ds_m - kappa)(v_m - b) + dv_m]   along the segment, for any kappa ,

so ||d b W_O|| <= max|ds| * max||(v_m - c) W_O|| + ||W_V W_O|| off_i, c any centre: a variance is least about the
mean. Then key i alone changes its symbol: with b_rest the average of the others,

    b' - b = w' (v' - b_rest) - w (v - b_rest) ,   w <= e_hi / (e_hi + Z_rest) .

O(n^2 kinds^2 (d + directions)) a layer, in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsens import stopping
from jaxsens.models.parameters import LayerParameters, needed
from jaxsens.theory.certified.averages import Counts, average_sup, total_range
from jaxsens.theory.certified.intervals import (
    MARGIN,
    Ball,
    activated,
    ball,
    exact,
    norm_bound,
    plus,
    slopes,
    spectral,
    times,
    up,
)
from jaxsens.theory.certified.setting import (
    Projections,
    Setting,
    Weights,
    inverse_temperature,
    norm_lipschitz,
    normed,
    project,
    scores,
    weigh,
)

BLOCK = 2**21
"""How many unnormalised weights are held at once: rows come in blocks of about this many."""


@dataclass(frozen=True)
class Level:
    """What is known of y^(k): a ball (rows, kinds, width) over all words, and off_i of every flip position.

    Attributes:
        y: the ball of every row.
        off: for every i, at least ||y_j(x) - y_j(x')||_2 for every row j /= i; inf at no i.
        jumps: for every row of the last layer asked for, and every i, that norm; (rows, n).
    """

    y: Ball
    off: Float[np.ndarray, " n"]
    jumps: Float[np.ndarray, "rows n"] | None = None


@dataclass(frozen=True)
class Rows:
    """Ranges of some rows of a layer over all words; arrays have axes (rows, kinds, ...).

    Attributes:
        b: of each head, the average; list of balls (rows, kinds, head_width).
        attended: x + sum_h b W_O.
        c: the per-position map's skip input.
        h: its pre-activation, None without a map.
        y: the layer's output.
        lipschitz: of attended -> y in l2, over each row's range.
    """

    b: list[Ball]
    attended: Ball
    c: Ball
    h: Ball | None
    y: Ball
    lipschitz: np.ndarray


def blocks(setting: Setting, positions: np.ndarray) -> Iterator[np.ndarray]:
    """The row positions in blocks."""
    kinds = setting.slots
    config = setting.config
    wide = max(config.layer(k).head_width for k in range(config.layers)) if config.scores == "additive" else 1
    size = max(1, BLOCK // (setting.n * kinds * kinds * wide))
    for start in range(0, len(positions), size):
        stopping.check()
        yield positions[start : start + size]


def weights_of(setting: Setting, k: int, h: int, projections: Projections, positions: np.ndarray) -> Weights:
    """The unnormalised weights of all rows (position, kind) of a block, in head h."""
    width = projections.queries.mid.shape[-1]
    keys = projections.keys[h]
    if setting.config.scores == "dot-product":
        mean = keys.mid.mean(axis=(0, 1))
        keys = Ball(keys.mid - mean, keys.rad + MARGIN * (abs(keys.mid) + abs(mean)))
    queries = projections.queries[h][positions]
    flat = Ball(*(part.reshape(-1, width) for part in queries))
    rows = np.repeat(positions, setting.slots)
    return weigh(setting, k, positions, scores(setting, k, h, rows, flat, np.arange(setting.n), keys))


def supported(weights: Weights, values: Ball, directions: np.ndarray, counts: Counts | None) -> Ball:
    """The averages' range in shared directions: values (n, kinds, width), directions (width, p); -> (rows, p)."""
    payload = times(values, directions)
    both = np.moveaxis(np.concatenate([payload.hi, -payload.lo], axis=-1), (0, 1, 2), (2, 1, 0))
    found = average_sup(weights.hi, weights.lo, both[:, None], counts).T
    p = directions.shape[1]
    return ball(-found[:, p:], found[:, :p])


def rows_of(
    setting: Setting,
    k: int,
    x: Ball,
    projections: Projections,
    positions: np.ndarray,
    weights: list[Weights],
    counts: Counts | None,
) -> Rows:
    """The ranges of the rows at `positions`, whose weights are given head by head."""
    config, parameters = setting.config, setting.layers[k]
    layer = config.layer(k)
    shape = (len(positions), setting.slots)
    direct = layer.layer_norm == "none" and layer.feed_forward > 0
    b, sums = [], []
    for h in range(layer.heads):
        width, output = layer.head_width, np.asarray(parameters.output[h])
        directions = np.eye(width)
        if direct:
            directions = np.concatenate([directions, output @ np.asarray(parameters.w1)], axis=1)
        found = supported(weights[h], projections.values[h], directions, counts)
        found = Ball(*(part.reshape(*shape, -1) for part in found))
        b.append(found[..., :width])
        sums.append(found[..., width:])
    own = x[positions]
    attended = plus(own, *(times(bh, np.asarray(w)) for bh, w in zip(b, parameters.output, strict=True)))
    c = normed(setting, attended, parameters.attention_norm) if layer.layer_norm == "post" else attended
    lipschitz = np.ones(shape)
    if layer.layer_norm == "post":
        lipschitz = norm_lipschitz(setting, attended, parameters.attention_norm)
    if not layer.feed_forward:
        return Rows(b, attended, c, None, c, lipschitz)
    pre = layer.layer_norm == "pre"
    inner = normed(setting, c, parameters.feed_forward_norm) if pre else c
    w1, b1, w2, b2 = (
        np.asarray(needed(getattr(parameters, name), name)) for name in ("w1", "b1", "w2", "b2")
    )
    bias = exact(b1)
    h_range = plus(times(own, w1), bias, *sums) if direct else plus(times(inner, w1), bias)
    mapped = plus(c, times(activated(layer.activation, h_range), w2), exact(b2))
    inside = norm_lipschitz(setting, c, parameters.feed_forward_norm) if pre else np.ones(shape)
    lipschitz = lipschitz * map_lipschitz(parameters, slopes(layer.activation, h_range), inside, pre)
    if layer.layer_norm != "post":
        return Rows(b, attended, c, h_range, mapped, up(lipschitz))
    lipschitz = lipschitz * norm_lipschitz(setting, mapped, parameters.feed_forward_norm)
    return Rows(b, attended, c, h_range, normed(setting, mapped, parameters.feed_forward_norm), up(lipschitz))


def map_lipschitz(parameters: LayerParameters, d: Ball, inside: np.ndarray, pre: bool) -> np.ndarray:
    """A Lipschitz constant of c + act(inner(c) W_1) W_2 in l2 where the activation's slopes lie in the ball d.

    ||I + W_1 diag(mid) W_2|| + ||W_1 diag(rad)^1/2|| ||diag(rad)^1/2 W_2||; `inside` is the inner map's own constant.
    """
    w1, w2 = np.asarray(parameters.w1), np.asarray(parameters.w2)
    slope = d.rad + MARGIN
    folded = np.einsum("df,...f,fe->...de", w1, d.mid, w2, optimize=True)
    if not pre:
        folded = folded + np.eye(len(w1))
    first = np.einsum("df,...f,ef->...de", w1, slope, w1, optimize=True)
    second = np.einsum("fd,...f,fe->...de", w2, slope, w2, optimize=True)
    size = spectral(abs(w1)) * spectral(abs(w2))
    total = spectral(folded) + np.sqrt(spectral(first) * spectral(second)) + 64 * MARGIN * (1 + size)
    return up(1 + inside * total) if pre else up(total)


def first_level(setting: Setting) -> Level:
    """y^(0): points, which no other position's flip moves."""
    return Level(setting.points, np.zeros(setting.n))


def through(
    setting: Setting, k: int, level: Level, positions: np.ndarray, counts: Counts | None, keep: bool = False
) -> Level:
    """The level after layer k, at these rows. `keep` asks for every row's norms, `Level.jumps`."""
    layer, parameters = setting.config.layer(k), setting.layers[k]
    pre = layer.layer_norm == "pre"
    z = normed(setting, level.y, parameters.attention_norm) if pre else level.y
    into = np.ones((setting.n, 1))
    if pre:
        into = norm_lipschitz(setting, level.y, parameters.attention_norm)
    projections = project(setting, k, z)
    facts = [_head_facts(setting, k, h, projections, into) for h in range(layer.heads)]
    off, parts, kept = np.zeros(setting.n), [], []
    for block in blocks(setting, positions):
        weights = [weights_of(setting, k, h, projections, block) for h in range(layer.heads)]
        rows = rows_of(setting, k, level.y, projections, block, weights, counts)
        moved = _moved(setting, k, projections, block, weights, facts, level.off, counts)
        moved = up(rows.lipschitz[..., None] * moved)
        moved = np.max(np.where(setting.allowed[block][..., None], moved, 0.0), axis=1)
        if keep:
            kept.append(moved.copy())
        moved[np.arange(len(block)), block] = 0.0
        off = np.maximum(off, moved.max(axis=0))
        parts.append(rows.y)
    y = Ball(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    return Level(y, off, np.concatenate(kept) if keep else None)


@dataclass(frozen=True)
class _HeadFacts:
    """Of one head: value norms about their centre, and what the scores' changes need."""

    values: np.ndarray
    spread: float
    carried: float
    key_change: float
    query_change: float
    keys: float


def _head_facts(setting: Setting, k: int, h: int, projections: Projections, into: np.ndarray) -> _HeadFacts:
    parameters = setting.layers[k]
    value, output = np.asarray(parameters.value[h]), np.asarray(parameters.output[h])
    mapped = times(projections.values[h], output)
    norms = _distances(mapped, setting)
    lip = float(np.max(np.where(setting.allowed, into, 0.0)))
    return _HeadFacts(
        values=norms,
        spread=float(np.max(np.where(setting.allowed, norms, 0.0))),
        carried=up(
            lip * (spectral(value @ output) + 64 * MARGIN * spectral(abs(value)) * spectral(abs(output)))
        ),
        key_change=up(lip * spectral(np.asarray(parameters.key[h]))),
        query_change=up(lip * spectral(np.asarray(parameters.query[h]))),
        keys=float(np.max(np.where(setting.allowed, _distances(projections.keys[h], setting), 0.0))),
    )


def _distances(x: Ball, setting: Setting) -> np.ndarray:
    """Each vector's distance from a common centre, in l2, at most: shape (n, kinds)."""
    centre = x.mid[setting.allowed].mean(axis=0)
    size = abs(x.mid - centre) + x.rad + MARGIN * (abs(x.mid) + abs(centre))
    return norm_bound(size, "l2")


def _moved(
    setting: Setting,
    k: int,
    projections: Projections,
    block: np.ndarray,
    weights: list[Weights],
    facts: list[_HeadFacts],
    off: np.ndarray,
    counts: Counts | None,
) -> np.ndarray:
    """At least ||d attended_j||_2 for a flip at i /= j: (rows, kinds, n)."""
    layer, parameters = setting.config.layer(k), setting.layers[k]
    kinds = setting.slots
    temperature = abs(inverse_temperature(setting, k, block))[:, None]
    total: Any = np.ones((len(block), kinds, 1)) * off
    for h in range(layer.heads):
        f = facts[h]
        if layer.scores == "additive":
            additive = np.asarray(needed(parameters.additive, "additive"))[h]
            rate = temperature * np.sqrt(np.sum(additive**2)) * (f.key_change + f.query_change)
        else:
            queries = projections.queries[h][block].size
            length = norm_bound(queries, "l2")
            rate = temperature / np.sqrt(layer.head_width) * (length * f.key_change + f.query_change * f.keys)
        total = total + up(up(rate) * f.spread + f.carried)[..., None] * off
        total = total + jump(setting, weights[h], f.values, f.spread, counts).reshape(len(block), kinds, -1)
    return up(total)


def jump(
    setting: Setting, weights: Weights, values: np.ndarray, spread: float, counts: Counts | None
) -> np.ndarray:
    """At least ||w'(v' - b_rest) - w(v - b_rest)|| for key i alone changing its symbol: (rows, n)."""
    share = largest_weights(weights, counts)
    moved = np.where(np.isnan(share), 0.0, share) * (values.T + spread)
    ordered = np.sort(moved, axis=1)
    return up(ordered[:, -1] + (ordered[:, -2] if ordered.shape[1] > 1 else 0.0))


def largest_weights(weights: Weights, counts: Counts | None) -> np.ndarray:
    """The largest attention weight of each (key, kind) over all words; NaN where the kind cannot stand there."""
    lower, _ = total_range(weights.hi, weights.lo, counts)
    own = np.where(np.isnan(weights.lo), np.inf, weights.lo).min(axis=1)
    free, _ = total_range(weights.hi, weights.lo, None)
    rest = np.maximum(free[:, None] - own - MARGIN * free[:, None], 0.0)
    low = np.maximum(rest[:, None] + weights.hi, np.maximum(lower, np.finfo(float).tiny)[:, None, None])
    return np.minimum(weights.hi / low * (1 + 4 * MARGIN), 1.0)
