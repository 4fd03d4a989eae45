"""The logits of Chiang and Cholak's models, and the gaps of their flips, as formulas that do not look at weights."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import softmax

from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer, ReferenceVariant

# With layer normalisation rows have pairs (x, -x), so their mean is 0 and their variance is |x|^2 divided by the number
# of pairs. A row that passes two normalisations is divided by the product of both deviations, `_shrunk`.


def gaps(model: ReferenceTransformer, tokens: Int[np.ndarray, " n"]) -> Float[np.ndarray, " bits"]:
    """The gaps that `outputs` shows on one input, one for the flip of each bit in order."""
    bits = np.asarray(tokens)[:-1]
    if model.language == "first":
        return np.where(np.arange(len(bits)) == 0, _gap(model, len(bits) + 1, 0, 1), 0.0)
    ones = int(bits.sum())
    return np.array([_gap(model, len(bits) + 1, ones, ones + (1 if bit == 0 else -1)) for bit in bits])


def _gap(model: ReferenceTransformer, n: int, before: int, after: int) -> float:
    """How far `outputs` moves between two numbers of ones, or two first bits."""
    logits = {"parity": parity_logits, "first": first_logits}[model.language]
    z = logits(model.variant, n, np.array([before, after]))
    gap = abs(float(z[1] - z[0]))
    if model.outputs is not None:
        return gap
    if model.variant.layer_norm:
        return math.sqrt(2) * gap
    if model.language == "first":
        return gap
    return math.hypot(gap, 1 / n, (n - 1 in (before, after)) / n)


def parity_logits(variant: ReferenceVariant, n: int, ones: ArrayLike) -> Float[np.ndarray, " words"]:
    """The logits of words with these numbers of ones, 0 .. N - 1, on inputs of N = n >= 2 symbols.

    Without layer normalisation an odd number of ones has ceil(N/2) g / N and an even number -floor(N/2) g / N, where
    g = 4 tanh(c) / (N^2 - [N odd] tanh(c)^2) is what any flip changes: positive exactly on the language.

    With it, float64 sums over the keys, O(N) per number: every key has its own deviation, since its row holds i/N.
    """
    k = np.atleast_1d(np.asarray(ones, np.float64))
    if not variant.layer_norm:
        t = math.tanh(variant.score(n))
        gap = 4 * t / (n * n - n % 2 * t * t)
        return np.where(k % 2 == 1, (n + 1) // 2, -(n // 2)) / n * gap
    i = np.arange(1, n + 1)
    looked_up = (i == k[:, None] + 1) / n
    square = 2 + (i / n) ** 2 + (k[:, None] / n) ** 2 + 1 / n**2
    shrunk = _shrunk(variant, square, looked_up**2)
    scores = variant.score(n) * (1 - 2 * (i % 2)) / (shrunk * shrunk[:, -1:])
    weights = softmax(scores, axis=-1) - softmax(-scores, axis=-1)
    z = np.sum(weights * looked_up / shrunk, axis=-1)
    return _normalised(variant, z, (square + looked_up**2)[:, -1] / shrunk[:, -1] ** 2)


def first_logits(variant: ReferenceVariant, n: int, first: ArrayLike) -> Float[np.ndarray, " words"]:
    """The logits of words that start with these bits, on inputs of N = n >= 2 symbols. O(1) per bit.

    Without layer normalisation +-w/2, where w = e^c / (e^c + N - 1) is the attention weight of the first symbol.
    """
    bit = np.atleast_1d(np.asarray(first, np.float64))
    start, last = 1.0, 1.0
    if variant.layer_norm:
        start, last = _shrunk(variant, 2.0, bit), _shrunk(variant, 1.0, 0.0)
    weight = 1 / (1 + (n - 1) * np.exp(-variant.score(n) / (start * last)))
    z = (bit - 0.5) * weight / start
    return _normalised(variant, z, 1 / last**2) if variant.layer_norm else z


def _shrunk(variant: ReferenceVariant, square: ArrayLike, added: ArrayLike) -> np.ndarray:
    """What layer 1 divides a row by: |x|^2 is `square` at its first normalisation, and its map adds `added` to it."""
    epsilon, pairs = variant.layer_norm_epsilon, variant.pairs
    first = np.asarray(square) / pairs + epsilon
    second = (np.asarray(square) + np.asarray(added)) / first / pairs + epsilon
    return np.sqrt(first * second)


def _normalised(variant: ReferenceVariant, z: np.ndarray, row: ArrayLike) -> np.ndarray:
    """Layer 2's two normalisations of the logit z in a row with |x|^2 = `row`, which its map erases in between."""
    epsilon, pairs = variant.layer_norm_epsilon, variant.pairs
    kept = z / np.sqrt((np.asarray(row) + z**2) / pairs + epsilon)
    return kept / np.sqrt(kept**2 / pairs + epsilon)
