"""Feed-forward networks that round and compare: Lemmas 9 and 27 of Yang et al. (arXiv 2412.09925)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Float

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.inputs import checked_count, count


@dataclass(frozen=True)
class Unit:
    """One hidden unit, coefficient * relu(slope * z + bias)."""

    coefficient: float
    slope: float
    bias: float


@dataclass(frozen=True)
class ReluForm:
    """A piecewise linear function of one number z as a sum of hidden units, which a feed-forward layer can compute."""

    units: tuple[Unit, ...]

    def __call__(self, z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The function at each z, in the dtype of z."""
        parts = [unit.coefficient * np.maximum(unit.slope * z + unit.bias, 0) for unit in self.units]
        return np.sum(parts, axis=0)

    @property
    def lipschitz(self) -> float:
        """The steepest slope. An error in z grows by at most this factor."""
        kinks = sorted(self.units, key=lambda unit: -unit.bias / unit.slope)
        falling = sum(unit.coefficient * unit.slope for unit in kinks if unit.slope < 0)
        changes = (unit.coefficient * abs(unit.slope) for unit in kinks)
        return max(abs(slope) for slope in accumulate(changes, initial=falling))


ROUND = ReluForm((Unit(1, 2, -1 / 2), Unit(-1, 2, -3 / 2)))
"""Lemma 9: relu(2 z - 1/2) - relu(2 z - 3/2), which is 0 for z <= 1/4 and 1 for z >= 3/4.

This is exact in float32 and float64 up to z = 2^21, since both subtracted numbers are multiples of the spacing of z."""

AT_LEAST_ZERO = ReluForm((Unit(1, 2, 3 / 2), Unit(-1, 2, 1 / 2)))
"""[k >= 0] for z within 1/4 of the whole number k."""

EQUALS_ZERO = ReluForm((Unit(1, 2, 3 / 2), Unit(-1, 2, 1 / 2), Unit(-1, 2, -1 / 2), Unit(1, 2, -3 / 2)))
"""[k = 0] for z within 1/4 of the whole number k."""


def affine_pieces(width: int, layers: int, simple: bool = False) -> int:
    """The most affine pieces of a ReLU network from R to R with `layers` hidden layers of `width` units.

    (width + 1)^layers: where the input of a layer is affine in x, so is the argument of each unit, which then changes
    sign at most once. Lemma 27 (Telgarsky, 2016) has the simpler (2 width)^layers, for which `simple` asks.

    Raises:
        InputError: Unless both are whole numbers of at least 1. The width may be of any size.
    """
    with collecting("affine_pieces") as problems:
        width, layers = count("width", width, problems, 1, math.inf), count("layers", layers, problems, 1)
    return (2 * width if simple else width + 1) ** layers


def rounding_width(layers: int, bits: int) -> int:
    """Lemma 27: the least width with which `layers` hidden layers could round longer numbers to `bits` bits.

    Rounding needs 2^bits pieces. The two least arguments that round to one number and the least that rounds to the
    next are not on a line, so there is a kink between any such three, and these triples lie apart. With bits = log n
    and a fixed depth, the width is therefore a power of n: a transformer of fixed size cannot round its activations.
    """
    checked_count("rounding_width", layers=layers, bits=bits, least=1)
    # In whole numbers, since 2^bits may exceed every floating-point number.
    bits, layers = int(bits), int(layers)
    power = 2 ** (bits // layers)
    low, high = max(1, power - 1), 2 * power - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if affine_pieces(middle, layers) >= 2**bits else (middle + 1, high)
    return low
