"""Traces a function, and evaluates its program in numbers of any width, without compiling anything.

It has rules for the primitives of the package's transformers in float64, and names any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from tools.wide.numbers import FUNCTIONS, LARGER, Precise

Array = np.ndarray


@dataclass(frozen=True)
class Step:
    """One equation of a program: its numbers, parameters, the shapes and dtypes of operands and results."""

    numbers: Precise
    params: dict[str, Any]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    run: Callable[[Any, Sequence[Array]], list[Array]]

    def held(self, out: Any) -> Any:
        """The dtype in which a result of this shape and dtype is held."""
        return object if is_float(out.dtype) else out.dtype


@dataclass(frozen=True, eq=False)
class Program:
    """A function traced for arguments of certain shapes and dtypes, and the structure of what it returns."""

    jaxpr: ClosedJaxpr
    returned: Any

    @property
    def unsupported(self) -> str | None:
        """The name of the first primitive without a rule; None if none."""
        return next(_unsupported(self.jaxpr.jaxpr), None)

    def evaluate(self, numbers: Precise, *args: Any) -> Any:
        """Returns what the function returns, as NumPy arrays; floating-point values in the wide numbers."""
        with numbers.context(), np.errstate(all="ignore"):
            return jax.tree.unflatten(self.returned, _run(numbers, self.jaxpr, jax.tree.leaves(args)))


def traced(function: Callable[..., Any], *args: Any) -> Program:
    """Returns the program of function(*args), traced in the caller's 64-bit mode, without what it makes for nobody."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    used, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return Program(closed.replace(jaxpr=used), jax.tree.structure(shapes))


def is_float(dtype: Any) -> bool:
    """Returns whether a dtype is one of floating-point numbers."""
    return bool(jnp.issubdtype(dtype, np.floating))


def _held(numbers: Precise, value: Any, variable: Any) -> Array:
    dtype = variable.aval.dtype
    return numbers.lift(value) if is_float(dtype) else np.asarray(value, dtype)


def _run(numbers: Precise, program: Any, values: Sequence[Any]) -> list[Array]:
    jaxpr, constants = (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
    known: dict[Any, Array] = {
        variable: _held(numbers, value, variable)
        for variable, value in zip((*jaxpr.invars, *jaxpr.constvars), (*values, *constants), strict=True)
    }

    def read(atom: Any) -> Array:
        return _held(numbers, atom.val, atom) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands, results = (
            tuple(atom.aval for atom in atoms) for atoms in (equation.invars, equation.outvars)
        )
        step = Step(numbers, equation.params, operands, results, partial(_run, numbers))
        found = RULES[equation.primitive.name](step, *map(read, equation.invars))
        for variable, value in zip(
            equation.outvars, found if isinstance(found, list) else [found], strict=True
        ):
            known[variable] = _held(numbers, value, variable)
    return [read(atom) for atom in jaxpr.outvars]


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "scan": "jaxpr"}
"""The parameter that holds the program, of primitives that have one."""


def _unsupported(jaxpr: Jaxpr) -> Iterator[str]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name not in RULES or (name in ONE_OPERAND and len(equation.invars) > 1):
            yield name
        elif name in CALLS:
            inner = equation.params[CALLS[name]]
            yield from _unsupported(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


ONE_OPERAND = ("sort",)


def _elementwise(name: str, step: Step, *values: Array) -> Array:
    return (FUNCTIONS if is_float(step.operands[0].dtype) else WHOLE)[name](*values)


WHOLE: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "not": np.bitwise_not,
    "sign": np.sign,
}
"""The functions of integers and booleans."""

COMPARISONS: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _compared(name: str, _: Step, *values: Array) -> Array:
    return np.asarray(COMPARISONS[name](*values), bool)


def _convert(step: Step, x: Array) -> Array:
    before, after = step.operands[0].dtype, step.params["new_dtype"]
    if not is_float(before):
        return step.numbers.lift(x) if is_float(after) else x.astype(after)
    if not is_float(after) or jnp.finfo(after).nmant < jnp.finfo(before).nmant:
        raise LookupError(f"no rule for a conversion of {before} to {after}")
    return x


def _power(step: Step, x: Array, y: Any) -> Array:
    return np.power(x, step.numbers.lift(y))


def _select(_: Step, which: Array, *cases: Array) -> Array:
    return np.choose(which.astype(int), cases)


def _broadcast(step: Step, x: Array) -> Array:
    shape, own = step.results[0].shape, [1] * len(step.results[0].shape)
    for axis, place in enumerate(step.params["broadcast_dimensions"]):
        own[place] = x.shape[axis]
    return np.broadcast_to(x.reshape(own), shape)


def _own_shape(step: Step, x: Array) -> Array:
    return x.reshape(step.results[0].shape)


def _iota(step: Step) -> Array:
    out, axis = step.results[0], step.params["dimension"]
    own = [-1 if k == axis else 1 for k in range(len(out.shape))]
    return np.broadcast_to(np.arange(out.shape[axis]).reshape(own), out.shape)


def _slice(step: Step, x: Array) -> Array:
    first, last = step.params["start_indices"], step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * x.ndim
    return x[tuple(slice(*one) for one in zip(first, last, strides, strict=True))]


def _gather(step: Step, x: Array, indices: Array) -> Array:
    """Of windows that all lie within x."""
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    shape = [size for axis, size in enumerate(sizes) if axis not in dropped]
    taken = np.empty((*indices.shape[:-1], *shape), x.dtype)
    for place in np.ndindex(*indices.shape[:-1]):
        start = [0] * x.ndim
        for k, axis in enumerate(numbers.start_index_map):
            start[axis] = int(indices[place][k])
        for axis, along in zip(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
        ):
            start[axis] = place[along]
        if any(not 0 <= s <= n - size for s, n, size in zip(start, x.shape, sizes, strict=True)):
            raise LookupError(f"no rule for an index out of range: {start} in {x.shape}")
        taken[place] = x[tuple(slice(s, s + size) for s, size in zip(start, sizes, strict=True))].reshape(
            shape
        )
    batch = [axis for axis in range(taken.ndim) if axis not in numbers.offset_dims]
    return taken.transpose(np.argsort([*batch, *numbers.offset_dims]))


def _reduced(ufunc: Any, step: Step, x: Array) -> Array:
    axes = step.params["axes"]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    return ufunc.reduce(x.transpose(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), -1), axis=-1)


def _argmax(step: Step, x: Array) -> Array:
    (axis,) = step.params["axes"]
    return np.asarray(np.argmax(x, axis=axis))


def _cumulative(step: Step, x: Array) -> Array:
    axis, reverse = step.params["axis"], step.params["reverse"]
    result = np.add.accumulate(np.flip(x, axis) if reverse else x, axis=axis)
    return np.flip(result, axis) if reverse else result


def _dot(step: Step, x: Array, y: Array) -> Array:
    """Any `dot_general` of floats, as products of matrices (batch, m, k) (batch, k, n)."""
    (x_summed, y_summed), (x_batch, y_batch) = step.params["dimension_numbers"]
    x_own = [axis for axis in range(x.ndim) if axis not in (*x_summed, *x_batch)]
    y_own = [axis for axis in range(y.ndim) if axis not in (*y_summed, *y_batch)]
    batch, count = (math.prod(x.shape[axis] for axis in axes) for axes in (x_batch, x_summed))
    rows = x.transpose(*x_batch, *x_own, *x_summed).reshape(batch, -1, count)
    columns = y.transpose(*y_batch, *y_summed, *y_own).reshape(batch, count, -1)
    return np.matmul(rows, columns).reshape(step.results[0].shape)


def _scan(step: Step, *values: Array) -> list[Array]:
    """What is scanned has one axis more than in the body: versions of jax say it in different parameters."""
    body, length = step.params["jaxpr"], step.params["length"]
    scanned, stacked = (
        sum(len(one.shape) > len(own.shape) for one, own in zip(outer, inner, strict=True))
        for outer, inner in ((step.operands, body.in_avals), (step.results, body.out_avals))
    )
    carried = len(step.results) - stacked
    fixed, rest = values[: len(values) - carried - scanned], values[len(values) - carried - scanned :]
    carry, given = list(rest[:carried]), rest[carried:]
    collected = [np.empty(out.shape, step.held(out)) for out in step.results[carried:]]
    for k in reversed(range(length)) if step.params["reverse"] else range(length):
        results = step.run(body, [*fixed, *carry, *(np.asarray(x[k], x.dtype) for x in given)])
        carry = results[:carried]
        for whole, one in zip(collected, results[carried:], strict=True):
            whole[k] = one
    return [*carry, *collected]


def _called(name: str, step: Step, *values: Array) -> list[Array]:
    return step.run(step.params[CALLS[name]], values)


RULES: dict[str, Callable[..., Any]] = {
    **{name: partial(_elementwise, name) for name in {**FUNCTIONS, **WHOLE}},
    **{name: partial(_compared, name) for name in COMPARISONS},
    **{name: partial(_called, name) for name in CALLS},
    "scan": _scan,
    "convert_element_type": _convert,
    "pow": _power,
    "integer_pow": lambda step, x: _power(step, x, step.params["y"]),
    "select_n": _select,
    "stop_gradient": lambda step, x: x,
    "optimization_barrier": lambda step, *values: list(values),
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _own_shape),
    "transpose": lambda step, x: x.transpose(step.params["permutation"]),
    "rev": lambda step, x: np.flip(x, step.params["dimensions"]),
    "concatenate": lambda step, *values: np.concatenate(values, step.params["dimension"]),
    "stack": lambda step, *values: np.stack(values, step.params["axis"]),
    "iota": _iota,
    "slice": _slice,
    "gather": _gather,
    "reduce_sum": partial(_reduced, np.add),
    "reduce_max": partial(_reduced, LARGER),
    "reduce_or": partial(_reduced, np.logical_or),
    "argmax": _argmax,
    "cumsum": _cumulative,
    "sort": lambda step, x: np.sort(x, step.params["dimension"]),
    "dot_general": _dot,
}
"""The rule of each primitive: what it returns for (step, *operands)."""
