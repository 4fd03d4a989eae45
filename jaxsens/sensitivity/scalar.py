"""Checks the function f of `flip_sensitivity(..., scalar=f)` before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Int

from jaxsens import inputs
from jaxsens.errors import InputError, Problems
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.engine import Scalar, value_of
from jaxsens.sensitivity.vmap_engine import output_vector

SCALAR = "scalar"
"""What a result calls its norm if a scalar function's change was measured."""

_WANTED = (
    "a function from the model's output, a vector, to one number, such as lambda y: jax.nn.log_softmax(y)[3]"
)


def check_scalar(scalar: Any, norm: Any, outputs: Any, problems: Problems) -> None:
    """Adds the errors of a function that is no function of one argument, cannot be hashed, or excludes an argument."""
    if scalar is None:
        return
    if not callable(scalar) or not inputs.takes(scalar, 1):
        problems.add("scalar", scalar, _WANTED)
    else:
        try:
            hash(scalar)
        except TypeError:
            remedy = "it is not hashable, which compilation requires; wrap it: scalar=lambda y: f(y)"
            problems.add("scalar", type(scalar).__name__, remedy)
    if outputs is not None:
        problems.add("outputs", outputs, "not with scalar, which gets all outputs: lambda y: f(y[outputs])")
    if norm != "l2":
        problems.add("norm", norm, "not with scalar, whose change is a number: leave norm out")


def checked_scalar(subject: Measurable, words: Int[np.ndarray, "batch n"], scalar: Scalar) -> str:
    """Traces f once, and computes it on the output of every input.

    Call it within `numerics(subject.dtype)`, for a model whose output was checked. It costs one forward pass per input.

    Returns:
        The SHA-256 of f's lowered program (StableHLO), with the arrays that f closes over.

    Raises:
        InputError: if f raises an exception, does not return one floating-point number, indexes beyond its vector, or
            returns a number that is not finite.
    """
    parameters = jax.tree.map(jnp.asarray, subject.parameters)
    _check_value(scalar, output := _output(subject.apply, parameters, jnp.asarray(words[0])))
    for k, word in enumerate(words):
        output = _output(subject.apply, parameters, jnp.asarray(word)) if k else output
        value = float(_value(scalar, output))
        if not np.isfinite(value):
            raise InputError(
                f"scalar = {_name(scalar)}: it is {value} for the output of input {k}; give a function that is finite "
                "there, such as jax.nn.log_softmax(y)[k] for jnp.log(jax.nn.softmax(y)[k])"
            )
    return _fingerprint(scalar, output)


def _check_value(scalar: Scalar, output: Array) -> None:
    """Rejects what f returns for an output of this shape and dtype, without computing it; and indices beyond it."""
    size = f"an output of {output.shape[0]} numbers ({output.dtype})"
    try:
        value = jax.eval_shape(scalar, jax.ShapeDtypeStruct(output.shape, output.dtype))
    except Exception as error:
        lines = str(error).strip().splitlines()
        told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise InputError(
            f"scalar = {_name(scalar)}: called on {size} it raised {told}; write it with jax.numpy, as {_WANTED}"
        ) from error
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or value is not leaves[0]:
        raise InputError(f"scalar = {_name(scalar)}: it returns {len(leaves)} arrays; give {_WANTED}")
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(
            f"scalar = {_name(scalar)}: for {size} it returns {value.dtype} of shape {value.shape}; one floating-point "
            f"number is needed, of shape (): give {_WANTED}"
        )
    _check_indices(scalar, output)


def _check_indices(scalar: Scalar, output: Array) -> None:
    try:
        error, _ = checkify.checkify(scalar, errors=checkify.index_checks)(output)
    except Exception:  # noqa: BLE001 - whatever checkify fails with: there are primitives that it has no rule for
        return
    if error.get() is not None:
        first = str(error.get()).splitlines()[0]
        raise InputError(
            f"scalar = {_name(scalar)}: it indexes beyond an array ({first}), which JAX would clamp. The output has "
            f"{output.shape[0]} numbers: use indices from 0 to {output.shape[0] - 1}"
        )


@partial(jax.jit, static_argnums=0)
def _output(apply: Callable[[Any, Any], Any], parameters: Any, tokens: Array) -> Array:
    return output_vector(apply, parameters, tokens)


@partial(jax.jit, static_argnums=0)
def _value(scalar: Scalar, output: Array) -> Array:
    return value_of(scalar, output)


def _fingerprint(scalar: Scalar, output: Array) -> str:
    def program(y: Array) -> Array:  # under this name whatever f's own is, which the lowered text would hold
        return scalar(y)

    lowered = jax.jit(program).lower(jax.ShapeDtypeStruct(output.shape, output.dtype))
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _name(scalar: Scalar) -> str:
    return getattr(scalar, "__name__", None) or repr(scalar)
