"""Norms and Lipschitz constants of a transformer's parts, in the l2 norm, each enlarged by a margin for rounding.

Bounds are natural logarithms wherever their products may overflow: log 0 is -inf, and -inf plus anything is -inf.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int

from jaxsens.errors import no_rule
from jaxsens.models.config import TransformerConfig
from jaxsens.models.parameters import NormParameters, TransformerParameters
from jaxsens.theory.rules import position_parts

OUTWARD = 1e-10
"""The relative margin by which every norm is enlarged. Singular values and sums of some thousand squares are accurate
to about 1e-12 of the largest in float64."""

ACTIVATION_LIPSCHITZ: dict[str, float] = {"relu": 1.0, "tanh": 1.0, "gelu": 1.129, "silu": 1.0999}
"""The largest |derivative|: 1.128993 at x = 1.4185 for GELU's tanh form, 1.099839 at x = 2.3994 for SiLU. Second
derivatives are below 1, so a grid of step 1e-5 finds these to 1e-10. Lemma 5 also needs f(0) = 0 and |f(x)| <= |x|,
which hold for all four."""


def activation_lipschitz(name: str) -> float:
    """The Lipschitz constant of an activation with f(0) = 0 and |f(x)| <= |x|.

    Raises:
        InputError: naming an activation that has no constant here.
    """
    if name not in ACTIVATION_LIPSCHITZ:
        raise no_rule("lemma5", "activation", name, ACTIVATION_LIPSCHITZ)
    return ACTIVATION_LIPSCHITZ[name]


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
    total = np.asarray(logs[0], np.float64)
    for term in logs[1:]:
        total = np.logaddexp(total, term)
    return total


def operator_norm(matrix: Float[np.ndarray, "m k"]) -> float:
    """The largest singular value, by a float64 singular value decomposition, enlarged by `OUTWARD`."""
    m = np.asarray(matrix, np.float64)
    return float(np.linalg.norm(m, 2)) * (1 + OUTWARD) if m.size else 0.0


def vector_norm(vector: Float[np.ndarray, " d"]) -> float:
    """The l2 norm of a vector, enlarged by `OUTWARD`."""
    return float(np.linalg.norm(np.asarray(vector, np.float64))) * (1 + OUTWARD)


def log_layer_norm_lipschitz(epsilon: float, norm: NormParameters) -> float:
    """log of max |scale| / sqrt(epsilon): how far layer normalisation can stretch a difference; inf for epsilon = 0.

    With c = x - mean and s = sqrt(|c|^2/d + epsilon) the Jacobian of c/s is (1/s)(1 - c c^T / (d s^2)) times the
    projection x -> c. The bracket's eigenvalues are 1 and epsilon/s^2, so the norm is 1/s at most, and s is least,
    sqrt(epsilon), where all entries of x are equal: attained.
    """
    scale = float(np.abs(np.asarray(norm.scale, np.float64)).max()) * (1 + OUTWARD)
    return float(log(scale)) - 0.5 * float(log(epsilon)) if scale else -math.inf


def log_layer_norm_bound(epsilon: float, norm: NormParameters, log_input: float) -> float:
    """log of a bound on |LN(x)| for |x| <= F = e^log_input: max |scale| min(sqrt(d), F / sqrt(epsilon)) + |bias|.

    |c|/s with c and s as in `log_layer_norm_lipschitz` is at most sqrt(d), and at most |c| / sqrt(epsilon).
    """
    width = np.asarray(norm.scale).shape[0]
    size = min(0.5 * math.log(width), float(times(log_input, -0.5 * float(log(epsilon)))))
    scale = float(np.abs(np.asarray(norm.scale, np.float64)).max()) * (1 + OUTWARD)
    return float(plus(times(log(scale), size), log(vector_norm(np.asarray(norm.bias)))))


def largest_embedding(config: TransformerConfig, parameters: TransformerParameters, n: int) -> float:
    """max |y_j^(0)| over all positions j and all symbols of the vocabulary. O(n vocabulary width)."""
    rows = sum(position_parts("lemma5", config, parameters, n), np.zeros((n, config.width)))
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


def largest_exchange(parameters: TransformerParameters, symbols: Int[np.ndarray, " symbols"]) -> float:
    """max |E_s - E_t| over pairs of `symbols`: how far one exchange moves y_i^(0), whatever the position."""
    rows = np.asarray(parameters.embedding, np.float64)[symbols]
    return max(float(np.linalg.norm(rows - row, axis=1).max()) for row in rows) * (1 + OUTWARD)


def log_output_gain(
    parameters: TransformerParameters, width: int, norm: str, outputs: tuple[int, ...] | None = None
) -> float:
    """log of the largest |Delta output|_norm per l2 change 1 of the activation read out.

    With a head W (width, logits): |W|_2 in l2; the largest column norm in linf; in l1 the smaller of the sum of the
    column norms and sqrt(logits) |W|_2. Without a head: 1, 1, sqrt(width). Chosen `outputs` restrict W to their
    columns, and logits and width to their number.
    """
    if parameters.head is None:
        return 0.5 * math.log(width if outputs is None else len(outputs)) if norm == "l1" else 0.0
    head = np.asarray(parameters.head, np.float64)
    head = head if outputs is None else head[:, list(outputs)]
    columns = np.linalg.norm(head, axis=0) * (1 + OUTWARD)
    whole = operator_norm(head)
    gain = {
        "l2": whole,
        "linf": columns.max(),
        "l1": min(columns.sum(), math.sqrt(head.shape[1]) * whole),
    }[norm]
    return float(log(gain))
