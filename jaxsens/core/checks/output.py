"""Checks a model's output before anything is measured: one vector, or rows of which one is read out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxtyping import Int

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.memory import check_fits
from jaxsens.core.base.programs import kept
from jaxsens.core.checks.index_check import check_words
from jaxsens.core.engines.vmap import compiled_output
from jaxsens.core.measures import Measure
from jaxsens.core.models.subjects.adapters import RANDOM_OUTPUT, Measurable
from jaxsens.core.models.subjects.model_problems import check_is_array, raised

Shape = tuple[int, ...]

_LONG = 2**13
"""The length from which on a model's arrays are counted before it is run."""


@dataclass(frozen=True)
class RowApply:
    """A model that returns rows (n, d), and their readout: a row, "last", or "mean"."""

    apply: Callable[[Any, Any], Any]
    readout: int | str

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The vector (d,) that is read out."""
        return _read(self.apply(parameters, tokens), self.readout)


@dataclass(frozen=True)
class OneArray:
    """A model that must return one array or number."""

    apply: Callable[[Any, Any], Any]

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """Returns the output after checking that it is an array."""
        output = self.apply(parameters, tokens)
        check_is_array(output)
        return output


@dataclass(frozen=True)
class Many:
    """A model on several inputs, in a program for several devices, as engines run it."""

    apply: Callable[[Any, Any], Any]

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The outputs."""
        everywhere, mesh = PartitionSpec(), AbstractMesh((1,), ("flips",), axis_types=(AxisType.Auto,))
        many = jax.vmap(self.apply, in_axes=(None, 0))
        spread = jax.shard_map(
            many, mesh=mesh, in_specs=(everywhere, everywhere), out_specs=everywhere, check_vma=False
        )
        return spread(parameters, jnp.stack([tokens, tokens]))


def checked_output(
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    measure: Measure,
    longer: int = 0,
    before: Callable[[Measurable], None] = lambda subject: None,
) -> tuple[Measurable, str, np.ndarray | None]:
    """Calls a user's model twice on the first input, and traces it once.

    A jaxsens transformer is not called: it is known to be a pure function that returns one vector. A `Layered` is
    called once, compiled. `longer` is by how much flips make a word longer: the model is traced on an input of that
    length too. `before` is called with the model as measured, before it is run.

    Returns:
        The model as measured, which returns a vector or a number and whose `readout` is determined; the dtype of its
        output; and the output on the first input, None if the model was not called.

    Raises:
        InputError: with the remedy, for an output that is not finite, differs between the calls, is not a vector, or
            grows with n; and for outputs that it lacks, or too few for the measure.
    """
    if subject.config is not None:
        measure.check(subject.config.logits or subject.config.width, subject.outputs)
        before(subject)
        return subject, subject.config.dtype, None
    if subject.torch is not None:
        for word in (words[0], _lengthened(words[0], longer)):
            subject.torch.learn(word)
    subject, shape, dtype = traced_output(subject, words.shape[1])
    n, after = words.shape[1], words.shape[1] + longer
    if after != n and (other := _abstract_output(subject, after)[0]) != shape:
        raise InputError(
            f"flips, which change the length: the model returns shape {shape} for inputs of length {n} and "
            f"{other} for length {after}; it must be the same"
        )
    measure.check(int(np.prod(shape)), subject.outputs)
    _check_runs(subject, max(n, after))
    before(subject)
    if (
        subject.given_layers is not None
        and _traced(OneArray(subject.apply), subject, n).dtype.kind not in "fV"
    ):
        raise InputError(
            "model: what it reads out are integers; let `read` return floats, as .astype(jnp.float32)"
        )
    if subject.given_layers is not None:  # a pure function of its parameters, by its protocol
        check_words(subject, words, "tokens")
        output = compiled_output(subject.apply, subject.parameters, words[0])
        _check_values(output.reshape(shape), output.reshape(shape), shape)
        return subject, dtype, output
    first, second = _called_twice(subject, words[0])
    check_words(subject, words, "tokens")
    _check_values(first, second, shape)
    return subject, dtype, np.atleast_1d(first)


def _lengthened(word: Int[np.ndarray, " n"], by: int) -> Int[np.ndarray, " m"]:
    """Returns a word of another length, with copies of the symbol in the middle added, or that symbol deleted."""
    middle = len(word) // 2
    return np.delete(word, middle) if by < 0 else np.insert(word, middle, np.full(by, word[middle]))


def traced_output(subject: Measurable, n: int) -> tuple[Measurable, Shape, str]:
    """Returns a user's model as measured, its `readout` determined, with the shape and dtype of its output.

    Nothing is computed. Call it within `numerics(subject.dtype)`. Raises as `checked_output` does.
    """
    shape, dtype = _abstract_output(subject, n)
    if len(shape) > 1:
        subject = _reading_rows(subject, shape, n)
        shape = shape[1:]
    elif len(shape) == 1 and _grows(subject, shape, n):
        raise InputError(
            f"model: its output has one entry per position (shape {shape} at n = {n}). If the model takes a batch "
            "(batch, n), give it a batch axis: lambda tokens: model(tokens[None])[0]; otherwise select an entry, as "
            "lambda tokens: model(tokens)[-1]"
        )
    if 0 in shape:
        raise InputError(f"model: its output is empty (shape {shape}); return the values to measure")
    if subject.mesh is None:  # else the parameters have a mesh of their own
        _traced(Many(subject.apply), subject, n)
    if subject.readout == "auto":
        subject = dataclasses.replace(subject, readout="last")
    return subject, shape, dtype


def check_finite(measured: np.ndarray, positions: np.ndarray, measure: Measure) -> None:
    """Rejects a model for which what was measured is not finite. `positions` are the flips'."""
    bad = ~np.isfinite(measured)
    if bad.any():
        what, remedy = measure.finite
        raise InputError(
            f"model: {what} is not finite under {int(bad.sum())} of {len(measured)} flips, first at position "
            f"{int(positions[np.argmax(bad)])}; use float64, or smaller weights{remedy}"
        )


def _reading_rows(subject: Measurable, shape: Shape, n: int) -> Measurable:
    """Turns a model that returns rows into one that returns the vector read out of them."""
    if len(shape) != 2 or shape[0] != n or not _grows(subject, shape, n, unknown=True):
        inner = "model(tokens)[0]" if shape[0] == 1 else "model(tokens)[-1]"
        raise InputError(
            f"model: its output has shape {shape}; a vector or a number is needed, or a row for each of the {n} "
            "positions. If the model takes a batch (batch, n): lambda tokens: model(tokens[None])[0]; otherwise select "
            f"the values to measure, as lambda tokens: {inner}"
        )
    if subject.readout == "auto":
        raise InputError(
            f'readout = "auto": the model returns a row for each position (shape {shape}) and does not say '
            'which is read out; give readout="last", readout=0 (a leading [CLS] symbol) or another position, or '
            'readout="mean". If the first axis is a batch: lambda tokens: model(tokens[None])[0]'
        )
    if subject.readout is None:
        raise InputError(
            f"readout = None: the model returns a row for each position (shape {shape}); None is for models that "
            'return one vector. Give a position, "last" or "mean", or lambda tokens: model(tokens).ravel() for all rows'
        )
    call, readout = subject.call, subject.readout
    return dataclasses.replace(
        subject, apply=RowApply(subject.apply, readout), call=lambda tokens: _read(call(tokens), readout)
    )


def _read(rows: Any, readout: int | str) -> Any:
    if readout == "mean":
        return jnp.mean(rows, axis=0)
    return rows[-1 if readout == "last" else readout]


def _grows(subject: Measurable, shape: Shape, n: int, unknown: bool = False) -> bool:
    """Returns whether the first axis of an output grows with the input's length; `unknown` if no other length works.

    A model for a single input length has a single output size.
    """
    if shape[0] != n or (n <= 2 and not unknown):  # two logits at n = 2 are not two positions
        return False
    try:
        other = _abstract_output(subject, n - 1 if n > 2 else n + 1)[0]
    except InputError:
        return unknown
    return other != shape


def _check_runs(subject: Measurable, n: int) -> None:
    """Rejects a long input on which the model makes an array that does not fit in this machine's memory.

    Only the arrays that it makes one after the other when it is called count, not those within a compiled function:
    the compiler may leave those out.
    """
    if n < _LONG or subject.torch is not None or subject.given_layers is not None:
        return
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        jax.tree.map(jnp.asarray, subject.parameters),
    )
    program = jax.make_jaxpr(subject.apply)(shapes, jax.ShapeDtypeStruct((n,), jnp.int32)).jaxpr
    made = [value.aval for equation in program.eqns for value in equation.outvars]
    arrays: list[Any] = [one for one in made if hasattr(one, "dtype")]
    if not arrays:
        return
    largest = max(arrays, key=lambda one: one.size * one.dtype.itemsize)
    with collecting("flip_sensitivity") as problems:
        what = f"an array {largest.shape} of {largest.dtype}, which the model makes of it,"
        needed = largest.size * largest.dtype.itemsize
        check_fits("tokens", f"length {n}", needed, what, "give a shorter input", problems)


def _called_twice(subject: Measurable, word: Int[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    tokens = jnp.asarray(word)
    try:
        outputs = subject.call(tokens), subject.call(tokens)
        if isinstance(outputs[0], Tracer):
            raise InputError(
                "model: it holds values that are being traced: call this outside jit, vmap and grad; it compiles what "
                "it runs"
            )
        return np.asarray(outputs[0]), np.asarray(outputs[1])
    except InputError:
        raise
    except Exception as error:
        raise InputError(raised(error, len(word))) from error


def _check_values(first: np.ndarray, second: np.ndarray, shape: Shape) -> None:
    if not np.all(np.isfinite(first)):
        raise InputError(
            "model: its output on the first input is not finite; check the weights and the input"
        )
    if not np.array_equal(first, second):
        raise InputError(RANDOM_OUTPUT)
    if shape != first.shape:
        raise InputError(
            f"model: it returns shape {first.shape} when called and {shape} when compiled; make it a pure function"
        )


def _abstract_output(subject: Measurable, n: int) -> tuple[Shape, str]:
    """Returns the shape and dtype of the output, by tracing."""
    result = _traced(OneArray(subject.apply), subject, n)
    return result.shape, str(jnp.promote_types(result.dtype, jnp.float32))


def _traced(function: Callable[[Any, Any], Any], subject: Measurable, n: int) -> Any:
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, subject.parameters))
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    try:
        return _shape_of(function, structure, shapes, n, jnp.result_type(float) == jnp.float64)
    except InputError:
        raise
    except Exception as error:
        raise InputError(raised(error, n)) from error


@kept
def _shape_of(
    function: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> Any:
    """Returns the shape and dtype of a function's result. `wide` (64-bit types are on) is part of the cache key."""
    parameters = jax.tree.unflatten(structure, shapes)
    return jax.eval_shape(function, parameters, jax.ShapeDtypeStruct((n,), jnp.int32))
