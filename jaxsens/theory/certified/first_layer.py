"""The first layer's change under a flip, exact except for what the other symbols decide. Without layer normalisation.

The inputs of the first layer are points, so a flip moves one key of every other row between two known scores and
values. Each formula of docs/bounds.md, "One layer", is the function of its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import combinations
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import stopping
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.transformer.parameters import needed
from jaxsens.theory.certified.averages import ON_HOST, direction_range, total_range
from jaxsens.theory.certified.intervals import (
    FLOOR,
    MARGIN,
    Ball,
    Bent,
    OutputRange,
    ball,
    exact,
    joined,
    overlap,
    plus,
    relaxed,
    slopes,
    stacked,
    up,
)
from jaxsens.theory.certified.layerwise import blocks, rows_of
from jaxsens.theory.certified.setting import Setting, project


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


class Directions(NamedTuple):
    """Directions f of x + sum_h b W_O, per row, as directions of the heads' averages.

    Attributes:
        u: W_O^h f.
        b: b.u over all words.
        slack: at least the rounding of v.u and b.u, by the sizes of all that is added up in u.
        total: sum_h b.u over all words.
    """

    u: Float[np.ndarray, "heads rows kinds head_width p"]
    b: Float[Ball, "heads rows kinds p"]
    slack: Float[np.ndarray, "heads rows kinds p"]
    total: Float[Ball, "rows kinds p"]


class Asked(NamedTuple):
    """Directions f of the rows' outputs whose changes are asked for.

    Attributes:
        moving: those of `bent_map` as directions of x + sum_h b W_O.
        onto: |W_2 f|, which the hidden units' changes times the radius of D are multiplied by; None if what moves is
            asked for direction by direction.
        rho: the radius of D.
    """

    moving: Directions
    onto: Float[np.ndarray, "*rows_kinds feed_forward p"] | None
    rho: Float[np.ndarray, "rows kinds feed_forward"]


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


class Relaxed(NamedTuple):
    """f.y = g.c + constant + sum_u s_u bend_u (W_2 f)_u with |s_u| <= 1, for the map of a layer.

    Attributes:
        g: f + W_1 diag(s) W_2 f, s the lines' slopes.
        sizes: of all that is added up in g.
        constant: known up to rounding.
        bend: how far the activation of each hidden unit lies from the middle of its lines at most.
        onto: W_2 f.
    """

    g: Float[np.ndarray, "*rows width p"]
    sizes: Float[np.ndarray, "*rows width p"]
    constant: Float[Ball, "*rows p"]
    bend: Float[np.ndarray, "*rows feed_forward"]
    onto: Float[Ball, "*of_f feed_forward p"]

    @property
    def rest(self) -> Float[Ball, "*rows p"]:
        """The range of f.y - g.c."""
        bent = (self.bend[..., None, :] @ self.onto.size)[..., 0, :]
        return Ball(self.constant.mid, self.constant.rad + bent)

    def outputs(self, attended: Float[Ball, " p"]) -> OutputRange:
        """The range of f.y, given that of g.c, for one symbol at the readout."""
        box, straight = (plus(attended, part) for part in (self.rest, self.constant))
        box, straight = (Ball(x.mid, up(x.rad))[None] for x in (box, straight))
        return OutputRange(box, Bent(straight, self.bend[None], self.onto))


def relaxed_map(setting: Setting, k: int, h: Ball, f: Float[np.ndarray, "*of_f width p"]) -> Relaxed:
    """What f.y is of c for the map y = c + act(c W_1 + b_1) W_2 + b_2 of layer k.

    The activation is replaced by lines over the pre-activations h.
    """
    b1, w2, b2 = setting.matrices(k, "b1", "w2", "b2")
    s, c = relaxed(setting.config.layer(k).activation, h)
    onto, onto_size = carried_on(setting, k, f), abs(w2) @ abs(f)
    mid = ((c.mid + s * b1)[..., None, :] @ onto.mid)[..., 0, :] + b2 @ f
    size = (((h.size + abs(b1)) * abs(s) + c.size)[..., None, :] @ onto_size)[..., 0, :]
    constant = Ball(mid, 2 * MARGIN * (size + abs(b2) @ abs(f)))
    return Relaxed(*folded(setting, k, f, s), constant, c.rad, onto)


def bent_map(
    setting: Setting, k: int, d: Ball, f: Float[np.ndarray, "*of_f width p"]
) -> tuple[
    Float[np.ndarray, "*rows width p_and_feed_forward"],
    Float[np.ndarray, "*rows width p_and_feed_forward"],
    Float[Ball, "*of_f feed_forward p"],
]:
    """What moves f.y through layer k's map where the activation's slopes lie in d, and W_2 f.

    f + W_1 diag(D_mid) W_2 f, and the columns of W_1, whose changes times the radius of D go either way along W_2 f;
    and the sizes of all that is added up in these directions.
    """
    (w1,) = setting.matrices(k, "w1")
    g, sizes = folded(setting, k, f, d.mid)
    w1 = np.broadcast_to(w1, (*g.shape[:-1], w1.shape[1]))
    directions = np.concatenate([g, w1], axis=-1), np.concatenate([sizes, abs(w1)], axis=-1)
    return *directions, carried_on(setting, k, f)


def carried_on(
    setting: Setting, k: int, f: Float[np.ndarray, "*of_f width p"]
) -> Float[Ball, "*of_f feed_forward p"]:
    """W_2 f of layer k: what a hidden unit does to f.y."""
    (w2,) = setting.matrices(k, "w2")
    return Ball(w2 @ f, MARGIN * (abs(w2) @ abs(f)))


class FirstLayer:
    """The first layer at some rows, over all words of a class.

    Attributes:
        projections: queries, keys and values, which are points up to rounding.
        weights: of the heads, the unnormalised weights; None where they are too many to be kept.
        sums: of each head and row.
        b: of each head and row, the average's coordinates.
        h: the pre-activations.
        y: the layer's output.
    """

    def __init__(self, setting: Setting, positions: Int[np.ndarray, " rows"]) -> None:
        """The ranges of the first layer's rows. O(n kinds) a row, kind and direction."""
        self.setting, self.positions, heads = setting, positions, setting.config.layer(0).heads
        self.projections = project(setting, 0, setting.points)
        rows, sums, weights = [], [], None
        for block in blocks(setting, positions):
            weights = self.projections.weights_of_heads(block)
            rows.append(rows_of(setting.points, self.projections, block, weights))
            each = weights.shift, *weights.total, total_range(replace(weights, counts=None))[0]
            sums.append(np.array(each).reshape(4, heads, len(block), setting.slots))
        self.weights = weights if len(rows) == 1 else None
        self.sums = Sums(*np.concatenate(sums, axis=2))
        self.b: Float[Ball, "heads rows kinds head_width"] = joined((row.b for row in rows), axis=1)
        self.h: Float[Ball, "rows kinds feed_forward"] = joined(needed(row.h, "w1") for row in rows)
        self.y: Float[Ball, "rows kinds width"] = joined(row.y for row in rows)

    @cached_property
    def slopes(self) -> Float[Ball, "rows kinds feed_forward"]:
        """D: the activation's slopes."""
        return slopes(self.setting.config.layer(0).activation, self.h)

    def directions(
        self,
        f: Float[np.ndarray, "*rows_kinds width p"],
        size: Float[np.ndarray, "*rows_kinds width p"],
        supported: bool,
    ) -> Directions:
        """Prepares directions f, shared or for every row, with `size` at least |f| and all that is added up in it.

        `supported` bounds b.u by its support over all words as well as by the box of b, at O(n kinds) a row and
        direction.
        """
        shape = (*self.y.shape[:2], *f.shape[-2:])
        (output,) = self.setting.matrices(0, "output")
        u = np.einsum("hcd,rsdp->hrscp", output, np.broadcast_to(f, shape), optimize=True)
        sizes = np.einsum("hcd,rsdp->hrsp", abs(output), np.broadcast_to(size, shape), optimize=True)
        values, axes = self.projections.values, (1, 2, 3)
        largest = np.maximum(values.size.max(axis=axes), self.b.size.max(axis=axes))
        slack = (4 * MARGIN * largest + values.rad.max(axis=axes))[:, None, None, None] * sizes
        mid, rad = (np.einsum("hrsc,hrscp->hrsp", *of) for of in ((self.b.mid, u), (self.b.rad, abs(u))))
        b = Ball(mid, rad)
        total = plus(*(b[h] for h in range(len(u))))
        if supported:  # by support functions; the rounding of v.u is in the slack
            heads, rows, kinds, width, p = u.shape
            of_keys, each, whole, start = np.swapaxes(values.mid, 1, 2), [], [], 0
            for block in blocks(self.setting, self.positions):
                weights = self.weights or self.projections.weights_of_heads(block)
                part = u[:, start : start + len(block)].reshape(heads, len(block) * kinds, width, p)
                start += len(block)
                of_heads, of_sum = direction_range(weights, np.moveaxis(part, -1, 0), of_keys)
                each.append(of_heads.map(lambda part: np.moveaxis(part, 0, -1)))
                whole.append(of_sum.map(np.transpose))
            limits = joined(each, axis=1).map(lambda part: part.reshape(heads, rows, kinds, p))
            b = ball(np.maximum(b.lo, limits.lo), np.minimum(b.hi, limits.hi))
            summed = joined(whole).map(lambda part: part.reshape(rows, kinds, p))
            total = overlap(plus(*(b[h] for h in range(heads))), summed)
        total = Ball(total.mid, total.rad + slack.sum(axis=0))
        return Directions(u, Ball(b.mid, b.rad + slack), slack, total)

    def output_range(self, f: Float[np.ndarray, "*rows_kinds width p"]) -> Float[Ball, "rows kinds p"]:
        """The range of f.y_j over all words: the activation relaxed by lines, then supports of averages."""
        own = self.setting.points[self.positions]
        line = relaxed_map(self.setting, 0, self.h, f)
        ready = self.directions(line.g, line.sizes, supported=True)
        shape = (*self.y.shape[:2], *f.shape[-2:])
        base = np.einsum("rsd,rsdp->rsp", own.mid, np.broadcast_to(line.g, shape))
        size = np.einsum("rsd,rsdp->rsp", abs(own.mid), np.broadcast_to(line.sizes, shape)) * (4 * MARGIN)
        found = plus(Ball(base, size), line.rest, ready.total)
        return Ball(found.mid, up(found.rad))

    def asked(self, f: Float[np.ndarray, "*rows_kinds width p"], supported: bool) -> Asked:
        """Prepares directions of the output, shared or for every row, for `changes`."""
        g, sizes, onto = bent_map(self.setting, 0, self.slopes, f)
        return Asked(self.directions(g, sizes, supported), onto.size, self.slopes.rad)

    def changes(
        self, flips: Int[np.ndarray, " flips"], f: Asked
    ) -> Iterator[tuple[int, int, Float[Ball, "rows kinds flips p"]]]:
        """For each unordered pair of kinds, the change of f.y_j for a flip at each of `flips` between them.

        Entries of rows j = i, and of kinds that cannot stand somewhere, mean nothing.
        """
        setting, values = self.setting, self.projections.values
        e = stacked(self._exponentials(h, flips) for h in range(len(f.moving.u)))
        least = np.min(np.where(setting.allowed[flips], e.mid + e.rad, np.inf), axis=-1)
        free = self.sums.free[..., None]
        others = np.maximum(free - least - 2 * MARGIN * free, 0.0)
        seen = setting.visible(0, self.positions, flips)
        for a, b in combinations(range(setting.slots), 2):
            stopping.check()
            if not (setting.allowed[:, a] & setting.allowed[:, b]).any():
                continue
            data = Flipped(e[..., (a, b)], values.mid[:, flips][:, :, (a, b)], others, seen)
            # Neither setting may be held over a yield: the caller computes in between.
            if f.moving.u.size * len(flips) < ON_HOST:
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    change = output_change(np, data, self.sums, f)
            else:
                with numerics("float64"):
                    change = jax.tree.map(np.asarray, _compiled(data, self.sums, f))
            yield a, b, change

    def _exponentials(
        self, h: int, flips: Int[np.ndarray, " flips"]
    ) -> Float[Ball, "rows kinds flips kinds"]:
        """exp(score - shift) of every row with keys at `flips`."""
        setting, s = self.setting, self.projections.scores(h, self.positions, flips)
        relative = plus(s, exact(-self.sums.shift[h].reshape(-1))[..., None, None])
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            p = ball(np.exp(relative.lo) * (1 - MARGIN), np.exp(relative.hi) * (1 + MARGIN) + FLOOR)
        from_row = setting.visible(0, self.positions, flips)[:, None, None, :]
        shape = (len(self.positions), setting.slots, setting.slots, len(flips))
        return p.map(lambda part: np.moveaxis(np.where(from_row, part.reshape(shape), 0.0), 2, 3))


def average_change(
    xp: ModuleType, flipped: Flipped, sums: Sums, f: Directions
) -> Float[Ball, "rows kinds flips p"]:
    """sum_h (b' - b).u, (b' - b).u = [e^s' (v' - b) - e^s (v - b)].u / Z'; 0 in rows that do not see the key."""
    e, v, b, slack = flipped.e, flipped.v[:, None, None], f.b[:, :, :, None], f.slack[:, :, :, None]
    reach = slack / (4 * MARGIN)  # at least |v.u|
    # The formula holds with either word's sum and the other's average, so the larger sum may be taken.
    own = xp.max(e.mid - e.rad, axis=-1)
    least = xp.maximum(sums.lo[..., None], flipped.others + own) * (1 - MARGIN)
    high = xp.where(least > 0, 1 / xp.where(least > 0, least, 1.0), xp.inf)
    low = 1 / xp.maximum(sums.hi[..., None], least)
    # Divided by the sum before all else: products with an exponential near the range's end would underflow.
    scale = (high + low) / 2
    relative = (((high - low) / 2 * (1 + MARGIN) + MARGIN * high) / scale)[..., None]
    old, new = e.mid[..., 0] * scale, e.mid[..., 1] * scale
    # One product for both symbols: (e' v' - e v).u - (e' - e) b.u.
    moved = new[..., None] * v[..., 1, :] - old[..., None] * v[..., 0, :]
    mid = moved @ f.u - (new - old)[..., None] * b.mid
    doubt = e.rad.sum(axis=-1) * scale + 4 * MARGIN * (new + old)
    rad = (abs(new - old) + doubt)[..., None] * b.rad
    rad = rad + ((new + old) + doubt)[..., None] * slack + doubt[..., None] * (reach + abs(b.mid))
    rad = rad + relative * (abs(mid) + rad) + MARGIN * abs(mid)
    # Both averages lie in the range of b.u, so they are no farther apart than it is wide.
    spread = 2 * b.rad * (1 + MARGIN)
    wide, seen = ~(abs(mid) + rad <= spread), flipped.seen[:, None, :, None]
    mid, rad = xp.where(wide, 0.0, mid), xp.where(wide, spread, rad) * (1 + 8 * MARGIN)
    return Ball(*(xp.sum(xp.where(seen, part, 0.0), axis=0) for part in (mid, rad)))


def output_change(
    xp: ModuleType, flipped: Flipped, sums: Sums, f: Asked
) -> Float[Ball, "rows kinds flips p"]:
    """The change of f.y: that of the folded direction, and |W_2 f| rho |w_1.dc| for the slopes' range."""
    found = average_change(xp, flipped, sums, f.moving)
    if f.onto is None:
        return found
    p = f.onto.shape[-1]
    size = (abs(found.mid) + found.rad)[..., p:] * f.rho[:, :, None, :]
    return Ball(found.mid[..., :p], found.rad[..., :p] + (size @ f.onto) * (1 + MARGIN))


_compiled = jax.jit(partial(output_change, jnp))
