"""The first layer's change under a flip, exact but for what the other symbols decide. Without layer normalisation.

The inputs of the first layer are points, so a flip sigma -> sigma' at i moves one key of a row j /= i, from (s, v)
to (s', v'), all four known:

    b' - b = (e^s' (v' - b) - e^s (v - b)) / Z' = (e^s' (v' - b') - e^s (v - b')) / Z ,

with b the average before, known as a set over words, and Z the sum of the row's exponentials. The larger of Z and Z' is
used. The per-position map adds W_2' diag(D) W_1' times the change, D between the activation's slopes over the row's
pre-activations. The middle of D is folded into the direction asked about, f + W_1 diag(D_mid) W_2 f. What is left of D
enters by absolute values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens import stopping
from jaxsens.precision import numerics
from jaxsens.theory.certified.averages import ON_HOST, Counts, Either, direction_range, total_range
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
from jaxsens.theory.certified.layerwise import blocks, rows_of, scored_keys, weights_of
from jaxsens.theory.certified.setting import (
    ProjectedKinds,
    Setting,
    Weights,
    project,
    rows_and_kinds,
    scores,
    visible,
)


class Sums(NamedTuple):
    """Bounds on Z, the sum of a row's exponentials, all divided by e^shift.

    Attributes:
        shift: the logarithm of what they are divided by.
        lo, hi: over the words of the class.
        free: below Z in all words.
    """

    shift: Float[np.ndarray, "heads rows kinds"]
    lo: Float[np.ndarray, "heads rows kinds"]
    hi: Float[np.ndarray, "heads rows kinds"]
    free: Float[np.ndarray, "heads rows kinds"]


@dataclass(frozen=True)
class FirstLayer:
    """The first layer at some rows, over all words of a class.

    Attributes:
        setting: the model.
        counts: the class; None for all words.
        projections: queries, keys and values, which are points but for rounding.
        positions: the rows' positions.
        weights: of each head, the unnormalised weights; None where they are too many to be kept.
        sums: of each head and row.
        b: of each head and row, the average's coordinates.
        h: the pre-activations, None without a per-position map.
        y: the layer's output.
    """

    setting: Setting
    counts: Counts | None
    projections: ProjectedKinds
    positions: Int[np.ndarray, " rows"]
    weights: list[Weights] | None
    sums: Sums
    b: Float[Ball, "heads rows kinds head_width"]
    h: Float[Ball, "rows kinds feed_forward"] | None
    y: Float[Ball, "rows kinds width"]

    @cached_property
    def slopes(self) -> Float[Ball, "rows kinds feed_forward"] | None:
        """D: the activation's slopes, None without a per-position map."""
        return None if self.h is None else slopes(self.setting.config.layer(0).activation, self.h)


def first_layer(setting: Setting, positions: Int[np.ndarray, " rows"], counts: Counts | None) -> FirstLayer:
    """The ranges of the first layer's rows. O(n kinds) a row, kind and direction."""
    layer = setting.config.layer(0)
    projections = project(setting, 0, setting.points)
    rows, sums, weights = [], [], []
    for block in blocks(setting, positions):
        weights = [weights_of(setting, 0, h, projections, block) for h in range(layer.heads)]
        rows.append(rows_of(setting, 0, setting.points, projections, block, weights, counts))
        each = [(w.shift, *total_range(w.hi, w.lo, counts), total_range(w.hi, w.lo)[0]) for w in weights]
        sums.append(np.array(each).reshape(layer.heads, 4, len(block), setting.slots))

    def joined(parts: list[Any], axis: int = 0) -> Any:
        return Ball(*(np.concatenate(part, axis=axis) for part in zip(*parts, strict=True)))

    return FirstLayer(
        setting,
        counts,
        projections,
        positions,
        weights if len(rows) == 1 else None,
        Sums(*np.concatenate(sums, axis=2).swapaxes(0, 1)),
        joined([row.b for row in rows], axis=1),
        joined([row.h for row in rows]) if layer.feed_forward else None,
        joined([row.y for row in rows]),
    )


def folded(
    setting: Setting,
    k: int,
    f: Float[np.ndarray, "*of_f width p"],
    s: Float[np.ndarray, "*rows feed_forward"],
) -> tuple[Float[np.ndarray, "*rows width p"], Float[np.ndarray, "*rows width p"]]:
    """f + W_1 diag(s) W_2 f of layer k, and the same of absolute values, which bounds all that is added up in it."""
    w1, w2 = setting.matrices(k, "w1", "w2")
    size = abs(w1) @ (abs(s)[..., None] * (abs(w2) @ abs(f)))
    return f + w1 @ (s[..., None] * (w2 @ f)), abs(f) + size


def relaxed_map(
    setting: Setting, k: int, h: Ball | None, f: Float[np.ndarray, "*of_f width p"]
) -> tuple[Float[np.ndarray, "*rows width p"], Float[np.ndarray, "*rows width p"], Ball]:
    """g and a constant with f.y in g.c + constant for the map y = c + act(c W_1 + b_1) W_2 + b_2 of layer k.

    The activation is replaced by lines over the pre-activations h; without a map h is None. Also the sizes of all that
    is added up in g.
    """
    if h is None:
        nothing = np.zeros(f.shape[-1])
        return f, abs(f), Ball(nothing, nothing)
    b1, w2, b2 = setting.matrices(k, "b1", "w2", "b2")
    s, c = relaxed(setting.config.layer(k).activation, h)
    onto, onto_size = w2 @ f, abs(w2) @ abs(f)
    mid = ((c.mid + s * b1)[..., None, :] @ onto)[..., 0, :] + b2 @ f
    size = (((h.size + abs(b1)) * abs(s) + c.size)[..., None, :] @ onto_size)[..., 0, :]
    rad = (c.rad[..., None, :] @ abs(onto))[..., 0, :] + 2 * MARGIN * (size + abs(b2) @ abs(f))
    return *folded(setting, k, f, s), Ball(mid, rad)


class Directions(NamedTuple):
    """Directions f of x + sum_h b W_O, per row, as directions of the heads' averages.

    Attributes:
        u: W_O^h f.
        b: b.u over all words.
        slack: at least the rounding of v.u and b.u, by the sizes of all that is added up in u.
    """

    u: Float[np.ndarray, "heads rows kinds head_width p"]
    b: Float[Ball, "heads rows kinds p"]
    slack: Float[np.ndarray, "heads rows kinds p"]


def directions(
    first: FirstLayer,
    f: Float[np.ndarray, "*rows_kinds width p"],
    size: Float[np.ndarray, "*rows_kinds width p"],
    supported: bool,
) -> Directions:
    """Prepares directions f, shared or for every row, with `size` at least |f| and all that is added up in it.

    `supported` bounds b.u by its support over all words as well as by the box of b, at O(n kinds) a row and direction.
    """
    shape = (*first.y.shape[:2], *f.shape[-2:])
    (output,) = first.setting.matrices(0, "output")
    u = np.einsum("hcd,rsdp->hrscp", output, np.broadcast_to(f, shape), optimize=True)
    sizes = np.einsum("hcd,rsdp->hrsp", abs(output), np.broadcast_to(size, shape), optimize=True)
    values, heads = first.projections.values, range(len(u))
    largest = [max(float(x.max()) for x in (values[h].size, first.b[h].size)) for h in heads]
    doubt = [float(values.rad[h].max()) for h in heads]
    slack = 4 * MARGIN * sizes * np.reshape(largest, (-1, 1, 1, 1)) + sizes * np.reshape(doubt, (-1, 1, 1, 1))
    parts = []
    for h in heads:
        rad = np.einsum("rsc,rscp->rsp", first.b.rad[h], abs(u[h]))
        parts.append(Ball(np.einsum("rsc,rscp->rsp", first.b.mid[h], u[h]), rad))
        if supported:
            parts[h] = meet(parts[h], _support(first, h, u[h]))
    b = Ball(np.stack([part.mid for part in parts]), np.stack([part.rad for part in parts]) + slack)
    return Directions(u, b, slack)


def _support(
    first: FirstLayer, h: int, u: Float[np.ndarray, "rows kinds head_width p"]
) -> Float[Ball, "rows kinds p"]:
    """The range of b.u over all words, by support functions; the rounding of v.u is in the slack."""
    setting = first.setting
    kinds, p = setting.slots, u.shape[-1]
    values, found = np.swapaxes(first.projections.values.mid[h], 0, 1), []
    start = 0
    for block in blocks(setting, first.positions):
        weights = first.weights[h] if first.weights else weights_of(setting, 0, h, first.projections, block)
        part = np.moveaxis(u[start : start + len(block)].reshape(len(block) * kinds, -1, p), -1, 0)
        start += len(block)
        both = ball(*direction_range(weights.hi, weights.lo, part, values, first.counts))
        found.append((both.mid.T, both.rad.T))
    return Ball(*(np.concatenate(part).reshape(-1, kinds, p) for part in zip(*found, strict=True)))


def output_range(
    first: FirstLayer, f: Float[np.ndarray, "*rows_kinds width p"], supported: bool = True
) -> Float[Ball, "rows kinds p"]:
    """The range of f.y_j over all words: the activation relaxed by lines, then supports of averages."""
    own = first.setting.points[first.positions]
    g, sizes, constant = relaxed_map(first.setting, 0, first.h, f)
    ready = directions(first, g, sizes, supported)
    shape = (*first.y.shape[:2], *f.shape[-2:])
    base = np.einsum("rsd,rsdp->rsp", own.mid, np.broadcast_to(g, shape))
    size = np.einsum("rsd,rsdp->rsp", abs(own.mid), np.broadcast_to(sizes, shape)) * (4 * MARGIN)
    found = plus(Ball(base, size), constant, *(ready.b[h] for h in range(len(ready.u))))
    return Ball(found.mid, up(found.rad))


class Asked(NamedTuple):
    """Directions f of the rows' outputs whose changes are asked for.

    Attributes:
        folded: f + W_1 diag(D_mid) W_2 f as directions of x + sum_h b W_O.
        hidden: the columns of W_1 likewise; None without a per-position map.
        bend: |W_2 f|, which the hidden units' changes times the radius of D are multiplied by.
        rho: the radius of D.
    """

    folded: Directions
    hidden: Directions | None = None
    bend: Float[np.ndarray, "*rows_kinds feed_forward p"] | None = None
    rho: Float[np.ndarray, "rows kinds feed_forward"] | None = None


def asked(first: FirstLayer, f: Float[np.ndarray, "*rows_kinds width p"], supported: bool) -> Asked:
    """Prepares directions of the output, shared or for every row, for `changes`."""
    if first.slopes is None:
        return Asked(directions(first, f, abs(f), supported))
    w1, w2 = first.setting.matrices(0, "w1", "w2")
    bend = abs(w2 @ f) + MARGIN * (abs(w2) @ abs(f))
    middle = directions(first, *folded(first.setting, 0, f, first.slopes.mid), supported)
    return Asked(middle, directions(first, w1, abs(w1), supported), bend, first.slopes.rad)


class Flipped(NamedTuple):
    """What flips between two symbols change in every row.

    Attributes:
        e: exp(s - shift) of the two symbols; 0 in rows that do not see the key.
        v: the values of the two symbols.
        others: at least the sum of the other keys' exponentials.
        seen: whether the row sees the key.
    """

    e: Float[Ball, "heads rows kinds flips 2"]
    v: Float[np.ndarray, "heads flips 2 head_width"]
    others: Float[np.ndarray, "heads rows kinds flips"]
    seen: Bool[np.ndarray, "rows flips"]


def changes(
    first: FirstLayer, flips: Int[np.ndarray, " flips"], f: Asked
) -> Iterator[tuple[int, int, Float[Ball, "rows kinds flips p"]]]:
    """For each unordered pair of kinds, the change of f.y_j for a flip at each of `flips` between them.

    Entries of rows j = i, and of kinds that cannot stand somewhere, mean nothing.
    """
    setting, values = first.setting, first.projections.values
    heads = range(len(f.folded.u))
    e = [_exponentials(first, h, flips) for h in heads]
    least = [np.min(np.where(setting.allowed[flips], p.mid + p.rad, np.inf), axis=-1) for p in e]
    free = first.sums.free[..., None]
    others = np.maximum(free - np.stack(least) - 2 * MARGIN * free, 0.0)
    seen = visible(setting, 0, first.positions, flips)
    for a, b in combinations(range(setting.slots), 2):
        stopping.check()
        if not (setting.allowed[:, a] & setting.allowed[:, b]).any():
            continue
        pair = Ball(*(np.stack([getattr(p, part)[..., (a, b)] for p in e]) for part in ("mid", "rad")))
        v = np.stack([values.mid[h][flips][:, (a, b)] for h in heads])
        data = Flipped(pair, v, others, seen)
        # Neither setting may be held over a yield: the caller computes in between.
        if f.folded.u.size * len(flips) < ON_HOST:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                change = output_change(np, data, first.sums, f)
        else:
            with numerics("float64"):
                change = jax.tree.map(np.asarray, _compiled(data, first.sums, f))
        yield a, b, change


def _exponentials(
    first: FirstLayer, h: int, flips: Int[np.ndarray, " flips"]
) -> Float[Ball, "rows kinds flips kinds"]:
    """exp(score - shift) of every row with keys at `flips`."""
    setting, projections = first.setting, first.projections
    queries = projections.queries[h][first.positions]
    flat = Ball(*(part.reshape(-1, part.shape[-1]) for part in queries))
    rows, _ = rows_and_kinds(setting, first.positions)
    s = scores(setting, 0, h, rows, flat, flips, scored_keys(setting, projections.keys[h])[flips])
    relative = plus(s, exact(-first.sums.shift[h].reshape(-1))[..., None, None])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        p = ball(np.exp(relative.lo) * (1 - MARGIN), np.exp(relative.hi) * (1 + MARGIN) + FLOOR)
    from_row = visible(setting, 0, first.positions, flips)[:, None, None, :]
    shape = (len(first.positions), setting.slots, setting.slots, len(flips))
    return Ball(*(np.moveaxis(np.where(from_row, part.reshape(shape), 0.0), 2, 3) for part in p))


def average_change(
    xp: ModuleType,
    e: Float[Ball, "rows kinds flips 2"],
    v: Float[Either, "flips 2 head_width"],
    others: Float[Either, "rows kinds flips"],
    z: tuple[Any, Any],
    u: Float[Either, "rows kinds head_width p"],
    b: Float[Ball, "rows kinds p"],
    slack: Float[Either, "rows kinds p"],
) -> Float[Ball, "rows kinds flips p"]:
    """(b' - b).u = [e^s' (v' - b) - e^s (v - b)].u / Z' of one head; z are the bounds on Z over all words."""
    reach = slack / (4 * MARGIN)  # at least |v.u|
    # The formula holds with either word's sum and the other's average, so the larger sum may be taken.
    own = xp.max(e.mid - e.rad, axis=-1)
    least = xp.maximum(z[0][..., None], others + own) * (1 - MARGIN)
    high = xp.where(least > 0, 1 / xp.where(least > 0, least, 1.0), xp.inf)
    low = 1 / xp.maximum(z[1][..., None], least)
    # Divided by the sum before all else: products with an exponential near the range's end would underflow.
    scale = (high + low) / 2
    relative = (((high - low) / 2 * (1 + MARGIN) + MARGIN * high) / scale)[..., None]
    old, new = e.mid[..., 0] * scale, e.mid[..., 1] * scale
    # One product for both symbols: (e' v' - e v).u - (e' - e) b.u.
    moved = new[..., None] * v[:, 1] - old[..., None] * v[:, 0]
    mid = xp.einsum("rsic,rscp->rsip", moved, u) - (new - old)[..., None] * b.mid[:, :, None]
    doubt = e.rad.sum(axis=-1) * scale + 4 * MARGIN * (new + old)
    rad = (abs(new - old) + doubt)[..., None] * b.rad[:, :, None]
    rad = rad + ((new + old) + doubt)[..., None] * slack[:, :, None]
    rad = rad + doubt[..., None] * (reach + abs(b.mid))[:, :, None]
    rad = rad + relative * (abs(mid) + rad) + MARGIN * abs(mid)
    # Both averages lie in the range of b.u, so they are no farther apart than it is wide.
    spread = 2 * b.rad[:, :, None] * (1 + MARGIN)
    wide = ~(abs(mid) + rad <= spread)
    return Ball(xp.where(wide, 0.0, mid), xp.where(wide, spread, rad))


def attended_change(
    xp: ModuleType, flipped: Flipped, sums: Sums, f: Directions
) -> Float[Ball, "rows kinds flips p"]:
    """sum_h (b' - b).u; 0 in rows that do not see the key."""
    mid, rad, unseen = 0.0, 0.0, ~flipped.seen[:, None, :, None]
    for h in range(f.u.shape[0]):
        z = sums.lo[h], sums.hi[h]
        one = average_change(xp, flipped.e[h], flipped.v[h], flipped.others[h], z, f.u[h], f.b[h], f.slack[h])
        mid = mid + xp.where(unseen, 0.0, one.mid)
        rad = rad + xp.where(unseen, 0.0, one.rad * (1 + 8 * MARGIN))
    return Ball(mid, rad)


def output_change(
    xp: ModuleType, flipped: Flipped, sums: Sums, f: Asked
) -> Float[Ball, "rows kinds flips p"]:
    """The change of f.y: that of the folded direction, and |W_2 f| rho |w_1.dc| for the slopes' range."""
    change = attended_change(xp, flipped, sums, f.folded)
    if f.hidden is None or f.rho is None:
        return change
    inside = attended_change(xp, flipped, sums, f.hidden)
    size = (abs(inside.mid) + inside.rad) * f.rho[:, :, None, :]
    return Ball(change.mid, change.rad + (size @ f.bend) * (1 + MARGIN))


@jax.jit
def _compiled(flipped: Any, sums: Any, f: Any) -> Any:
    return output_change(jnp, flipped, sums, f)
