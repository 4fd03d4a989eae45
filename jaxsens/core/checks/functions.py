"""Checks the function f of a measure (`Function`, `Comparison`) on the model's outputs, before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Int

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import compiled
from jaxsens.core.engines.vmap import compiled_output
from jaxsens.core.measures import Measure
from jaxsens.core.measures.formulas import value_of
from jaxsens.core.models.subjects.adapters import Measurable


def checked_function(measure: Measure, subject: Measurable, words: Int[np.ndarray, "batch n"]) -> str:
    """Traces f once, and computes it on the output of every input, which takes the place of that of a flipped one too.

    Call it within `numerics(subject.dtype)`, for a model whose output was checked. It costs one forward pass per input.

    Returns:
        The SHA-256 of f's lowered program (StableHLO), with the arrays that f closes over.

    Raises:
        InputError: if f raises an exception, does not return one floating-point number, indexes beyond its vector, or
            returns a number that is not finite.
    """
    checked, function = _Checked(measure), measure.function
    checked.check_value(output := _output(subject, words[0]))
    for k, word in enumerate(words):
        output = _output(subject, word) if k else output
        value = float(_value(function, measure.arguments, output))
        if not np.isfinite(value):
            raise InputError(
                f"{checked}: it is {value} for the output of input {k}; give a function that is finite there, such as "
                "jax.nn.log_softmax(y)[k] for jnp.log(jax.nn.softmax(y)[k])"
            )
    return _fingerprint(function, measure.arguments, output)


@dataclass(frozen=True)
class _Checked:
    """A measure of a function; as a string, how messages begin."""

    measure: Measure

    def __str__(self) -> str:
        return f"measure = {self.measure}"

    def check_value(self, output: Array) -> None:
        """Rejects what f returns for outputs of this shape and dtype, without computing it; and indices beyond it."""
        size = f"an output of {output.shape[0]} numbers ({output.dtype})"
        given = [jax.ShapeDtypeStruct(output.shape, output.dtype)] * self.measure.arguments
        try:
            value = jax.eval_shape(self.measure.function, *given)
        except InputError:  # of a function of jaxsens, which says what it needs
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            raise InputError(
                f"{self}: called on {size} it raised {told}; write it with jax.numpy, as {self.measure.form}"
            ) from error
        leaves = jax.tree.leaves(value)
        if len(leaves) != 1 or value is not leaves[0]:
            raise InputError(f"{self}: it returns {len(leaves)} arrays; give {self.measure.form}")
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(
                f"{self}: for {size} it returns {value.dtype} of shape {value.shape}; one floating-point number is "
                f"needed, of shape (): give {self.measure.form}"
            )
        self._check_indices(output)

    def _check_indices(self, output: Array) -> None:
        given = [output] * self.measure.arguments
        try:
            error, _ = checkify.checkify(self.measure.function, errors=checkify.index_checks)(*given)
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
