"""Checks the function f of `flip_sensitivity(..., scalar=f)` or `change=f` before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Int

from jaxsens import inputs
from jaxsens.errors import InputError, Problems
from jaxsens.programs import compiled
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.engine import value_of
from jaxsens.sensitivity.vmap_engine import compiled_output


@dataclass(frozen=True)
class FunctionArgument:
    """An argument of `flip_sensitivity` that is a function of outputs.

    Attributes:
        name: the argument's name, and what a result calls its norm if the function was measured.
        outputs: the number of outputs that the function gets, each a vector.
        wanted: what to give.
        wrapped: how to write it as a function that can be hashed.
        chosen: how to choose outputs in it.
    """

    name: str
    outputs: int
    wanted: str
    wrapped: str
    chosen: str


SCALAR = FunctionArgument(
    "scalar",
    1,
    "a function from the model's output, a vector, to one number, such as lambda y: jax.nn.log_softmax(y)[3]",
    "lambda y: f(y)",
    "lambda y: f(y[outputs])",
)
CHANGE = FunctionArgument(
    "change",
    2,
    "a function from the model's output and that of the flipped input, two vectors, to one number, such as "
    "lambda y, new: jnp.abs(new - y)[3]",
    "lambda y, new: f(y, new)",
    "lambda y, new: f(y[outputs], new[outputs])",
)

FUNCTIONS = (SCALAR, CHANGE)

SIGNED = tuple(argument.name for argument in FUNCTIONS)
"""What results call their norm if they have signed `changes`."""


def check_functions(scalar: Any, change: Any, norm: Any, outputs: Any, problems: Problems) -> None:
    """Adds the errors of functions that take other arguments, cannot be hashed, or exclude an argument."""
    if scalar is not None and change is not None:
        problems.add("change", change, "not with scalar: measure one of the two")
    for argument, function in zip(FUNCTIONS, (scalar, change), strict=True):
        if function is not None:
            _check_function(argument, function, norm, outputs, problems)


def _check_function(
    argument: FunctionArgument, function: Any, norm: Any, outputs: Any, problems: Problems
) -> None:
    name = argument.name
    if not callable(function) or not inputs.takes(function, argument.outputs):
        problems.add(name, function, argument.wanted)
    else:
        try:
            hash(function)
        except TypeError:
            remedy = f"it is not hashable, which compilation requires; wrap it: {name}={argument.wrapped}"
            problems.add(name, type(function).__name__, remedy)
    if outputs is not None:
        problems.add("outputs", outputs, f"not with {name}, which gets all outputs: {argument.chosen}")
    if norm != "l2":
        problems.add("norm", norm, f"not with {name}, which is measured instead: leave norm out")


def checked_function(
    argument: FunctionArgument,
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    function: Callable[..., Array],
) -> str:
    """Traces f once, and computes it on the output of every input, which takes the place of that of a flipped one too.

    Call it within `numerics(subject.dtype)`, for a model whose output was checked. It costs one forward pass per input.

    Returns:
        The SHA-256 of f's lowered program (StableHLO), with the arrays that f closes over.

    Raises:
        InputError: if f raises an exception, does not return one floating-point number, indexes beyond its vector, or
            returns a number that is not finite.
    """
    checked = _Checked(argument, function)
    checked.check_value(output := _output(subject, words[0]))
    for k, word in enumerate(words):
        output = _output(subject, word) if k else output
        value = float(_value(function, argument.outputs, output))
        if not np.isfinite(value):
            raise InputError(
                f"{checked}: it is {value} for the output of input {k}; give a function that is finite there, such as "
                "jax.nn.log_softmax(y)[k] for jnp.log(jax.nn.softmax(y)[k])"
            )
    return _fingerprint(function, argument.outputs, output)


@dataclass(frozen=True)
class _Checked:
    """A function and the argument that it was given as; as a string, how messages begin."""

    argument: FunctionArgument
    function: Callable[..., Array]

    def __str__(self) -> str:
        return f"{self.argument.name} = {getattr(self.function, '__name__', None) or repr(self.function)}"

    def check_value(self, output: Array) -> None:
        """Rejects what f returns for outputs of this shape and dtype, without computing it; and indices beyond it."""
        wanted = self.argument.wanted
        size = f"an output of {output.shape[0]} numbers ({output.dtype})"
        given = [jax.ShapeDtypeStruct(output.shape, output.dtype)] * self.argument.outputs
        try:
            value = jax.eval_shape(self.function, *given)
        except InputError:  # of a function of jaxsens, which says what it needs
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            raise InputError(
                f"{self}: called on {size} it raised {told}; write it with jax.numpy, as {wanted}"
            ) from error
        leaves = jax.tree.leaves(value)
        if len(leaves) != 1 or value is not leaves[0]:
            raise InputError(f"{self}: it returns {len(leaves)} arrays; give {wanted}")
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(
                f"{self}: for {size} it returns {value.dtype} of shape {value.shape}; one floating-point number is "
                f"needed, of shape (): give {wanted}"
            )
        self._check_indices(output)

    def _check_indices(self, output: Array) -> None:
        given = [output] * self.argument.outputs
        try:
            error, _ = checkify.checkify(self.function, errors=checkify.index_checks)(*given)
        except Exception:  # noqa: BLE001 - whatever checkify fails with: there are primitives that it has no rule for
            return
        if error.get() is not None:
            first = str(error.get()).splitlines()[0]
            raise InputError(
                f"{self}: it indexes beyond an array ({first}), which JAX would clamp. The output has "
                f"{output.shape[0]} numbers: use indices from 0 to {output.shape[0] - 1}"
            )


def _output(subject: Measurable, word: Int[np.ndarray, " n"]) -> Array:
    return jnp.asarray(compiled_output(subject.apply, subject.parameters, word))


@compiled(static=2)
def _value(function: Callable[..., Array], outputs: int, output: Array) -> Array:
    return value_of(lambda y: function(*[y] * outputs), output)


def _fingerprint(function: Callable[..., Array], outputs: int, output: Array) -> str:
    def program(
        *given: Array,
    ) -> Array:  # under this name whatever f's own is, which the lowered text would hold
        return function(*given)

    shape = jax.ShapeDtypeStruct(output.shape, output.dtype)
    return hashlib.sha256(jax.jit(program).lower(*[shape] * outputs).as_text().encode()).hexdigest()
