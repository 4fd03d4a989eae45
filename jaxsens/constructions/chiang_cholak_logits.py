"""The logits of Chiang and Cholak's transformers as formulas of the input's length N and what decides the language.

D. Chiang and P. Cholak, Overcoming a Theoretical Limitation of Self-Attention, ACL 2022,
doi 10.18653/v1/2022.acl-long.527.

Nothing here looks at weights: it is what the models built of them are compared with. N counts the classification
symbol, c is the score with which layer 2 looks: `sharpness`, times log N with log-length scaling.

With layer normalisation, rows have pairs (x, -x), so their mean is 0 and their variance is |x|^2 divided by the number
of pairs. A row that passes two normalisations is divided by the product of both deviations, `_shrunk`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy.special import softmax

from jaxsens.errors import collecting

Language = Literal["parity", "first"]

PAIRS: dict[Language, int] = {"parity": 10, "first": 6}
"""The paper's d without layer normalisation; half its d with it."""


@dataclass(frozen=True)
class Variant:
    """Which of the paper's transformers.

    Attributes:
        language: "parity", an odd number of ones, or "first", a one at the start.
        layer_norm: whether every map is followed by layer normalisation.
        layer_norm_epsilon: added to the variance.
        log_length: whether scores are multiplied by log N.
        sharpness: c, the score of a query that looks and a key that answers.

    Raises:
        InputError: listing every fault.
    """

    language: Language
    layer_norm: bool = False
    layer_norm_epsilon: float = 0.0
    log_length: bool = False
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        with collecting(f"Chiang and Cholak's {self.language!r}") as faults:
            if self.language not in get_args(Language):
                faults.add("language", self.language, f"one of {', '.join(get_args(Language))}")
            for name in ("layer_norm", "log_length"):
                if not isinstance(getattr(self, name), bool):
                    faults.add(name, getattr(self, name), "True or False")
            if not _is_number(self.sharpness) or not self.sharpness > 0:
                faults.add("sharpness", self.sharpness, "a finite number above 0")
            if not _is_number(self.layer_norm_epsilon) or not self.layer_norm_epsilon >= 0:
                faults.add("layer_norm_epsilon", self.layer_norm_epsilon, "a finite number of at least 0")
            elif self.layer_norm_epsilon and not self.layer_norm:
                faults.add("layer_norm_epsilon", self.layer_norm_epsilon, "0, or give layer_norm=True")

    @property
    def pairs(self) -> int:
        """How many pairs a row has with layer normalisation."""
        return PAIRS[self.language]

    def score(self, n: int) -> float:
        """c, with log-length scaling c log N."""
        return self.sharpness * (math.log(n) if self.log_length else 1.0)


def parity_logits(variant: Variant, n: int, ones: ArrayLike) -> Float[np.ndarray, " words"]:
    """The logits of words with these numbers of ones, 0 .. N - 1, on inputs of N = n >= 2 symbols.

    Without layer normalisation an odd number of ones has ceil(N/2) g / N and an even number -floor(N/2) g / N, where
    g = 4 tanh(c) / (N^2 - [N odd] tanh(c)^2) is what any flip changes: positive exactly on the language.

    With it, float64 sums over the keys, O(N) a number: every key has a deviation of its own, for its row holds i/N.
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


def first_logits(variant: Variant, n: int, first: ArrayLike) -> Float[np.ndarray, " words"]:
    """The logits of words that start with these bits, on inputs of N = n >= 2 symbols: O(1) a bit.

    Without layer normalisation +-w/2, where w = e^c / (e^c + N - 1) is the attention weight of the first symbol.
    """
    bit = np.atleast_1d(np.asarray(first, np.float64))
    start, last = (
        (_shrunk(variant, 2.0, bit), _shrunk(variant, 1.0, 0.0)) if variant.layer_norm else (1.0, 1.0)
    )
    weight = 1 / (1 + (n - 1) * np.exp(-variant.score(n) / (start * last)))
    z = (bit - 0.5) * weight / start
    return _normalised(variant, z, 1 / last**2) if variant.layer_norm else z


def logits(variant: Variant, n: int, features: ArrayLike) -> Float[np.ndarray, " words"]:
    """`parity_logits` of numbers of ones, or `first_logits` of first bits."""
    return (parity_logits if variant.language == "parity" else first_logits)(variant, n, features)


def _shrunk(variant: Variant, square: ArrayLike, added: ArrayLike) -> np.ndarray:
    """What layer 1 divides a row by: |x|^2 is `square` at its first normalisation; its map adds `added` to |x|^2."""
    epsilon, pairs = variant.layer_norm_epsilon, variant.pairs
    first = np.asarray(square) / pairs + epsilon
    second = (np.asarray(square) + np.asarray(added)) / first / pairs + epsilon
    return np.sqrt(first * second)


def _normalised(variant: Variant, z: np.ndarray, row: ArrayLike) -> np.ndarray:
    """Layer 2's two normalisations of the logit z beside a row with |x|^2 = `row`, which its map erases between."""
    epsilon, pairs = variant.layer_norm_epsilon, variant.pairs
    kept = z / np.sqrt((np.asarray(row) + z**2) / pairs + epsilon)
    return kept / np.sqrt(kept**2 / pairs + epsilon)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
