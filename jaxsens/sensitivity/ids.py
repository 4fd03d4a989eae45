"""Ids as users give them, of tokens, symbols and positions: refused before anything can round or wrap around."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from jax.core import Tracer
from jaxtyping import Int

from jaxsens.errors import Faults
from jaxsens.inputs import array_of

LARGEST_ID = 2**31 - 1
"""Models read ids as 32-bit integers: one beyond would wrap around, 2**40 + 1 to 1."""


def whole_numbers(value: object) -> np.ndarray | None:
    """The value as an array of whole numbers, or None if it is none.

    Python's numbers in an array of objects (a nullable column of pandas, a number beyond 64 bits) count as such; what
    is beyond 64 bits becomes the end of that range, which no check of ids lets pass.
    """
    found = array_of(value)
    if found.dtype.kind == "f" and isinstance(value, list | tuple):
        found = np.array(value, object)  # NumPy rounds a list that holds 2**63
    if found.dtype == object and found.size and all(_is_whole(one) for one in found.flat):
        ends = np.iinfo(np.int64)
        cut = [min(max(int(one), ends.min), ends.max) for one in found.flat]
        found = np.array(cut, np.int64).reshape(found.shape)
    return found if np.issubdtype(found.dtype, np.integer) else None


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_)


def check_ids(argument: str, ids: np.ndarray, vocabulary: int | None, faults: Faults) -> None:
    """Notes ids that are negative, that the model does not read, or that 32 bits do not hold."""
    least, largest = int(ids.min()), int(ids.max())
    if least < 0:
        faults.add(argument, least, "ids of at least 0")
    if vocabulary is not None and largest >= vocabulary:
        faults.add(argument, largest, f"the model reads ids 0 to {vocabulary - 1}")
    elif largest > LARGEST_ID:
        faults.add(argument, largest, f"ids of at most {LARGEST_ID}: models read them as 32-bit integers")


def token_ids(
    tokens: Any, vocabulary: int | None, faults: Faults, *, one: bool = False
) -> Int[np.ndarray, "batch n"]:
    """Tokens as int32 of shape (batch, n), (0, 0) if they have no such shape; notes what is wrong with them.

    Args:
        tokens: what the user gave.
        vocabulary: how many symbols the model reads, where it says.
        faults: where faults are noted.
        one: whether one input (n,) is wanted, and not several (batch, n).
    """
    if isinstance(tokens, Tracer):
        remedy = "known values: call this outside jit, vmap and grad; it compiles what it runs"
        faults.add("tokens", tokens, remedy)
        return np.zeros((0, 0), np.int32)
    found, words = array_of(tokens), whole_numbers(tokens)
    if words is None and found.dtype.kind in "US":
        remedy = "ids, not text: such as [int(symbol) for symbol in word], or what a tokenizer gives"
        faults.add("tokens", tokens, remedy)
    elif words is None and found.dtype == object:
        wanted = "whole numbers of shape (n,)" + ("" if one else " or (batch, n), all inputs of one length")
        faults.add("tokens", tokens, f"{wanted}; of what can only be counted through, make a list")
    elif found.size == 0 or found.ndim not in ((1,) if one else (1, 2)):
        only, several = (
            "shape (n,), one input of at least one symbol",
            "shape (n,) or (batch, n), neither of them 0",
        )
        faults.add("tokens", f"shape {found.shape}", only if one else several)
    elif words is None:
        remedy = "an array of whole numbers, the symbols' ids: tokens.astype(int)"
        faults.add("tokens", str(found.dtype), remedy)
    else:
        check_ids("tokens", words, vocabulary, faults)
        return words.reshape(-1, words.shape[-1]).astype(np.int32)
    return np.zeros((0, 0), np.int32)


def position_ids(positions: object, n: int | None, faults: Faults) -> Int[np.ndarray, " positions"]:
    """Positions to flip, sorted, each once; notes what is wrong with them. n is None where no length is known."""
    found = whole_numbers(positions)
    if found is None or found.ndim != 1 or not found.size:
        faults.add("positions", positions, "a sequence of 0-based positions, jaxsens.sample(count), or None")
        return np.zeros(0, int)
    wrong = int(found.min() if found.min() < 0 else found.max())
    if wrong < 0 or (n is not None and wrong >= n):
        faults.add("positions", wrong, "0-based positions" if n is None else f"positions from 0 to {n - 1}")
    return np.unique(found)
