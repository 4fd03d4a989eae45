"""Attention and turned rows as the published formulas write them, by loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, sees: Callable[[int, int], bool], scale: float
) -> np.ndarray:
    """Softmax attention of every row of (n, heads, width); query head h reads key head h // (heads / key heads)."""
    n, heads, _ = q.shape
    group = heads // k.shape[1]
    b = np.zeros((n, heads, v.shape[2]))
    for i in range(n):
        for h in range(heads):
            keys = [j for j in range(n) if sees(i, j)]
            scores = np.array([q[i, h] @ k[j, h // group] * scale for j in keys])
            weights = np.exp(scores - scores.max())
            b[i, h] = sum(w * v[j, h // group] for w, j in zip(weights / weights.sum(), keys, strict=True))
    return b.reshape(n, -1)


def rotated(x: np.ndarray, theta: float, factor: float = 1.0) -> np.ndarray:
    """Turns coordinate c of (n, heads, width) with c + width / 2, in row i by i theta^(-2c/width) / factor."""
    n, _, width = x.shape
    y = np.zeros_like(x)
    for i in range(n):
        for c in range(width // 2):
            angle = i / factor * theta ** (-2 * c / width)
            a, b = x[i, :, c], x[i, :, c + width // 2]
            y[i, :, c] = a * math.cos(angle) - b * math.sin(angle)
            y[i, :, c + width // 2] = b * math.cos(angle) + a * math.sin(angle)
    return y
