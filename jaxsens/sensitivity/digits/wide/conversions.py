"""Rules of conversions: only what the program itself makes narrower is rounded."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsens.sensitivity.digits.wide.numbers import Array, is_nan, rounded
from jaxsens.sensitivity.digits.wide.rules import Equation, Rule, is_float


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
