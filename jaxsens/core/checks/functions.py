"""Checks the function f of a measure (`Function`, `Comparison`) by tracing it, before anything is measured."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Float

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import kept
from jaxsens.core.measures import Measure


def checked_function(measure: Measure, shape: tuple[int, ...], dtype: str) -> str:
    """Traces f for outputs of this shape and dtype, once, and compares its indices with the output's length.

    f is not computed for the model's outputs: a value that is not finite is found in the result (`check_finite`).

    Returns:
        The SHA-256 of f's lowered program (StableHLO), with the arrays that f closes over.

    Raises:
        InputError: if f raises an exception, does not return one floating-point number, or indexes beyond its vector.
    """
    return _digest(measure, shape or (1,), dtype, jnp.result_type(float) == jnp.float64)


def unflipped_value(measure: Measure, output: Float[np.ndarray, " outputs"]) -> float | None:
    """Returns the value of `measure.unflipped` of the outputs that are measured; None if the measure has none.

    Raises:
        InputError: for a function that is not finite there.
    """
    value = measure.scale(output)
    if measure.function is not None and value is not None and not math.isfinite(value):
        raise InputError(
            f"measure = {measure}: it is {value} for the output of input 0; give a function that is finite there, such "
            "as jax.nn.log_softmax(y)[k] for jnp.log(jax.nn.softmax(y)[k])"
        )
    return value


@kept
def _digest(measure: Measure, shape: tuple[int, ...], dtype: str, wide: bool) -> str:
    function: Any = measure.function
    name, size = f"measure = {measure}", f"an output of {shape[0]} numbers ({dtype})"
    outputs, form = [jax.ShapeDtypeStruct(shape, dtype)] * measure.arguments, measure.form

    def program(*given: Any) -> Any:  # under this name whatever f's own is, which the lowered text would hold
        return function(*given)

    try:
        traced = jax.jit(program).trace(*outputs)
    except InputError:  # of a function of jaxsens, which says what it needs
        raise
    except Exception as error:
        message = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise InputError(
            f"{name}: called on {size} it raised {message}; write it with jax.numpy, as {form}"
        ) from error
    values, structure = jax.tree.flatten(traced.out_info)
    number = structure == jax.tree.structure(0) and values[0].shape == ()
    if not number or not jnp.issubdtype(values[0].dtype, jnp.floating):
        returned = ", ".join(f"{value.dtype} of shape {value.shape}" for value in values)
        raise InputError(
            f"{name}: for {size} it returns {returned or 'nothing'}; one floating-point number is needed, of shape (): "
            f"give {form}"
        )
    try:
        checked = checkify.checkify(function, errors=checkify.index_checks)
        beyond = checked(*[jnp.zeros(shape, dtype)] * len(outputs))[0].get()
    except Exception:  # noqa: BLE001 - there are primitives that checkify has no rule for
        beyond = None
    if beyond is not None:
        raise InputError(
            f"{name}: it indexes beyond an array ({beyond.splitlines()[0]}), which JAX would clamp. The output has "
            f"{shape[0]} numbers: use indices from 0 to {shape[0] - 1}"
        )
    return hashlib.sha256(traced.lower().as_text().encode()).hexdigest()
