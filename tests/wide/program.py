"""Traces a function, and evaluates its program in wider numbers, without compiling anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from jaxsens.base.errors import InputError, no_rule
from tests.wide.control import CALLS, CONTROL, held_programs
from tests.wide.elementwise import CONVERSIONS, ELEMENTWISE
from tests.wide.indexing import INDEXING
from tests.wide.numbers import Arithmetic, Array, Equation, Rule, is_float
from tests.wide.reductions import REDUCTIONS
from tests.wide.structure import STRUCTURE

RULES: dict[str, Rule] = {
    **CONVERSIONS, **ELEMENTWISE, **STRUCTURE, **INDEXING, **REDUCTIONS, **CONTROL
}  # fmt: skip
"""The rule of each primitive, by its name with _ for -."""


@dataclass(frozen=True, eq=False)
class Program:
    """A function traced for arguments of certain shapes and dtypes. Hashable by identity.

    Attributes:
        jaxpr: what was traced, with its constants.
        taken: the structure of its arguments.
        returned: the structure of what it returns.
    """

    jaxpr: ClosedJaxpr
    taken: Any
    returned: Any

    @cached_property
    def operations(self) -> float:
        """The floating-point operations of one evaluation, the same on every machine.

        A product of matrices (m, k) (k, n) counts 2 m k n, a reduction its operand's size, a sort of n numbers
        n log2 n, an elementwise function its result's size, whatever its cost; moving values counts nothing. Of
        branches, the dearest counts. A loop `while` is taken to run `control.WHILE_TRIPS` times.
        """
        return _operations(self.jaxpr.jaxpr)

    @cached_property
    def unsupported(self) -> str | None:
        """The name of the first primitive without a rule, or of a dtype that is not held; None if none."""
        return next(_unsupported(self.jaxpr.jaxpr), None)

    def evaluate(self, arithmetic: Arithmetic, *args: Any) -> Any:
        """Returns what the function returns, as NumPy arrays; floating-point values in the wide numbers.

        Args:
            arithmetic: `FLOAT64`, or `Precise(bits)`.
            args: arguments of the traced structure and shapes. Floats of any width are lifted exactly; arrays of the
                arithmetic's own numbers are taken as they are.

        Raises:
            InputError: if a primitive has no rule, or the arguments are others than those traced.
        """
        return self.given(arithmetic)(*args)

    def given(self, arithmetic: Arithmetic, *first: Any) -> Callable[..., Any]:
        """Returns `evaluate` as a function of the arguments that follow `first`.

        What depends on `first` and constants alone is evaluated now, and held: a model's weights, lifted and stacked.
        `first` itself is not held.

        Raises:
            InputError: as `evaluate` does.
        """
        missing = self.unsupported
        if missing is not None:
            raise no_rule("Program.evaluate", "primitive", missing)
        leaves, run = jax.tree.leaves(first), _Evaluation(arithmetic)
        before, after, held = _split(self.jaxpr, len(leaves))
        shapes = jax.tree.map(lambda leaf: np.broadcast_to(0, np.shape(leaf)), first)

        def lifted(arguments: list[Any], variables: Sequence[Any]) -> list[Array]:
            return [run.taken(*one) for one in zip(arguments, map(_dtype, variables), strict=True)]

        def finished(*rest: Any) -> Any:
            self._check((*shapes, *rest))
            with arithmetic.context(), np.errstate(all="ignore"):
                results = run.run(after, [*known, *lifted(jax.tree.leaves(rest), after.invars[held:])])
            return jax.tree.unflatten(self.returned, results)

        with arithmetic.context(), np.errstate(all="ignore"):
            known = run.run(before, lifted(leaves, before.jaxpr.invars))
        return finished

    def _check(self, args: tuple[Any, ...]) -> None:
        leaves, structure = jax.tree.flatten(args)
        shapes = [np.shape(leaf) for leaf in leaves]
        traced_shapes = [aval.shape for aval in self.jaxpr.in_avals]
        if structure != self.taken or shapes != traced_shapes:
            raise InputError(
                f"args = arrays of shapes {shapes}: the program was traced for {traced_shapes}; give arguments of the "
                "same structure and shapes, or trace the function for these"
            )


def traced(function: Callable[..., Any], *args: Any) -> Program:
    """Returns the program of function(*args), traced in the caller's 64-bit mode (`jaxsens.base.precision.numerics`).

    The arguments are arrays, or `jax.ShapeDtypeStruct`; nothing is computed. What no result depends on is left
    out, also within loops: the log-normalisers of a forward pass, for example, which only other callers read.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    used, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals), instantiate=True)
    jaxpr = closed.replace(jaxpr=used)
    return Program(jaxpr, jax.tree.structure(args), jax.tree.structure(shapes))


@dataclass
class _Evaluation:
    """One evaluation."""

    arithmetic: Arithmetic
    last_uses: dict[Jaxpr, list[list[Any]]] = field(default_factory=dict)

    def taken(self, value: Any, dtype: Any) -> Array:
        """Returns an argument, a constant or a result as it is held: floats wide, everything else as traced.

        What no rule touches is only passed on: the keys of random numbers in a module's state.
        """
        if not _is_held(dtype):
            return value
        if not is_float(dtype):
            return np.asarray(value, dtype)
        array = np.asarray(value)
        return array if array.dtype == self.arithmetic.held else self.arithmetic.lift(array)

    def run(self, program: Any, values: Sequence[Array]) -> list[Array]:
        """Returns the results of a jaxpr, closed or without constants. Values are let go after their last use."""
        closed = isinstance(program, ClosedJaxpr)
        jaxpr = program.jaxpr if closed else program
        constants = program.consts if closed else ()
        known: dict[Any, Array] = dict(zip(jaxpr.invars, values, strict=True))
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self.taken(value, _dtype(variable))
        if jaxpr not in self.last_uses:
            self.last_uses[jaxpr] = _last_uses(jaxpr)
        for equation, finished in zip(jaxpr.eqns, self.last_uses[jaxpr], strict=True):
            operands = [self._read(known, atom) for atom in equation.invars]
            results = self._step(equation, operands)
            for variable, value in zip(equation.outvars, results, strict=True):
                known[variable] = value
            for variable in finished:
                known.pop(variable, None)
        return [self._read(known, atom) for atom in jaxpr.outvars]

    def _read(self, known: dict[Any, Array], atom: Any) -> Array:
        return self.taken(atom.val, _dtype(atom)) if isinstance(atom, Literal) else known[atom]

    def _step(self, equation: Any, operands: list[Array]) -> list[Array]:
        out = tuple(variable.aval for variable in equation.outvars)
        step = Equation(
            self.arithmetic, equation.params, tuple(atom.aval for atom in equation.invars), out, self.run
        )
        found = RULES[rule_name(equation)](step, *operands)
        results = found if isinstance(found, list) else [found]
        return [self.taken(value, aval.dtype) for value, aval in zip(results, out, strict=True)]


def _split(closed: ClosedJaxpr, first: int) -> tuple[ClosedJaxpr, Jaxpr, int]:
    """Returns the part of a jaxpr that its constants and the first invars determine, and the rest.

    The rest takes some results of the part, whose number is returned too, before the other invars.
    """
    jaxpr = closed.jaxpr
    fixed = {*jaxpr.constvars, *jaxpr.invars[:first]}
    before, after = [], []
    for equation in jaxpr.eqns:
        if all(isinstance(atom, Literal) or atom in fixed for atom in equation.invars):
            fixed.update(equation.outvars)
            before.append(equation)
        else:
            after.append(equation)
    read = [atom for equation in after for atom in equation.invars] + list(jaxpr.outvars)
    shared = list(dict.fromkeys(atom for atom in read if not isinstance(atom, Literal) and atom in fixed))
    names = jaxpr.debug_info.with_unknown_names()
    part = jaxpr.replace(invars=jaxpr.invars[:first], outvars=shared, eqns=before, debug_info=names)
    invars = [*shared, *jaxpr.invars[first:]]
    rest = jaxpr.replace(constvars=[], invars=invars, eqns=after, debug_info=names)
    return closed.replace(jaxpr=part), rest, len(shared)


def rule_name(equation: Any) -> str:
    """Returns the name under which an equation's primitive has its rule."""
    return equation.primitive.name.replace("-", "_")


def _inner(program: Any) -> Jaxpr:
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program


def _last_uses(jaxpr: Jaxpr) -> list[list[Any]]:
    """Returns, for each equation, the variables that nothing after it reads."""
    later = {id(atom) for atom in jaxpr.outvars}
    found: list[list[Any]] = []
    for equation in reversed(jaxpr.eqns):
        finished = []
        for atom in (*equation.invars, *equation.outvars):
            if not isinstance(atom, Literal) and id(atom) not in later:
                later.add(id(atom))
                finished.append(atom)
        found.append(finished)
    return found[::-1]


def _unsupported(jaxpr: Jaxpr) -> Iterator[str]:
    for equation in jaxpr.eqns:
        name = rule_name(equation)
        if name not in RULES:
            yield equation.primitive.name
        for atom in () if name in CALLS else (*equation.invars, *equation.outvars):
            dtype = getattr(atom.aval, "dtype", None)
            if dtype is None or not _is_held(dtype):
                yield f"{equation.primitive.name} of {dtype}"
        for program, _ in held_programs(name, equation.params):
            yield from _unsupported(_inner(program))


def _dtype(variable: Any) -> Any:
    return variable.aval.dtype


@lru_cache(maxsize=64)
def _is_held(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def _operations(jaxpr: Jaxpr) -> float:
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: Any) -> float:
    name, first = rule_name(equation), [atom.aval for atom in equation.invars[:1]]
    held = [(_operations(_inner(program)), trips) for program, trips in held_programs(name, equation.params)]
    if name == "cond":
        return max(count for count, _ in held)
    if held:
        return float(sum(count * trips for count, trips in held))
    out = equation.outvars[0].aval
    if not is_float(out.dtype) and not (first and is_float(first[0].dtype)):
        return 0.0
    if name == "dot_general":
        summed = math.prod(first[0].shape[axis] for axis in equation.params["dimension_numbers"][0][0])
        return 2.0 * math.prod(out.shape) * summed
    if name in ("sort", "top_k"):
        count = math.prod(first[0].shape)
        return count * math.log2(max(count, 2))
    if name in REDUCTIONS:
        return float(math.prod(first[0].shape))
    return float(math.prod(out.shape)) if name in ELEMENTWISE or name in CONVERSIONS else 0.0
