"""Rules of elementwise primitives: of the wide numbers by their tables, of integers and booleans as XLA has them.

Of conversions, only what the program itself makes narrower is rounded.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.wide.numbers import (
    NUMPY,
    Array,
    Equation,
    Function,
    Rule,
    is_float,
    is_nan,
    rounded,
)


def narrowed(step: Equation, x: Array, before: Any, after: Any) -> Array:
    """Returns floats rounded to dtype `after` if it has fewer digits, or a smaller range, than `before`."""
    old, new = jnp.finfo(before), jnp.finfo(after)
    if new.nmant >= old.nmant and new.maxexp >= old.maxexp:
        return x
    near = rounded(step.arithmetic, x, new.nmant, new.minexp - new.nmant, float(new.max))
    if np.isinf(np.asarray(np.inf).astype(after).astype(np.float64)):
        return near
    # Kinds without infinities, such as float8_e4m3fn, have NaN instead.
    infinite = ~step.function("is_finite")(near) & ~is_nan(near)
    return np.where(infinite, step.arithmetic.lift(np.nan), near)


def convert(step: Equation, x: Array) -> Array:
    """`convert_element_type`: float to int truncates and saturates, NaN becomes 0, as XLA does."""
    before, after = np.dtype(step.operands[0].dtype), np.dtype(step.params["new_dtype"])
    if is_float(after):
        return narrowed(step, x, before, after) if is_float(before) else step.arithmetic.lift(x)
    if not is_float(before):
        return x.astype(after)
    if after.kind == "b":
        return np.asarray(x != 0, bool)
    limits = np.iinfo(after)
    low, high = np.asarray(x <= limits.min, bool), np.asarray(x >= limits.max, bool)
    inside = np.where(low | high | is_nan(x), step.arithmetic.lift(0), x)
    whole = np.asarray(step.function("trunc")(inside)).astype(after)
    return np.where(low, limits.min, np.where(high, limits.max, whole)).astype(after)


def reduce_precision(step: Equation, x: Array) -> Array:
    """`reduce_precision`: rounds; below the smallest normal number of a smaller range, XLA returns zero."""
    bits, mantissa = step.params["exponent_bits"], step.params["mantissa_bits"]
    own = jnp.finfo(step.operands[0].dtype)
    if bits >= own.nexp and mantissa >= own.nmant:
        return x
    largest_exponent = min(2 ** (bits - 1), own.maxexp)
    smallest_normal = max(2 - 2 ** (bits - 1), own.minexp)
    mantissa = min(mantissa, own.nmant)
    largest = float(np.ldexp(2.0 - np.ldexp(1.0, -mantissa), largest_exponent - 1))
    near = rounded(step.arithmetic, x, mantissa, smallest_normal - mantissa, largest)
    if bits >= own.nexp:
        return near
    tiny = np.asarray(abs(near) < float(np.ldexp(1.0, smallest_normal)), bool)
    return np.where(tiny, near * 0, near)


def next_after(step: Equation, x: Array, y: Array) -> Array:
    """`nextafter`: the neighbour in the dtype that was traced, which is what the program's guards are made for."""
    dtype = step.operands[0].dtype
    near, towards = (np.asarray(value).astype(np.float64).astype(dtype) for value in (x, y))
    return step.arithmetic.lift(np.nextafter(near, towards))


CONVERSIONS: dict[str, Rule] = {
    "convert_element_type": convert,
    "reduce_precision": reduce_precision,
    "nextafter": next_after,
}


def _quotient(x: Array, y: Array) -> Array:
    """Truncates towards zero; x / 0 has all bits set, as in XLA."""
    whole = np.floor_divide(x, y)
    if np.issubdtype(x.dtype, np.signedinteger):
        whole = whole + ((whole * y != x) & ((x < 0) != (y < 0)))
    return np.where(y == 0, ~np.zeros_like(x), whole)


def _remainder(x: Array, y: Array) -> Array:
    return np.where(y == 0, x, np.fmod(x, y))


def _unsigned(x: Array) -> Array:
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def _shift_left(x: Array, by: Array) -> Array:
    return np.where(_unsigned(by) < 8 * x.dtype.itemsize, np.left_shift(x, by), 0)


def _shift_right_logical(x: Array, by: Array) -> Array:
    shifted = np.right_shift(_unsigned(x), _unsigned(by)).view(x.dtype)
    return np.where(_unsigned(by) < 8 * x.dtype.itemsize, shifted, 0)


def _shift_right_arithmetic(x: Array, by: Array) -> Array:
    """Fills with the first bit, of unsigned integers too."""
    signed = np.asarray(x).view(f"i{x.dtype.itemsize}")
    return np.right_shift(
        signed, np.minimum(_unsigned(by), 8 * x.dtype.itemsize - 1).astype(signed.dtype)
    ).view(x.dtype)


WHOLE: dict[str, Function] = {
    **NUMPY,
    "div": _quotient,
    "rem": _remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right_logical,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "population_count": lambda x: np.bitwise_count(_unsigned(x)),
}
"""The functions of integers and booleans."""

REAL = (
    "exp", "exp2", "log", "log1p", "expm1", "sqrt", "rsqrt", "cbrt", "tanh", "tan", "sin", "cos", "atan2", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "logistic", "floor", "ceil",
    "is_finite",
)  # fmt: skip
"""The functions of floating-point numbers only."""

COMPARISONS: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _elementwise(name: str, step: Equation, *values: Array) -> Array:
    return (step.function(name) if step.floating else WHOLE[name])(*values)


def _product(step: Equation, x: Array, y: Array) -> Array:
    out = step.results[0].dtype
    result = _elementwise("mul", step, x, y)
    return narrowed(step, result, step.operands[0].dtype, out) if is_float(out) else result


def _compare(name: str, step: Equation, *values: Array) -> Array:
    return np.asarray(COMPARISONS[name](*values), bool)


def _in_total_order(name: str, _: Equation, x: Array, y: Array) -> Array:
    """NaN is the largest number, and equal to itself; 0 and -0 are equal, which XLA orders."""
    plain = np.asarray(COMPARISONS[name](x, y), bool)
    return np.where(is_nan(y), is_nan(x) == (name == "eq") if name != "le" else True, plain)


def _power(step: Equation, x: Array, y: Array) -> Array:
    if step.floating and not is_float(step.operands[1].dtype):
        y = step.arithmetic.lift(y)
    return _elementwise("pow", step, x, y)


def _whole_power(step: Equation, x: Array) -> Array:
    y = int(step.params["y"])
    if not step.floating:
        return np.power(x, np.asarray(y, x.dtype))
    return step.function("pow")(x, step.arithmetic.lift(y))


def _polynomial(_: Equation, x: Array, *coefficients: Array) -> Array:
    """`polynomial`, of newer versions of jax: coefficients from the lowest, by Horner's rule, as XLA computes it."""
    value = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def _round(step: Equation, x: Array) -> Array:
    even = int(step.params["rounding_method"]) == 1  # jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return step.function("nearest_even" if even else "nearest_away")(x)


def _clamp(step: Equation, least: Array, x: Array, most: Array) -> Array:
    return _elementwise("min", step, _elementwise("max", step, x, least), most)


def _select(_: Equation, which: Array, *cases: Array) -> Any:
    if len(cases) == 1:
        return cases[0]
    if which.dtype == np.bool_:
        return np.where(which, cases[1], cases[0])
    last = len(cases) - 1
    chosen, picked = cases[last], np.clip(which.astype(np.int64), 0, last)
    for k in range(last):
        chosen = np.where(picked == k, cases[k], chosen)
    return chosen


ELEMENTWISE: dict[str, Rule] = {
    **{name: partial(_elementwise, name) for name in (*WHOLE, *REAL)},
    **{name: partial(_compare, name) for name in COMPARISONS},
    **{f"{name}_to": partial(_in_total_order, name) for name in ("eq", "lt", "le")},
    "add_any": partial(_elementwise, "add"),
    "mul": _product,
    "polynomial": _polynomial,
    "pow": _power,
    "integer_pow": _whole_power,
    "round": _round,
    "clamp": _clamp,
    "select_n": _select,
}
