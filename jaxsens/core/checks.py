"""Checks that run a model before it is measured: it is one function of its input, alone and in batches, its output can
be measured, and it reads within its arrays. The function f of a measure (`Function`, `Comparison`) is traced.

JAX clamps or drops an index beyond an array without a word. `jax.experimental.checkify` compares every index with its
axis while the model runs on a few words. One program checks all words, and computes only what indices depend on.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import math
import re
import warnings
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import checkify
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import InputError, UnchangedWarning, check_fits, collecting
from jaxsens.core.base.nudged import inlined, nudged, salts
from jaxsens.core.base.programs import abstract_of, as_arrays, cached, compiled, program_key
from jaxsens.core.engines.engine import Engine
from jaxsens.core.engines.vmap import compiled_output
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.measures import Measure
from jaxsens.core.measures.formulas import difference
from jaxsens.core.models.adapters import RANDOM_OUTPUT, Model
from jaxsens.core.models.model_problems import check_is_array, raised


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


@cached
def _digest(measure: Measure, shape: tuple[int, ...], dtype: str, wide: bool) -> str:
    function: Any = measure.function
    name, size = f"measure = {measure}", f"an output of {shape[0]} numbers ({dtype})"
    outputs, form = [jax.ShapeDtypeStruct(shape, dtype)] * measure.arguments, measure.form

    def program(*args: Any) -> Any:  # under this name whatever f's own is, which the lowered text would hold
        return function(*args)

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


Shape = tuple[int, ...]

_TRACED = "model: it holds values that are being traced: call this outside jit, vmap and grad; it compiles what it runs"

_LONG = 2**13
"""The length from which on a model's arrays are counted before it is run."""

_LOW_PRECISION = ("torch.bfloat16", "torch.float16")
"""The dtypes of PyTorch whose rounding is not known."""

_RELATIVE, _SLACK = 0.01, 64.0
"""A value measured in a batch may differ from one measured alone by this part, and by so many times its rounding."""

_MOST_READ = 2000
"""The objects that are looked at, at most, for what a function reads from outside."""

RANDOM_FLIPS = 16

_INDEX = re.compile(r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)")
"""The wording of checkify's error, which has no other public form."""

_FAR = 2**20


@dataclass(frozen=True)
class RowApply:
    """A model that returns rows (n, d), and their readout: a row, "last", or "mean"."""

    apply: Callable[[Any, Any], Any]
    readout: int | str

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The vector (d,) that is read out."""
        rows = self.apply(parameters, tokens)
        if self.readout == "mean":
            return jnp.mean(rows, axis=0)
        return rows[-1 if self.readout == "last" else self.readout]


def traced_model(
    model: Model, word: Int[np.ndarray, " n"] | int, measure: Measure | None = None, longer: int = 0
) -> tuple[Model, Shape, str]:
    """Returns a model as it is measured, its readout determined, with the shape and dtype of its output.

    It is traced on a `word`, or its length, and where flips make words `longer`: the shape must be the same there.
    Nothing is computed, except by PyTorch, once. Call it within `numerics(model.dtype)`.

    Raises:
        InputError: for an output that is not a vector, or grows with n, or does not suit the measure.
    """
    n = word if isinstance(word, int) else len(word)
    if model.config is not None:
        shape, dtype = (model.config.logits or model.config.width,), model.config.dtype
    else:
        if model.torch is not None and not isinstance(word, int):
            model.torch.learn(word)
            more = np.insert(word, n // 2, [word[n // 2]] * longer) if longer > 0 else word[: n + longer]
            model.torch.learn(more)
        shape, dtype = _output(model, n)
        if len(shape) > 1 or (len(shape) == 1 and _grows(model, shape, n)):
            model, shape = _reading_rows(model, shape, n), shape[1:]
        if 0 in shape:
            raise InputError.note(
                "model", f"its output is empty (shape {shape}); return the values to measure"
            )
        if model.readout == "auto":
            model = dataclasses.replace(model, readout="last")
        if longer and (other := _output(model, n + longer)[0]) != shape:
            raise InputError(
                f"flips, which change the length: the model returns shape {shape} for inputs of length {n} and "
                f"{other} for length {n + longer}; it must be the same"
            )
    if measure is not None:
        measure.check(int(np.prod(shape)), model.outputs)
    return model, shape, dtype


def check_calls(model: Model, inputs: Int[np.ndarray, "batch n"], shape: Shape, longer: int = 0) -> None:
    """Calls a model twice on the first word. `model` and the `shape` of its output are those of `traced_model`.

    Raises:
        InputError: for an output that is not finite, differs between the calls, or has another shape; and for a long
            input on which the model makes an array that does not fit in memory.
    """
    n = inputs.shape[1]
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(model.parameters)):
        raise InputError(_TRACED)
    if model.config is not None or _passed(model, n, "calls", longer):
        return
    if model.given_layers is not None:  # a pure function of its parameters, by its protocol
        if _traced(model.apply, model, n).dtype.kind not in "fV":
            message = "what it reads out are integers; let `read` return floats, as .astype(jnp.float32)"
            raise InputError.note("model", message)
        first = second = compiled_output(model.apply, model.parameters, inputs[0]).reshape(shape)
    else:
        _check_memory(model, n + max(longer, 0))
        first, second = _called(model, inputs[0]), _called(model, inputs[0])
    if not np.all(np.isfinite(first)):
        check_words(model, inputs, "tokens")  # jnp.take returns NaN for an index beyond the array
        message = "its output on the first input is not finite; check the weights and the input"
        raise InputError.note("model", message)
    if not np.array_equal(first, second):
        raise InputError(RANDOM_OUTPUT)
    if shape != first.shape:
        message = (
            f"it returns shape {first.shape} when called and {shape} when compiled; make it a pure function"
        )
        raise InputError.note("model", message)
    _note_passed(model, n, "calls", longer)


def check_finite(measured: np.ndarray, positions: np.ndarray, measure: Measure) -> None:
    """Rejects a model for which what was measured is not finite. `positions` are the flips'."""
    bad = ~np.isfinite(measured)
    if bad.any():
        raise InputError.note(
            "model",
            f"the output, or {measure.kind} of it, is not finite under {int(bad.sum())} of {len(measured)} "
            f"flips, first at position {int(positions[np.argmax(bad)])}; use float64, smaller weights, or floats where "
            "the model returns integers beyond 2^24; or a measure that is finite there: an output of 0 has no "
            "direction",
        )


def check_alone(
    model: Model,
    inputs: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    longer: int,
    values: Float[np.ndarray, "flips *rows"],
    engine: Engine,
) -> bool:
    """Calls a model on three flips, a word at a time, and rejects one for which that differs from `values`: those of
    each flip, or of each row (flips, n) of a model that returns rows.

    Engines run a model compiled and in batches, where a custom batching rule or a callback may compute something else.
    A jaxsens transformer and a `Layered` have no form but JAX's own; the rounding of PyTorch in 16 bits is not known.

    Returns:
        Whether the output changed under one of these flips, if only in its last bit. True if the model was not called.
    """
    n, check = inputs.shape[1], ("alone", longer, len(values), engine.outputs)
    if model.config is not None or model.given_layers is not None or not len(values):
        return True
    of_torch = () if model.torch is None else model.torch.module.parameters()
    if any(str(one.dtype) in _LOW_PRECISION for one in of_torch) or (
        np.any(values) and _passed(model, n, *check)
    ):
        return True
    # The largest, the last, and one at random. Of equals, the last: a callback that reads only the first row is right
    # about the first flip of a batch.
    sizes = np.abs(values).reshape(len(values), -1).max(axis=1)
    drawn = np.random.default_rng(len(values)).integers(len(values))
    chosen = np.unique([len(values) - 1 - int(np.argmax(sizes[::-1])), len(values) - 1, int(drawn)])
    own = {b: np.atleast_1d(_called(model, inputs[b])) for b in np.unique(flips.inputs[chosen]).tolist()}
    moved = False
    for k, word in zip(chosen.tolist(), flips.edited(inputs, chosen, longer), strict=True):
        y, new = own[int(flips.inputs[k])], np.atleast_1d(_called(model, word))
        moved = moved or not np.array_equal(y, new)
        alone = np.asarray(_measured(engine.measure, engine.outputs, y, new))
        off = np.abs(values[k] - alone) - _RELATIVE * np.abs(alone) - np.finfo(np.float32).tiny
        if not np.any(off > 0):
            continue
        # A batch may round otherwise. Roundings of other draws: those of one draw are alike in both words, and cancel.
        ys, news = (_nudged(model.apply, model.parameters, one) for one in (inputs[flips.inputs[k]], word))
        pairs = zip(ys, np.roll(news, 1, axis=0), strict=True)
        around = [np.abs(_measured(engine.measure, engine.outputs, *pair) - alone) for pair in pairs]
        bad = np.flatnonzero(off > _SLACK * np.max(around, axis=0))
        if len(bad):
            raise InputError.note(
                "model",
                f"with {flips.description(k)}, {values[k].flat[bad[0]]:.6g} was measured in a batch, and "
                f"{alone.flat[bad[0]]:.6g} when the model was called alone: its batched form differs from its single "
                "form, by a jax.custom_batching rule or a callback; it keeps values between calls; or a variable is "
                "bound to another array since it was compiled. jax.vmap(model)(words) must equal the model on each "
                'word: let callbacks take one input at a time (vmap_method="sequential"), and pass arrays that change '
                "as (function, parameters)",
            )
    _note_passed(model, n, *check)
    return moved


def warn_of_no_change(flips: int, measure: Measure, moved: bool, stacklevel: int) -> None:
    """Issues an `UnchangedWarning` for a model under no flip of which anything changed.

    Measures other than norms are 0 for many changes: then only if no output `moved`, among those measured alone.
    """
    if measure.order is None and moved:
        return
    warnings.warn(
        f"the change is exactly 0 under every flip ({flips}): nothing that is measured depends on the flipped symbols. "
        "Likely reasons: a row is read that sees none of them (a model for batches called without a batch axis: lambda "
        "tokens: model(tokens[None])[0]; a causal model read at position 0, or flips behind the position that is read: "
        'readout="last"); values are cached between calls; the output is constant (outputs=...); symbols are clipped, '
        "or rounded away (changes below the dtype's rounding: float64); or attention is hard, and no flip moves it",
        UnchangedWarning,
        stacklevel=stacklevel,
    )


def _reading_rows(model: Model, shape: Shape, n: int) -> Model:
    """Turns a model that returns rows into one that returns the vector read out of them."""
    if len(shape) != 2 or shape[0] != n or not _grows(model, shape, n, unknown=True):
        entry = "[0]" if shape[0] == 1 else "[-1]"
        raise InputError.note(
            "model",
            f"its output has shape {shape}; a vector or a number is needed, or a row for each of the {n} "
            "positions. If the model takes a batch (batch, n): lambda tokens: model(tokens[None])[0]; otherwise select "
            f"the values to measure, as lambda tokens: model(tokens){entry}",
        )
    readout, call = model.readout, model.call
    if readout is None or readout == "auto":
        raise InputError.of(
            "readout",
            readout,
            f"the model returns a row for each position (shape {shape}); select one by "
            'readout="last", readout=0 (a leading [CLS] symbol) or another position, or readout="mean"; or all, by '
            "lambda tokens: model(tokens).ravel(). If the first axis is a batch: lambda tokens: model(tokens[None])[0]",
        )
    alone = partial(RowApply(lambda _, tokens: call(tokens), readout), None)
    return dataclasses.replace(model, apply=RowApply(model.apply, readout), call=alone)


def _grows(model: Model, shape: Shape, n: int, unknown: bool = False) -> bool:
    """Returns whether the first axis of an output grows with the input's length; `unknown` if no other length works."""
    if shape[0] != n or (n <= 2 and not unknown):  # two logits at n = 2 are not two positions
        return False
    try:
        return _output(model, n - 1 if n > 2 else n + 1)[0] != shape
    except InputError:
        return unknown


def _output(model: Model, n: int) -> tuple[Shape, str]:
    """Returns the shape of the output, and the dtype in which it is measured."""
    batches = model.mesh is None  # else its parameters have a mesh of their own
    output = _traced(_InBatches(model.apply) if batches else model.apply, model, n)
    return output.shape[int(batches) :], str(jnp.promote_types(output.dtype, jnp.float32))


@dataclass(frozen=True)
class _InBatches:
    """A model that must return one array, on two inputs in a program for several devices, as engines run it."""

    apply: Callable[[Any, Any], Any]

    def __call__(self, parameters: Any, tokens: Any) -> Any:
        """The outputs."""
        everywhere, mesh = PartitionSpec(), AbstractMesh((1,), ("flips",), axis_types=(AxisType.Auto,))
        every = jax.vmap(lambda *args: check_is_array(self.apply(*args)), in_axes=(None, 0))
        spread = jax.shard_map(every, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
        return spread(parameters, jnp.stack([tokens, tokens]))


def _traced(function: Callable[[Any, Any], Any], model: Model, n: int) -> Any:
    try:
        return _shape_of(function, *program_key(model.parameters, n))
    except InputError:
        raise
    except Exception as error:
        raise InputError(raised(error, n)) from error


@cached
def _shape_of(
    function: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> Any:
    parameters = abstract_of(structure, shapes)
    return jax.eval_shape(function, parameters, jax.ShapeDtypeStruct((n,), jnp.int32))


def _check_memory(model: Model, n: int) -> None:
    """Rejects a long input on which the model makes an array that does not fit in this machine's memory.

    Only the arrays that it makes one after the other when it is called count, not those within a compiled function:
    the compiler may leave those out.
    """
    if n < _LONG or model.torch is not None:
        return
    parameters = as_arrays(model.parameters)
    program = jax.make_jaxpr(model.apply)(parameters, jax.ShapeDtypeStruct((n,), jnp.int32)).jaxpr
    made: list[Any] = [value.aval for equation in program.eqns for value in equation.outvars]
    sizes = {one.size * one.dtype.itemsize: one for one in made if hasattr(one, "dtype")}
    if not sizes:
        return
    needed, largest = max(sizes.items(), key=lambda size: size[0])
    with collecting("flip_sensitivity") as problems:
        what = f"an array {largest.shape} of {largest.dtype}, which the model makes of it,"
        check_fits("tokens", f"length {n}", needed, what, "give a shorter input", problems)


def _called(model: Model, word: Int[np.ndarray, " n"]) -> np.ndarray:
    """Returns the output on one word, as the user would call the model: a number, a vector, or rows."""
    try:
        output = model.call(jnp.asarray(word, jnp.int32))
        if isinstance(output, Tracer):
            raise InputError(_TRACED)
        return np.asarray(output)
    except InputError:
        raise
    except Exception as error:
        raise InputError(raised(error, len(word))) from error


@compiled(static=2)
def _measured(measure: Measure, outputs: tuple[int, ...] | None, y: Any, new: Any) -> Array:
    """Returns the measure of an output and that of the flipped word, or of each of their rows."""
    if y.ndim > 1:
        return jax.vmap(partial(_measured, measure, outputs))(y, new)
    chosen = slice(None) if outputs is None else np.array(outputs)
    y, new = y[chosen], new[None, chosen]
    return measure.of_outputs(y, new, difference(new, y), jnp.zeros(1))[0][0]


@compiled(static=1)
def _nudged(apply: Any, parameters: Any, word: Any) -> Array:
    """Returns outputs on a word with every rounding moved, and the output itself."""
    parameters = as_arrays(parameters)
    word = word.astype(jnp.int32)
    moved = jax.lax.map(lambda salt: nudged(apply, salt)(parameters, word), salts())
    outputs = jnp.concatenate([moved, jnp.asarray(apply(parameters, word))[None]])
    return outputs if outputs.ndim > 1 else outputs[:, None]


@cached
def _checks(
    apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> dict[Hashable, list[Any]]:
    """Returns the checks that a model passed, each with what the model read from outside then; none at first."""
    return {}


def _passed(model: Model, n: int, *check: Hashable) -> bool:
    before, now = (
        _checks(model.apply, *program_key(model.parameters, n)).get(check),
        _read_outside(model.apply),
    )
    if before is None or len(before) != len(now):
        return False
    # An array has one weak reference. To compare two would compare the arrays.
    pairs = zip(before, now, strict=True)
    return all(one is two or (not isinstance(one, weakref.ref) and one == two) for one, two in pairs)


def _note_passed(model: Model, n: int, *check: Hashable) -> None:
    _checks(model.apply, *program_key(model.parameters, n))[check] = _read_outside(model.apply)


def _read_outside(apply: Any) -> list[Any]:
    """Returns the numbers that a user's function reaches by the names that it reads, and weak references to arrays.

    It follows the functions of one module, that of the user's function.
    """
    pair = getattr(apply, "apply", apply)
    remaining, seen = [getattr(pair, "function", None), getattr(pair, "fixed", None)], set()
    read, home = [], None
    while remaining and len(seen) + len(read) < _MOST_READ:
        one = remaining.pop()
        if isinstance(one, jax.Array | np.ndarray | int | float):
            read.append(one if isinstance(one, int | float) else weakref.ref(one))
        elif isinstance(one, ModuleType | type | CodeType | str) or id(one) in seen:
            pass
        elif not isinstance(one, FunctionType):
            remaining += [*gc.get_referents(one), getattr(one, "__wrapped__", None)]
        elif one.__globals__ is (home or one.__globals__) and not str(one.__module__).startswith("jaxsens."):
            home = one.__globals__
            remaining += one.__closure__ or ()
            remaining += [home[name] for name in _names(one.__code__) if name in home]
        seen.add(id(one))
    return read


def _names(code: CodeType) -> list[str]:
    """Returns the names that a function reads from outside, those within it included."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return [*code.co_names, *(name for one in inner for name in _names(one))]


def check_words(model: Model, inputs: Int[np.ndarray, "words n"], argument: str) -> None:
    """Rejects a model that reads beyond an array on one of some words, which come from `argument`.

    Models with a known vocabulary are not run.

    Raises:
        InputError: with the index, its axis, and the remedy.
    """
    if model.vocabulary_size is None and (problem := _first_problem(model, inputs)) is not None:
        k, message = problem
        text = inputs[k].tolist() if inputs.shape[1] <= 8 else f"of length {inputs.shape[1]}"
        raise InputError(f"{argument}: on word {k}, {text}, {message}")


def check_flips(model: Model, inputs: Int[np.ndarray, "batch n"], flips: FlipTable, longer: int = 0) -> None:
    """Rejects a model that reads beyond an array on an input, or under one of a few flips.

    These are the first and the last flip to the smallest symbol and to the largest, and `RANDOM_FLIPS` others. An index
    that only another flip reaches is not seen. Models with a known vocabulary are run only if flips make words `longer`
    or shorter, and their longest input is not known.

    Raises:
        InputError: with the input or the flip, the index, its axis, and the remedy.
    """
    limited = model.max_length is not None or model.torch is not None
    if model.vocabulary_size is not None and (limited or not longer):
        return
    symbols, count = flips.symbols.reshape(len(flips), -1)[:, 0], len(flips)
    ends = [end for one in (symbols, -symbols) for end in (np.argmin(one), count - 1 - np.argmin(one[::-1]))]
    drawn = np.random.default_rng(0).choice(count, min(count, RANDOM_FLIPS), replace=False)
    chosen = np.concatenate([ends, drawn]).astype(int)
    made = flips.edited(inputs, chosen, longer)
    if not longer and _index_error(model, np.concatenate([inputs, made])) is None:  # one program for both
        return
    check_words(model, inputs, "tokens")
    problem = _first_problem(model, made)
    if problem is not None:
        raise InputError.note("flips", f"with {flips.description(int(chosen[problem[0]]))}, {problem[1]}")


def _first_problem(model: Model, inputs: Int[np.ndarray, "words n"]) -> tuple[int, str] | None:
    """Returns the first word on which a model reads beyond an array, with the problem and its remedy."""
    if _index_error(model, inputs) is None:
        return None
    problems = (
        (k, problem) for k, word in enumerate(inputs) if (problem := _problem(model, word)) is not None
    )
    return next(problems, None)


def _problem(model: Model, word: Int[np.ndarray, " n"]) -> str | None:
    error = _index_error(model, word[None])
    if error is None or isinstance(error, InputError):
        return None if error is None else str(error)
    index, axis, size = map(int, _INDEX.findall(str(error))[0])
    again = _index_error(model, np.where(word == index, word + _FAR, word)[None])
    is_id = (str(index + _FAR), str(axis), str(size)) in _INDEX.findall(str(again))
    # JAX drops writes beyond an array, and its own functions (where and unique with size=, insert) rely on that. A
    # symbol is lost only if the index is the id, as in counts.at[tokens].add(1).
    if str(getattr(error, "prim", "")).startswith("scatter") and not is_id:
        return None
    enough = "symbols and lengths for which the model's tables are large enough"
    remedy = f"symbols from 0 to {size - 1}" if is_id else enough
    return (
        f"the model takes index {index} of axis {axis}, which has size {size}. JAX clamps or drops such an index, so "
        f"the result would be wrong; give {remedy}. If this is intended, clip the index in the model: "
        f"jnp.clip(index, 0, {size - 1})"
    )


def _index_error(model: Model, inputs: Int[np.ndarray, "words n"]) -> Exception | None:
    """Returns the error for an index beyond its axis on one of the words; None if none is seen."""
    if model.torch is not None:  # PyTorch itself raises an exception
        try:
            model.torch(inputs)
        except InputError as error:
            return error
        return None
    parameters = as_arrays(model.parameters)
    try:
        return _indices(model.apply, parameters, jnp.asarray(inputs, jnp.int32)).get_exception()
    except Exception:  # noqa: BLE001 - there are primitives that checkify has no rule for
        return None  # the model was traced before, and is measured without this check


@compiled(static=1)
def _indices(apply: Callable[[Any, Any], Any], parameters: Any, inputs: Array) -> Any:
    def on_each(parameters: Any, inputs: Array) -> None:
        # Inlined, because checkify has no right rule for jax.checkpoint. Without a result: XLA leaves out what no
        # index depends on.
        jax.lax.map(lambda word: (inlined(apply)(parameters, word), None)[1], inputs)

    return checkify.checkify(on_each, errors=checkify.index_checks)(parameters, inputs)[0]
