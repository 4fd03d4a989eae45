"""The step of Lemma 5's induction: the numbers that its derivation names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.theory.lemma5 import LayerBound, LayerConstants, next_layer

ALL_MASKS = ["none", *(mask for mask in MASKS if mask != "none"), *map(SlidingWindow, (1, 2, 4))]


def keys_of(mask: Any, j: int, n: int) -> list[int]:
    """The keys that row j sees, as the masks are defined."""
    if isinstance(mask, SlidingWindow):
        return [m for m in range(n) if j - mask.width < m <= j]
    sees = {
        "none": lambda m: True,
        "future": lambda m: m <= j,
        "strict-future": lambda m: m < j,
        "past": lambda m: m >= j,
        "strict-past": lambda m: m > j,
    }[mask]
    return [m for m in range(n) if sees(m)]


def random_layer(rng: np.random.Generator, mask: Any, heads: int, n: int) -> LayerConstants:
    """Constants of all sizes: now this term of the step is the largest, now that."""

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(scale=1.5, size=shape)

    return LayerConstants(
        log_F=float(drawn()),
        log_F_z=float(drawn()),
        log_lambda=float(drawn()),
        log_values=drawn(heads),
        log_radius=drawn(heads),
        A=np.exp(drawn(heads, n)),
        log_query=drawn(heads, n),
        log_key=drawn(heads, n),
        log_map=float(drawn()),
        mask=mask,
    )


def step_in_plain_numbers(
    layer: LayerConstants, own: float, rows: np.ndarray, f_next: float
) -> tuple[float, np.ndarray]:
    """`next_layer` as its module's docstring states it, row by row, key by key and head by head, without logarithms."""
    n, lam, f_z = len(rows), math.exp(layer.log_lambda), math.exp(layer.log_F_z)
    dz, own_dz = np.minimum(lam * rows, 2 * f_z), min(lam * own, 2 * f_z)
    others, flipped = np.zeros(n), np.zeros(n)
    for j in range(n):
        keys = keys_of(layer.mask, j, n)
        others[j], flipped[j] = rows[j], own
        if not keys:
            continue
        largest, total = max(dz[m] for m in keys), sum(dz[m] for m in keys)
        for h in range(layer.heads):
            v, r = math.exp(layer.log_values[h]), math.exp(layer.log_radius[h])
            query, key, a = math.exp(layer.log_query[h, j]), math.exp(layer.log_key[h, j]), layer.A[h, j]
            w = 1 / (1 + (len(keys) - 1) * math.exp(-2 * a))
            # Another row is flipped, which this one sees, unless it sees itself alone.
            seen = any(m != j for m in keys)
            change = v * min(largest, w * total) + seen * v * w * own_dz
            change += r * (query * dz[j] + key * min(largest, 2 * w * total))
            change += seen * 2 * r * w * min(1, query * dz[j] + key * own_dz, 2 * a)
            others[j] += min(change, 2 * r)
            # The row itself is flipped.
            nearest = max(largest, own_dz) if j in keys else largest
            change = v * (largest + (j in keys) * w * own_dz)
            flipped[j] += min(change + r * min(query * own_dz + key * nearest, 2 * a), 2 * r)
    lip = math.exp(layer.log_map)
    return min(lip * flipped.max(), 2 * f_next), np.minimum(lip * others, 2 * f_next)


@pytest.mark.parametrize("mask", ALL_MASKS)
def test_the_step_is_what_the_derivation_says_in_plain_numbers(mask):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 7))
        layer = random_layer(rng, mask, int(rng.integers(1, 4)), n)
        own, rows = float(rng.exponential()), rng.exponential(size=n) * 10.0 ** rng.integers(-4, 1)
        rows[rng.random(n) < 0.2] = 0
        f_next = float(rng.exponential()) * 10.0 ** rng.integers(0, 4)
        with np.errstate(divide="ignore"):
            now = LayerBound(math.log(own), np.log(rows))
        found = next_layer(layer, now, math.log(f_next))
        expected_own, expected = step_in_plain_numbers(layer, own, rows, f_next)
        np.testing.assert_allclose(np.exp(found.log_rows), expected, rtol=1e-12)
        assert math.exp(found.log_own) == pytest.approx(expected_own, rel=1e-12)
        assert math.exp(found.log_rows.max()) == pytest.approx(max(expected), rel=1e-12)
