"""Finite distributions in float64: entropies, draws, and weights known by their ratios."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def entropy(probabilities: Float[np.ndarray, "*shape v"]) -> Float[np.ndarray, "*shape"]:
    """The entropy of each row in nats; 0 log 0 is 0."""
    positive = np.where(probabilities > 0, probabilities, 1.0)
    return np.sum(positive * -np.log(positive), axis=-1)


def binary_entropy(probability: float) -> float:
    """The entropy in nats of an event of probability strictly between 0 and 1."""
    return -float(
        probability * np.log(probability) + (1 - probability) * np.log1p(-probability),
    )


def from_log_ratios(log_ratios: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m1"]:
    """The distribution on 0..m with log(weight_{i+1} / weight_i) = log_ratios[i], which may be infinite.

    Logarithms are added up from the mode outwards, so that no large number is subtracted from another: at a million
    outcomes, the probabilities that matter keep 14 digits. (Differences of log-gamma functions keep 9.)
    """
    mode = int(np.argmax(np.concatenate([[0.0], np.cumsum(log_ratios)])))
    above = np.cumsum(log_ratios[mode:])
    below = np.cumsum(-log_ratios[:mode][::-1])[::-1]
    weights = np.exp(np.concatenate([below, [0.0], above]))
    return weights / np.sum(weights)


def draw(
    probabilities: Float[np.ndarray, " m"], count: int, generator: np.random.Generator
) -> Int[np.ndarray, " count"]:
    """Independent draws from a distribution on 0..m-1, by inversion; probability 0 never comes."""
    cumulative = np.cumsum(probabilities)
    return np.searchsorted(cumulative, generator.random(count) * cumulative[-1], side="right")
