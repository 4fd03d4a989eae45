"""Random initial weights: every parameter has a stream of its own, found by its name.

A draw depends on the seed, the parameter's name and its shape only. Two models made with one seed therefore share
every parameter they have in common, whatever their weightings, masks, dtypes or other parameters, and a variant differs
from the baseline in one thing only. NumPy draws in float64; the result is rounded once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def generator(seed: int, name: str) -> np.random.Generator:
    """The stream of the parameter `name` under `seed` (PCG64; the name enters by its SHA-256)."""
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest, dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(int, words)])))


def normal(seed: int, name: str, shape: Sequence[int], variance: float, dtype: str) -> np.ndarray:
    """Independent N(0, variance) entries of the given shape, drawn in float64, rounded to `dtype`."""
    draws = generator(seed, name).normal(size=tuple(shape)) * np.sqrt(variance)
    return draws.astype(dtype)
