"""The change f(x + dx) - f(x) of any JAX function f, with the digits of dx wherever f is smooth.

Subtracting two values of f loses the digits of a change below their rounding. The same change is an integral,

    f(x + dx) - f(x)  =  integral over t from 0 to 1 of  J(x + t dx) dx ,

with J the Jacobian of f, and its integrand is linear in dx: it has all digits of dx, however small. Three-point
Gauss-Legendre quadrature of it is exact for polynomials f of degree 6, and otherwise has a relative error of order
|dx|^6. It is wrong if f has a step or a kink between x and x + dx, or bends much on the way. That shows against the
plain subtraction, so quadrature is taken only where the two agree to within the rounding of the subtraction.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

HALF_SPAN = 0.6**0.5 / 2
NODES = ((0.5 - HALF_SPAN, 5 / 18), (0.5, 4 / 9), (0.5 + HALF_SPAN, 5 / 18))
"""The points and weights of three-point Gauss-Legendre quadrature on [0, 1]."""

ROUNDINGS = 8
"""A value of f is assumed to be off by at most this many roundings."""

PROBES = 8
"""The number of points around x at which the rounding inside f is observed."""


def change_of(
    f: Callable[[Float[Array, "*shape"]], Array], x: Float[Array, "*shape"], dx: Float[Array, "*shape"]
) -> Array:
    """Returns f(x + dx) - f(x) for a function whose value is an array of any shape. Its entries are independent.

    An entry is the integral above if that agrees with the plain subtraction within

        8 eps (|f(x)| + |f(x + dx)|) + min(4 noise, 16 eps (1 + size)) ,

    and otherwise the subtraction. The second term is for values that are small because large ones cancel inside f,
    such as a log-probability near 0. The noise is the distance of f from its linearisation, observed where the
    entries of x change by parts of sqrt(eps), so that the next term of f's series is a rounding. The limit, with
    size = |J(x) (x s)| for some vectors s of entries up to 1, keeps a step of f near x from counting as rounding.

    So the error is at most a few times that of the subtraction, and only that of dx where f is smooth and dx small. If
    the values of f are whole numbers, or JAX cannot differentiate it forward, all entries are subtracted. The cost is
    that of a dozen evaluations of f; those around x depend on x alone.
    """
    return change_and_doubt(f, x, dx, jnp.zeros((), x.dtype))[0]


def change_and_doubt(
    f: Callable[[Float[Array, "*shape"]], Array],
    x: Float[Array, "*shape"],
    dx: Float[Array, "*shape"],
    error: Float[Array, ""],
) -> tuple[Array, Array]:
    """Returns `change_of`, and how far it may be off if dx is off by `error` in the l2 norm.

    That is the error times f's slope at x + dx, and the rounding of the form that was taken: of the subtraction its
    bound, of the integral a few roundings of the change.
    """
    before, after = f(x), f(x + dx)
    plain = after - before
    if not jnp.issubdtype(plain.dtype, jnp.floating):
        return plain, jnp.zeros_like(plain)
    eps = jnp.finfo(plain.dtype).eps
    bound = ROUNDINGS * eps * (jnp.abs(before) + jnp.abs(after))
    try:
        carried = _integral(f, x, dx)
        noise, size = _rounding(f, x)
        slope = jnp.sqrt(jnp.sum(jax.jacfwd(f)(x + dx) ** 2, axis=tuple(range(-x.ndim, 0))))
    except (TypeError, ValueError, NotImplementedError):  # what JAX raises for functions without a derivative
        return plain, bound
    bound = bound + jnp.minimum(4 * noise, 2 * ROUNDINGS * eps * (1 + size))
    smooth = jnp.abs(carried - plain) <= bound
    off = jnp.where(smooth, ROUNDINGS * eps * jnp.abs(carried), bound)
    return jnp.where(smooth, carried, plain), off + slope * error


def _integral(f: Callable[[Array], Array], x: Array, dx: Array) -> Array:
    """Returns the integral of J(x + t dx) dx over t from 0 to 1, by quadrature."""
    nodes = jnp.asarray([node for node, _ in NODES], x.dtype)
    weights = jnp.asarray([weight for _, weight in NODES], x.dtype)
    slopes = jax.vmap(lambda t: jax.jvp(f, (x + t * dx,), (dx,))[1])(nodes)
    return jnp.tensordot(weights.astype(slopes.dtype), slopes, axes=1)


def _rounding(f: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    """Returns the largest distance of f from its linearisation near x, and the size of J(x) x."""
    # Cosines of multiples of the golden ratio: spread evenly over [-1, 1], without a pattern that f might share.
    angles = np.outer(np.arange(1, PROBES + 1), np.arange(1, x.size + 1)) * (np.pi * (1 + 5**0.5))
    sizes = jnp.asarray(np.cos(angles).reshape(PROBES, *x.shape), x.dtype) * x
    step = jnp.sqrt(jnp.finfo(x.dtype).eps).astype(x.dtype)
    value, slope = jax.linearize(f, x)
    moved = jax.vmap(slope)(sizes)
    found = jax.vmap(f)(x + step * sizes) - value
    return jnp.max(jnp.abs(found - step * moved), axis=0), jnp.max(jnp.abs(moved), axis=0)
