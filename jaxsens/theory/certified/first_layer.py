"""The first layer's change under a flip, exact but for what the other symbols decide.

The inputs of the first layer are points, so a flip sigma -> sigma' at i moves one key of a row j /= i, from (s, v)
to (s', v'), all four known:

    b' - b = (e^s' (v' - b) - e^s (v - b)) / Z' = (e^s' (v' - b') - e^s (v - b')) / Z ,

with b the average before, known as a set over words, and Z the sum of the row's exponentials; the larger sum is
used. The per-position map adds W_2' diag(D) W_1' times the change, D between the activation's slopes over the row's
pre-activations: its middle is folded into the direction asked about, f + W_1 diag(D_mid) W_2 f, and what is left of
D enters by absolute values.

Without layer normalisation only; `norms` serves every model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxsens import stopping
from jaxsens.precision import numerics
from jaxsens.theory.certified.averages import ON_HOST, Counts, direction_range, total_range
from jaxsens.theory.certified.intervals import (
    FLOOR,
    MARGIN,
    Ball,
    ball,
    exact,
    meet,
    plus,
    relaxed,
    slopes,
    up,
)
from jaxsens.theory.certified.norms import blocks, rows_of, weights_of
from jaxsens.theory.certified.setting import Projections, Setting, project, scores, visible


@dataclass(frozen=True)
class FirstLayer:
    """The first layer over all words (in a class), at some rows; arrays have axes (rows, kinds, ...).

    Attributes:
        positions: the rows' positions.
        shift, z_lo, z_hi: of each head, (heads, rows, kinds): the row's exponentials are divided by e^shift, and their
            sum lies between these, in all words above z_free.
        b: of each head, the average's coordinates.
        slopes: the activation's slopes, None without a per-position map.
        h: the pre-activations.
        y: the layer's output.
    """

    setting: Setting
    counts: Counts | None
    projections: Projections
    positions: np.ndarray
    shift: np.ndarray
    z_lo: np.ndarray
    z_hi: np.ndarray
    z_free: np.ndarray
    b: list[Ball]
    slopes: Ball | None
    h: Ball | None
    y: Ball


def first_layer(setting: Setting, positions: np.ndarray, counts: Counts | None) -> FirstLayer:
    """The ranges of the first layer's rows. O(n kinds) a row, kind and direction."""
    layer, kinds = setting.config.layer(0), setting.slots
    projections = project(setting, 0, setting.points)
    rows, sums = [], []
    for block in blocks(setting, positions):
        weights = [weights_of(setting, 0, h, projections, block) for h in range(layer.heads)]
        rows.append(rows_of(setting, 0, setting.points, projections, block, weights, counts))
        each = [(w.shift, *total_range(w.hi, w.lo, counts), total_range(w.hi, w.lo)[0]) for w in weights]
        sums.append(np.array(each).reshape(layer.heads, 4, len(block), kinds))
    shift, z_lo, z_hi, z_free = np.concatenate(sums, axis=2).swapaxes(0, 1)

    def joined(parts: list[Any]) -> Ball:
        return Ball(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    b = [joined([row.b[h] for row in rows]) for h in range(layer.heads)]
    h_range = joined([row.h for row in rows]) if layer.feed_forward else None
    d = None if h_range is None else slopes(layer.activation, h_range)
    y = joined([row.y for row in rows])
    return FirstLayer(setting, counts, projections, positions, shift, z_lo, z_hi, z_free, b, d, h_range, y)


@dataclass(frozen=True)
class Directions:
    """Directions f of the first layer's output, per row, as directions of the heads' averages.

    Attributes:
        heads: u = W_O^h (f + W_1 diag(D_mid) W_2 f), (heads, rows, kinds, head_width, p).
        b: b.u over all words, balls (heads, rows, kinds, p).
        slack: the rounding of v.u and b.u, at most, by the sizes of all that is added up in u, (heads, rows, kinds, p).
        through: |W_2 f|, (feed_forward, p), what the rest of D is multiplied by; None without a per-position map.
    """

    heads: np.ndarray
    b: Ball
    slack: np.ndarray
    through: np.ndarray | None


def directions(first: FirstLayer, f: Float[np.ndarray, "*rows width p"], supported: bool) -> Directions:
    """Prepares directions, shared or (rows, 1, width, p); `supported` finds b.u's range by its support too."""
    parameters = first.setting.layers[0]
    if first.slopes is None:
        return prepared(first, *_fold(first, f, None), None, supported)
    w2 = np.asarray(parameters.w2)
    through = abs(w2 @ f) + MARGIN * (abs(w2) @ abs(f))
    return prepared(first, *_fold(first, f, first.slopes.mid), through, supported)


def _fold(first: FirstLayer, f: np.ndarray, s: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """f + W_1 diag(s) W_2 f of every row, and the same of absolute values: (rows, kinds, width, p)."""
    parameters = first.setting.layers[0]
    shape = (*first.y.mid.shape[:2], *f.shape[-2:])
    if s is None:
        return np.broadcast_to(f, shape), np.broadcast_to(abs(f), shape)
    w1, w2 = np.asarray(parameters.w1), np.asarray(parameters.w2)
    folded = w1 @ (s[..., None] * (w2 @ f))
    size = abs(w1) @ (abs(s)[..., None] * (abs(w2) @ abs(f)))
    return f + folded, abs(f) + size


def prepared(
    first: FirstLayer, folded: np.ndarray, size: np.ndarray, through: np.ndarray | None, supported: bool
) -> Directions:
    """Directions of attended, (rows, kinds, width, p), as directions of the heads' averages."""
    output = np.asarray(first.setting.layers[0].output)
    heads = np.einsum("hcd,rsdp->hrscp", output, folded, optimize=True)
    sizes = np.einsum("hcd,rsdp->hrsp", abs(output), size, optimize=True)
    values = first.projections.values
    largest = [max(float(x.max()) for x in (values[h].size, first.b[h].size)) for h in range(len(heads))]
    doubt = [float(values.rad[h].max()) for h in range(len(heads))]
    slack = 4 * MARGIN * sizes * np.reshape(largest, (-1, 1, 1, 1)) + sizes * np.reshape(doubt, (-1, 1, 1, 1))
    parts = [_box(first.b[h], heads[h]) for h in range(len(heads))]
    if supported:
        parts = [meet(part, _support(first, h, heads[h])) for h, part in enumerate(parts)]
    b = Ball(np.stack([part.mid for part in parts]), np.stack([part.rad for part in parts]) + slack)
    return Directions(heads, b, slack, through)


def directions_of_attended(first: FirstLayer, f: np.ndarray, supported: bool = True) -> Directions:
    """Directions of x + sum_h b W_O rather than of the layer's output: the pre-activations', say."""
    return prepared(first, *_fold(first, f, None), None, supported)


def _box(b: Ball, u: np.ndarray) -> Ball:
    mid = np.einsum("rsc,rscp->rsp", b.mid, u)
    return Ball(mid, np.einsum("rsc,rscp->rsp", b.rad, abs(u)))


def _support(first: FirstLayer, h: int, u: np.ndarray) -> Ball:
    """The range of b.u over all words, by support functions, (rows, kinds, p); rounding of v.u is in the slack."""
    setting = first.setting
    kinds, p = setting.slots, u.shape[-1]
    values, found = first.projections.values[h], []
    flat = np.swapaxes(values.mid, 0, 1)
    start = 0
    for block in blocks(setting, first.positions):
        weights = weights_of(setting, 0, h, first.projections, block)
        part = u[start : start + len(block)].reshape(len(block) * kinds, -1, p)
        start += len(block)
        both = ball(*direction_range(weights.hi, weights.lo, np.moveaxis(part, -1, 0), flat, first.counts))
        found.append((both.mid.T, both.rad.T))
    mid, rad = (np.concatenate(part).reshape(-1, kinds, p) for part in zip(*found, strict=True))
    return Ball(mid, rad)


def changes(
    first: FirstLayer, flips: np.ndarray, asked: Directions, hidden: Directions | None
) -> Iterator[tuple[int, int, Ball]]:
    """For each unordered pair of kinds, the change of f.y_j for a flip at each of `flips` between them.

    Balls of shape (rows, kinds, flips, p); rows j = i, and kinds that cannot stand somewhere, hold nothing of use.
    `hidden` are the pre-activations' directions, needed where there is a per-position map.
    """
    setting = first.setting
    kinds = setting.slots
    shifted = [_exponentials(first, h, flips) for h in range(len(asked.heads))]
    values = first.projections.values
    host = asked.heads.size * len(flips) < ON_HOST
    seen = _visible(first, flips)
    # What the row's other keys add up to at least.
    least = np.stack(
        [np.min(np.where(setting.allowed[flips], p.mid + p.rad, np.inf), axis=-1) for p in shifted]
    )
    others = np.maximum(first.z_free[..., None] - least - 2 * MARGIN * first.z_free[..., None], 0.0)
    for a, b in combinations(range(kinds), 2):
        stopping.check()
        if not (setting.allowed[:, a] & setting.allowed[:, b]).any():
            continue
        pair = [
            (p.mid[..., (a, b)], p.rad[..., (a, b)], values.mid[h][flips][:, (a, b)])
            for h, p in enumerate(shifted)
        ]
        data = (*(np.stack(part) for part in zip(*pair, strict=True)), others, seen)
        rest = (first.z_lo, first.z_hi, (asked.heads, asked.b.mid, asked.b.rad, asked.slack, asked.through))
        extra = None
        if hidden is not None and first.slopes is not None:
            extra = (hidden.heads, hidden.b.mid, hidden.b.rad, hidden.slack, first.slopes.rad)
        if host:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                change = Ball(*_change(np, data, *rest, extra))
        else:
            with numerics("float64"):
                change = Ball(*(np.asarray(part) for part in _compiled(data, *rest, extra)))
        yield a, b, change


def _exponentials(first: FirstLayer, h: int, flips: np.ndarray) -> Ball:
    """exp(score - shift) of every row with keys at `flips`: ball (rows, kinds, flips, kinds)."""
    setting, projections = first.setting, first.projections
    kinds = setting.slots
    queries, keys = projections.queries[h][first.positions], projections.keys[h]
    if setting.config.scores == "dot-product":
        mean = keys.mid.mean(axis=(0, 1))
        keys = Ball(keys.mid - mean, keys.rad + MARGIN * (abs(keys.mid) + abs(mean)))
    flat = Ball(*(part.reshape(-1, part.shape[-1]) for part in queries))
    rows = np.repeat(first.positions, kinds)
    s = scores(setting, 0, h, rows, flat, flips, keys[flips])
    relative = plus(s, exact(-first.shift[h].reshape(-1))[..., None, None])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        p = ball(np.exp(relative.lo) * (1 - MARGIN), np.exp(relative.hi) * (1 + MARGIN) + FLOOR)
    from_row = _visible(first, flips)[:, None, None, :]
    shape = (len(first.positions), kinds, kinds, len(flips))
    return Ball(*(np.moveaxis(np.where(from_row, part.reshape(shape), 0.0), 2, 3) for part in p))


def _visible(first: FirstLayer, flips: np.ndarray) -> np.ndarray:
    """Which of the keys at `flips` each row sees, (rows, flips)."""
    return visible(first.setting.config.layer(0).mask, first.positions[:, None], flips[None])


def _change(xp: Any, data: Any, z_lo: Any, z_hi: Any, asked: Any, extra: Any) -> tuple[Any, Any]:
    mid, rad = _heads_change(xp, data, z_lo, z_hi, *asked[:4])
    if extra is not None:
        inside = _heads_change(xp, data, z_lo, z_hi, *extra[:4])
        size = (abs(inside[0]) + inside[1]) * extra[4][:, :, None, :]
        rad = rad + (size @ asked[4]) * (1 + MARGIN)
    return mid, rad


def _heads_change(
    xp: Any, data: Any, z_lo: Any, z_hi: Any, u: Any, b_mid: Any, b_rad: Any, slack: Any
) -> tuple[Any, Any]:
    p_mid, p_rad, v_mid, others, seen = data
    reach = slack / (4 * MARGIN)  # at least |v.u|
    total, unseen = (0.0, 0.0), ~seen[:, None, :, None]
    for h in range(u.shape[0]):
        # The formula holds with either word's sum and the other's average: the larger sum is taken.
        own = xp.max(p_mid[h] - p_rad[h], axis=-1)
        least = xp.maximum(z_lo[h][..., None], others[h] + own) * (1 - MARGIN)
        high = xp.where(least > 0, 1 / xp.where(least > 0, least, 1.0), xp.inf)
        low = 1 / xp.maximum(z_hi[h][..., None], least)
        # Divided by the sum before all else: products with an exponential near the range's end would underflow.
        scale = (high + low) / 2
        relative = (((high - low) / 2 * (1 + MARGIN) + MARGIN * high) / scale)[..., None]
        old, new = p_mid[h][..., 0] * scale, p_mid[h][..., 1] * scale
        # One product for both symbols: (e' v' - e v).u - (e' - e) b.u.
        moved = new[..., None] * v_mid[h][:, 1] - old[..., None] * v_mid[h][:, 0]
        mid = xp.einsum("rsic,rscp->rsip", moved, u[h]) - (new - old)[..., None] * b_mid[h][:, :, None]
        doubt = p_rad[h].sum(axis=-1) * scale + 4 * MARGIN * (new + old)
        rad = (abs(new - old) + doubt)[..., None] * b_rad[h][:, :, None]
        rad = rad + ((new + old) + doubt)[..., None] * slack[h][:, :, None]
        rad = rad + doubt[..., None] * (reach[h] + abs(b_mid[h]))[:, :, None]
        rad = rad + relative * (abs(mid) + rad) + MARGIN * abs(mid)
        # Both averages lie in the range of b.u.
        spread = 2 * b_rad[h][:, :, None] * (1 + MARGIN)
        wide = ~(abs(mid) + rad <= spread)
        mid, rad = xp.where(wide, 0.0, mid), xp.where(wide, spread, rad)
        # A row that does not see the key does not move.
        total = (
            total[0] + xp.where(unseen, 0.0, mid),
            total[1] + xp.where(unseen, 0.0, rad * (1 + 8 * MARGIN)),
        )
    return total


@partial(jax.jit)
def _compiled(data: Any, z_lo: Any, z_hi: Any, asked: Any, extra: Any) -> Any:
    return _change(jnp, data, z_lo, z_hi, asked, extra)


def functional(first: FirstLayer, f: Float[np.ndarray, "*rows width p"], supported: bool = True) -> Ball:
    """The range of f.y_j over all words, (rows, kinds, p): the activation relaxed by a line, supports of averages."""
    setting, parameters = first.setting, first.setting.layers[0]
    own = setting.points[first.positions]
    s, constant = None, Ball(0.0, 0.0)
    if first.h is not None:
        b1, w2, b2 = (np.asarray(getattr(parameters, name)) for name in ("b1", "w2", "b2"))
        s, c = relaxed(setting.config.layer(0).activation, first.h)
        onto = w2 @ f
        size = (first.h.size + abs(b1)) * abs(s) + c.size
        # What does not depend on the averages: the line's offsets, and biases.
        inside = (c.mid + s * b1)[..., None, :] @ onto, c.rad[..., None, :] @ abs(onto)
        constant = Ball(inside[0][..., 0, :] + b2 @ f, inside[1][..., 0, :])
        rounding = 2 * MARGIN * ((size[..., None, :] @ (abs(w2) @ abs(f)))[..., 0, :] + abs(b2) @ abs(f))
        constant = Ball(constant.mid, constant.rad + rounding)
    folded, sizes = _fold(first, f, s)
    ready = prepared(first, folded, sizes, None, supported)
    base = np.einsum("rsd,rsdp->rsp", own.mid, folded)
    size = np.einsum("rsd,rsdp->rsp", abs(own.mid), sizes) * (4 * MARGIN)
    parts = [Ball(ready.b.mid[h], ready.b.rad[h]) for h in range(len(ready.heads))]
    found = plus(Ball(base, size), constant, *parts)
    return Ball(found.mid, up(found.rad))


def at(first: FirstLayer, rows: np.ndarray) -> FirstLayer:
    """The same of some of its rows, by index."""
    part = {name: getattr(first, name)[:, rows] for name in ("shift", "z_lo", "z_hi", "z_free")}
    d, h = (None if x is None else x[rows] for x in (first.slopes, first.h))
    b = [bh[rows] for bh in first.b]
    return replace(first, positions=first.positions[rows], b=b, slopes=d, h=h, y=first.y[rows], **part)
