"""How near softmax comes to hard attention: the constants of Lemmas 6 and 7 of Yang et al. (arXiv 2412.09925).

Each lemma bounds the distance, in the 1-norm, between a softmax and a one-hot vector by a number that depends only on
how fast the scores fall off. A weighted average of values in [0, 1] is then off by half of that distance at most, since
the weight that some values lose equals the weight that others gain. docs/constructions-proofs.md has the proofs.
"""

from __future__ import annotations

import math

import numpy as np

KAPPA = math.log(16)
"""The fall-off per position with which a value in [0, 1] is retrieved within 1/8: half of Lemma 6's 4 e^-KAPPA."""


def lookup_value_error(sharpness: float) -> float:
    """Lemma 7: how far a value in [0, 1] that is looked up at row q of a table may be from the value there.

    The scores are sharpness (2 q j - j^2) for j = 1..n. The error is y / (1 + y), where y = 2 sum over k >= 1 of
    e^(-sharpness k^2). It is attained in the limit of long tables with q in the middle.
    """
    # Up to the last term above 1e-323.
    k = np.arange(1, math.isqrt(int(745 / sharpness)) + 2, dtype=np.float64)
    y = 2 * float(np.exp(-sharpness * k**2).sum())
    return y / (1 + y)


def lookup_sharpness(weight: int) -> float:
    """GAMMA_H = log(12 H), with which every count is retrieved within 1/(4 H), and H counts within 1/4 (Theorem 20).

    It solves 3 e^-sharpness = 1/(4 H), by Lemma 7.
    """
    return math.log(12 * weight)
