"""A function computed with every rounding moved at random: how far its value moves then bounds its own rounding.

The function is traced and its program run again, each result that is rounded times 1 + u, with |u| up to `ROUNDINGS`
roundings. Nothing is assumed of the function: a sum that cancels, a kink beside the value, an exponential show as they
are. What JAX computes exactly is not moved: numbers moved about, compared or chosen, sums and products of small whole
numbers. What becomes 0 by underflow is moved by the smallest normal number.

The moves are drawn from the numbers themselves, and anew for each operation: equal numbers, which are rounded alike,
are moved alike, so that their errors add up as they do in a word of one symbol.
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
"""Results are moved by up to this many roundings: a rounding is off by half of one."""

DRAWS = 8
"""So often is a function run anew. That the largest of eight moves is far below the error happens once in a million."""

_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")
_SUMS = ("dot_general", "reduce_sum", "cumsum", "conv_general_dilated", "scatter-add", "scatter_add")
_WHOLE = ("add", "sub", "mul", *_SUMS[:2])
_EXACT = frozenset(
    "abs neg sign floor ceil round max min clamp select_n reduce_max reduce_min cummax cummin argsort sort top_k "
    "reshape broadcast_in_dim squeeze expand_dims transpose concatenate pad slice dynamic_slice dynamic_update_slice "
    "gather scatter rev copy stop_gradient real imag iota split optimization_barrier rem copysign".split()
)
_CHOICES: dict[str, Callable[..., Array]] = {
    "max": jnp.greater, "min": jnp.greater, "abs": jnp.sign, "sign": jnp.sign, "div": lambda a, b: jnp.sign(b),
    "atan2": lambda a, b: jnp.sign(a), "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round,
    "clamp": lambda low, x, high: (x > low) + 1 * (x > high), "sort": lambda x, *rest: jnp.argsort(x),
    "rem": lambda a, b: jnp.floor(a / b),
}  # fmt: skip
"""What each operation with kinks or steps chooses by, from its operands; others choose by whole-number results."""


def spread(f: Callable[[Array], Array], x: Array, error: Any = 0.0, draws: int = DRAWS) -> Array:
    """Returns how far each entry of f(x) moves at most, of so many runs, with each entry of x moved by `error` too.

    It is infinite where the value is no number then.
    """
    value = f(x)

    def moved(salt: Array) -> Array:
        signs = jnp.sign(_draw(jnp.arange(x.size, dtype=x.dtype), salt)).reshape(x.shape)
        away = jnp.abs(nudged(f, salt)(x + error * signs) - value)
        return jnp.where(jnp.isfinite(away) | ~jnp.isfinite(value), away, jnp.inf)

    return jnp.max(jax.lax.map(moved, jnp.arange(draws, dtype=jnp.uint32)), axis=0)


def nudged(f: Callable[..., Array], salt: Array) -> Callable[..., Array]:
    """Returns f with every rounding moved, in another way for each salt (uint32). Its arguments are not moved."""

    def moved(*args: Any) -> Array:
        return _run(jax.make_jaxpr(f)(*args), jax.tree.leaves(args), _nudge, salt)[0]

    return moved


def choices(f: Callable[[Array], Array], x: Array) -> list[Array]:
    """Returns what f chooses at x: the sides of its kinks and steps. Between two points of equal choices it is smooth.

    A choice that only `stop_gradient` sees, as of the number that a logarithm of exponentials is shifted by, is none.

    Raises:
        NotImplementedError: for a loop or a branch, whose choices are not seen.
    """
    found: list[Array] = []

    def noted(equation: Any, operands: Sequence[Any], salt: Array, seen: bool) -> list[Any]:
        name, results = equation.primitive.name, _bound(equation, operands)
        if name in ("scan", "while", "cond"):
            raise NotImplementedError(name)
        if not seen or not any(map(_is_real, operands)):
            return results
        if name in _CHOICES:
            found.append(_CHOICES[name](*operands))
        elif name in ("reduce_max", "reduce_min"):
            found.append(jnp.expand_dims(results[0], equation.params["axes"]) == operands[0])
        found.extend(one for one in results if not _is_real(one))
        return results

    _run(jax.make_jaxpr(f)(x), [x], noted, jnp.uint32(0))
    return found


def _run(closed: ClosedJaxpr, args: Sequence[Any], step: Callable[..., list[Any]], salt: Array) -> list[Any]:
    """Runs a program and those that it calls, equation by equation."""
    known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(closed.jaxpr.invars, args, strict=True))
    seen = set(closed.jaxpr.outvars) - {atom for atom in closed.jaxpr.outvars if isinstance(atom, Literal)}
    for equation in reversed(closed.jaxpr.eqns):
        if equation.primitive.name != "stop_gradient" and not seen.isdisjoint(equation.outvars):
            seen.update(atom for atom in equation.invars if not isinstance(atom, Literal))

    def read(atom: Any) -> Any:
        return jnp.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else known[atom]

    for k, equation in enumerate(closed.jaxpr.eqns):
        operands, own = [read(atom) for atom in equation.invars], salt * np.uint32(0x9E3779B1) + np.uint32(k + 1)
        if equation.primitive.name in _CALLS:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
            results = _run(inner, operands, step, own)
        else:
            results = step(equation, operands, own, not seen.isdisjoint(equation.outvars))
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _bound(equation: Any, operands: Sequence[Any]) -> list[Any]:
    results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
    return list(results) if equation.primitive.multiple_results else [results]


def _nudge(equation: Any, operands: Sequence[Any], salt: Array, seen: bool) -> list[Any]:
    """Returns the results of an equation, moved if they are rounded."""
    del seen
    name, params, run = equation.primitive.name, equation.params, partial(_run, step=_nudge, salt=salt)
    if name == "scan":
        fixed, carried = params["num_consts"], params["num_consts"] + params["num_carry"]

        def one(carry: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
            results = run(params["jaxpr"], [*operands[:fixed], *carry, *given])
            return results[: carried - fixed], results[carried - fixed :]

        start, given = list(operands[fixed:carried]), list(operands[carried:])
        return sum(jax.lax.scan(one, start, given, params["length"], params["reverse"]), [])
    if name == "while":
        tests = params["cond_nconsts"]
        fixed = tests + params["body_nconsts"]
        return jax.lax.while_loop(
            lambda carry: run(params["cond_jaxpr"], [*operands[:tests], *carry])[0],
            lambda carry: run(params["body_jaxpr"], [*operands[tests:fixed], *carry]),
            list(operands[fixed:]),
        )
    if name == "cond":
        branches = [lambda *given, branch=branch: run(branch, given) for branch in params["branches"]]
        return jax.lax.switch(operands[0], branches, *operands[1:])
    if name in _EXACT or not any(_is_real(var.aval) for var in equation.outvars):
        return _bound(equation, operands)
    if name == "convert_element_type" and jnp.finfo(params["new_dtype"]).eps <= _eps(operands[0]):
        return _bound(equation, operands)
    results, weight = _bound(equation, operands), 1.0
    real = [one for one in operands if _is_real(one)]
    terms = math.prod(one.size for one in real) ** (1 / max(1, len(real))) if name in _SUMS[:2] else 1.0
    if name in _SUMS:  # numbers that cancel in a sum have roundings of their own, and its parts add to them
        terms = max(1.0, terms / max(1, results[0].size) ** (1 / len(real)))
        weight = max(1.0, math.sqrt(terms) / 8)
        around = [_moved(one, salt + np.uint32(7 + i), weight) for i, one in enumerate(operands)]
        results = _bound(equation, around)
    moved = [_moved(one, salt + np.uint32(i), weight) for i, one in enumerate(results)]
    if name not in ("add", "sub", "reduce_sum", "cumsum"):
        moved = [_not_underflown(name, one, real, salt) for one in moved]
    if name not in _WHOLE:
        return moved
    exact, sizes = _bound(equation, operands), [jnp.max(jnp.abs(one), initial=0) for one in real]
    largest = terms * (math.prod(sizes) if name in ("mul", "dot_general") else sum(sizes))
    whole = [jnp.all(one == jnp.round(one)) for one in real]
    small = jnp.all(jnp.stack(whole)) & (largest < 1 / _eps(results[0]))
    return [jnp.where(small, exact[0], moved[0])]


def _not_underflown(name: str, result: Any, operands: Sequence[Any], salt: Array) -> Any:
    """Returns a result moved by the smallest normal number if it is below that and no operand is 0."""
    if not _is_real(result):
        return result
    tiny = jnp.finfo(result.dtype).tiny
    nothing = [(one == 0) | ~jnp.isfinite(one) for one in operands if one.shape == result.shape]
    if name == "reduce_prod":
        nothing = [jnp.any(operands[0] == 0)]
    kept = jnp.any(jnp.stack(nothing), axis=0) if nothing else jnp.zeros((), bool)
    moved = result + ROUNDINGS * tiny * _draw(result + 1, salt)
    return jnp.where((jnp.abs(result) < tiny) & ~kept, moved, result)


def _moved(value: Any, salt: Array, weight: float = 1.0) -> Any:
    """Returns numbers moved by up to `weight` times `ROUNDINGS` of their roundings; others as they are."""
    if not _is_real(value):
        return value
    moved = value * (1 + weight * ROUNDINGS * _eps(value) * _draw(value, salt)).astype(value.dtype)
    return jnp.where(jnp.isfinite(moved), moved, value)


def _draw(value: Array, salt: Array) -> Array:
    """Returns a number from -1 to 1 for each, a hash of its bits and the salt."""
    bits = jax.lax.bitcast_convert_type(value, jnp.dtype(f"uint{8 * value.dtype.itemsize}"))
    mixed = bits.astype(jnp.uint32) if value.dtype.itemsize < 8 else (bits ^ (bits >> 32)).astype(jnp.uint32)
    mixed = (mixed ^ (salt * np.uint32(0x85EBCA6B))) * np.uint32(0x9E3779B1)
    mixed = (mixed ^ (mixed >> 15)) * np.uint32(0xC2B2AE35)
    mixed = mixed ^ (mixed >> 16)
    real = jnp.float64 if value.dtype == jnp.float64 else jnp.float32
    return mixed.astype(real) / 2.0**31 - 1


def _is_real(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.floating)


def _eps(value: Any) -> float:
    return float(jnp.finfo(value.dtype).eps) if _is_real(value) else 0.0
