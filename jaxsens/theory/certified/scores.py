"""The second layer's scores and values at the readout row, over all words: how q.k_m is enclosed.

    q.k_m = q0.k_m + (q - q0).k_mid + (q - q0).(k_m - k_mid) ,

keys relative to a mean one, which softmax does not notice. The first two are linear in one row's activation each, so
supports of averages bound them; the last, a product of two small terms, is bounded coordinate by coordinate, in the
basis of the singular vectors of what flips do to q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsens.models.positions import Rotary
from jaxsens.theory.certified.first_layer import FirstLayer, changes, directions, functional
from jaxsens.theory.certified.intervals import MARGIN, Ball, plus, up
from jaxsens.theory.certified.setting import Setting, Weights, inverse_temperature, scores, weigh


@dataclass(frozen=True)
class HeadScores:
    """One head of the second layer at the readout row.

    Attributes:
        weights: unnormalised, a row for each kind at the readout: (kinds, kinds, n).
        query: ball (kinds, head_width), in a basis of its own.
        keys: relative to their mean, ball (n, kinds, head_width), in that basis.
        turned: W_Q, turned as the readout is and in that basis, (width, head_width).
        key_matrix: W_K with each key's turn, in that basis, (n or 1, 1, width, head_width).
        width: the largest half-width of a score's range.
    """

    weights: Weights
    query: Ball
    keys: Ball
    turned: np.ndarray
    key_matrix: np.ndarray
    width: float


def values_of(setting: Setting, first: FirstLayer) -> Ball:
    """The values of every head, by supports: balls (heads, n, kinds, head_width)."""
    matrices = np.asarray(setting.layers[1].value)
    heads, width, inner = matrices.shape
    found = functional(first, np.moveaxis(matrices, 0, 1).reshape(width, heads * inner))
    return Ball(*(np.moveaxis(part.reshape(*part.shape[:2], heads, inner), 2, 0) for part in found))


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


def head_scores(setting: Setting, first: FirstLayer, row: FirstLayer, level: Ball) -> list[HeadScores]:
    """Every head's weights, queries and keys; `row` is the readout's of `first`, `level` the first layer's boxes."""
    layer, r = setting.config.layer(1), int(setting.readout or 0)
    position, everywhere = np.array([r]), np.arange(setting.n)
    rate = float(inverse_temperature(setting, 1, position)[0]) / np.sqrt(layer.head_width)
    kinds, found = len(setting.kinds), []
    possible = np.broadcast_to(setting.allowed.T, (kinds, kinds, setting.n))
    for h in range(layer.heads):
        matrix = np.asarray(setting.layers[1].query[h])
        turned = _turns(setting, matrix[None], position)[0]
        basis = _basis(row, turned)
        turned, key_matrix = turned @ basis, _key_matrices(setting, h) @ basis
        query = functional(row, turned)[0]
        box = functional(first, key_matrix)
        mean = box.mid.mean(axis=(0, 1))
        relative = Ball(box.mid - mean, box.rad + MARGIN * (abs(box.mid) + abs(mean)))
        # q0.k_m by its own support, the rest of q by boxes; q0.k0 cancels in the softmax.
        asked = np.einsum("mkdc,ac->mkda", key_matrix, query.mid)
        along = functional(first, asked, supported=True)
        shift = query.mid @ mean
        sizes = np.max(abs(key_matrix), axis=(0, 1)) @ abs(query.mid).T
        slack = (
            4 * MARGIN * (level.size.max(axis=(0, 1)) @ sizes + abs(query.mid) @ abs(mean) + abs(along.mid))
        )
        along = Ball(along.mid - shift, along.rad + up(slack))
        # q.k = q0.k + (q - q0).(k_mid - k0) + (q - q0).(k - k_mid): the second by the query's support, key by key.
        sideways = _sideways(setting, row, h, turned, query, relative)
        rest = np.einsum("ac,mkc->mka", query.rad, relative.rad + MARGIN * relative.size)
        along = plus(along, sideways)
        s = Ball(np.moveaxis(along.mid, -1, 0), np.moveaxis(along.rad + up(rest), -1, 0))
        # The basis is orthogonal up to rounding.
        s = Ball(
            s.mid,
            s.rad
            + 4
            * layer.head_width
            * MARGIN
            * np.einsum("ac,mkc->akm", query.size, relative.size).swapaxes(1, 2),
        )
        nothing = Ball(query.mid * 0, query.mid * 0)
        bias = scores(setting, 1, h, np.full(kinds, r), nothing, everywhere, relative)
        s = plus(Ball(np.swapaxes(s.mid, 1, 2) * rate, np.swapaxes(s.rad, 1, 2) * abs(rate)), bias)
        width = float(np.max(s.rad, where=possible, initial=0.0))
        found.append(HeadScores(weigh(setting, 1, position, s), query, relative, turned, key_matrix, width))
    return found


def _basis(row: FirstLayer, turned: np.ndarray) -> np.ndarray:
    """An orthogonal basis of a head's queries in which flips move few coordinates: boxes are then tight."""
    if row.setting.n == 1 or len(row.setting.kinds) == 1:
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


def _sideways(setting: Setting, row: FirstLayer, h: int, turned: np.ndarray, query: Ball, keys: Ball) -> Ball:
    """The range of (q - q0).(k_mid - k0) for every key, (n, kinds, the readout's kinds)."""
    n, kinds, width = keys.mid.shape
    flat = keys.mid.reshape(-1, width).T
    along = functional(row, turned @ flat)[0]
    shift = query.mid @ flat
    size = abs(query.mid) @ abs(flat) + row.y.size[0] @ (abs(turned) @ abs(flat))
    found = Ball(along.mid - shift, along.rad + 4 * MARGIN * size)
    return Ball(*(part.T.reshape(n, kinds, kinds) for part in found))
