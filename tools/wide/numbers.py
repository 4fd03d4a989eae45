"""Numbers of a chosen number of bits: object arrays of `gmpy2.mpfr`, and their elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import gmpy2 as without_types
import numpy as np

gmpy2: Any = without_types


@dataclass(frozen=True)
class Precise:
    """MPFR numbers of `bits` bits, at least 64, with exponents of about 31 bits, rounded to nearest."""

    bits: int

    def context(self) -> AbstractContextManager[Any]:
        """In which these numbers are computed with; outside of it gmpy2 rounds results to 53 bits."""
        return gmpy2.context(precision=self.bits, round=gmpy2.RoundToNearest)

    def lift(self, value: Any) -> np.ndarray:
        """Returns real or whole numbers as these, exactly. Arrays of objects are taken as they are."""
        array = np.asarray(value)
        if array.dtype == object:
            return array
        with self.context():
            return np.asarray(LIFT(array), object)


def larger(x: Any, y: Any) -> Any:
    """Returns the larger number; NaN if one is."""
    return x if x != x or x >= y else y


def smaller(x: Any, y: Any) -> Any:
    """Returns the smaller number; NaN if one is."""
    return x if x != x or x <= y else y


LIFT = np.frompyfunc(gmpy2.mpfr, 1, 1)
LARGER = np.frompyfunc(larger, 2, 1)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: np.frompyfunc(getattr(gmpy2, name), 1, 1) for name in ("exp", "log", "log1p", "tanh", "sqrt")},
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "neg": np.negative,
    "abs": np.abs,
    "max": LARGER,
    "min": np.frompyfunc(smaller, 2, 1),
    "logistic": np.frompyfunc(lambda x: 1 / (1 + gmpy2.exp(-x)), 1, 1),
    "sign": np.frompyfunc(lambda x: gmpy2.mpfr(gmpy2.sign(x)), 1, 1),
    "is_finite": lambda x: np.asarray(np.frompyfunc(gmpy2.is_finite, 1, 1)(x), bool),
}
"""By the names of JAX's primitives."""
