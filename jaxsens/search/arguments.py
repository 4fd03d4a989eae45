"""The arguments of `worst_input`: every fault found before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.errors import Faults
from jaxsens.inputs import is_count
from jaxsens.memory import TOKEN_BYTES, check_fits
from jaxsens.models.transformer import check_runs
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.arguments import check_options, check_readout, places, reading
from jaxsens.sensitivity.ids import LARGEST_ID, whole_numbers
from jaxsens.sensitivity.model_faults import takes


@dataclass(frozen=True)
class Words:
    """Which words are searched.

    Attributes:
        n: their length.
        alphabet: the symbols they are made of, sorted.
        fixed: position to symbol, where all words have the same.
        flipped: the 0-based positions that are flipped.
        given: words to start from; none of them is an array of shape (0, n).
    """

    n: int
    alphabet: Int[np.ndarray, " symbols"]
    fixed: dict[int, int]
    flipped: Int[np.ndarray, " flipped"]
    given: Int[np.ndarray, "given n"]


def checked_words(
    subject: Measurable,
    n: Any,
    alphabet_size: int | None,
    symbols: Sequence[int] | None,
    fixed: Mapping[int, int] | None,
    start: Any,
    readout: int | str | None,
    options: Mapping[str, Any],
    progress: object,
    numbers: Mapping[str, tuple[Any, int | None]],
    choices: Mapping[str, tuple[Any, tuple[Any, ...]]],
) -> Words:
    """The words to search, once everything that is wrong has been refused at once.

    Args:
        subject: the model.
        n, alphabet_size, symbols, fixed, start, readout: as `worst_input` has them.
        options: the further arguments of `check_options`.
        progress: as `worst_input` has it.
        numbers: by argument, a value and the least it may be; with None, the argument may be None or at least 1.
        choices: by argument, a value and what it may be.

    Raises:
        InputError: listing every fault.
    """
    faults = Faults("worst_input")
    alphabet = check_options(subject, alphabet_size, symbols, **options, faults=faults)
    if progress is not None and not (callable(progress) and takes(progress, 1)):
        faults.add("progress", progress, "a function that is called with a SearchProgress, or None")
    if len(alphabet) == 1:
        faults.add("symbols", symbols, "at least two symbols: of one there is only one word")
    for name, (value, least) in numbers.items():
        if not (value is None and least is None) and not is_count(value, 1 if least is None else least):
            or_none = ", or None" if least is None else ""
            faults.add(name, value, f"a whole number of at least {1 if least is None else least}{or_none}")
    for name, (value, allowed) in choices.items():
        if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            faults.add(name, value, f"one of {', '.join(repr(one) for one in allowed)}")
    sound = is_count(n, 1) and check_fits(
        "n", n, int(n) * TOKEN_BYTES, "a word of this length", "give a smaller one", faults
    )
    if not is_count(n, 1):
        faults.add("n", n, "a length of at least 1")
    elif sound and subject.config is not None:
        check_runs(subject.config, int(n), faults)
    length = int(n) if sound else 0
    if check_readout(subject, readout, length if sound else None, faults):
        subject = reading(subject, readout)
    held = _fixed(subject, fixed, length if sound else None, faults)
    flipped = np.zeros(0, int)
    if sound:
        flipped = np.array([p for p in places(subject, length, None)[0] if p not in held], int)
        if not len(flipped):
            faults.add(
                "n" if not held else "fixed",
                n if not held else fixed,
                "nothing to flip: the readout position is not flipped, nor are fixed ones; leave another one free",
            )
    given = _given(start, length, alphabet, held, faults) if sound and len(alphabet) else None
    faults.raise_if_any()
    return Words(length, alphabet, held, flipped, np.zeros((0, length), np.int32) if given is None else given)


def _fixed(
    subject: Measurable, fixed: Mapping[int, int] | None, n: int | None, faults: Faults
) -> dict[int, int]:
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping) or not all(
        is_count(position, 0) and is_count(symbol, 0) for position, symbol in fixed.items()
    ):
        faults.add("fixed", fixed, "a mapping of 0-based positions to symbol ids, each at least 0")
        return {}
    limit = subject.vocabulary_size
    for position, symbol in fixed.items():
        if n is not None and position >= n:
            faults.add("fixed", {position: symbol}, f"positions from 0 to {n - 1}")
        if symbol >= (LARGEST_ID + 1 if limit is None else limit):
            faults.add(
                "fixed", {position: symbol}, f"the model reads ids 0 to {(limit or LARGEST_ID + 1) - 1}"
            )
    return {int(position): int(symbol) for position, symbol in sorted(fixed.items())}


def _given(
    start: Any, n: int, alphabet: np.ndarray, fixed: dict[int, int], faults: Faults
) -> np.ndarray | None:
    if start is None:
        return None
    words = whole_numbers(start)
    if words is None or words.ndim not in (1, 2) or words.size == 0:
        faults.add("start", start, f"whole numbers of shape ({n},) or (words, {n})")
        return None
    words = words.reshape(-1, words.shape[-1])
    if words.shape[1] != n:
        faults.add("start", f"shape {words.shape}", f"words of length {n}")
        return None
    for k, word in enumerate(words):
        wrong = [p for p in range(n) if (word[p] != fixed[p] if p in fixed else word[p] not in alphabet)]
        if wrong:
            p = wrong[0]
            remedy = f"the fixed symbol {fixed[p]}" if p in fixed else f"a symbol of {alphabet.tolist()}"
            faults.add("start", int(word[p]), f"{remedy} (word {k}, position {p})")
    return words.astype(np.int32)
