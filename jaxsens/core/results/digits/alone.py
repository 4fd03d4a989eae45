"""Measures three flips once more alone, by the specification: the user's model called on one word at a time.

Engines run a model in batches, compiled. A custom batching rule or a callback may compute something else there.
"""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxsens.core.base.errors import InputError, UnchangedWarning
from jaxsens.core.base.nudged import nudged, salts
from jaxsens.core.base.precision import LOW_PRECISION
from jaxsens.core.base.programs import compiled
from jaxsens.core.engines.edits import Edit, edited
from jaxsens.core.engines.engine import Engine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.measures import Measure
from jaxsens.core.measures.formulas import difference
from jaxsens.core.models.subjects.adapters import Measurable

_RELATIVE = 0.01

_SLACK = 64.0
"""A value may be off by this many times what moved roundings do: in a batch, sums are in another order."""


def check_alone(
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: FlipTable,
    edit: Edit,
    values: Float[np.ndarray, "flips *rows"],
    engine: Engine,
) -> bool:
    """Measures three of the flips alone, and rejects a model for which that differs from `values`.

    Models whose batched form is JAX's own are not called: a jaxsens transformer and a `Layered`. Nor is a PyTorch
    module with parameters of 16 bits, whose rounding is not known.

    Args:
        values: what was measured of each flip, or of each row (flips, n) of a model that returns rows (n, d).

    Returns:
        Whether the output of any of these flips changed, if only in its last bit. True if none was called.

    Raises:
        InputError: naming the flip, both values, the likely reasons and the remedy.
    """
    coarse = subject.torch is not None and any(
        str(part.dtype) in LOW_PRECISION for part in subject.torch.module.parameters()
    )
    if subject.config is not None or subject.given_layers is not None or coarse or not len(values):
        return True
    # The largest, the last, and one at random. Of equals, the last: a callback that reads only the first row is right
    # about the first flip of a batch.
    sizes = np.abs(values).reshape(len(values), -1).max(axis=1)
    drawn = np.random.default_rng(len(values)).integers(len(values))
    chosen = np.unique([len(values) - 1 - int(np.argmax(sizes[::-1])), len(values) - 1, int(drawn)])
    own = {b: called_alone(subject, words[b]) for b in np.unique(flips.inputs[chosen]).tolist()}
    outputs, moved = engine.outputs, False
    for k, word in zip(chosen.tolist(), edited(words, flips, edit, chosen), strict=True):
        b = int(flips.inputs[k])
        pair = own[b], called_alone(subject, word)
        moved = moved or not np.array_equal(*pair)
        alone = np.asarray(_measured(engine.measure, outputs, *pair))
        off = np.abs(values[k] - alone)
        bound = _RELATIVE * np.abs(alone) + np.finfo(np.float32).tiny
        if not np.any(off > bound):
            continue
        nudges = [
            _nudged(subject.apply, subject.parameters, jnp.asarray(one, jnp.int32))
            for one in (words[b], word)
        ]
        # Of other moves each: those of one run are alike in both words, and cancel in their difference.
        pairs = zip(nudges[0], jnp.roll(nudges[1], 1, axis=0), strict=True)
        around = [np.asarray(_measured(engine.measure, outputs, *pair)) for pair in pairs]
        bad = np.flatnonzero(off > bound + _SLACK * np.max(np.abs(np.array(around) - alone), axis=0))
        if len(bad):
            raise InputError(
                f"model: with {flips.said(k)}, {values[k].flat[bad[0]]:.6g} was measured in a batch, and "
                f"{alone.flat[bad[0]]:.6g} when the model was called alone. Its batched form differs from its single "
                "form: a jax.custom_batching rule, a callback that reads only the first row of a batch (vmap_method), "
                "statistics over a batch, or values kept between calls. Let callbacks take one input at a time "
                '(vmap_method="sequential"), or correct the rule: jax.vmap(model)(words) must equal the model on each '
                "word"
            )
    return moved


def called_alone(subject: Measurable, word: Int[np.ndarray, " n"]) -> np.ndarray:
    """Returns the output on one word, as the user would call the model: a vector, or rows."""
    return np.atleast_1d(np.asarray(subject.call(jnp.asarray(word, jnp.int32))))


@compiled(static=2)
def _measured(measure: Measure, outputs: tuple[int, ...] | None, y: Any, new: Any) -> Array:
    """Returns the measure of an output and that of the flipped word, or of each of their rows."""
    if y.ndim > 1:
        return jax.vmap(lambda row, other: _measured(measure, outputs, row, other))(y, new)
    chosen = slice(None) if outputs is None else np.array(outputs)
    y, new = y[chosen], new[None, chosen]
    return measure.of_outputs(y, new, difference(new, y), jnp.zeros(1))[0][0]


@compiled(static=1)
def _nudged(apply: Any, parameters: Any, word: Array) -> Array:
    """Returns outputs on a word with every rounding moved, and the output itself."""
    parameters = jax.tree.map(jnp.asarray, parameters)
    moved = jax.lax.map(lambda salt: nudged(apply, salt)(parameters, word), salts())
    outputs = jnp.concatenate([moved, jnp.asarray(apply(parameters, word))[None]])
    return outputs if outputs.ndim > 1 else outputs[:, None]


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
        'readout="last"); values are kept between calls; the output is constant (outputs=...); symbols are clipped, or '
        "rounded away (changes below the dtype's rounding: float64); or attention is hard, and no flip moves it",
        UnchangedWarning,
        stacklevel=stacklevel,
    )
