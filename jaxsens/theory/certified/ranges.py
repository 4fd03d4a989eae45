"""The second layer's values and ranges at the readout row: averages, pre-activations and outputs, cell by cell.

An output f.y_r is bounded with the activation relaxed between parallel lines over its pre-activations' ranges: what
is left is one direction g = f + W_1 diag(s) W_2 f of the attended vector, so one of the first layer's y_r, bounded over
the cell, and one of every head's average, bounded over all words by its support with the cell's weights. Terms cancel
in g before absolute values are taken, as they do not in a box for the map's input.

A value along any direction is bounded by a box in its principal axes, and by its ranges along the columns of W_1 and
base = f + W_1 W_2 f / 2, of which g is a combination: these are found once for all cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxsens.theory.certified.averages import Counts, average_sup
from jaxsens.theory.certified.cells import Cell
from jaxsens.theory.certified.cells import functional as in_cell
from jaxsens.theory.certified.first_layer import FirstLayer, functional
from jaxsens.theory.certified.intervals import MARGIN, Ball, ball, narrowed, plus, relaxed, up
from jaxsens.theory.certified.scores import HeadScores
from jaxsens.theory.certified.setting import Setting, Weights


@dataclass(frozen=True)
class Ranges:
    """What the readout row of the second layer may be, for each of its symbols, over all cells.

    Attributes:
        h: the pre-activations, ball (kinds, feed_forward); None without a per-position map.
        outputs: the outputs that enter the norm, ball (kinds, outputs).
    """

    h: Ball | None
    outputs: Ball


@dataclass(frozen=True)
class Values:
    """One head's values over all words.

    Attributes:
        axes: principal axes, (head_width, head_width).
        in_axes: the coordinates in them, ball (n, kinds, head_width).
        further: v.(W_O f) for f the columns of W_1, then base, (n, kinds, .)
    """

    axes: np.ndarray
    in_axes: Ball
    further: Ball

    @property
    def box(self) -> Ball:
        """The values' coordinates."""
        return self._turned(self.axes.T)

    def along(self, u: Float[np.ndarray, "head_width p"], combination: np.ndarray | None) -> Ball:
        """v.u for every key and symbol; u is W_O times this combination of the further directions."""
        one = self._turned(self.axes.T @ u)
        if combination is None:
            return one
        return narrowed(one, _combined(self.further, combination))

    def _turned(self, u: np.ndarray) -> Ball:
        # The axes are orthonormal up to rounding.
        found = _combined(self.in_axes, u)
        size = self.in_axes.size.sum(axis=-1, keepdims=True) * abs(u).sum(axis=0)
        return Ball(found.mid, found.rad + 4 * len(self.axes) * MARGIN * size)


def _combined(x: Ball, c: np.ndarray) -> Ball:
    return Ball(x.mid @ c, up(x.rad @ abs(c)) + 4 * MARGIN * (x.size @ abs(c)))


def second_values(first: FirstLayer) -> list[Values]:
    """The values of every head of the second layer, by supports."""
    parameters, f = first.setting.layers[1], first.setting.out
    if parameters.w1 is not None:
        w1, w2 = np.asarray(parameters.w1), np.asarray(parameters.w2)
        f = np.concatenate([w1, f + w1 @ (w2 @ f) / 2], axis=1)
    found = []
    for matrix, output in zip(np.asarray(parameters.value), np.asarray(parameters.output), strict=True):
        width = matrix.shape[1]
        mids = first.y.mid[first.setting.allowed] @ matrix
        axes = np.eye(width)
        if np.isfinite(mids).all() and len(mids) > 1:
            axes = np.linalg.svd(mids - mids.mean(axis=0), full_matrices=True)[2].T
        both = functional(first, matrix @ np.concatenate([axes, output @ f], axis=1))
        found.append(Values(axes, both[..., :width], both[..., width:]))
    return found


def second_ranges(
    first: FirstLayer, cells: list[Cell], heads: list[HeadScores], values: list[Values]
) -> Ranges:
    """The ranges over all words of a class; `cells` hold them all. O(n d_ff d) a cell."""
    size = reach(first)
    found = [
        _outputs(cell, [head.in_cells[g] for head in heads], values, size) for g, cell in enumerate(cells)
    ]
    slots = first.setting.slots
    h = None if first.setting.layers[1].w1 is None else _united(cells, [pre for pre, _ in found], slots)
    return Ranges(h, _united(cells, [y for _, y in found], slots))


def _united(cells: list[Cell], parts: list, slots: int) -> Ball:
    """The hull of what cells of the same symbol hold; nothing, as numbers that are not, for a symbol without any."""
    lo, hi = (np.full((slots, *parts[0].mid.shape), np.nan) for _ in range(2))
    for kind in range(slots):
        own = [part for cell, part in zip(cells, parts, strict=True) if cell.readout.kind == kind]
        if own:
            lo[kind], hi[kind] = np.min([x.lo for x in own], axis=0), np.max([x.hi for x in own], axis=0)
    return ball(lo, hi)


def reach(first: FirstLayer) -> Float[np.ndarray, " width"]:
    """At least |y_r| + sum_h |b^h W_O| with all that is added up in it, by coordinate: what rounding is relative to."""
    parameters = first.setting.layers[1]
    size = first.y.size.max(axis=(0, 1))
    value, output = abs(np.asarray(parameters.value)), abs(np.asarray(parameters.output))
    return up(size + np.einsum("d,hdc,hce->e", size, value, output))


@dataclass(frozen=True)
class Folded:
    """Directions f + W_1 diag(s) W_2 f of attended, (width, p).

    Attributes:
        g: the directions.
        combination: the same as combinations of W_1's columns and base, (feed_forward + p, p).
        sizes: at least |g| with all that is added up in it.
    """

    g: np.ndarray
    combination: np.ndarray
    sizes: np.ndarray


def fold(setting: Setting, s: Float[np.ndarray, " feed_forward"] | None) -> Folded:
    """The outputs' directions through the second layer's per-position map with these slopes, None without a map."""
    f, parameters = setting.out, setting.layers[1]
    eye = np.eye(f.shape[1])
    if s is None:
        return Folded(f, eye, abs(f))
    w1, w2 = np.asarray(parameters.w1), np.asarray(parameters.w2)
    onto = w2 @ f
    sizes = abs(f) + (abs(w1) * (abs(s) + 1)) @ (abs(w2) @ abs(f))
    return Folded(f + (w1 * s) @ onto, np.concatenate([(s - 0.5)[:, None] * onto, eye]), sizes)


def _average(e: Weights, payload: Ball, counts: Counts | None) -> Ball:
    both = np.moveaxis(np.concatenate([payload.hi, -payload.lo], axis=-1), (0, 1, 2), (2, 1, 0))
    ends = average_sup(e.hi, e.lo, both[:, None], counts)[:, 0]
    p = payload.mid.shape[-1]
    return ball(-ends[p:], ends[:p])


def _outputs(
    cell: Cell, weights: list[Weights], values: list[Values], size: np.ndarray
) -> tuple[Ball | None, Ball]:
    """Pre-activations and outputs in one cell."""
    setting, counts = cell.readout.first.setting, cell.readout.first.counts
    parameters, f = setting.layers[1], setting.out
    output = np.asarray(parameters.output)

    def attended(g: np.ndarray, combination: np.ndarray, sizes: np.ndarray) -> Ball:
        parts = [
            _average(weights[h], values[h].along(output[h] @ g, combination), counts)
            for h in range(len(output))
        ]
        found = plus(in_cell(cell, g), *parts)
        return Ball(found.mid, up(found.rad + 64 * MARGIN * (size @ sizes)))

    if parameters.w1 is None:
        folded = fold(setting, None)
        return None, attended(folded.g, folded.combination, folded.sizes)
    w1, b1, w2, b2 = (np.asarray(getattr(parameters, name)) for name in ("w1", "b1", "w2", "b2"))
    h = attended(w1, np.eye(w1.shape[1] + f.shape[1])[:, : w1.shape[1]], abs(w1))
    h = Ball(h.mid + b1, up(h.rad + 8 * MARGIN * (abs(h.mid) + abs(b1))))
    s, c = relaxed(setting.config.layer(1).activation, h)
    folded = fold(setting, s)
    y = attended(folded.g, folded.combination, folded.sizes)
    onto, spread = w2 @ f, abs(w2) @ abs(f)
    rounding = 64 * MARGIN * ((c.size + (h.size + abs(b1)) * abs(s)) @ spread + abs(b2) @ abs(f))
    constant = (c.mid + s * b1) @ onto + b2 @ f
    return h, Ball(y.mid + constant, up(y.rad + c.rad @ abs(onto) + rounding))
