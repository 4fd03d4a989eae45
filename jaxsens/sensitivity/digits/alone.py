"""Measures a few flips once more alone, by the specification: the user's model called on one word at a time.

Engines run a model in batches, compiled. A custom batching rule or a callback may compute something else there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, DropVar, jaxpr_as_fun
from jaxtyping import Array, Float, Int

from jaxsens.asked.formulas import as_vector, is_whole
from jaxsens.asked.measures import Decision, Measure, Norm
from jaxsens.asked.nudged import nudged, salts
from jaxsens.base.errors import InputError, UnchangedWarning
from jaxsens.base.precision import ALONE, LOW_PRECISION, MASKED
from jaxsens.base.programs import compiled, kept
from jaxsens.sensitivity.checks.index_check import inlined
from jaxsens.sensitivity.engines.edits import Edit, edited
from jaxsens.sensitivity.engines.engine import Engine
from jaxsens.sensitivity.engines.vmap import compiled_output
from jaxsens.sensitivity.flips.flip_table import DELETED, FlipTable
from jaxsens.sensitivity.subjects.adapters import Measurable

MEASURED_ALONE = 3
"""How many flips of a measurement are measured once more: the largest, the last, and one at random."""

_RELATIVE = 0.01

_DRAWS = 4
"""How often outputs are rounded at random, to find how far that moves a measure."""


def check_alone(
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    edit: Edit,
    values: Float[np.ndarray, "flips *rows"],
    engine: Engine,
    first: Float[np.ndarray, "*rows outputs"] | None = None,
) -> bool:
    """Measures a few of the flips alone, and rejects a model for which that differs from `values`.

    It costs `MEASURED_ALONE` calls of the model and one of each of their inputs. A jaxsens transformer is not called:
    its batched form is JAX's own. A `Layered`, which is pure by its protocol, is called for one measurement of each
    program (model, length, engine); and not where the edit changes the length, which would be compiled.

    Args:
        values: what was measured of each flip, or of each row (flips, n) of a model that returns rows (n, d).
        first: the output on the first input, if it is known.

    Returns:
        Whether the output of any of these flips changed, if only in its last bit. True if none was called.

    Raises:
        InputError: naming the flip, both values, the likely reasons and the remedy.
    """
    if subject.config is not None or not len(values) or (subject.given_layers is not None and edit.longer):
        return True
    seen: list[bool] = []
    if subject.given_layers is not None:
        seen = _compared(subject.apply, words.shape[1], type(engine).__name__)
        if seen:
            return True
    # Of equals, the last: a callback that reads only the first row is right about the first flip of a batch. The last
    # flip is measured for the same reason.
    sizes = np.abs(values).reshape(len(values), -1).max(axis=1)
    named = [len(values) - 1 - int(np.argmax(sizes[::-1])), len(values) - 1]
    others = np.random.default_rng(len(values)).permutation(len(values)).tolist()
    chosen = np.array(list(dict.fromkeys([*named, *others]))[:MEASURED_ALONE])
    before = {} if first is None else {0: first}
    for b in np.unique(flips.inputs[chosen]).tolist():
        if b not in before:
            before[b] = called_alone(subject, words[b])
    moved = False
    for k, word in zip(chosen.tolist(), edited(words, flips, edit, chosen), strict=True):
        y, new = before[int(flips.inputs[k])], called_alone(subject, word)
        moved = moved or not np.array_equal(y, new)
        share = 0.0 if is_whole(y) else ALONE["float64" if y.dtype == np.float64 else "float32"]
        found = values[k]
        wanted, allowed = _measured(engine, y, new, share, 0.0)
        if np.any(np.abs(found - wanted) > allowed):
            coarse, activation = _rounded(subject, word)
            share = share if not coarse else (np.inf if is_whole(y) else ALONE["bfloat16"])
            wanted, allowed = _measured(engine, y, new, share, activation)
        bad = np.flatnonzero(np.abs(found - wanted) > allowed)
        if len(bad):
            raise InputError(_differs(flips, k, float(found.flat[bad[0]]), float(wanted.flat[bad[0]])))
    seen.append(moved)
    return moved


@kept
def _compared(apply: Callable[[Any, Any], Any], n: int, engine: str) -> list[bool]:
    """Returns a list that is empty until a program's flips were found equal to those measured alone."""
    return []


def called_alone(subject: Measurable, word: Int[np.ndarray, " n"]) -> np.ndarray:
    """Returns the output on one word, as the user would call the model: a vector, or rows."""
    if subject.given_layers is not None:
        return compiled_output(subject.apply, subject.parameters, word)
    return np.atleast_1d(np.asarray(subject.call(jnp.asarray(word, jnp.int32))))


def _measured(
    engine: Engine, y: np.ndarray, new: np.ndarray, share: float, activation: float
) -> tuple[Float[np.ndarray, "*rows"], Float[np.ndarray, "*rows"]]:
    """Returns the measure of an output, or of each row, and of that of the flipped word; and how far rounding moves it.

    Outputs are moved at random by at most `share` of the largest output, or of an `activation` if that is larger.
    """
    rng = np.random.default_rng(0)
    if not np.isfinite(share):
        return np.zeros(y.shape[:-1]), np.full(y.shape[:-1], np.inf)
    wanted = _measure(engine, y, new)
    allowed = _RELATIVE * np.abs(wanted)
    scale = share * max(float(np.max(np.abs(np.stack([y, new])))), activation)
    if scale:
        for _ in range(_DRAWS):
            around = [part + scale * rng.uniform(-1, 1, part.shape) for part in (y, new)]
            other = _measure(engine, *(part.astype(y.dtype) for part in around))
            apart = 2 * np.abs(other - wanted)
            allowed = np.maximum(allowed, np.where(np.isnan(apart), np.inf, apart))
    return wanted, allowed + np.finfo(np.float32).tiny


def _measure(engine: Engine, y: np.ndarray, new: np.ndarray) -> Float[np.ndarray, "*rows"]:
    """Returns what the engine measures, from two outputs; for norms by NumPy, exactly for integers."""
    chosen, measure = slice(None) if engine.outputs is None else list(engine.outputs), engine.measure
    match measure:
        case Norm():
            exact = object if is_whole(y) else np.float64
            change = (new[..., chosen].astype(exact) - y[..., chosen].astype(exact)).astype(np.float64)
            return measure.of_array(change)
        case Decision():
            return np.asarray(_decision(y[chosen], measure) != _decision(new[chosen], measure), np.float64)
    if is_whole(y):
        y, new = (part.astype(np.float64 if part.dtype.itemsize == 8 else np.float32) for part in (y, new))
    return np.asarray(_of_pair(measure, jnp.asarray(y[chosen]), jnp.asarray(new[chosen])), np.float64)


def _decision(y: np.ndarray, measure: Decision) -> int:
    """Returns the largest output, or whether a single one is above the threshold, without rounding integers."""
    return int(y[0] > measure.threshold) if len(y) == 1 else int(np.argmax(y))  # pyright: ignore - resolved


@compiled(static=1)
def _of_pair(measure: Measure, y: Array, new: Array) -> Array:
    """Returns what an engine measures that is no norm, from the outputs that it measures."""
    return measure.between(as_vector(y), as_vector(new))


def _rounded(subject: Measurable, word: Int[np.ndarray, " n"]) -> tuple[bool, float]:
    """Returns whether a model computes in 16 bits anywhere, and its largest value on a word that is no masked score.

    It compiles the model with all its values, so it is called only if a flip measured alone differs.
    """
    if subject.torch is not None:
        return any(str(part.dtype) in LOW_PRECISION for part in subject.torch.module.parameters()), 0.0
    parameters = jax.tree.map(jnp.asarray, subject.parameters)
    given = parameters, jnp.asarray(word, jnp.int32)
    program = inlined(jax.make_jaxpr(subject.apply)(*given))
    values = [
        var for equation in program.jaxpr.eqns for var in equation.outvars if not isinstance(var, DropVar)
    ]
    real = [var for var in values if jnp.issubdtype(var.aval.dtype, jnp.floating)]
    coarse = any(str(var.aval.dtype) in LOW_PRECISION for var in real)
    names = program.jaxpr.debug_info.with_unknown_names()
    kept = ClosedJaxpr(program.jaxpr.replace(outvars=real, debug_info=names), program.consts)
    sizes = [np.abs(np.asarray(value, np.float64)) for value in jaxpr_as_fun(kept)(*jax.tree.leaves(given))]
    moved = jax.lax.map(lambda salt: nudged(subject.apply, salt)(*given), salts())  # of what cancels inside
    share = ALONE["float64" if moved.dtype == np.float64 else "float32"]
    inside = float(np.max(np.ptp(np.asarray(moved, np.float64), axis=0))) / share
    return coarse, max((float(size[size < MASKED].max(initial=0.0)) for size in sizes), default=0.0) + inside


def _differs(flips: FlipTable, flip: int, found: float, wanted: float) -> str:
    symbol, position = int(flips.symbols[flip]), int(flips.positions[flip])
    what = f"position {position} deleted" if symbol == DELETED else f"symbol {symbol} at position {position}"
    return (
        f"model: with {what} of input {int(flips.inputs[flip])}, {found:.6g} was measured in a batch, and {wanted:.6g} "
        "when the model was called alone. Its batched form differs from its single form: a jax.custom_batching rule, a "
        "callback that reads only the first row of a batch (vmap_method), statistics over a batch, or values kept "
        'between calls. Let callbacks take one input at a time (vmap_method="sequential"), or correct the rule: '
        "jax.vmap(model)(words) must equal the model on each word"
    )


def warn_of_no_change(flips: int, measure: Measure, moved: bool, stacklevel: int) -> None:
    """Issues an `UnchangedWarning` for a model under no flip of which anything changed.

    Measures other than norms are 0 for many changes: then only if no output `moved`, among those measured alone.
    """
    if not isinstance(measure, Norm) and moved:
        return
    warnings.warn(
        f"the change is exactly 0 under every flip ({flips}): nothing that is measured depends on the flipped symbols. "
        "Likely reasons: a row is read that sees none of them (a model for batches called without a batch axis: lambda "
        "tokens: model(tokens[None])[0]; a causal model read at position 0, or flips behind the position that is read: "
        'readout="last"); values are kept between calls; the output is constant (outputs=...); symbols are clipped, or '
        "rounded away (changes below the dtype's rounding: float64); or attention is hard, and no flip moves it",
        UnchangedWarning,
        stacklevel=stacklevel,
    )
