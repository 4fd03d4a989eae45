"""What the measures and the engines share of numbers: norms, differences and vectors of outputs."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float


def l2(change: Float[Array, "*batch outputs"]) -> Float[Array, "*batch"]:
    """The l2 norm over the last axis.

    It scales by the largest entry first: squares of changes below 1e-19 would underflow in float32.
    """
    size = jnp.abs(change)
    largest = jnp.max(size, axis=-1, initial=0)
    scale = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt(jnp.sum((size / scale[..., None]) ** 2, axis=-1))


def where_finite(
    rows: Float[Array, "flips outputs"], numbers: Float[Array, " flips"]
) -> Float[Array, " flips"]:
    """Returns the number of each row, NaN where the row is not finite.

    A function may turn NaN into a number: it may not read all outputs, or compare them.
    """
    return jnp.where(jnp.all(jnp.isfinite(rows), axis=-1), numbers, jnp.nan)


def as_vector(output: ArrayLike) -> Float[Array, "*shape"]:
    """Returns a model's output as engines measure it: with an axis, in float32 at least."""
    output = jnp.asarray(output)
    # Not by `jnp.atleast_1d`, which is a program even where it does nothing.
    output = output if output.ndim else output[None]
    return output.astype(jnp.promote_types(output.dtype, jnp.float32))


def is_whole(output: Array | np.ndarray) -> bool:
    """Returns whether an output is of integers or booleans."""
    return jnp.issubdtype(output.dtype, jnp.integer) or output.dtype == np.bool_


def difference(new: Array, old: Array) -> Float[Array, "*shape"]:
    """Returns new - old, in float32 at least, of outputs as a model returns them.

    Integers beyond 2^24 are not all float32 numbers, and a difference may be beyond their dtype. So the upper and the
    lower halves of their bits are subtracted, and only the sum is rounded, once.
    """
    if not is_whole(old):
        return as_vector(new) - as_vector(old)
    if old.dtype == jnp.bool_ or jnp.iinfo(old.dtype).bits < 32:
        new, old = new.astype(jnp.int32), old.astype(jnp.int32)
    half = jnp.iinfo(old.dtype).bits // 2
    whole = jnp.int32 if half == 16 else jnp.int64
    real = jnp.promote_types(old.dtype, jnp.float32) if half == 16 else jnp.float64
    upper = (new >> half).astype(whole) - (old >> half).astype(whole)
    lower = (new & (2**half - 1)).astype(whole) - (old & (2**half - 1)).astype(whole)
    return upper.astype(real) * 2.0**half + lower.astype(real)


def as_exact_vector(output: Array) -> Float[Array, "*shape"]:
    """Returns `as_vector` of an output for functions of it: NaN for integers that have no float of that dtype."""
    floats = as_vector(output)
    if not is_whole(output):
        return floats
    largest = 2 ** (jnp.finfo(floats.dtype).nmant + 1)
    if output.dtype == jnp.bool_ or jnp.iinfo(output.dtype).max <= largest:
        return floats
    within = output <= largest
    if jnp.iinfo(output.dtype).min < 0:
        within = within & (output >= -largest)
    return jnp.where(within, floats, jnp.nan)


def value_of(f: Callable[[Array], Array], output: Float[Array, " outputs"]) -> Float[Array, ""]:
    """Returns f of an output, in the output's dtype or a wider one."""
    value = jnp.asarray(f(output))
    return value.astype(jnp.promote_types(value.dtype, output.dtype))
