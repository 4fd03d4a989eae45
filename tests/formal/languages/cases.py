"""Every language with options of its own beside the machine of the same law."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from jaxsens.languages import Dyck, Language, language
from tests.formal.languages import machines
from tests.formal.languages.machines import Machine, Word

DYCK: dict[str, tuple[Dyck, Machine]] = {
    "dyck-1": (Dyck(1, 0.625), machines.dyck(1, Fraction(5, 8))),
    "2dyck": (Dyck(2, 0.375), machines.dyck(2, Fraction(3, 8))),
    "dyck-3": (Dyck(3, 0.5), machines.dyck(3, Fraction(1, 2))),
}

CASES: dict[str, tuple[Language, Machine]] = DYCK | {
    "parity": (language("parity", end_probability=0.25), machines.parity(Fraction(1, 4))),
    "one-star": (language("one-star", end_probability=0.125), machines.one_star(Fraction(1, 8))),
    "equal-blocks": (language("equal-blocks", stop_probability=0.25), machines.equal_blocks(Fraction(1, 4))),
    "flip-flop": (
        language("flip-flop", ignore_probability=0.5, end_probability=0.375),
        machines.flip_flop(Fraction(1, 2), Fraction(3, 8)),
    ),
    "majority": (language("majority", end_probability=0.2), machines.majority(0.2)),
    "set-complement": (
        language("set-complement", size=4, repeat_probability=0.25),
        machines.set_complement(4, Fraction(1, 4)),
    ),
    "formula": (
        language("formula", formula="true S (Q_1 & Y Q_1)", alphabet="01", end_probability=0.2),
        machines.two_ones_in_a_row(0.2),
    ),
}

# Up to which length everything is enumerated: words, and prefixes.
LONGEST_WORD = dict.fromkeys(CASES, 12) | {"dyck-3": 10, "flip-flop": 10, "set-complement": 8}
LONGEST_PREFIX = dict.fromkeys(CASES, 12) | {"2dyck": 10, "dyck-3": 7, "flip-flop": 9, "set-complement": 7}


def array(words: Iterable[Word], n: int) -> np.ndarray:
    """Words of n symbols as rows."""
    listed = list(words)
    return np.array(listed, np.int64).reshape(len(listed), n)
