"""What the measures and the engines share of numbers: norms, differences and vectors of outputs; and the change
f(x + dx) - f(x) of any JAX function f, with the digits of dx wherever f is smooth.

Subtracting two values of f loses the digits of a change below their rounding. The same change is an integral,

    f(x + dx) - f(x)  =  integral over t from 0 to 1 of  J(x + t dx) dx ,

with J the Jacobian of f, and its integrand is linear in dx: it has all digits of dx, however small. Five-point
Gauss-Lobatto quadrature of it is exact for polynomials f of degree 8, and otherwise has a relative error of order
|dx|^8. It is wrong if f has a step or a kink between x and x + dx, or bends much on the way. Whether f has chosen
otherwise at x + dx than at x (`nudged.choices`) is seen in its program, however large the value beside which its change
is small; and how much it bends, by Simpson's rule at three of the points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxsens.core.base.nudged import DRAWS, choices, spread


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
    integer = jnp.int32 if half == 16 else jnp.int64
    real = jnp.promote_types(old.dtype, jnp.float32) if half == 16 else jnp.float64
    upper = (new >> half).astype(integer) - (old >> half).astype(integer)
    lower = (new & (2**half - 1)).astype(integer) - (old & (2**half - 1)).astype(integer)
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


OFFSET = (3 / 7) ** 0.5 / 2
NODES = (0.0, 0.5 - OFFSET, 0.5, 0.5 + OFFSET, 1.0)
LOBATTO = (1 / 20, 49 / 180, 16 / 45, 49 / 180, 1 / 20)
SIMPSON = (1 / 6, 0.0, 2 / 3, 0.0, 1 / 6)
"""The points of Gauss-Lobatto quadrature on [0, 1], and the weights of both rules there."""

ROUNDINGS = 8
"""A value of f is assumed to be off by this many roundings at least."""


def change_of(
    f: Callable[[Float[Array, "*shape"]], Array], x: Float[Array, "*shape"], dx: Float[Array, "*shape"]
) -> Array:
    """Returns f(x + dx) - f(x) for a function whose value is an array of any shape.

    It is the integral above if f chooses alike at x and x + dx, both rules agree to better than the plain subtraction
    is bounded, and the integral agrees with the subtraction within that bound; otherwise the subtraction. The bound
    is that of the rounding inside f (`nudged.spread`). Each entry of the value is taken by itself, choices apart.

    So the error is at most a few times that of the subtraction, and only that of dx where f is smooth and dx small. If
    the values of f are whole numbers, or JAX cannot differentiate it forward, all entries are subtracted. The cost is
    that of two dozen evaluations of f.
    """
    return change_and_error(f, x, dx, jnp.zeros((), x.dtype), draws=4)[0]


def change_and_error(
    f: Callable[[Float[Array, "*shape"]], Array],
    x: Float[Array, "*shape"],
    dx: Float[Array, "*shape"],
    error: Float[Array, ""],
    draws: int = DRAWS,
) -> tuple[Array, Array]:
    """Returns `change_of`, and how far it may be off if dx is off by `error` in the l2 norm.

    That is the error times f's slope at x + dx, and the error of the form that was taken: of the subtraction its bound,
    of the integral its rounding and the distance of the two rules.
    """
    plain = f(x + dx) - f(x)
    if not jnp.issubdtype(plain.dtype, jnp.floating):
        return plain, jnp.zeros_like(plain)
    try:
        slope = slope_error(f, x + dx, error)
        integral, coarse = _integrals(f, x, dx)
        off = spread(lambda step: _integrals(f, x, step)[0], dx, draws=-(-draws // 4))
        off += jnp.abs(integral - coarse)
        same = jnp.all(jnp.array([*map(jnp.array_equal, choices(f, x), choices(f, x + dx))], bool))
    except (TypeError, ValueError, NotImplementedError):  # what JAX raises for functions without a derivative
        slope, integral, off, same = jnp.zeros_like(error), plain, jnp.inf, jnp.asarray(False)
    bound = rounding_of(f, x, draws=draws) + rounding_of(lambda step: f(x + step), dx, error, draws)
    smooth = same & (off <= bound) & (jnp.abs(integral - plain) <= bound + off)
    return jnp.where(smooth, integral, plain), jnp.where(smooth, off, bound) + slope


def rounding_of(f: Callable[[Array], Array], x: Array, error: Any = 0.0, draws: int = DRAWS) -> Array:
    """Returns a bound of the rounding of f's value at x, where each entry of x may be off by `error`."""
    value = f(x)
    return spread(f, x, error, draws) + ROUNDINGS * jnp.finfo(value.dtype).eps * jnp.abs(value)


def slope_error(f: Callable[[Array], Array], x: Array, error: Array) -> Array:
    """Returns how far f's value moves at x, to first order, if x is off by `error` in the l2 norm; 0 where JAX cannot
    differentiate f forward."""
    try:
        slope = jnp.sqrt(jnp.sum(jax.jacfwd(f)(x) ** 2, axis=tuple(range(-x.ndim, 0))))
    except (TypeError, ValueError, NotImplementedError):
        return jnp.zeros_like(error)
    return jnp.where(error > 0, error * slope, 0)


def _integrals(f: Callable[[Array], Array], x: Array, dx: Array) -> Array:
    """Returns the integral of J(x + t dx) dx over t from 0 to 1, by either rule."""
    nodes = jnp.asarray(NODES, x.dtype)
    slopes = jax.vmap(lambda t: jax.jvp(f, (x + t * dx,), (dx,))[1])(nodes)
    return jnp.tensordot(jnp.asarray((LOBATTO, SIMPSON), slopes.dtype), slopes, axes=1)
