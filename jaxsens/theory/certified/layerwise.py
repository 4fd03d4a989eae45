"""Any model, layer by layer: every row's range over all words, and the l2 norm of what a flip changes.

`through` carries two things through a layer: for every (position, own symbol) a box that holds y over all words, and
for every flip position i a number off_i >= ||y_j(x) - y_j(x')||_2 for all j /= i. Each formula of docs/bounds.md, "Any
model", is the function of its name. O(n^2 kinds^2 (d + directions)) a layer, in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import no_rule
from jaxsens.theory.certified.averages import Weights, average_range, total_range
from jaxsens.theory.certified.intervals import (
    MARGIN,
    Ball,
    activated,
    exact,
    joined,
    norm_bound,
    plus,
    slopes,
    spectral,
    stacked,
    times,
    up,
)
from jaxsens.theory.certified.setting import BOUND, ProjectedKinds, Setting, project
from jaxsens.theory.rules import norm_where

BLOCK = 2**21
"""How many unnormalised weights are held at once: rows come in blocks of about this many."""


@dataclass(frozen=True)
class LayerRanges:
    """What is known of y^(k) over all words.

    Attributes:
        y: the box of every row.
        off: for every i, at least ||y_j(x) - y_j(x')||_2 for every row j /= i.
        jumps: after the last layer, that norm for every row asked for and every i.
    """

    y: Float[Ball, "rows kinds width"]
    off: Float[np.ndarray, " n"]
    jumps: Float[np.ndarray, "rows n"] | None = None


@dataclass(frozen=True)
class RowRanges:
    """Ranges of some rows of a layer over all words.

    Attributes:
        b: of each head, the average.
        h: the per-position map's pre-activation, None without a map where layers are normalised.
        y: the layer's output.
        lipschitz: of x + sum_h b W_O -> y in l2, over each row's range.
    """

    b: Float[Ball, "heads rows kinds head_width"]
    h: Float[Ball, "rows kinds feed_forward"] | None
    y: Float[Ball, "rows kinds width"]
    lipschitz: Float[np.ndarray, "rows kinds"]


def blocks(setting: Setting, positions: Int[np.ndarray, " rows"]) -> Iterator[Int[np.ndarray, " block"]]:
    """The row positions in blocks."""
    kinds, config = setting.slots, setting.config
    # Additive scores hold every coordinate of every pair of query and key at once.
    wide = max(config.layer(k).head_width for k in range(config.layers)) if config.scores == "additive" else 1
    size = max(1, BLOCK // (setting.n * kinds * kinds * wide))
    for start in range(0, len(positions), size):
        stopping.check()
        yield positions[start : start + size]


def rows_of(
    x: Float[Ball, "n kinds width"],
    projections: ProjectedKinds,
    positions: Int[np.ndarray, " block"],
    weights: Weights,
) -> RowRanges:
    """The ranges of the rows at `positions`, whose heads' weights are given."""
    setting, k = projections.setting, projections.k
    layer, shape = setting.config.layer(k), (len(positions), setting.slots)
    (output,) = setting.matrices(k, "output")
    # Without normalisation pre-activations are directions of the averages, and get supports of their own.
    plain, (w1, b1) = layer.layer_norm == "none", setting.matrices(k, "w1", "b1")
    wide, payload = layer.head_width, []
    for h in range(layer.heads):
        directions = [np.eye(wide), *([output[h] @ w1] if plain else [])]
        payload.append(times(projections.values[h], np.concatenate(directions, axis=1)))
    found, total = average_range(weights, stacked(payload))
    averages = found[..., :wide].map(lambda part: part.reshape(-1, *shape, wide))
    own = x[positions]
    attended = plus(own, *(times(averages[h], w) for h, w in enumerate(output)))
    total = total[..., wide:].map(lambda part: part.reshape(*shape, -1))
    h_range = plus(times(own, w1), exact(b1), total) if plain else None
    h_range, y, lipschitz = _mapped(setting, k, attended, h_range)
    return RowRanges(averages, h_range, y, lipschitz)


def _mapped(
    setting: Setting,
    k: int,
    attended: Float[Ball, "rows kinds width"],
    h: Float[Ball, "rows kinds feed_forward"] | None,
) -> tuple[
    Float[Ball, "rows kinds feed_forward"] | None,
    Float[Ball, "rows kinds width"],
    Float[np.ndarray, "rows kinds"],
]:
    """Pre-activations (h, where they are known already), output and Lipschitz constant of a layer's map."""
    layer, parameters = setting.config.layer(k), setting.layers[k]
    pre, post = layer.layer_norm == "pre", layer.layer_norm == "post"
    c, lipschitz = setting.normed(attended, norm_where(post, parameters.attention_norm))
    if not layer.feed_forward:
        return h, c, lipschitz
    w1, b1, w2, b2 = setting.matrices(k, "w1", "b1", "w2", "b2")
    inner, inside = setting.normed(c, norm_where(pre, parameters.feed_forward_norm))
    if h is None:
        h = plus(times(inner, w1), exact(b1))
    y = plus(c, times(activated(layer.activation, h), w2), exact(b2))
    y, last = setting.normed(y, norm_where(post, parameters.feed_forward_norm))
    return h, y, up(lipschitz * map_lipschitz(w1, w2, slopes(layer.activation, h), inside, pre) * last)


def map_lipschitz(
    w1: Float[np.ndarray, "width feed_forward"],
    w2: Float[np.ndarray, "feed_forward width"],
    d: Float[Ball, "rows kinds feed_forward"],
    inside: Float[np.ndarray, "rows kinds"],
    pre: bool,
) -> Float[np.ndarray, "rows kinds"]:
    """A Lipschitz constant of c + act(inner(c) W_1) W_2 in l2 where the activation's slopes lie in the ball d.

    ||I + W_1 diag(mid) W_2|| + ||W_1 diag(rad)^1/2|| ||diag(rad)^1/2 W_2||. `inside` is the inner map's own constant;
    the two add up apart from the skip connection where it is a normalisation (`pre`).
    """
    slope = d.rad + MARGIN
    folded = np.einsum("df,...f,fe->...de", w1, d.mid, w2, optimize=True)
    if not pre:
        folded = folded + np.eye(len(w1))
    first = np.einsum("df,...f,ef->...de", w1, slope, w1, optimize=True)
    second = np.einsum("fd,...f,fe->...de", w2, slope, w2, optimize=True)
    size = spectral(abs(w1)) * spectral(abs(w2))
    total = spectral(folded) + np.sqrt(spectral(first) * spectral(second)) + 64 * MARGIN * (1 + size)
    return up(1 + inside * total) if pre else up(total)


def through(
    setting: Setting, k: int, level: LayerRanges, positions: Int[np.ndarray, " rows"], keep: bool = False
) -> LayerRanges:
    """The ranges after layer k, at these rows. `keep` asks for every row's norms, `LayerRanges.jumps`."""
    layer, norm = setting.config.layer(k), setting.layers[k].attention_norm
    z, into = setting.normed(level.y, norm_where(layer.layer_norm == "pre", norm))
    projections = project(setting, k, z)
    facts = [_HeadFacts(projections, h, into) for h in range(layer.heads)]
    off, parts, kept = np.zeros(setting.n), [], []
    for block in blocks(setting, positions):
        weights = [projections.weights(h, block) for h in range(layer.heads)]
        rows = rows_of(level.y, projections, block, Weights.of_heads(weights))
        moved = attended_moved(projections, block, weights, facts, level.off)
        moved = up(rows.lipschitz[..., None] * moved)
        moved = np.max(np.where(setting.allowed[block][..., None], moved, 0.0), axis=1)
        if keep:
            kept.append(moved.copy())
        moved[np.arange(len(block)), block] = 0.0
        off = np.maximum(off, moved.max(axis=0))
        parts.append(rows.y)
    return LayerRanges(joined(parts), off, np.concatenate(kept) if keep else None)


class _HeadFacts:
    """Norms that bound how one head's attention moves; every number is an upper bound.

    Attributes:
        values: ||(v_m - c) W_O|| of every key and kind, c their centre: (n, kinds).
        spread: the largest of these.
        carried: ||W_V W_O|| times the Lipschitz constant of y -> z.
        key_change, query_change: ||W_K|| and ||W_Q|| times the same.
        keys: the largest distance of a key from the keys' centre.
    """

    def __init__(self, projections: ProjectedKinds, h: int, into: Float[np.ndarray, "n kinds"]) -> None:
        setting, names = projections.setting, ("query", "key", "value", "output")
        query, key, value, output = (part[h] for part in setting.matrices(projections.k, *names))
        self.values = _distances(times(projections.values[h], output), setting)
        self.spread = float(np.max(np.where(setting.allowed, self.values, 0.0)))
        lip = float(np.max(np.where(setting.allowed, into, 0.0)))
        rounding = 64 * MARGIN * spectral(abs(value)) * spectral(abs(output))
        self.carried = up(lip * (spectral(value @ output) + rounding))
        self.key_change, self.query_change = up(lip * spectral(key)), up(lip * spectral(query))
        keys = _distances(projections.keys[h], setting)
        self.keys = float(np.max(np.where(setting.allowed, keys, 0.0)))


def _distances(x: Float[Ball, "n kinds width"], setting: Setting) -> Float[np.ndarray, "n kinds"]:
    """At least each vector's distance from a common centre, in l2."""
    centre = x.mid[setting.allowed].mean(axis=0)
    size = abs(x.mid - centre) + x.rad + MARGIN * (abs(x.mid) + abs(centre))
    return norm_bound(size, "l2")


def attended_moved(
    projections: ProjectedKinds,
    block: Int[np.ndarray, " rows"],
    weights: list[Weights],
    facts: list[_HeadFacts],
    off: Float[np.ndarray, " n"],
) -> Float[np.ndarray, "rows kinds n"]:
    """At least ||d attended_j||_2 for a flip at i /= j: both stages, and the skip connection."""
    total = np.ones((len(block), projections.setting.slots, 1)) * off
    for h, f in enumerate(facts):
        rate = score_rate(projections, h, block, f)
        total = total + up(up(rate) * f.spread + f.carried)[..., None] * off
        jumps = jump(weights[h], f.values, f.spread)
        total = total + jumps.reshape(*total.shape[:2], -1)
    return up(total)


def score_rate(
    projections: ProjectedKinds, h: int, block: Int[np.ndarray, " rows"], f: _HeadFacts
) -> Float[np.ndarray, "rows kinds_or_1"]:
    """At least |ds_m| of every row for a change of 1 in all y, in l2."""
    setting, k = projections.setting, projections.k
    layer = setting.config.layer(k)
    temperature = abs(setting.inverse_temperature(k, block))[:, None]
    match layer.scores:
        case "additive":
            (additive,) = setting.matrices(k, "additive")
            return temperature * np.sqrt(np.sum(additive[h] ** 2)) * (f.key_change + f.query_change)
        case "dot-product":
            length = norm_bound(projections.queries[h][block].size, "l2")
            return temperature / np.sqrt(layer.head_width) * (length * f.key_change + f.query_change * f.keys)
        case _:
            raise no_rule(BOUND, "score", layer.scores, ("additive", "dot-product"))


def jump(
    weights: Weights, values: Float[np.ndarray, "n kinds"], spread: float
) -> Float[np.ndarray, "rows n"]:
    """At least ||w'(v' - b_rest) - w(v - b_rest)|| when key i alone changes its symbol, in every row."""
    share = largest_weights(weights)
    moved = np.where(np.isnan(share), 0.0, share) * (values.T + spread)
    ordered = np.sort(moved, axis=1)
    return up(ordered[:, -1] + (ordered[:, -2] if ordered.shape[1] > 1 else 0.0))


def largest_weights(weights: Weights) -> Float[np.ndarray, "rows kinds n"]:
    """w: the largest attention weight of each (key, kind) over all words; NaN where the kind cannot stand there."""
    lower = np.maximum(total_range(weights)[0], np.finfo(float).tiny)
    low = np.maximum(weights.hi + others_sum(weights)[:, None], lower[:, None, None])
    return np.minimum(weights.hi / low * (1 + 4 * MARGIN), 1.0)


def others_sum(weights: Weights) -> Float[np.ndarray, "rows n"]:
    """A lower bound, over all words, on the sum of the unnormalised weights of all keys but one, for each key."""
    own = np.where(np.isnan(weights.lo), np.inf, weights.lo).min(axis=1)
    free = total_range(replace(weights, counts=None))[0][:, None]
    return np.maximum(free - own - MARGIN * free, 0.0)
