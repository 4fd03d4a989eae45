"""The readout row of the first layer, split into cells: in a cell its query is nearly known.

The readout's average in a head is b in R^d_k, a function of the word. With features U (directions of b), every word
lies in exactly one cell of a partition of the features' ranges. In a cell, for any multipliers lam (Lagrange),

    sup u.b <= h(u - U lam) + sum_k max(lam_k lo_k, lam_k hi_k) ,

h the support function over all words: the least-squares coefficients of u.b on the features serve, taken from a fixed
sample of words, and 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from jaxsens.theory.certified.averages import average_sup
from jaxsens.theory.certified.first_layer import FirstLayer
from jaxsens.theory.certified.intervals import MARGIN, Ball, ball, narrowed, plus, relaxed, up
from jaxsens.theory.certified.norms import weights_of
from jaxsens.theory.certified.setting import Setting, Weights

SAMPLE = 256
"""How many words directions and multipliers are chosen by; they decide how tight a bound is, not whether it holds."""

FEATURES = 3
"""How many features of each head's average may be split."""


@dataclass(frozen=True)
class Readout:
    """The readout row's first layer for one symbol there, all words of a class.

    Attributes:
        kind: the symbol's index.
        weights: of each head, its row of unnormalised weights.
        features: of each head, directions of b, orthonormal, (heads, head_width, k).
        fit: least-squares coefficients: fit @ u are the multipliers of direction u, (heads, k, head_width).
        ranges: the features' ranges over all words, ball (heads, k).
        effect: how much q changes with each feature, (heads, k): what is split first.
    """

    first: FirstLayer
    kind: int
    weights: list[Weights]
    features: np.ndarray
    fit: np.ndarray
    ranges: Ball
    effect: np.ndarray


@dataclass(frozen=True)
class Cell:
    """Words whose features at the readout lie between lo and hi, (heads, k).

    Attributes:
        h: the readout row's pre-activations in the cell, None without a per-position map.
    """

    readout: Readout
    lo: np.ndarray
    hi: np.ndarray
    h: Ball | None


def sample_words(setting: Setting) -> np.ndarray:
    """A fixed sample of words, (SAMPLE, n), indices of kinds: independent symbols of many densities, and runs."""
    rng, n = np.random.default_rng(0), setting.n
    shares = rng.dirichlet(np.full(setting.slots, 0.7), SAMPLE)
    keys = np.log(shares)[:, None] + rng.gumbel(size=(SAMPLE, n, setting.slots))
    runs = rng.integers(1, n + 1, SAMPLE // 2)
    at = np.arange(n)[None] // runs[:, None]
    keys[: SAMPLE // 2] = np.take_along_axis(keys[: SAMPLE // 2], at[..., None], axis=1)
    return np.argmax(np.where(setting.allowed, keys, -np.inf), axis=-1)


def readout_of(setting: Setting, row: FirstLayer, kind: int, asked: np.ndarray) -> Readout:
    """The readout for one symbol; `asked` are directions of y_r, (width, p), that the features should tell."""
    layer, parameters = setting.config.layer(0), setting.layers[0]
    weights = []
    for h in range(layer.heads):
        w = weights_of(setting, 0, h, row.projections, row.positions)
        weights.append(Weights(w.hi[kind : kind + 1], w.lo[kind : kind + 1], w.shift[kind : kind + 1]))
    words = sample_words(setting)
    number = min(FEATURES, layer.head_width)
    folded = asked
    if row.slopes is not None:
        w1, w2 = np.asarray(parameters.w1), np.asarray(parameters.w2)
        folded = asked + (w1 * row.slopes.mid[0, kind]) @ (w2 @ asked)
    features, fit, effect = [], [], []
    at = np.arange(setting.n)
    for h in range(layer.heads):
        e = np.where(np.isnan(weights[h].hi[0]), 0.0, weights[h].hi[0])[words, at]
        v = row.projections.values[h].mid[at, words]
        total = e.sum(axis=1, keepdims=True)
        b = np.einsum("wm,wmc->wc", e, v) / np.where(total > 0, total, 1.0)
        b = b - b.mean(axis=0)
        onto = np.asarray(parameters.output[h]) @ folded
        u, coefficients = _features(b, onto, number)
        features.append(u)
        fit.append(coefficients)
        effect.append(np.linalg.norm(coefficients @ onto, axis=1))
    u, zero = np.stack(features), np.zeros((layer.heads, number))
    readout = Readout(row, kind, weights, u, np.stack(fit), Ball(zero, zero), np.stack(effect))
    return replace(readout, ranges=support(readout, None, u))


def _features(b: np.ndarray, onto: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Directions of b by which a sample of b @ onto varies most, and the least-squares coefficients on them."""
    width = b.shape[1]
    effects, cov = b @ onto, b.T @ b
    if not (np.isfinite(effects).all() and np.isfinite(cov).all() and np.isfinite(onto).all()):
        return np.eye(width)[:, :number], np.zeros((number, width))
    u = onto @ np.linalg.svd(effects, full_matrices=False)[2][:number].T
    if not np.isfinite(u).all():
        return np.eye(width)[:, :number], np.zeros((number, width))
    u = np.linalg.qr(u)[0]
    return u, np.linalg.pinv(u.T @ cov @ u, rcond=1e-9, hermitian=True) @ (u.T @ cov)


def support(readout: Readout, cell: Cell | None, u: np.ndarray) -> Ball:
    """The range of b.u in every head over the words of a cell: u (heads, head_width, p), ball (heads, p)."""
    row, values = readout.first, readout.first.projections.values
    found = []
    for h in range(len(u)):
        flat = np.transpose(values.mid[h], (1, 0, 2))  # kinds, n, c
        kinds, n, width = flat.shape
        direction, size = u[h], abs(u[h])
        p, lam = direction.shape[1], np.zeros((0, 0))
        if cell is not None:
            lam = readout.fit[h] @ direction
            lam = np.where(np.isfinite(lam), lam, 0.0)
            direction = np.concatenate([direction, direction - readout.features[h] @ lam], axis=1)
            size = np.concatenate([size, size + abs(readout.features[h]) @ abs(lam)], axis=1)
        payload = (flat.reshape(-1, width) @ direction).T.reshape(-1, 1, kinds, n)
        both = np.concatenate([payload, -payload])
        ends = average_sup(readout.weights[h].hi, readout.weights[h].lo, both, row.counts)[:, 0]
        largest = max(float(values[h].size.max()), float(row.b[h].size.max()))
        doubt = float(values.rad[h].max())
        slack = up((4 * MARGIN * largest + doubt) * size.sum(axis=0))
        part = ball(-ends[len(payload) :], ends[: len(payload)])
        part = Ball(part.mid, part.rad + slack)
        if cell is not None:
            box = ball(cell.lo[h], cell.hi[h])
            known = Ball(box.mid @ lam, up(box.rad @ abs(lam)) + 4 * MARGIN * (abs(box.mid) @ abs(lam)))
            part = narrowed(part[:p], plus(part[p:], known))
        found.append(part)
    return Ball(*(np.stack(part) for part in zip(*found, strict=True)))


def functional(cell: Cell, f: Float[np.ndarray, "width p"]) -> Ball:
    """The range of f.y_r over the words of a cell, (p,): the activation relaxed by a line, supports of averages."""
    row = cell.readout.first
    setting = row.setting
    parameters = setting.layers[0]
    own = setting.points[row.positions[0], cell.readout.kind]
    folded, sizes, constant = f, abs(f), Ball(0.0, 0.0)
    if cell.h is not None:
        w1, b1, w2, b2 = (np.asarray(getattr(parameters, name)) for name in ("w1", "b1", "w2", "b2"))
        s, c = relaxed(setting.config.layer(0).activation, cell.h)
        onto, size = w2 @ f, (cell.h.size + abs(b1)) * abs(s) + c.size
        folded, sizes = f + (w1 * s) @ onto, abs(f) + (abs(w1) * abs(s)) @ (abs(w2) @ abs(f))
        rounding = 2 * MARGIN * (size @ (abs(w2) @ abs(f)) + abs(b2) @ abs(f))
        constant = Ball((c.mid + s * b1) @ onto + b2 @ f, c.rad @ abs(onto) + rounding)
    return plus(_attended(cell.readout, cell, folded, sizes, own), constant)


def _attended(readout: Readout, cell: Cell | None, f: np.ndarray, sizes: np.ndarray, own: Ball) -> Ball:
    """The range of f.(x_r + sum_h b W_O), (p,); `sizes` at least |f| with what was added up in it."""
    output = np.asarray(readout.first.setting.layers[0].output)
    parts = support(readout, cell, output @ f)
    largest = [float(readout.first.b[h].size.max()) for h in range(len(output))]
    reach = sum(largest[h] * (abs(output[h]).sum(axis=0) @ sizes) for h in range(len(output)))
    base = Ball(own.mid @ f, own.rad @ sizes + 4 * MARGIN * (abs(own.mid) @ sizes + reach))
    found = plus(base, *(parts[h] for h in range(len(output))))
    return Ball(found.mid, up(found.rad))


def cell_of(readout: Readout, lo: np.ndarray, hi: np.ndarray) -> Cell:
    """The cell between these features."""
    row, h = readout.first, None
    cell = Cell(readout, lo, hi, None)
    if row.h is not None:
        parameters = row.setting.layers[0]
        w1, b1 = np.asarray(parameters.w1), np.asarray(parameters.b1)
        own = row.setting.points[row.positions[0], readout.kind]
        found = _attended(readout, cell, w1, abs(w1), own)
        found = Ball(found.mid + b1, found.rad + 2 * MARGIN * (abs(found.mid) + abs(b1)))
        h = narrowed(row.h[0, readout.kind], found)
    return replace(cell, h=h)


def cells_of(readout: Readout, number: int) -> list[Cell]:
    """At most so many cells, which hold every word: the longest side is halved again and again."""
    boxes = [(readout.ranges.lo, readout.ranges.hi)]
    while len(boxes) < number:
        lengths = [(hi - lo) * readout.effect for lo, hi in boxes]
        index = int(np.argmax([part.max() for part in lengths]))
        longest = lengths[index].max()
        if not (0 < longest < np.inf):
            break
        lo, hi = boxes.pop(index)
        at = np.unravel_index(int(np.argmax(lengths[index])), lo.shape)
        for side in (lo, hi):
            new = lo.copy(), hi.copy()
            new[int(side is lo)][at] = (lo[at] + hi[at]) / 2
            if not _empty(readout, *new):
                boxes.append(new)
        if not boxes:
            return [cell_of(readout, lo, hi)]
    return [cell_of(readout, lo, hi) for lo, hi in boxes]


def _empty(readout: Readout, lo: np.ndarray, hi: np.ndarray) -> bool:
    """Whether no word has its features here, as the support away from the ranges' middle tells; False if unsure."""
    centre = (lo + hi) / 2 - readout.ranges.mid
    scale = np.where(readout.ranges.rad > 0, readout.ranges.rad, 1.0) ** 2
    ways = centre / scale
    for h in range(len(lo)):
        u = (readout.features[h] @ ways[h])[None, :, None]
        u = np.concatenate([u if g == h else np.zeros_like(u) for g in range(len(lo))])
        top = support(readout, None, u).hi[h, 0]
        least = np.minimum(ways[h] * lo[h], ways[h] * hi[h]).sum()
        size = (abs(ways[h]) * (abs(lo[h]) + abs(hi[h]))).sum()
        if least - 16 * MARGIN * (size + abs(u).sum() * float(readout.first.b[h].size.max())) > top:
            return True
    return False
