"""Norms and Lipschitz constants of a transformer's parts, in the l2 norm, each with a margin for rounding.

Bounds are natural logarithms wherever products of them may overflow: log 0 is -inf, and -inf plus anything is -inf.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from jaxsens.models.config import TransformerConfig
from jaxsens.models.parameters import NormParameters, TransformerParameters, needed
from jaxsens.models.positions import CoordinateTerm, Learned, Sinusoidal

OUTWARD = 1e-10
"""By which relative margin every norm is enlarged: float64 singular values and sums of some thousand squares are right
to 1e-12 or so of the largest."""

ACTIVATION_LIPSCHITZ: dict[str, float] = {"relu": 1.0, "tanh": 1.0, "gelu": 1.129, "silu": 1.0999}
"""The largest |derivative|. Of GELU's tanh form it is 1.128993 at x = 1.4185, of SiLU 1.099839 at x = 2.3994; second
derivatives are below 1, so that a grid of step 1e-5 finds them to 1e-10. Every one of these maps 0 to 0 and has
|f(x)| <= |x|."""


def log(x: np.ndarray | float) -> np.ndarray:
    """The natural logarithm, -inf at 0, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, np.float64))


def exp(x: float) -> float:
    """e^x, inf where it overflows, without a warning."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(np.float64(x)))


def times(*logs: np.ndarray | float) -> np.ndarray:
    """log of a product from the factors' logarithms. 0 times infinity is 0: what is not there cannot be enlarged."""
    arrays = np.broadcast_arrays(*logs)
    nothing = np.any([np.isneginf(a) for a in arrays], axis=0)
    return np.sum([np.where(nothing, -np.inf, a) for a in arrays], axis=0)


def plus(*logs: np.ndarray | float) -> np.ndarray:
    """log of a sum from the terms' logarithms."""
    total = np.asarray(logs[0], np.float64)
    for term in logs[1:]:
        total = np.logaddexp(total, term)
    return total


def operator_norm(matrix: np.ndarray) -> float:
    """The largest singular value, by a float64 singular value decomposition, enlarged by `OUTWARD`."""
    m = np.asarray(matrix, np.float64)
    return float(np.linalg.norm(m, 2)) * (1 + OUTWARD) if m.size else 0.0


def vector_norm(vector: np.ndarray) -> float:
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


def position_rows(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> Float[np.ndarray, "n width"]:
    """What position embeddings add to the symbols' at length n: the model's own numbers, summed in float64."""

    def rounded(values: np.ndarray) -> np.ndarray:
        return values.astype(config.dtype).astype(np.float64)

    total = np.zeros((n, config.width))
    row = 0
    for term in config.position_terms:
        if isinstance(term, Sinusoidal):
            total += rounded(term.values(n, config.width))
        elif isinstance(term, Learned):
            total += np.asarray(needed(parameters.learned, "learned"), np.float64)[:n]
        elif isinstance(term, CoordinateTerm):
            vector = np.asarray(needed(parameters.components, "components"), np.float64)[row]
            total += rounded(term.values(n))[:, None] * vector
            row += 1
    return total


def largest_embedding(config: TransformerConfig, parameters: TransformerParameters, n: int) -> float:
    """max |y_j^(0)| over all positions j and all symbols of the vocabulary. O(n vocabulary width)."""
    rows = position_rows(config, parameters, n)
    symbols = np.asarray(parameters.embedding, np.float64)
    size, own = np.sum(rows**2, axis=1), np.sum(symbols**2, axis=1)
    largest, block = 0.0, max(1, 2**22 // n)
    for start in range(0, len(symbols), block):
        part = slice(start, start + block)
        squares = size[:, None] + own[part] + 2 * rows @ symbols[part].T
        # The three terms may cancel; what rounding leaves of them is far below OUTWARD times their sizes.
        squares = np.maximum(squares, 0) + OUTWARD * (size[:, None] + own[part])
        largest = max(largest, float(squares.max()))
    return math.sqrt(largest) * (1 + OUTWARD)


def largest_exchange(parameters: TransformerParameters, symbols: np.ndarray) -> float:
    """max |E_s - E_t| over pairs of `symbols`: how far one exchange moves y_i^(0), whatever the position."""
    rows = np.asarray(parameters.embedding, np.float64)[symbols]
    return max(float(np.linalg.norm(rows - row, axis=1).max()) for row in rows) * (1 + OUTWARD)


def log_output_gain(
    parameters: TransformerParameters, width: int, norm: str, outputs: tuple[int, ...] | None = None
) -> float:
    """log of the largest |Delta output|_norm per l2 change 1 of the activation read out.

    With a head W (width, logits): |W|_2 in l2; in linf its largest column; in l1 the sum of its columns' norms or
    sqrt(logits) |W|_2, whichever is less. Without a head: 1, 1, sqrt(width). Of chosen `outputs`, W and the numbers of
    logits and coordinates are those of these alone.
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
