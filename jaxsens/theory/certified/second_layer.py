"""Two layers, the readout row alone: the first layer's exact changes carried through the second.

A flip at i moves every key of the readout row a little and key i by much. The others move first, along a segment on
which

    d b.f = sum_m w_m [dv_m.f + (ds_m - kappa)(v_m - b).f] ,   ds_m = q.dk_m + dq.(k_m - k0) ,

for any kappa and k0, as weights add up to 1; by Cauchy and Schwarz the second part is at most the product of the
root mean square of ds - kappa and the standard deviation of v_m.f, each bounded over all words. Every linear
function asked about (f of a value, q of a key) is a direction of the first layer's change, so terms cancel in it
before absolute values are taken; the average is then bounded over all words by its support function. Key i follows:
b' - b = w'(v' - b) - (e / Z')(v - b).

Scores come from `scores`, the readout's ranges from `ranges`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsens import stopping
from jaxsens.theory.certified.averages import Counts, average_sup, total_range
from jaxsens.theory.certified.cells import cells_of, readout_of
from jaxsens.theory.certified.first_layer import (
    FirstLayer,
    at,
    changes,
    directions,
    directions_of_attended,
    first_layer,
    functional,
)
from jaxsens.theory.certified.intervals import (
    MARGIN,
    Ball,
    gain,
    meet,
    narrowed,
    norm_bound,
    plus,
    slopes,
    times,
    up,
)
from jaxsens.theory.certified.norms import Rows, map_lipschitz, rows_of
from jaxsens.theory.certified.ranges import Ranges, Values, fold, reach, second_ranges, second_values
from jaxsens.theory.certified.scores import HeadScores, head_scores
from jaxsens.theory.certified.setting import Setting, Weights, inverse_temperature, project

LARGEST = 1e100
"""What a bound in an average is taken for where there is none; above the values, or the average is not used."""

CELLS = 16
"""Into how many cells of the readout's query words are split."""

UNITS = 16
"""Hidden units that may bend are worked on by so many."""

FLIPS = 2**22
"""How many (flip, key, kind, direction) entries are held at once: flips come in blocks of about this many."""


@dataclass(frozen=True)
class SecondLayer:
    """Bounds for each flip position, and the readout's ranges.

    Attributes:
        moved: the norm of the output's change, (n,).
        outputs: the outputs that enter the norm, ball (kinds, outputs).
        score_width: the largest half-width of a score's range, over heads.
    """

    moved: Float[np.ndarray, " n"]
    outputs: Ball
    score_width: float


@dataclass(frozen=True)
class _Reading:
    """What the readout row's second layer is made of, for one symbol there.

    Attributes:
        kind: the symbol's index.
        f: directions of attended: the outputs', then, with a per-position map, the
            coordinates and the hidden units that may bend; (width, p).
        turned: W_Q of each head, turned as the readout is, in the basis of its keys.
        outputs: how many of them are outputs.
        bent: |W_2 out| times the slopes' radius, (units, outputs).
        asked: directions of the first layer's output for each head: values along f, keys; (rows or 1, 1, width, p').
        weights: of each head, the row's unnormalised weights, (1, kinds, n).
        query: balls (head_width,) of each head, keys minus their mean (n, kinds, head_width), and 1 / (tau sqrt(d_k)).
        values: of each head, sup |f.(v_m - b)|, (n, kinds, p).
        gain: of attended's change in l2 to the output's norm.
        spread: of each head, how far b.f can move, (p,).
        deviations: of each head, the largest standard deviation of f.v_m under the weights, (p,).
        value_slack, key_slack, slack: the rounding of these directions, times what they are applied to at most: of each
            head and direction, of each head, and of each output.
    """

    kind: int
    f: np.ndarray
    turned: list[np.ndarray]
    outputs: int
    bent: np.ndarray
    asked: np.ndarray
    weights: list[Weights]
    query: list[Ball]
    keys: list[Ball]
    rate: float
    values: list[np.ndarray]
    gain: float
    spread: list[np.ndarray]
    deviations: list[np.ndarray]
    value_slack: list[np.ndarray]
    key_slack: list[float]
    slack: np.ndarray


def second_layer(setting: Setting, counts: Counts | None, norm: str) -> SecondLayer:
    """The bound for two layers without layer normalisation, dot-product scores in the second. O(n^2 kinds d_ff d)."""
    first = first_layer(setting, np.arange(setting.n), counts)
    r = int(setting.readout or 0)
    row = at(first, np.array([r]))
    level = meet(first.y, functional(first, np.eye(setting.config.width), supported=False))
    kinds = np.flatnonzero(setting.allowed[r])
    of_query = np.concatenate(list(np.asarray(setting.layers[1].query)), axis=1)
    cells = [
        cell
        for kind in kinds
        for cell in cells_of(readout_of(setting, row, int(kind), of_query), max(1, CELLS // len(kinds)))
    ]
    heads = head_scores(setting, first, row, level, cells)
    values = second_values(first)
    ranges = second_ranges(first, cells, heads, values)
    projections = project(setting, 1, level)
    boxes = [meet(projections.values[h], values[h].box) for h in range(len(heads))]
    projections = replace(projections, values=Ball(*(np.stack(x) for x in zip(*boxes, strict=True))))
    rows = rows_of(setting, 1, level, projections, np.array([r]), [head.weights for head in heads], counts)
    rows = _narrowed(setting, rows, ranges)
    outputs = narrowed(times(rows.y[0], setting.out), ranges.outputs)
    moved = np.zeros(setting.n)
    for kind in kinds:
        stopping.check()
        reading = _reading(setting, first, rows, values, level, heads, int(kind), counts, norm)
        moved = np.maximum(moved, _moved(setting, first, row, reading, counts, norm))
    return SecondLayer(moved, outputs, max(head.width for head in heads))


def _narrowed(setting: Setting, rows: Rows, ranges: Ranges) -> Rows:
    """The readout's pre-activations as cells bound them, and the map's Lipschitz constant with them."""
    if rows.h is None or ranges.h is None:
        return rows
    h = narrowed(rows.h, ranges.h[None])
    d = slopes(setting.config.layer(1).activation, h)
    lipschitz = map_lipschitz(setting.layers[1], d, np.ones(h.mid.shape[:2]), pre=False)
    return replace(rows, h=h, lipschitz=np.fmin(rows.lipschitz, lipschitz))


def _reading(
    setting: Setting,
    first: FirstLayer,
    rows: Rows,
    of_heads: list[Values],
    level: Ball,
    heads: list[HeadScores],
    kind: int,
    counts: Counts | None,
    norm: str,
) -> _Reading:
    layer, parameters = setting.config.layer(1), setting.layers[1]
    output = np.asarray(parameters.output)
    f, bent, d, bends = setting.out, np.zeros((0, setting.out.shape[1])), None, None
    outputs, slack = f.shape[1], np.zeros(f.shape[1])
    if rows.h is not None:
        w1, w2 = np.asarray(parameters.w1), np.asarray(parameters.w2)
        h_range, attended = rows.h[0, kind], rows.attended[0, kind]
        d = slopes(layer.activation, h_range)
        onto, size = w2 @ f, abs(w2) @ abs(f)
        # Units that do not bend have a radius of rounding only, and go to the slack.
        bends = _some(d.rad, int((d.rad > 1e-9).sum()))
        bent = ((abs(onto) + MARGIN * size) * d.rad[:, None])[bends]
        slack = 8 * MARGIN * (attended.rad @ (abs(f) + (abs(w1) * abs(d.mid)) @ size))
        slack = up(slack + 2 * (h_range.rad * np.where(bends, 0, d.rad)) @ size)
    folded = fold(setting, None if d is None else d.mid)
    f, sizes = folded.g, folded.sizes
    asked_of_values = [(f, folded.combination)]
    if bends is not None:
        w1 = np.asarray(parameters.w1)
        units = np.eye(len(folded.combination))[:, : len(bends)][:, bends]
        asked_of_values += [(np.eye(len(f)), None), (w1[:, bends], units)]
        f = np.concatenate([g for g, _ in asked_of_values], axis=1)
        sizes = np.concatenate([sizes, np.eye(len(f)), abs(w1[:, bends])], axis=1)
    rounding = 64 * MARGIN * (reach(first) @ sizes)
    travel = 2 * level.rad.max(axis=(0, 1))
    value_slack, key_slack, spread, deviations = [], [], [], []
    each, own, values = [], [], []
    for h, head in enumerate(heads):
        carried = np.asarray(parameters.value[h]) @ (output[h] @ f)
        e = Weights(
            *(part[kind : kind + 1] for part in (head.weights.hi, head.weights.lo, head.weights.shift))
        )
        parts = [of_heads[h].along(output[h] @ g, combination) for g, combination in asked_of_values]
        payload = Ball(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))
        payload = Ball(payload.mid, payload.rad + rounding)
        both = np.concatenate([payload.hi, -payload.lo], axis=-1).T[:, None]
        ends = average_sup(e.hi, e.lo, both, counts)[:, 0]
        p = f.shape[1]
        away = np.maximum(payload.hi + ends[p:], ends[:p] - payload.lo)
        values.append(np.maximum(up(away), 0.0))
        middle = (ends[:p] - ends[p:]) / 2
        square = np.maximum(abs(payload.hi - middle), abs(payload.lo - middle)) ** 2 * (1 + 8 * MARGIN)
        deviations.append(up(np.sqrt(up(average_sup(e.hi, e.lo, square.T[:, None], counts)[:, 0]))))
        spread.append(np.maximum(up(ends[:p] + ends[p:]), 0.0) + MARGIN * (abs(ends[:p]) + abs(ends[p:])))
        key_matrix, query = head.key_matrix, head.query[kind]
        parts = (np.broadcast_to(carried, (*key_matrix.shape[:2], *carried.shape)), key_matrix)
        along = key_matrix @ query.mid[:, None]
        each.append(np.concatenate([*parts, along], axis=-1))
        own.append(e)
        sizes = abs(np.asarray(parameters.value[h])) @ (abs(output[h]) @ abs(f))
        value_slack.append(8 * MARGIN * (travel @ sizes))
        key_slack.append(float(8 * MARGIN * (travel @ np.max(abs(key_matrix), axis=(0, 1)) @ query.size)))
    n = max(part.shape[0] for part in each)
    asked = np.concatenate([np.broadcast_to(part, (n, *part.shape[1:])) for part in each], axis=-1)
    rate = float(inverse_temperature(setting, 1, np.array([setting.readout]))[0]) / np.sqrt(layer.head_width)
    return _Reading(
        kind=kind,
        f=f,
        turned=[head.turned for head in heads],
        outputs=outputs,
        bent=bent,
        asked=asked,
        weights=own,
        query=[head.query[kind] for head in heads],
        keys=[head.keys for head in heads],
        rate=rate,
        values=values,
        gain=float(up(rows.lipschitz[0, kind] * gain(setting.out, norm))),
        spread=spread,
        deviations=deviations,
        value_slack=value_slack,
        key_slack=key_slack,
        slack=slack,
    )


def _some(rad: np.ndarray, number: int) -> np.ndarray:
    """Which units have the largest radii, some more than so many: few numbers of directions are few compilations."""
    bends = np.zeros(len(rad), bool)
    bends[np.argsort(-rad)[: -(-number // UNITS) * UNITS]] = True
    return bends


def _moved(
    setting: Setting, first: FirstLayer, row: FirstLayer, reading: _Reading, counts: Counts | None, norm: str
) -> np.ndarray:
    """The output's change for a flip at each position, (n,)."""
    heads, n, r = len(reading.weights), setting.n, int(setting.readout or 0)
    p, width = reading.f.shape[1], reading.query[0].mid.shape[-1]
    asked = directions(first, reading.asked, supported=False)
    w1 = None if first.slopes is None else np.asarray(setting.layers[0].w1)
    hidden = None if w1 is None else directions_of_attended(first, w1, supported=False)
    of_row = np.concatenate([reading.f, *reading.turned], axis=1)
    asked_row = directions(row, of_row, supported=True)
    hidden_row = None if w1 is None else directions_of_attended(row, w1)
    jumps = [_jump(reading, h, counts) for h in range(heads)]
    kinds = setting.slots
    size = min(n, max(1, FLIPS // (n * kinds * reading.asked.shape[-1])))
    found = np.zeros(n)
    for start in range(0, n, size):
        # The last block is filled up: one shape is one compilation.
        flips = np.minimum(np.arange(start, start + size), n - 1)
        rows = changes(row, flips, asked_row, hidden_row)
        for (a, b, change), (_, _, own) in zip(changes(first, flips, asked, hidden), rows, strict=True):
            own = own[0, reading.kind]
            total = own[..., :p].size
            for h in range(heads):
                at_ = h * (p + width + 1)
                dq = own[..., p + h * width : p + (h + 1) * width]
                part = change[..., at_ : at_ + p + width + 1]
                moved = _head(setting, reading, h, flips, part, dq, counts, p, width) + jumps[h](a, b)[flips]
                total = total + np.minimum(moved, reading.spread[h])
            outputs = total[:, : reading.outputs] + reading.slack
            moved = norm_bound(up(outputs), norm)
            if len(reading.bent):
                # The hidden units one by one, or all through the map's Lipschitz constant.
                split = reading.outputs + setting.config.width
                attended = norm_bound(up(total[:, reading.outputs : split]), "l2")
                outputs = outputs + total[:, split:] @ reading.bent
                moved = np.minimum(norm_bound(up(outputs), norm), up(attended * reading.gain))
            possible = setting.allowed[flips, a] & setting.allowed[flips, b]
            found[flips] = np.maximum(found[flips], np.where(possible & (flips != r), moved, 0.0))
    return found


def _head(
    setting: Setting,
    reading: _Reading,
    h: int,
    flips: np.ndarray,
    change: Ball,
    dq: Ball,
    counts: Counts | None,
    p: int,
    width: int,
) -> np.ndarray:
    """At least |d b.W_O f| while all keys but i move: (flips, p)."""
    n, kinds = setting.n, setting.slots
    if not np.max(reading.values[h][setting.allowed]) < LARGEST / 10:
        return np.full((len(flips), p), np.inf)
    query, keys, e = reading.query[h], reading.keys[h], reading.weights[h]
    flat = Ball(*(part.reshape(-1, width).T for part in keys))
    shape = (len(flips), n, kinds)
    by_query = Ball(
        (dq.mid @ flat.mid).reshape(shape),
        up(abs(dq.mid) @ flat.rad + dq.rad @ flat.size + 2 * MARGIN * (abs(dq.mid) @ flat.size)).reshape(
            shape
        ),
    )
    order = (2, 0, 1)
    # change is (rows, kinds, flips, .): bring flips first.
    key_rad = np.einsum("mkic,c->imk", change[..., p : p + width].size, query.rad)
    along = change[..., p + width]
    by_key = Ball(np.transpose(along.mid, order), np.transpose(along.rad, order) + up(key_rad))
    ds = plus(by_query, by_key)
    moving = np.ones(shape, bool)
    moving[np.arange(len(flips)), flips] = False
    # Key i's own key stays at this stage, and moves by dq.k alone.
    mid = np.where(moving, ds.mid, by_query.mid)
    rad = np.where(moving, ds.rad, by_query.rad)
    weight = np.where(e.hi[0].T > 0, e.hi[0].T, 0.0)
    usable = np.isfinite(mid)
    kappa = np.sum(np.where(usable, mid, 0.0) * weight, axis=(1, 2)) / max(weight.sum(), 1e-300)
    theta = abs(mid - kappa[:, None, None]) + rad
    theta = up(theta + reading.key_slack[h] + 2 * MARGIN * (abs(mid) + abs(kappa[:, None, None]))) * abs(
        reading.rate
    )
    direct = (np.transpose(change[..., :p].size, (2, 0, 1, 3)) + reading.value_slack[h]) * moving[..., None]
    carried = np.transpose(_finite(direct), (0, 3, 2, 1)).reshape(-1, 1, kinds, n)
    square = np.swapaxes(_finite(theta) ** 2, 1, 2)[:, None]
    averages = average_sup(e.hi, e.lo, carried, counts)[:, 0].reshape(len(flips), p)
    root = up(np.sqrt(up(average_sup(e.hi, e.lo, square, counts)[:, 0])))
    return up(averages + root[:, None] * reading.deviations[h])


def _finite(x: np.ndarray) -> np.ndarray:
    """Bounds rounded up; where there is none, a number that no value reaches."""
    return np.minimum(np.where(np.isnan(x), np.inf, x) * (1 + 4 * MARGIN), LARGEST)


def _jump(reading: _Reading, h: int, counts: Counts | None) -> Any:
    """At least |w'(v' - b).f - (e / Z')(v - b).f| for a flip between two kinds, at every position: (n, p)."""
    e, values = reading.weights[h], reading.values[h]
    lower = total_range(e.hi, e.lo, counts)[0][0]
    free = total_range(e.hi, e.lo, None)[0][0]
    least = np.nanmin(e.lo[0], axis=0)
    rest = np.maximum(free - least - MARGIN * free, 0.0)
    tiny = np.finfo(float).tiny

    def share(new: int, old: int | None) -> np.ndarray:
        # Weight of the new symbol, or of the old one's exponential in the new sum.
        own_hi, own_lo = e.hi[0, new], e.lo[0, new]
        if old is None:
            return own_hi / np.maximum(np.maximum(rest + own_hi, lower), tiny)
        return e.hi[0, old] / np.maximum(np.maximum(rest + own_lo, lower), tiny)

    def bound(a: int, b: int) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            one = share(b, None)[:, None] * values[:, b] + share(b, a)[:, None] * values[:, a]
            two = share(a, None)[:, None] * values[:, a] + share(a, b)[:, None] * values[:, b]
        return up(np.fmin(one, two) * (1 + 4 * MARGIN))

    return bound
