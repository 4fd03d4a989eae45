"""The second layer's scores at the readout row, over all words, in cells of the readout's query.

In a cell the query is q0 + d with d small, and

    q.k_m = q0.k_m + d.k_mid + d.(k_m - k_mid) ,

keys relative to a mean one, which softmax does not notice. The first is linear in one row's activation, the second
in the readout's, so supports of averages bound them, over all words and over the cell; the last, a product of two
small terms, is bounded coordinate by coordinate, in the basis of the singular vectors of what flips do to q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsens.models.positions import Rotary
from jaxsens.theory.certified.cells import Cell
from jaxsens.theory.certified.cells import functional as in_cell
from jaxsens.theory.certified.first_layer import FirstLayer, changes, directions, functional
from jaxsens.theory.certified.intervals import MARGIN, Ball, ball, plus, up
from jaxsens.theory.certified.setting import Setting, Weights, inverse_temperature, scores, weigh


@dataclass(frozen=True)
class HeadScores:
    """One head of the second layer at the readout row.

    Attributes:
        weights: unnormalised, a row for each kind at the readout: (kinds, kinds, n), over all words.
        in_cells: the same over each cell's words, for the cell's kind, (1, kinds, n).
        query: ball (kinds, head_width), in a basis of its own.
        keys: relative to their mean, ball (n, kinds, head_width), in that basis.
        turned: W_Q, turned as the readout is and in that basis, (width, head_width).
        key_matrix: W_K with each key's turn, in that basis, (n or 1, 1, width, head_width).
        width: the largest half-width of a score's range over all words.
    """

    weights: Weights
    in_cells: list[Weights]
    query: Ball
    keys: Ball
    turned: np.ndarray
    key_matrix: np.ndarray
    width: float


def _turns(setting: Setting, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotary embedding of vectors at `positions`, over the last axis; x has the positions' axis first."""
    width = x.shape[-1]
    for term in setting.config.layer(1).position_scores:
        if isinstance(term, Rotary):
            angles = term.angles(setting.n, width)[positions]
            cosine, sine = (f(angles).astype(setting.config.dtype).astype(float) for f in (np.cos, np.sin))
            cosine, sine = (a.reshape(len(positions), *([1] * (x.ndim - 2)), -1) for a in (cosine, sine))
            even, odd = x[..., 0::2], x[..., 1::2]
            x = np.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1).reshape(
                np.broadcast_shapes(x.shape, (len(positions), *x.shape[1:]))
            )
    return x


def _key_matrices(setting: Setting, h: int) -> np.ndarray:
    """W_K of a head with the key's turn: y_m times it is k_m; (n or 1, 1, width, head_width)."""
    matrix = np.asarray(setting.layers[1].key[h])
    if not any(isinstance(term, Rotary) for term in setting.config.layer(1).position_scores):
        return matrix[None, None]
    everywhere = np.arange(setting.n)
    return _turns(setting, np.broadcast_to(matrix, (setting.n, *matrix.shape)), everywhere)[:, None]


def head_scores(
    setting: Setting, first: FirstLayer, row: FirstLayer, level: Ball, cells: list[Cell]
) -> list[HeadScores]:
    """Every head's weights, queries and keys; `row` is the readout's of `first`, `level` the first layer's boxes."""
    layer, r = setting.config.layer(1), int(setting.readout or 0)
    position, everywhere = np.array([r]), np.arange(setting.n)
    rate = float(inverse_temperature(setting, 1, position)[0]) / np.sqrt(layer.head_width)
    kinds, found = setting.slots, []
    possible = np.broadcast_to(setting.allowed.T, (kinds, kinds, setting.n))
    own = np.array([cell.readout.kind for cell in cells])
    for h in range(layer.heads):
        matrix = np.asarray(setting.layers[1].query[h])
        turned = _turns(setting, matrix[None], position)[0]
        basis = _basis(row, turned)
        turned, key_matrix = turned @ basis, _key_matrices(setting, h) @ basis
        box = functional(first, key_matrix)
        mean = box.mid.mean(axis=(0, 1))
        relative = Ball(box.mid - mean, box.rad + MARGIN * (abs(box.mid) + abs(mean)))
        parts = [in_cell(cell, turned) for cell in cells]
        queries = Ball(*(np.stack(part) for part in zip(*parts, strict=True)))
        s = _scores(setting, first, level, cells, turned, key_matrix, queries, relative, mean)
        nothing = Ball(np.zeros((1, turned.shape[1])), np.zeros((1, turned.shape[1])))
        bias = scores(setting, 1, h, position, nothing, everywhere, relative)
        s = plus(Ball(s.mid * rate, s.rad * abs(rate)), bias)
        query = functional(row, turned)[0]
        whole, in_cells = Ball(np.zeros(possible.shape), np.zeros(possible.shape)), []
        for kind in np.unique(own):
            some = own == kind
            query.mid[kind], query.rad[kind] = _hull(queries[some])
            whole.mid[kind], whole.rad[kind] = _hull(s[some])
        for g, kind in enumerate(own):
            every = Ball(*(np.broadcast_to(part[g], possible.shape) for part in s))
            w = weigh(setting, 1, position, every)
            in_cells.append(Weights(*(part[kind : kind + 1] for part in (w.hi, w.lo, w.shift))))
        weights = weigh(setting, 1, position, whole)
        width = float(np.max(whole.rad, where=possible, initial=0.0))
        found.append(HeadScores(weights, in_cells, query, relative, turned, key_matrix, width))
    return found


def _hull(x: Ball) -> Ball:
    """What holds all of a stack of balls."""
    return ball(np.min(x.lo, axis=0), np.max(x.hi, axis=0))


def _scores(
    setting: Setting,
    first: FirstLayer,
    level: Ball,
    cells: list[Cell],
    turned: np.ndarray,
    key_matrix: np.ndarray,
    queries: Ball,
    keys: Ball,
    mean: np.ndarray,
) -> Ball:
    """q.(k_m - mean) in every cell: (cells, kinds, n)."""
    n, kinds, width = keys.mid.shape
    # q0.k_m by its own support; q0.mean cancels in the softmax.
    asked = np.einsum("mkdc,gc->mkdg", key_matrix, queries.mid)
    along = functional(first, asked, supported=True)
    sizes = np.max(abs(key_matrix), axis=(0, 1)) @ abs(queries.mid).T
    slack = level.size.max(axis=(0, 1)) @ sizes + abs(queries.mid) @ abs(mean) + abs(along.mid)
    along = Ball(along.mid - queries.mid @ mean, along.rad + up(4 * MARGIN * slack))
    flat = keys.mid.reshape(-1, width).T
    found = []
    for g, cell in enumerate(cells):
        q = queries[g]
        row = cell.readout.first.y[0, cell.readout.kind]
        size = 4 * MARGIN * (abs(q.mid) @ abs(flat) + row.size @ (abs(turned) @ abs(flat)))
        side = in_cell(cell, turned @ flat)
        side = Ball((side.mid - q.mid @ flat).reshape(n, kinds), (side.rad + size).reshape(n, kinds))
        rest = up(keys.rad + MARGIN * keys.size) @ q.rad
        # The basis is orthogonal up to rounding.
        rest = up(rest) + 4 * width * MARGIN * (keys.size @ q.size)
        s = plus(along[..., g], side)
        found.append((s.mid.T, (s.rad + rest).T))
    return Ball(*(np.stack(part) for part in zip(*found, strict=True)))


def _basis(row: FirstLayer, turned: np.ndarray) -> np.ndarray:
    """An orthogonal basis of a head's queries in which flips move few coordinates: boxes are then tight."""
    if row.setting.n == 1 or row.setting.slots == 1:
        return np.eye(turned.shape[1])
    asked = directions(row, turned, supported=False)
    moved = [
        c.mid[0].reshape(-1, turned.shape[1])
        for _, _, c in changes(row, np.arange(row.setting.n), asked, None)
    ]
    together = np.concatenate(moved)
    if len(together) < turned.shape[1]:
        return np.eye(turned.shape[1])
    return np.linalg.svd(np.where(np.isfinite(together), together, 0.0), full_matrices=False)[2].T
