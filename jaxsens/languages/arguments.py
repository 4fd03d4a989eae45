"""Checks of what users give to a language; each raises one InputError that names every fault."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsens.errors import Faults, collecting, is_count


def check_probabilities(subject: str, **values: object) -> None:
    """Raises unless each value is a number strictly between 0 and 1."""
    with collecting(subject) as faults:
        add_probability_faults(faults, **values)


def add_probability_faults(faults: Faults, **values: object) -> None:
    """Notes each value that is no number strictly between 0 and 1."""
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            faults.add(option, value, "give a number strictly between 0 and 1")


def checked_count(subject: str, argument: str, value: Any) -> int:
    """The value as Python's whole number; raises unless it is one, 0 or more."""
    with collecting(subject) as faults:
        add_count_faults(faults, **{argument: value})
    return int(value)


def add_count_faults(faults: Faults, **values: object) -> None:
    """Notes each value that is no whole number, 0 or more."""
    for argument, value in values.items():
        if not is_count(value):
            faults.add(argument, value, "give a whole number, 0 or more")


def checked_sampling(subject: str, generator: object, **counts: Any) -> tuple[int, ...]:
    """The counts as Python's whole numbers; raises unless they are such, and `generator` a NumPy generator."""
    with collecting(subject) as faults:
        add_count_faults(faults, **counts)
        if not isinstance(generator, np.random.Generator):
            faults.add("generator", generator, "give numpy.random.default_rng(seed)")
    return tuple(int(count) for count in counts.values())


def checked_tokens(subject: str, alphabet: tuple[str, ...], tokens: object) -> np.ndarray:
    """The tokens as int64; raises unless they are numbers of symbols, with at least one axis."""
    found = np.asarray(tokens)
    with collecting(subject) as faults:
        if found.ndim == 0 or found.dtype.kind not in "iu":
            what = f"{found.dtype}, shape {found.shape}"
            faults.add("tokens", what, "give integers, the last axis along the word")
        elif found.size and (found.min() < 0 or found.max() >= len(alphabet)):
            names = ", ".join(f"{i} {name!r}" for i, name in enumerate(alphabet))
            range_found = (int(found.min()), int(found.max()))
            faults.add("tokens' least and largest", range_found, f"give symbols of the alphabet: {names}")
    return found.astype(np.int64, copy=False)  # differences of unsigned numbers would wrap around
