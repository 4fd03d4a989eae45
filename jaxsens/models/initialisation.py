"""Random initial weights. Every parameter has its own random stream, determined by its name.

A draw depends only on the seed and the parameter's name and shape. Two models with the same seed therefore share all
common parameters, regardless of their weightings, masks, dtypes or other parameters, and a variant differs from the
baseline in only one respect. NumPy draws in float64; the result is rounded once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def generator(seed: int, name: str) -> np.random.Generator:
    """Returns the random stream of the parameter `name` for `seed` (PCG64, seeded with the SHA-256 of the name)."""
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest, dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(int, words)])))


def normal(seed: int, name: str, shape: Sequence[int], variance: float, dtype: str) -> np.ndarray:
    """Returns independent N(0, variance) entries of the given shape, drawn in float64 and rounded to `dtype`."""
    draws = generator(seed, name).normal(size=tuple(shape)) * np.sqrt(variance)
    return draws.astype(dtype)
