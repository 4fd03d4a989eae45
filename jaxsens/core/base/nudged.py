"""A function run again with every rounding moved at random: how far its value moves bounds its own rounding.

Nothing is assumed of the function: a sum that cancels, a kink, an exponential show as they are. What JAX computes
exactly is not moved: numbers moved about, compared or chosen. The moves are hashes of the numbers, other ones for each
operation: equal numbers, which are rounded alike, move alike, and add up as their errors do in a word of one symbol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array

ROUNDINGS = 4.0
"""Results are moved by up to this many roundings, and by as many of the smallest normal numbers where they underflow: a
rounding is off by half of one."""

DRAWS = 8
"""So often is a function run again. That the largest of eight moves is below the error happens once in a million."""

_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")
_SUMS = ("dot_general", "reduce_sum", "cumsum", "conv_general_dilated", "scatter-add")
_UNDERFLOWING = ("mul", "div", "integer_pow", "square", "pow", "exp", "exp2", "reduce_prod", "dot_general")
_EXACT = {
    "abs", "neg", "sign", "floor", "ceil", "round", "max", "min", "clamp", "select_n", "reduce_max",
    "reduce_min", "cummax", "cummin", "argsort", "sort", "top_k", "reshape", "broadcast_in_dim", "squeeze",
    "expand_dims", "transpose", "concatenate", "pad", "slice", "dynamic_slice", "dynamic_update_slice",
    "gather", "scatter", "rev", "copy", "stop_gradient", "real", "imag", "iota", "split",
    "optimization_barrier", "rem", "copysign",
}  # fmt: skip
_CHOICES: dict[str, Callable[..., Array]] = {
    "max": jnp.greater, "min": jnp.greater, "abs": jnp.sign, "sign": jnp.sign, "div": lambda a, b: jnp.sign(b),
    "atan2": lambda a, b: jnp.sign(a), "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round,
    "clamp": lambda low, x, high: (x > low) + 1 * (x > high), "sort": lambda x, *others: jnp.argsort(x),
    "rem": lambda a, b: jnp.floor(a / b),
}  # fmt: skip
"""By what operations with kinks or steps choose, from their operands; others do by whole-number results."""


def spread(f: Callable[[Array], Array], x: Array, error: Any = 0.0, draws: int = DRAWS) -> Array:
    """Returns how far each entry of f(x) moves at most, each entry of x moved by `error` too; infinite for NaN."""
    value = f(x)

    def moved(salt: Array) -> Array:
        signs = jnp.sign(_draw(jnp.arange(1, x.size + 1).astype(x.dtype), salt)).reshape(x.shape)
        away = jnp.abs(nudged(f, salt)(x + error * signs) - value)
        return jnp.where(jnp.isfinite(away) | ~jnp.isfinite(value), away, jnp.inf)

    return jnp.max(jax.lax.map(moved, salts(draws)), axis=0)


def salts(draws: int = DRAWS) -> Array:
    """Returns an odd number for each run."""
    drawn = np.random.default_rng(0).integers(2**31, size=draws, dtype=np.uint32)
    return jnp.asarray(2 * drawn + np.uint32(1), jnp.uint32)


def nudged(f: Callable[..., Array], salt: Array) -> Callable[..., Array]:
    """Returns f with every rounding moved, in another way for each of `salts`. Its arguments are not moved."""
    return lambda *args: _run(jax.make_jaxpr(f)(*args), jax.tree.leaves(args), partial(_nudge, salt=salt))[0]


def inlined(f: Callable[..., Array]) -> Callable[..., Array]:
    """Returns f without calls of functions, but for those of loops and branches."""
    return lambda *args: _run(jax.make_jaxpr(f)(*args), jax.tree.leaves(args), _bound)[0]


def choices(f: Callable[[Array], Array], x: Array) -> list[Array]:
    """Returns what f chooses at x: the sides of its kinks and steps. Between two points of equal choices it is smooth.

    A choice that only `stop_gradient` sees, as of the number that a logarithm of exponentials is shifted by, is none.

    Raises:
        NotImplementedError: for a loop or a branch, whose choices are not seen.
    """
    sides: list[Array] = []

    def note(equation: Any, operands: Sequence[Any], place: int, seen: bool) -> list[Any]:
        name, results = equation.primitive.name, _bound(equation, operands)
        if name in ("scan", "while", "cond"):
            raise NotImplementedError(name)
        if seen and any(map(_is_real, operands)):
            sides.extend(one for one in results if not _is_real(one))
            if name in _CHOICES:
                sides.append(_CHOICES[name](*operands))
            if name in ("reduce_max", "reduce_min"):
                sides.append(jnp.expand_dims(results[0], equation.params["axes"]) == operands[0])
        return results

    _run(jax.make_jaxpr(f)(x), [x], note)
    return sides


def _run(
    closed: ClosedJaxpr, args: Sequence[Any], step: Callable[..., list[Any]], place: int = 1
) -> list[Any]:
    """Runs a program and those that it calls, equation by equation; `place` tells equations apart."""
    values = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *args), strict=True))
    seen = {atom for atom in closed.jaxpr.outvars if not isinstance(atom, Literal)}
    for equation in reversed(closed.jaxpr.eqns):
        if equation.primitive.name != "stop_gradient" and not seen.isdisjoint(equation.outvars):
            seen.update(atom for atom in equation.invars if not isinstance(atom, Literal))

    def read(atom: Any) -> Any:
        return (
            jnp.asarray(atom.val, jnp.result_type(atom.aval)) if isinstance(atom, Literal) else values[atom]
        )

    for k, equation in enumerate(closed.jaxpr.eqns):
        operands, own = [read(atom) for atom in equation.invars], (place * 0x9E3779B1 + 2 * k) % 2**32
        if equation.primitive.name in _CALLS:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            closed_inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
            results = _run(closed_inner, operands, step, own)
        else:
            results = step(equation, operands, own, not seen.isdisjoint(equation.outvars))
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _bound(equation: Any, operands: Sequence[Any], *_: Any) -> list[Any]:
    results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
    return list(results) if equation.primitive.multiple_results else [results]


def _nudge(equation: Any, operands: Sequence[Any], place: int, seen: bool, salt: Array) -> list[Any]:
    """Returns the results of an equation, moved if they are rounded."""
    del seen
    name = equation.primitive.name
    if name in ("scan", "while", "cond"):
        run = partial(_run, step=partial(_nudge, salt=salt), place=place)
        return _looped(equation, run, list(operands))
    results, real = _bound(equation, operands), [one for one in operands if _is_real(one)]
    if name in _EXACT or not any(map(_is_real, results)):
        return results
    if name == "convert_element_type" and (not real or _eps(results[0]) <= _eps(real[0])):
        return results
    weight = 1.0
    if name in _SUMS:  # numbers that cancel in a sum have roundings of their own, and its parts add to them
        terms = (math.prod(one.size for one in real) / max(1, results[0].size)) ** (1 / len(real))
        weight = max(1.0, math.sqrt(terms) / 8)
        results = _bound(equation, [_moved(operands[0], salt, place + 2, weight), *operands[1:]])
    moved = [_moved(one, salt, place, weight) for one in results]
    if name not in _UNDERFLOWING:
        return moved
    tiny = jnp.finfo(moved[0].dtype).tiny
    normal = jnp.abs(moved[0]) >= tiny
    for one in real:
        if one.shape == normal.shape:
            normal = normal | (one == 0) | ~jnp.isfinite(one)
        elif name == "reduce_prod":
            normal = normal | jnp.any(one == 0)
    # The brackets: XLA makes one of two factors alone.
    least = (2 + _draw(salt, salt)).astype(tiny.dtype) * (ROUNDINGS / 2 * tiny)
    return [jnp.where(normal, moved[0], moved[0] + least.astype(moved[0].dtype))]


def _looped(equation: Any, run: Callable[..., list[Any]], operands: list[Any]) -> list[Any]:
    """Returns the results of a loop or a branch whose programs are run by `run`."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        branches = [lambda *args, branch=branch: run(branch, args) for branch in params["branches"]]
        return jax.lax.switch(operands[0], branches, *operands[1:])
    if name == "while":
        tests, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        return jax.lax.while_loop(
            lambda carry: run(params["cond_jaxpr"], [*operands[:tests], *carry])[0],
            lambda carry: run(params["body_jaxpr"], [*operands[tests:fixed], *carry]),
            operands[fixed:],
        )
    # What a scan takes and stacks has an axis more than within; versions of JAX name the counts differently.
    inner = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    carries = sum(map(_of_one_rank, equation.outvars, inner.outvars))
    fixed = sum(map(_of_one_rank, equation.invars, inner.invars)) - carries

    def one(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        results = run(params["jaxpr"], [*operands[:fixed], *carry, *rows])
        return results[:carries], results[carries:]

    start, rows = operands[fixed : fixed + carries], operands[fixed + carries :]
    last, stacked = jax.lax.scan(one, start, rows, params["length"], params["reverse"])
    return [*last, *stacked]


def _of_one_rank(outside: Any, inside: Any) -> bool:
    return len(outside.aval.shape) == len(inside.aval.shape)


def _moved(value: Any, salt: Array, place: int, weight: float) -> Any:
    """Returns numbers moved by up to `weight` times `ROUNDINGS` of their roundings; others as they are."""
    if not _is_real(value):
        return value
    moved = value + value * _draw(value, salt * np.uint32(place | 1), weight * ROUNDINGS * _eps(value))
    return jax.lax.select(jax.lax.is_finite(moved), moved, value)


def _draw(value: Array, salt: Array, size: float = 1.0) -> Array:
    """Returns a number from -size to size for each, a hash of its bits: the upper ones of an odd multiple."""
    bits = jax.lax.bitcast_convert_type(value, jnp.dtype(f"uint{8 * value.dtype.itemsize}"))
    if bits.dtype.itemsize < 4:
        bits = bits.astype(jnp.uint32)
    elif bits.dtype.itemsize > 4:
        salt = salt.astype(bits.dtype) * np.uint64(0x9E3779B97F4A7C15)
    signed = jax.lax.bitcast_convert_type(bits * salt, jnp.dtype(f"int{8 * bits.dtype.itemsize}"))
    real = value.dtype if _is_real(value) else jnp.float32
    return signed.astype(real) * np.asarray(size * 2.0 ** (1 - 8 * bits.dtype.itemsize), real)


def _is_real(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.floating)


def _eps(value: Any) -> float:
    return float(jnp.finfo(value.dtype).eps)
