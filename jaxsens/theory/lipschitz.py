"""Norms and Lipschitz constants of a transformer's parts, in the l2 norm, each enlarged by a margin for rounding.

Bounds are natural logarithms wherever their products may overflow: log 0 is -inf, and -inf plus anything is -inf.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
from jaxtyping import Float

from jaxsens.core.base.errors import rule_for
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.parameters import NormParameters, TransformerParameters
from jaxsens.theory.rules import position_parts

OUTWARD = 1e-10
"""The relative margin by which every norm is enlarged. Singular values and sums of some thousand squares are accurate
to about 1e-12 of the largest in float64."""

ACTIVATION_LIPSCHITZ: dict[str, float] = {"relu": 1.0, "tanh": 1.0, "gelu": 1.129, "silu": 1.0999}
"""The largest |derivative|: 1.128993 at x = 1.4185 for GELU's tanh form, 1.099839 at x = 2.3994 for SiLU. Second
derivatives are below 1, so a grid of step 1e-5 finds these to 1e-10. Lemma 5 also needs f(0) = 0 and |f(x)| <= |x|,
which hold for all four."""


def activation_lipschitz(name: str) -> float:
    """The Lipschitz constant of an activation; an `InputError` for one that has no constant here."""
    return rule_for("lemma5", "activation", name, ACTIVATION_LIPSCHITZ)


def log(x: np.ndarray | float) -> np.ndarray:
    """The natural logarithm, -inf at 0, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, np.float64))


def exp(x: float) -> float:
    """e^x, inf where it overflows, without a warning."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(np.float64(x)))


def times(*logs: np.ndarray | float) -> np.ndarray:
    """log of a product from the factors' logarithms. 0 times infinity is 0: an absent term cannot be enlarged."""
    arrays = np.broadcast_arrays(*logs)
    nothing = np.any([np.isneginf(a) for a in arrays], axis=0)
    return np.sum([np.where(nothing, -np.inf, a) for a in arrays], axis=0)


def plus(*logs: np.ndarray | float) -> np.ndarray:
    """log of a sum from the terms' logarithms."""
    return reduce(np.logaddexp, [np.asarray(log, np.float64) for log in logs])


def operator_norm(matrix: Float[np.ndarray, "m k"] | Float[np.ndarray, " d"]) -> float:
    """The largest singular value, or the l2 norm of a vector, computed in float64 and enlarged by `OUTWARD`."""
    m = np.asarray(matrix, np.float64)
    return float(np.linalg.norm(m, 2)) * (1 + OUTWARD) if m.size else 0.0


def log_layer_norm(epsilon: float, norm: NormParameters | None, log_input: float) -> tuple[float, float]:
    """log of how far layer normalisation can stretch a difference, and of a bound on |LN(x)| for |x| <= e^log_input.

    The first is max |scale| / sqrt(epsilon), inf for epsilon = 0. With c = x - mean and s = sqrt(|c|^2/d + epsilon) the
    Jacobian of c/s is (1/s)(1 - c c^T / (d s^2)) times the projection x -> c. The bracket's eigenvalues are 1 and
    epsilon/s^2, so the norm is 1/s at most, and s is least, sqrt(epsilon), where all entries of x are equal: attained.

    The second is max |scale| min(sqrt(d), F / sqrt(epsilon)) + |bias| with F = e^log_input, because |c|/s is at most
    sqrt(d), and at most |c| / sqrt(epsilon). Without parameters x stays as it is.
    """
    if norm is None:
        return 0.0, log_input
    scale, bias = np.asarray(norm.scale, np.float64), np.asarray(norm.bias)
    log_scale, log_steepest = log(np.abs(scale).max() * (1 + OUTWARD)), -0.5 * float(log(epsilon))
    size = min(0.5 * math.log(len(scale)), float(times(log_input, log_steepest)))
    return float(times(log_scale, log_steepest)), float(
        plus(times(log_scale, size), log(operator_norm(bias)))
    )


def largest_embedding(config: TransformerConfig, parameters: TransformerParameters, n: int) -> float:
    """max |y_j^(0)| over all positions j and all symbols of the vocabulary. O(n vocabulary width)."""
    rows = sum(position_parts(config, parameters, n), np.zeros((n, config.width)))
    symbols = np.asarray(parameters.embedding, np.float64)
    size, own = np.sum(rows**2, axis=1), np.sum(symbols**2, axis=1)
    largest, block = 0.0, max(1, 2**22 // n)
    for start in range(0, len(symbols), block):
        part = slice(start, start + block)
        squares = size[:, None] + own[part] + 2 * rows @ symbols[part].T
        # The three terms may cancel. What rounding leaves of them is far below OUTWARD times their sizes.
        squares = np.maximum(squares, 0) + OUTWARD * (size[:, None] + own[part])
        largest = max(largest, float(squares.max()))
    return math.sqrt(largest) * (1 + OUTWARD)


def log_output_gain(
    parameters: TransformerParameters, width: int, norm: str, outputs: tuple[int, ...] | None = None
) -> float:
    """log of the largest |Delta output|_norm per l2 change 1 of the activation read out.

    With a head W (width, logits): |W|_2 in l2; the largest column norm in linf; in l1 the smaller of the sum of the
    column norms and sqrt(logits) |W|_2. Without a head: 1, 1, sqrt(width). Chosen `outputs` restrict W to their
    columns, and logits and width to their number.
    """
    if parameters.head is None:
        most = width if outputs is None else len(outputs)
        gains = {"l2": 0.0, "linf": 0.0, "l1": 0.5 * math.log(most)}
        return rule_for("lemma5", "norm", norm, gains)
    head = np.asarray(parameters.head, np.float64)
    head = head if outputs is None else head[:, list(outputs)]
    columns = np.linalg.norm(head, axis=0) * (1 + OUTWARD)
    whole = operator_norm(head)
    gains = {"l2": whole, "linf": columns.max(), "l1": min(columns.sum(), math.sqrt(head.shape[1]) * whole)}
    return float(log(rule_for("lemma5", "norm", norm, gains)))
