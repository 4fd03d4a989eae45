"""Detects reads beyond an array in a user's model, on a few words. JAX clamps or drops such an index without a word.

`jax.experimental.checkify` compares every index with its axis while the model runs. XLA leaves out of that program what
no index depends on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Int

from jaxsens.core.base.errors import NO_VALUE, InputError
from jaxsens.core.base.nudged import inlined
from jaxsens.core.base.programs import compiled
from jaxsens.core.engines.edits import SUBSTITUTE, Edit, edited
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.models.subjects.adapters import Measurable

RANDOM_FLIPS = 16

_MESSAGE = re.compile(r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)")
"""The wording of checkify's error, which has no other public form."""

_FAR = 2**20


def check_words(subject: Measurable, words: Int[np.ndarray, "words n"], argument: str) -> None:
    """Rejects a model that reads beyond an array on one of some words, which come from `argument`.

    Models with a known vocabulary are not run.

    Raises:
        InputError: with the index, its axis, and the remedy.
    """
    if subject.vocabulary_size is not None:
        return
    subject = _on_device(subject)
    for k, word in enumerate(words):
        problem = _problem(subject, word)
        if problem is not None:
            shown = word.tolist() if len(word) <= 8 else f"of length {len(word)}"
            raise InputError(f"{argument}: on word {k}, {shown}, {problem}")


def check_flips(
    subject: Measurable, words: Int[np.ndarray, "batch n"], flips: FlipTable, edit: Edit = SUBSTITUTE
) -> None:
    """Rejects a model that reads beyond an array under a flip, as far as a few words show it.

    These are the words of a flip to the largest symbol, of one to the smallest, and of `RANDOM_FLIPS` others; and each
    input with the largest symbol, and with the smallest, at every position that is flipped. Models with a known
    vocabulary are run only if `edit` changes the length and their longest input is not known.

    Raises:
        InputError: with the flip, the index, its axis, and the remedy.
    """
    if subject.vocabulary_size is not None:
        limited = subject.config is not None or subject.max_length is not None or subject.torch is not None
        if edit.longer == 0 or limited:
            return
    subject, count = _on_device(subject), len(flips)

    def check(flip: int) -> None:
        problem = _problem(subject, edited(words, flips, edit, np.array([flip]))[0])
        if problem is not None:
            raise InputError.of("flips", NO_VALUE, f"with {flips.said(flip)}, {problem}")

    check(int(np.argmax(flips.symbols)))
    check(int(np.argmin(flips.symbols)))
    for flip in np.random.default_rng(0).choice(count, min(count, RANDOM_FLIPS), replace=False).tolist():
        check(flip)
    if edit.longer:
        return
    first = np.flatnonzero(np.diff(flips.inputs * words.shape[1] + flips.positions, prepend=-1))
    for extreme in (np.append(first[1:], count) - 1, first):  # at each place the largest symbol, the smallest
        for b, word in enumerate(flips.replaced(words, extreme)):
            if _problem(subject, word) is not None:
                # That word is not measured, and a model may be right to fail on it: only a single flip is an error.
                for flip in extreme[flips.inputs[extreme] == b].tolist():
                    check(flip)


def _on_device(subject: Measurable) -> Measurable:
    return dataclasses.replace(subject, parameters=jax.tree.map(jnp.asarray, subject.parameters))


def _problem(subject: Measurable, word: Int[np.ndarray, " n"]) -> str | None:
    """Returns what a model does wrong on a word, and the remedy; None if nothing is seen."""
    if subject.torch is not None:  # PyTorch itself raises an exception
        try:
            subject.call(word)
        except InputError as error:
            return str(error)
        return None
    error = _error(subject, word)
    if error is None:
        return None
    index, axis, size = _numbers(error)
    again = _error(subject, np.where(word == index, word + _FAR, word))
    is_id = again is not None and _numbers(again) == (index + _FAR, axis, size)
    # JAX drops writes beyond an array, and its own functions (where and unique with size=, insert) rely on that. A
    # symbol is lost only if the index is the id, as in counts.at[tokens].add(1).
    if str(getattr(error, "prim", "")).startswith("scatter") and not is_id:
        return None
    if is_id:
        remedy = f"give symbols from 0 to {size - 1}"
    elif 0 <= index < len(word):
        remedy = f"let words, flipped or not, have at most {size} symbols"
    else:
        remedy = "give symbols and lengths for which the model's tables are large enough"
    return (
        f"the model takes index {index} of axis {axis}, which has size {size}. JAX clamps or drops such an index, so "
        f"the result would be wrong; {remedy}. If this is intended, clip the index in the model: "
        f"jnp.clip(index, 0, {size - 1})"
    )


def _error(subject: Measurable, word: Int[np.ndarray, " n"]) -> Exception | None:
    """Returns checkify's error for the first index beyond its axis; None if there is none, or it cannot tell."""
    try:
        return _checked(subject.apply, subject.parameters, jnp.asarray(word, jnp.int32)).get_exception()
    except Exception:  # noqa: BLE001 - whatever checkify fails with: there are primitives it has no rule for
        return None  # the model was traced before, and is measured without this check


@compiled(static=1)
def _checked(apply: Callable[[Any, Any], Any], parameters: Any, word: Array) -> Any:
    # Inlined, because checkify has no right rule for jax.checkpoint.
    return checkify.checkify(inlined(apply), errors=checkify.index_checks)(parameters, word)[0]


def _numbers(error: Exception) -> tuple[int, int, int]:
    """Returns the index, its axis and the size of that axis."""
    found = _MESSAGE.search(str(error))
    if found is None:
        raise InputError.of("model", NO_VALUE, f"it indexes beyond an array: {error}")
    return int(found[1]), int(found[2]), int(found[3])
