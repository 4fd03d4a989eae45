"""The forward pass of a constructed transformer on many words at once, in plain NumPy.

`tests.reference` is the specification of a model, one query and one key at a time. This is the same for the part of the
family that constructions use (dot-product scores, no layer norm, ReLU), with a batch axis: all words of a length in one
pass. `test_compiler.py` compares the two.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import numpy as np

from jaxsens import Softmax
from jaxsens.core.models.parts.weighting import AverageHard, LeftmostHard, RightmostHard

SUMMED = 1e-6
"""How far an exact 0 or 1 may be from it here.

The model's hidden units subtract numbers that were rounded alike. NumPy's products may add up two columns in different
orders, so that a sum of 1e7, the largest in these tests, leaves some 1e-8; a wrong rounding leaves far more than 1e-6.
"""


def wrong_values(found: np.ndarray, truth: np.ndarray) -> int:
    """How many values are not the truth value, but for `SUMMED`; what is no number is wrong."""
    return int((~(np.abs(found - truth) <= SUMMED)).sum())


def every_word(symbols: int, n: int) -> np.ndarray:
    """All words of n symbols, as rows."""
    return np.array([*product(range(symbols), repeat=n)], np.int64).reshape(symbols**n, n)


def activations(config: Any, parameters: Any, tokens: np.ndarray) -> np.ndarray:
    """y^(L) at every position of every word: tokens (words, n) to (words, n, width), float64."""
    return trace(config, parameters, tokens)[0]


def trace(config: Any, parameters: Any, tokens: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """y^(L), and the residual stream after each attention."""
    n = tokens.shape[-1]
    # At once: to take a matrix out of an array of JAX is a program of JAX.
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters)
    x = parameters.embedding[tokens]
    for row, term in enumerate(config.position_terms):
        x = x + term.values(n)[:, None] * parameters.components[row]
    attended = []
    for k in range(config.layers):
        layer, given = config.layer(k), parameters.layers[k]
        x = x + sum(_head(layer, given, h, x) for h in range(layer.heads))
        attended.append(x)
        if layer.feed_forward:
            x = x + np.maximum(x @ given.w1 + given.b1, 0) @ given.w2 + given.b2
    return x, attended


def _head(layer: Any, given: Any, h: int, x: np.ndarray) -> np.ndarray:
    query, key, value, output = (matrix[h] for matrix in (given.query, given.key, given.value, given.output))
    n = x.shape[1]
    scores = np.einsum("wid,wjd->wij", x @ query / np.sqrt(layer.head_width), x @ key, optimize=True)
    i, j = np.arange(1, n + 1)[:, None], np.arange(1, n + 1)[None, :]
    seen = {"none": j > 0, "future": j <= i, "past": j >= i}[layer.mask] & (i > 0)
    return weights(layer.weighting, scores, seen) @ (x @ value) @ output


def weights(weighting: Any, scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    n = scores.shape[-1]
    if isinstance(weighting, Softmax):
        lengths = np.full(n, n) if weighting.by == "length" else np.arange(1, n + 1)
        scores = scores * weighting.inverse_temperature(lengths)[:, None]
    scores = np.where(seen, scores, -np.inf)
    best = scores.max(axis=-1, keepdims=True)
    if isinstance(weighting, Softmax):
        power = np.exp(scores - best)
        return power / power.sum(axis=-1, keepdims=True)
    ties = scores == best
    if isinstance(weighting, AverageHard):
        return ties / ties.sum(axis=-1, keepdims=True)
    if isinstance(weighting, LeftmostHard):
        return np.eye(n)[np.argmax(ties, axis=-1)]
    assert isinstance(weighting, RightmostHard)
    return np.eye(n)[n - 1 - np.argmax(ties[..., ::-1], axis=-1)]
