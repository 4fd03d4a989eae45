"""Detects ids that a user's model cannot read. JAX silently clamps or drops an index beyond an array.

`jax.experimental.checkify` runs the model and checks every index against its axis. Values that no index depends on are
not computed, so a pass costs less than calling the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Int

from jaxsens.errors import InputError
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.flips import Flips

_MESSAGE = re.compile(
    r"array of shape (\(.*?\)): index (-?\d+) is out of bounds for axis (\d+) with size (\d+)"
)
"""The wording of checkify's error, which has no other public form."""
_FAR = 2**20


@dataclass(frozen=True)
class Beyond:
    """An index beyond its axis in an array of this shape, read from or `written` to."""

    shape: str
    index: int
    axis: int
    size: int
    written: bool

    def __str__(self) -> str:
        return f"index {self.index} of axis {self.axis}, which has size {self.size} (array of shape {self.shape})"


def check_reads(
    subject: Measurable,
    words: Int[np.ndarray, "batch n"],
    flips: Flips,
    copies: int = 0,
) -> None:
    """Rejects inputs for which a model indexes beyond an array, unflipped or with the largest symbols inserted.

    It runs one pass on each input, and one with the largest symbols at all flipped positions; a deletion has none. For
    flips that insert `copies` of a symbol, the other pass is on an input with the largest symbol inserted. Call it
    within `numerics(subject.dtype)`; it is compiled once per model and length. Models with a known vocabulary are not
    run. PyTorch itself raises an exception for such an index.

    Raises:
        InputError: naming the axis, its size, and the remedy.
    """
    if subject.vocabulary_size is not None:
        return
    if copies:
        _check_longer_reads(subject, words, flips, copies)
        return
    everywhere = flips.largest(words)
    for k, word in enumerate(words):
        check_word_reads(subject, word)
        if (
            np.array_equal(everywhere[k], word)
            or _unread(subject, everywhere[k], int(everywhere[k].max()), "") is None
        ):
            continue
        # That word is not measured, and a model may be right to fail on it: only a single flip is an error.
        for position in np.flatnonzero(everywhere[k] != word):
            flipped = word.copy()
            flipped[position] = everywhere[k, position]
            found = _unread(subject, flipped, int(flipped[position]), f"at position {int(position)}")
            if found is not None:
                raise InputError(found)


def _check_longer_reads(
    subject: Measurable, words: Int[np.ndarray, "batch n"], flips: Flips, copies: int
) -> None:
    """As `check_reads`, for flips that insert `copies` of their symbol before their position."""
    for k, word in enumerate(words):
        check_word_reads(subject, word)
        mine = np.flatnonzero(flips.inputs == k)
        if len(mine):
            most = mine[np.argmax(flips.symbols[mine])]
            inserted = [flips.symbols[most]] * copies
            check_word_reads(subject, np.insert(word, flips.positions[most], inserted))


def _unread(subject: Measurable, word: Int[np.ndarray, " n"], symbol: int, where: str) -> str | None:
    """Returns the error of a model that cannot read a word with `symbol` inserted; None if it can."""
    if subject.torch is None:
        found = beyond(subject, word)
        return None if found is None else _of_symbol(found, symbol, where)
    try:
        subject.call(word)
    except InputError as error:
        return f"symbols: with {symbol} {where}: {error}"
    return None


def check_word_reads(subject: Measurable, word: Int[np.ndarray, " n"]) -> None:
    """Rejects an input for which a model indexes beyond an array.

    Raises:
        InputError: naming the axis, its size, and the remedy.
    """
    if subject.vocabulary_size is not None:
        return
    if subject.torch is not None:
        subject.call(word)
        return
    found = beyond(subject, word)
    if found is None:
        return
    if found.index in word:
        argument, remedy = f"tokens = {found.index}", f"give ids from 0 to {found.size - 1}"
    elif found.index < len(word):
        argument, remedy = f"tokens of length {len(word)}", f"give inputs of length at most {found.size}"
    else:
        argument, remedy = f"tokens = {int(word.max())}", "give ids in the model's vocabulary"
    raise InputError(_told(argument, found, remedy))


def check_symbol_reads(subject: Measurable, word: Int[np.ndarray, " n"], symbol: int) -> None:
    """Rejects a word, with `symbol` at all free positions, for which a model indexes beyond an array."""
    found = None if subject.vocabulary_size is not None else _unread(subject, word, symbol, "inserted")
    if found is not None:
        raise InputError(found)


def beyond(subject: Measurable, word: Int[np.ndarray, " n"]) -> Beyond | None:
    """Returns the model's first index beyond its axis on a word, or None.

    It also returns None if checkify cannot trace the model.
    """
    found = _finding(subject, word)
    if found is None or not found.written:
        return found
    # JAX drops writes beyond an array, and its own functions (where and unique with size=, insert) rely on that. A
    # symbol is lost only if the index is the id, as in counts.at[tokens].add(1), and changes with it.
    moved = _finding(subject, np.where(word == found.index, word + _FAR, word))
    return found if moved == replace(found, index=found.index + _FAR) else None


def _finding(subject: Measurable, word: Int[np.ndarray, " n"]) -> Beyond | None:
    parameters = jax.tree.map(jnp.asarray, subject.parameters)
    leaves, structure = jax.tree.flatten(parameters)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    wide = jnp.result_type(float) == jnp.float64
    program = _checked_program(subject.apply, structure, shapes, len(word), wide)
    error = None if program is None else program(parameters, jnp.asarray(word, jnp.int32)).get_exception()
    if error is None:
        return None
    text = _MESSAGE.search(str(error))
    if text is None:
        raise InputError(f"model: on the tokens {word.tolist()} it indexes beyond an array: {error}")
    written = str(getattr(error, "prim", "")).startswith("scatter")
    return Beyond(text[1], int(text[2]), int(text[3]), int(text[4]), written)


@lru_cache(maxsize=256)
def _checked_program(
    apply: Callable[[Any, Any], Any], structure: Any, shapes: tuple[Any, ...], n: int, wide: bool
) -> Callable[[Any, Any], checkify.Error] | None:
    """Returns the compiled pass that gives checkify's error. `wide` (64-bit types are on) is part of the cache key."""
    checked = checkify.checkify(apply, errors=checkify.index_checks)

    def finding(parameters: Any, tokens: Any) -> checkify.Error:
        return checked(parameters, tokens)[0]

    program = jax.jit(finding)
    try:
        program.trace(jax.tree.unflatten(structure, shapes), jax.ShapeDtypeStruct((n,), jnp.int32))
    except Exception:  # noqa: BLE001 - whatever checkify fails with: there are primitives it has no rule for
        # The model itself was traced before, so checkify cannot trace it (jax.checkpoint around a function with
        # constants, some custom primitives). The model is measured without a check of its indices.
        return None
    return program


def _of_symbol(found: Beyond, symbol: int, where: str) -> str:
    remedy = "insert symbols in the model's vocabulary"
    if found.index == symbol:
        remedy = f"insert symbols below {found.size}: alphabet_size={found.size} or symbols=[...]"
    return _told(f"symbols: with {symbol} {where}", found, remedy)


def _told(argument: str, found: Beyond, remedy: str) -> str:
    return (
        f"{argument}: the model takes {found}. JAX clamps or drops such an index, so the result would be "
        f"wrong; {remedy}. If this is intended, clip the index in the model: jnp.clip(index, 0, {found.size - 1})"
    )
