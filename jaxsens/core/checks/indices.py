"""Detects reads beyond an array in a user's model, on a few words. JAX clamps or drops such an index without a word.

`jax.experimental.checkify` compares every index with its axis while the model runs. One program checks all words, and
computes only what indices depend on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Int

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.nudged import inlined
from jaxsens.core.base.programs import as_arrays, compiled
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.models.adapters import Model

RANDOM_FLIPS = 16

_INDEX = re.compile(r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)")
"""The wording of checkify's error, which has no other public form."""

_FAR = 2**20


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
