"""The wide numbers: float64, or MPFR numbers of a chosen number of bits (object arrays of `gmpy2.mpfr`), and what a
rule for a primitive gets.

gmpy2 is imported when the first MPFR number is needed. An operation takes about 0.2 us at 256 bits, exp about 2 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from jaxsens.base import inputs
from jaxsens.base.errors import collecting

Array = Shaped[np.ndarray, "..."]
Function = Callable[..., Any]

LEAST_BITS = 64
"""Fewer bits would not hold every float64 and every 64-bit integer, so that lifting would round."""


def _gmpy2() -> Any:
    """Returns the module gmpy2, which has no types."""
    import gmpy2

    return gmpy2


@dataclass(frozen=True)
class Float64:
    """Plain float64 arrays, for programs traced in float32."""

    held: ClassVar[np.dtype] = np.dtype(np.float64)
    """The dtype of the arrays that hold these numbers."""

    @property
    def functions(self) -> Mapping[str, Function]:
        """The elementwise functions, by the names of JAX's primitives."""
        return _float64_functions()

    def context(self) -> AbstractContextManager[Any]:
        """In which these numbers are computed with: infinities and NaN appear without a warning."""
        return np.errstate(all="ignore")

    def lift(self, value: Any) -> Array:
        """Returns real or whole numbers as these, exactly up to 53 bits."""
        return np.asarray(value).astype(np.float64)


@dataclass(frozen=True)
class Precise:
    """MPFR numbers of `bits` bits, with exponents of about 31 bits, rounded to the nearest after each operation."""

    bits: int
    held: ClassVar[np.dtype] = np.dtype(object)

    def __post_init__(self) -> None:
        """Checks the number of bits."""
        with collecting("Precise") as problems:
            inputs.count("bits", self.bits, problems, LEAST_BITS)

    @property
    def functions(self) -> Mapping[str, Function]:
        """The elementwise functions, by the names of JAX's primitives."""
        return _mpfr_functions()

    def context(self) -> AbstractContextManager[Any]:
        """In which these numbers are computed with; outside of it gmpy2 rounds results to 53 bits."""
        gmpy2 = _gmpy2()
        return gmpy2.context(precision=self.bits, round=gmpy2.RoundToNearest)

    def lift(self, value: Any) -> Array:
        """Returns real or whole numbers as these, exactly. Arrays of objects are taken as they are."""
        gmpy2 = _gmpy2()
        array = np.asarray(value)
        if array.dtype == object:
            return array
        if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
            array = array.astype(np.float64)  # bool, bfloat16, float8
        with self.context():
            return np.asarray(np.frompyfunc(gmpy2.mpfr, 1, 1)(array), object)


Arithmetic = Float64 | Precise

FLOAT64 = Float64()

NUMPY: dict[str, np.ufunc] = {
    **{name: getattr(np, name) for name in ("add", "abs", "sign", "square")},
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
}
"""The functions of NumPy that serve numbers of all kinds, by the names of JAX's primitives."""


@lru_cache(maxsize=1)
def _float64_functions() -> Mapping[str, Function]:
    from scipy import special

    named = {name: getattr(np, name) for name in _NUMPY_NAMES}
    return named | {
        **NUMPY,
        "div": np.divide,
        "atan2": np.arctan2,
        "rem": np.fmod,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "logistic": special.expit,
        "erf": special.erf,
        "erfc": special.erfc,
        "is_finite": np.isfinite,
        "nearest_even": np.rint,
        "nearest_away": _nearest_away,
        "logaddexp": np.logaddexp,
        **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    }


_NUMPY_NAMES = (
    "exp", "exp2", "log", "log1p", "expm1", "sqrt", "cbrt", "tanh", "tan", "sin", "cos", "sinh", "cosh", "floor",
    "ceil", "trunc",
)  # fmt: skip


def _nearest_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)


_GMPY_NAMES = (
    "exp", "exp2", "log", "log1p", "expm1", "sqrt", "cbrt", "tanh", "tan", "sin", "cos", "sinh", "cosh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip


@lru_cache(maxsize=1)
def _mpfr_functions() -> Mapping[str, Function]:
    gmpy2 = _gmpy2()

    def larger(x: Any, y: Any) -> Any:
        return x if x != x or x >= y else y

    def smaller(x: Any, y: Any) -> Any:
        return x if x != x or x <= y else y

    def sign(x: Any) -> Any:
        return x if x == 0 or x != x else gmpy2.mpfr(1 if x > 0 else -1)

    def log_of_sum(x: Any, y: Any) -> Any:
        if x == y:
            return x + gmpy2.const_log2()
        return larger(x, y) + gmpy2.log1p(gmpy2.exp(-abs(x - y)))

    unary = {name: getattr(gmpy2, name) for name in _GMPY_NAMES} | {
        "square": gmpy2.square,
        "sign": sign,
        "rsqrt": lambda x: 1 / gmpy2.sqrt(x),  # rec_sqrt(-0) is +inf, not -inf
        "logistic": lambda x: 1 / (1 + gmpy2.exp(-x)),
        **{name: getattr(gmpy2, f"rint_{name}") for name in ("floor", "ceil", "trunc")},
        "nearest_even": gmpy2.rint,
        "nearest_away": gmpy2.rint_round,
    }
    binary = {"max": larger, "min": smaller, "atan2": gmpy2.atan2, "rem": gmpy2.fmod, "logaddexp": log_of_sum}
    by_operator = {name: NUMPY[name] for name in ("add", "sub", "mul", "pow", "neg", "abs")}
    return (
        by_operator
        | {"div": np.true_divide}
        | {name: np.frompyfunc(function, 1, 1) for name, function in unary.items()}
        | {name: np.frompyfunc(function, 2, 1) for name, function in binary.items()}
        | {"is_finite": lambda x: np.asarray(np.frompyfunc(gmpy2.is_finite, 1, 1)(x), bool)}
    )


@dataclass(frozen=True)
class Equation:
    """One equation of a program.

    Attributes:
        arithmetic: the numbers in which floating-point values are held.
        params: the primitive's parameters.
        operands: the traced shapes and dtypes of the operands.
        results: those of the results.
        run: evaluates a jaxpr, closed or without constants, on values.
    """

    arithmetic: Arithmetic
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    run: Callable[[Any, Sequence[Array]], list[Array]]

    @property
    def floating(self) -> bool:
        """Whether the first operand holds floating-point values."""
        return is_float(self.operands[0].dtype)

    def function(self, name: str) -> Function:
        """Returns the arithmetic's elementwise function of that name."""
        return self.arithmetic.functions[name]


Rule = Callable[..., Any]
"""Returns the result, or the list of results, of (step, *operands)."""


@lru_cache(maxsize=64)
def is_float(dtype: Any) -> bool:
    """Returns whether the dtype is a real floating-point one, bfloat16 and float8 included."""
    return bool(jnp.issubdtype(dtype, np.floating))


def ranks(x: Array) -> Array:
    """Returns whole numbers in the order of the entries of x, NaN last; equal entries have equal ones."""
    if x.dtype != object:
        return np.unique(x, return_inverse=True)[1].reshape(x.shape)
    flat = x.ravel()
    order = sorted(range(flat.size), key=lambda k: (flat[k] != flat[k], flat[k] if flat[k] == flat[k] else 0))
    found, rank, before = np.zeros(flat.size, np.int64), -1, None
    for k in order:
        both_nan = before is not None and before != before and flat[k] != flat[k]
        if before is None or not (flat[k] == before or both_nan):
            rank += 1
        found[k], before = rank, flat[k]
    return found.reshape(x.shape)


def is_nan(x: Array) -> Array:
    """Returns which entries are NaN, for numbers of any kind."""
    return np.asarray(x != x, bool)


def rounded(arithmetic: Arithmetic, x: Array, mantissa: int, smallest: int, largest: float) -> Array:
    """Returns x rounded to floats of `mantissa` stored bits, the nearest with ties to even.

    Args:
        arithmetic: the numbers that x holds.
        x: wide numbers.
        mantissa: the stored bits of the mantissa, without the leading one.
        smallest: the exponent of the smallest positive number, 2^smallest.
        largest: the largest finite number; what rounds to more becomes infinite.
    """
    if isinstance(arithmetic, Float64):
        _, exponent = np.frexp(x)
        step = np.maximum(exponent - 1 - mantissa, smallest)
        # In two steps: 2^-step overflows where x is subnormal.
        near = np.ldexp(np.rint(np.ldexp(np.ldexp(x, -(step // 2)), step // 2 - step)), step)
        finite = np.isfinite(x)
        return np.where(finite & (np.abs(near) > largest), np.copysign(np.inf, x), np.where(finite, near, x))
    gmpy2 = _gmpy2()

    def scaled(value: Any, power: int) -> Any:
        return gmpy2.mul_2exp(value, power) if power >= 0 else gmpy2.div_2exp(value, -power)

    def one(value: Any) -> Any:
        if value == 0 or not gmpy2.is_finite(value):
            return value
        step = max(gmpy2.get_exp(value) - 1 - mantissa, smallest)
        near = scaled(gmpy2.rint(scaled(value, -step)), step)
        return gmpy2.mpfr(math.copysign(math.inf, value)) if abs(near) > largest else near

    return np.asarray(np.frompyfunc(one, 1, 1)(x), object)
