"""Attention in whole arrays of np.longdouble, for inputs too long for the loops of tests/reference.py.

It shares no code with the package and does not import JAX. `test_conformance` holds it against the loops.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np

from tests import reference

Array = np.ndarray
WIDE = np.longdouble


@cache
def seen_by(mask: Any, n: int) -> Array:
    """Which key (column) each query (row) sees."""
    return np.array([[reference.visible(mask, i, j) for j in range(n)] for i in range(n)])


def scores(config: Any, layer: Any, index: int, head: int, q: Array, k: Array) -> Array:
    """Scores of all queries with all keys, before the temperature."""
    n = len(q)
    if config.scores == "additive":
        s = np.zeros((n, n), WIDE)
        for c, factor in enumerate(layer.additive[head]):
            s += np.tanh(q[:, None, c] + k[None, :, c]) * factor
    else:
        s = q @ k.T / np.sqrt(WIDE(q.shape[1]))
    ahead = np.arange(n)[None] - np.arange(n)[:, None]
    for term in reference.score_terms(config, index):
        if reference.kind(term) in ("Alibi", "PartialAlibi"):
            s = s - WIDE(reference.slope(term, head + 1, layer.query.shape[0])) * np.abs(ahead)
        if reference.kind(term) == "RelativeBias":
            which = [[reference.bucket(term, d) for d in row] for row in ahead.tolist()]
            s = s + layer.relative_bias[head].astype(WIDE)[which]
    return s


def weights(weighting: Any, s: Array, seen: Array, leads: list[float], sink: Any) -> Array:
    """Attention weights of every row; `leads` gets what each choice of a hard row hangs on."""
    n = len(s)
    if reference.kind(weighting) != "Softmax":
        rows = np.zeros((n, n), WIDE)
        for i in range(n):
            own = s[i, seen[i]]
            rows[i, seen[i]] = reference.weights(weighting, list(own), i + 1, n, sink)
            if weighting.hard:
                leads.extend(lead for lead in (lead_of(own),) if lead is not None)
        return rows
    length = np.full(n, n, WIDE) if weighting.by == "length" else np.arange(1, n + 1, dtype=WIDE)
    inverse = reference.inverse_temperature(weighting.inverse_temperature, length)
    masked = np.where(seen, s * inverse[:, None], -np.inf)
    best = masked.max(axis=-1, keepdims=True)
    powers = np.exp(masked - np.where(np.isfinite(best), best, 0))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


def lead_of(own: Array) -> float | None:
    """By how much a row's best score leads those that it does not tie with, as a share of its largest score."""
    size = np.abs(own).max(initial=0)
    behind = own[own < own.max(initial=-np.inf) - 1e-17 * size]
    return float((own.max() - behind.max()) / size) if len(behind) else None


def attention(config: Any, layer: Any, k: int, rows: list[Array], leads: list[float]) -> Array:
    """What the attention of layer k adds at every position."""
    n, z = len(rows), np.array(rows)
    seen = seen_by(reference.of_layer(config.mask, k), n)
    total = np.zeros((n, config.width), WIDE)
    for head in range(reference.of_layer(config.heads, k)):
        q, keys, v = (z @ matrix[head].astype(WIDE) for matrix in (layer.query, layer.key, layer.value))
        for term in reference.score_terms(config, k):
            if reference.kind(term) in ("Rotary", "PartialRotary"):
                q, keys = (
                    np.array([reference.rotated(row, i, term) for i, row in enumerate(x, start=1)])
                    for x in (q, keys)
                )
        s = scores(config, layer, k, head, q, keys)
        sink = None if layer.sink is None else layer.sink[head]
        p = weights(reference.of_layer(config.weighting, k), s, seen, leads, sink)
        b = p @ v
        if config.output_gate != "none":
            b = b * (1 + np.tanh(z @ layer.gate[head].astype(WIDE) / 2)) / 2
        total += b @ layer.output[head].astype(WIDE)
    return total


def output(config: Any, parameters: Any, tokens: Any, leads: list[float] | None = None) -> Array:
    """The model's output on one word, in np.longdouble. `leads` gets `lead_of` every row of hard attention."""
    attend = partial(attention, leads=[] if leads is None else leads)
    return reference.output(config, parameters, tokens, WIDE, attend)


def flip_norms(
    config: Any, parameters: Any, tokens: Any, pairs: list[tuple[int, int]], resolution: float = 0.0
) -> Array:
    """The l2 norm of the output's change under each flip (position, symbol).

    NaN where a row of hard attention, of either run, chooses a key that leads by less than `resolution` of its score:
    who computes less widely may choose another.
    """
    leads: list[float] = []
    before, norms = output(config, parameters, tokens, leads), []
    unsure = min(leads, default=1.0) < resolution
    for position, symbol in pairs:
        flipped = [int(token) for token in tokens]
        flipped[position] = symbol
        leads = []
        change = output(config, parameters, flipped, leads) - before
        known = not unsure and min(leads, default=1.0) >= resolution
        norms.append(float(np.sqrt((change**2).sum())) if known else math.nan)
    return np.array(norms)
