"""Two layers read out at one position: the first layer's exact changes carried through the second.

Only the readout row of the second layer matters. Everything that is bounded over all words, or under a flip, is a
direction of the first layer's outputs: terms cancel in it before absolute values are taken. A flip moves every key of
the readout row a little, and one by much; the others move first. Each formula of docs/bounds.md, "Two layers", is the
function of its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import stopping
from jaxsens.theory.certified.averages import Weights, average_range, average_sup, total_range
from jaxsens.theory.certified.first_layer import FirstLayer, bent_map, relaxed_map
from jaxsens.theory.certified.intervals import (
    MARGIN,
    Ball,
    OutputRange,
    bent_norm,
    by_symbol,
    plus,
    scaled,
    slopes,
    stacked,
    up,
)
from jaxsens.theory.certified.layerwise import others_sum
from jaxsens.theory.certified.setting import Setting, dot_products
from jaxsens.theory.rules import score_terms

LARGEST = 1e100
"""Takes the place of an infinite bound inside an average: above any value, or the average is not used."""

FLIPS = 2**22
"""How many entries (flip, key, kind, head, direction) are held at once: flips come in blocks of about this many."""


@dataclass(frozen=True)
class Keys:
    """The keys of one head over all words.

    Attributes:
        matrix: W_K with each key's turn: y_m times it is k_m. One matrix for all keys without rotary embedding.
        mean: k_mean, a number that softmax does not notice.
        relative: k_m - k_mean.
    """

    matrix: Float[np.ndarray, "n_or_1 1 width head_width"]
    mean: Float[np.ndarray, " head_width"]
    relative: Float[Ball, "n kinds head_width"]


class AttendedHead:
    """One head of the second layer for one symbol at the readout.

    Attributes:
        query_matrix: W_Q with the readout's turn: (width, head_width).
        carried: W_V W_O: the way of a value into the residual stream: (width, width).
        carried_size: |W_V| |W_O|, what its rounding is relative to: (width, width).
        query: q over all words: (head_width,).
        scores: s_m - q.k_mean / (sqrt(d_k) tau) over all words: (1, kinds, n).
        weights: the row's unnormalised weights.
        rate: 1 / (sqrt(d_k) tau).
    """

    def __init__(self, first: FirstLayer, row: FirstLayer, h: int, keys: Keys, kind: int) -> None:
        """Head h where the readout holds `kind`; `row` is the readout's of `first`."""
        setting, layer = first.setting, first.setting.config.layer(1)
        query, value, output = (part[h] for part in setting.matrices(1, "query", "value", "output"))
        query = Ball(query[None], np.zeros_like(query[None]))
        self.query_matrix, self.keys = setting.turned(layer, query, row.positions).mid[0], keys
        self.carried, self.carried_size = value @ output, abs(value) @ abs(output)
        self.query, content = score_range(first, row, self.query_matrix, keys, kind)
        root = 1 / np.sqrt(layer.head_width)
        content = scaled(content.map(lambda part: part.T[None]), root)
        self.scores = setting.tempered(1, h, row.positions, np.arange(setting.n), content)
        self.weights = setting.weigh(1, row.positions, np.array([kind]), self.scores)
        self.rate = float(setting.inverse_temperature(1, row.positions)[0] * root)


def two_layers(setting: Setting) -> tuple[Float[np.ndarray, " n"], OutputRange, str]:
    """Two layers without normalisation, with dot products in the second, for one class of words. O(n^2 kinds d_ff d).

    Returns the norm of the output's change for each flip position, the range of the outputs that enter the norm for
    each symbol that the readout may hold, and what was used: the largest half-width of a score's range, over heads.
    """
    r = int(setting.readout or 0)
    first = FirstLayer(setting, np.arange(setting.n))
    row = FirstLayer(setting, np.array([r]))
    keys = [keys_of(first, h) for h in range(setting.config.layer(1).heads)]
    moved, outputs, width = np.zeros(setting.n), [], 0.0
    for kind in np.flatnonzero(setting.allowed[r]):
        stopping.check()
        heads = [AttendedHead(first, row, h, one, int(kind)) for h, one in enumerate(keys)]
        second = Readout(first, row, int(kind), heads)
        h, y = second.ranges()
        outputs.append(y)
        moved = np.maximum(moved, second.moved(h))
        possible = setting.allowed.T[None]
        width = max([width, *(float(np.max(head.scores.rad, where=possible, initial=0)) for head in heads)])
    return moved, by_symbol(outputs), f"two layers; score half-width {width:.3g}"


def keys_of(first: FirstLayer, h: int) -> Keys:
    """The keys of head h of the second layer."""
    setting = first.setting
    matrix, layer = setting.matrices(1, "key")[0][h], setting.config.layer(1)
    rotary = score_terms(layer).turns
    # Without turns one matrix serves all keys.
    where = np.zeros(1, int) if rotary is None else np.arange(setting.n)
    every = np.broadcast_to(matrix, (len(where), *matrix.shape))
    turn = setting.turned(layer, Ball(every, np.zeros_like(every)), where).mid[:, None]
    box = first.output_range(turn)
    mean = box.mid.mean(axis=(0, 1))
    return Keys(turn, mean, Ball(box.mid - mean, box.rad + MARGIN * (abs(box.mid) + abs(mean))))


def score_range(
    first: FirstLayer,
    row: FirstLayer,
    query_matrix: Float[np.ndarray, "width head_width"],
    keys: Keys,
    kind: int,
) -> tuple[Float[Ball, " head_width"], Float[Ball, "n kinds"]]:
    """q and q.(k_m - k_mean) over all words, from q.k_m = q0.k_m + (q - q0).k_m0 + (q - q0).(k_m - k_m0).

    q0 and k_m0 are the middles of their ranges. The first term is a direction of row m, the second one of the readout
    row; the third, a product of two small terms, is bounded coordinate by coordinate.
    """
    n, kinds, width = keys.relative.shape
    q = row.output_range(query_matrix)[0, kind]
    flat = keys.relative.mid.reshape(-1, width).T
    along = first.output_range(keys.matrix @ q.mid[:, None])[..., 0]
    side = row.output_range(query_matrix @ flat)[0, kind]
    side = Ball(side.mid - q.mid @ flat, side.rad + 4 * MARGIN * (abs(q.mid) @ abs(flat)))
    both = up(keys.relative.rad + MARGIN * keys.relative.size) @ q.rad
    # The rounding of the directions asked about, by the sizes of all that is added up in them.
    of_keys = first.y.size.max(axis=(0, 1)) @ np.max(abs(keys.matrix), axis=(0, 1)) @ abs(q.mid)
    of_row = row.y[0, kind].size @ (abs(query_matrix) @ abs(flat))
    size = (of_row + of_keys + abs(q.mid) @ abs(keys.mean)).reshape(n, kinds) + abs(along.mid)
    along = Ball(along.mid - q.mid @ keys.mean, along.rad + 4 * MARGIN * size)
    s = plus(along, side.map(lambda part: part.reshape(n, kinds)))
    return q, Ball(s.mid, up(s.rad + up(both)))


@dataclass(frozen=True)
class Readout:
    """The second layer's readout row where it holds the symbol `kind`; `row` is the readout's of `first`."""

    first: FirstLayer
    row: FirstLayer
    kind: int
    heads: list[AttendedHead]

    def reach(self) -> Float[np.ndarray, " width"]:
        """At least |y_r| + sum_h |v_m W_O| with all that is added up in it: what rounding is relative to."""
        size = self.first.y.size.max(axis=(0, 1))
        return up(size + size @ sum(head.carried_size for head in self.heads))

    def attended_range(
        self, g: Float[np.ndarray, "width p"], sizes: Float[np.ndarray, "width p"]
    ) -> Float[Ball, " p"]:
        """The range of g.(y_r + sum_h b W_O) over all words; `sizes` is at least |g| and all that is added up in it."""
        payload = stacked(self.first.output_range(head.carried @ g) for head in self.heads)
        total = average_range(Weights.of_heads([head.weights for head in self.heads]), payload)[1][0]
        found = plus(self.row.output_range(g)[0, self.kind], total)
        return Ball(found.mid, up(found.rad + 64 * MARGIN * (self.reach() @ sizes)))

    def ranges(self) -> tuple[Float[Ball, " feed_forward"], OutputRange]:
        """The pre-activations, and the outputs f.y_r that enter the norm.

        The activation is relaxed between parallel lines over the pre-activations' ranges. What is left of f.y_r is one
        direction g = f + W_1 diag(s) W_2 f of the attended vector, in which terms cancel.
        """
        w1, b1 = self.first.setting.matrices(1, "w1", "b1")
        h = self.attended_range(w1, abs(w1))
        h = Ball(h.mid + b1, up(h.rad + 8 * MARGIN * (abs(h.mid) + abs(b1))))
        line = relaxed_map(self.first.setting, 1, h, self.first.setting.out)
        return h, line.outputs(self.attended_range(line.g, line.sizes))

    def moved(self, h: Float[Ball, " feed_forward"]) -> Float[np.ndarray, " n"]:
        """The norm of the output's change for a flip at each position; `h` are the pre-activations.

        As in the first layer, the change is that of g = f + W_1 diag(D_mid) W_2 f, and |W_2 f| rho |w_1.dc| for what is
        left of the activation's slopes D.
        """
        setting, f = self.first.setting, self.first.setting.out
        count, d = f.shape[1], slopes(setting.config.layer(1).activation, h)
        g, sizes, onto = bent_map(setting, 1, d, f)
        # The rounding of g, times how far the attended vector moves at most.
        box = self.attended_range(np.eye(len(f)), np.eye(len(f)))
        slack = 16 * MARGIN * (box.rad @ sizes)
        n, p = setting.n, g.shape[1]
        moves = [HeadMove(self, head, g, sizes) for head in self.heads]
        of_row = self.row.asked(g, supported=True)
        # Entries per flip: of this layer's heads, and of the first layer's changes of the keys' directions.
        each = n * setting.slots * len(self.heads) * (p + len(g))
        each = max(each, *(head.of_keys.moving.b.mid.size for head in moves))
        size = min(n, max(1, FLIPS // each))
        found = np.zeros(n)
        for start in range(0, n, size):
            # The last block is filled up: one shape is one compilation.
            flips = np.minimum(np.arange(start, start + size), n - 1)
            every = (self.row.changes(flips, of_row), *(move.over(flips) for move in moves))
            for (a, b, own), *of_heads in zip(*every, strict=True):
                moved: Float[np.ndarray, "flips p"] = (
                    own[0, self.kind].size + slack + np.sum(of_heads, axis=0)
                )
                change = bent_norm(up(moved[:, :count]), up(moved[:, count:] * d.rad), onto, setting.norm)
                possible = setting.allowed[flips, a] & setting.allowed[flips, b]
                change = np.where(possible & (flips != self.row.positions[0]), change, 0.0)
                found[flips] = np.maximum(found[flips], change)
        return found


class HeadMove:
    """How far a flip moves one head's average b along directions g of the attended vector.

    Attributes:
        away: at least |(v_m - b).g|, b any average at the readout: (n, kinds, p).
        spread: how far apart two of these averages are at most: (p,).
        deviation: the largest standard deviation of v_m.g under the weights: (p,).
        of_keys: v_m.g, k_m and k_m.q0 as directions of the first layer's rows.
        of_query: q as directions of its readout row.
        value_slack, score_slack: the rounding of these directions times how far they move: (p,), a number.
    """

    def __init__(
        self,
        readout: Readout,
        head: AttendedHead,
        g: Float[np.ndarray, "width p"],
        sizes: Float[np.ndarray, "width p"],
    ) -> None:
        """For directions g; `sizes` is at least |g| and all that is added up in it."""
        self.readout, self.head = readout, head
        first, e = readout.first, head.weights
        payload = first.output_range(head.carried @ g)
        payload = Ball(payload.mid, payload.rad + 64 * MARGIN * (readout.reach() @ sizes))
        b = average_range(Weights.of_heads([e]), payload[None])[1][0]
        self.away = np.maximum(up(np.maximum(payload.hi - b.lo, b.hi - payload.lo)), 0.0)
        self.spread = np.maximum(up(b.hi - b.lo), 0.0)
        # A standard deviation is at most the root mean square about any centre, here the middle of b's range.
        square = np.maximum(abs(payload.hi - b.mid), abs(payload.lo - b.mid)) ** 2 * (1 + 8 * MARGIN)
        variance = average_sup(e, np.moveaxis(square, (0, 1, 2), (2, 1, 0))[:, None])[:, 0]
        self.deviation = up(np.sqrt(up(variance)))
        matrix = head.keys.matrix
        carried = np.broadcast_to(head.carried @ g, (*matrix.shape[:2], *g.shape))
        of_keys = np.concatenate([carried, matrix, matrix @ head.query.mid[:, None]], axis=-1)
        self.of_keys = first.asked(of_keys, supported=False)
        self.of_query = readout.row.asked(head.query_matrix, supported=True)
        travel = 2 * first.y.rad.max(axis=(0, 1))
        self.value_slack = 8 * MARGIN * (travel @ (head.carried_size @ sizes))
        of_scores = travel @ np.max(abs(matrix), axis=(0, 1)) @ head.query.size
        self.score_slack = float(8 * MARGIN * of_scores)

    def over(self, flips: Int[np.ndarray, " flips"]) -> Iterator[Float[np.ndarray, "flips p"]]:
        """At least |d b.g| for each pair of kinds that are exchanged, in the order of `changes`."""
        first, row, kind = self.readout.first, self.readout.row, self.readout.kind
        p = len(self.spread)
        # Key i stays as it is on the segment, and changes its symbol at the end.
        moving = np.ones((len(flips), first.setting.n), bool)
        moving[np.arange(len(flips)), flips] = False
        every = zip(first.changes(flips, self.of_keys), row.changes(flips, self.of_query), strict=True)
        for (a, b, change), (_, _, dq) in every:
            ds = self.score_change(change[..., p:], dq[0, kind], moving)
            segment = self.segment_change(change[..., :p], ds, moving)
            yield np.minimum(segment + self.last_key_change(a, b)[flips], self.spread)

    def score_change(
        self,
        dk: Float[Ball, "n kinds flips head_width_and_1"],
        dq: Float[Ball, "flips head_width"],
        moving: Bool[np.ndarray, "flips n"],
    ) -> Float[Ball, "flips n kinds"]:
        """ds_m sqrt(d_k) tau = q.dk_m + dq.(k_m - k_mean); the first term is that of keys that move."""
        query, keys = self.head.query, self.head.keys.relative
        # q.dk = q0.dk + (q - q0).dk: a direction of the first layer, and a product of two small terms.
        along, coordinates = dk[..., -1], dk[..., :-1].size
        by_key = Ball(along.mid, along.rad + up(coordinates @ query.rad))
        by_key = by_key.map(lambda part: np.where(moving[..., None], np.transpose(part, (2, 0, 1)), 0.0))
        return plus(dot_products(dq, keys).map(lambda part: np.swapaxes(part, 1, 2)), by_key)

    def segment_change(
        self,
        dv: Float[Ball, "n kinds flips p"],
        ds: Float[Ball, "flips n kinds"],
        moving: Bool[np.ndarray, "flips n"],
    ) -> Float[np.ndarray, "flips p"]:
        """sum_m w_m |dv_m.g| + sqrt(sum_m w_m (ds_m - kappa)^2) sqrt(sum_m w_m (v_m.g - c)^2) over all words."""
        e, flips, p = self.head.weights, len(moving), len(self.spread)
        if not np.max(self.away[self.readout.first.setting.allowed]) < LARGEST / 10:
            return np.full((flips, p), np.inf)
        # Any kappa will do. The mean under the largest weights is near the best.
        weight = np.where(e.hi[0].T > 0, e.hi[0].T, 0.0)
        usable = np.where(np.isfinite(ds.mid), ds.mid, 0.0)
        kappa = (np.sum(usable * weight, axis=(1, 2)) / max(weight.sum(), 1e-300))[:, None, None]
        theta = abs(ds.mid - kappa) + ds.rad + self.score_slack + 2 * MARGIN * (abs(ds.mid) + abs(kappa))
        square = np.swapaxes(_finite(up(theta) * self.head.rate) ** 2, 1, 2)[:, None]
        direct = np.transpose(dv.size, (2, 0, 1, 3)) + self.value_slack
        direct = np.where(moving[..., None, None], direct, 0.0)
        direct = np.transpose(_finite(direct), (0, 3, 2, 1)).reshape(-1, 1, *e.hi.shape[1:])
        carried = average_sup(e, direct)[:, 0].reshape(flips, p)
        root = up(np.sqrt(up(average_sup(e, square)[:, 0])))
        return up(carried + root[:, None] * self.deviation)

    def last_key_change(self, a: int, b: int) -> Float[np.ndarray, "n p"]:
        """|w' (v' - b).g| + |(e / Z') (v - b).g| for key i going from one kind to the other, at every position i.

        The change is w'(v' - b) - (e / Z')(v - b) with w' = e' / Z', b the average before. The larger of the two sums
        may be taken, as in the first layer, so either direction of the exchange bounds it.
        """
        e = self.head.weights
        lower = max(float(total_range(e)[0][0]), np.finfo(float).tiny)
        rest = others_sum(e)[0]

        def exchanged(old: int, new: int) -> Float[np.ndarray, "n p"]:
            # e / (e + rest) is largest for the largest e; the old exponential's share for the smallest new one.
            now = e.hi[0, new] / np.maximum(rest + e.hi[0, new], lower)
            before = e.hi[0, old] / np.maximum(rest + e.lo[0, new], lower)
            return now[:, None] * self.away[:, new] + before[:, None] * self.away[:, old]

        with np.errstate(invalid="ignore"):
            return up(np.fmin(exchanged(a, b), exchanged(b, a)) * (1 + 4 * MARGIN))


def _finite(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Bounds rounded up; where there is none, a number that no value reaches."""
    return np.minimum(np.where(np.isnan(x), np.inf, x) * (1 + 4 * MARGIN), LARGEST)
