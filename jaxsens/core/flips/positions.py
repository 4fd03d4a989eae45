"""Which positions are flipped, said for inputs of every length.

positions = [0, 1, 0.5, "readout"]      positions from the front, fractions of n, and the row that is read
positions = ["0:16", "-16:"]            ranges as Python's: the first 16 and the last 16
positions = ["0.25:0.75"]               ranges whose ends are fractions of n: the middle half
positions = ["powers"]                  at distances 1, 2, 4, 8, ... before and behind the row that is read
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.inputs import array_of, is_count, is_real, plain_numbers, whole_numbers

READOUT, POWERS = "readout", "powers"

KINDS = (
    f'positions from 0 on, fractions of n from 0 to below 1, ranges such as "0:16", "-16:" or "0.25:0.75", "{READOUT}" '
    f'or "{POWERS}" (at distances 1, 2, 4, ... from the readout)'
)

_END = r"(-?\d+|0?\.\d+|1\.0+)?"
_RANGE = re.compile(rf"{_END}:{_END}(?::(\d+))?")


def checked_positions(name: str, value: Any, problems: Problems) -> tuple[int | float | str, ...] | None:
    """Returns the entries of `positions` as a tuple, without repetitions; None for the default."""
    if value is None:
        return None
    numbers = whole_numbers(value)
    entries = numbers.tolist() if numbers is not None and numbers.ndim == 1 else value
    if isinstance(entries, str) or not isinstance(entries, list | tuple | range) or not len(entries):
        text = (
            value if array_of(value).size < 8 or isinstance(value, str) else f"shape {array_of(value).shape}"
        )
        problems.add(name, text, f"a list of {KINDS}")
        return None
    wrong = [one for one in entries if not _is_known(one)]
    if wrong:
        problems.add(name, wrong[0], f"positions count from the front: {KINDS}")
        return None
    return tuple(dict.fromkeys(plain_numbers(list(entries))))


def _is_known(one: object) -> bool:
    if isinstance(one, str):
        match = _RANGE.fullmatch(one)
        return one in (READOUT, POWERS) or (match is not None and match[3] not in ("0", "00"))
    return is_count(one) or (isinstance(one, float) and is_real(one) and 0 <= one < 1)


def positions_at(entries: Sequence[int | float | str], n: int, read: int | None) -> tuple[int, ...]:
    """Returns the positions of an input of length n, sorted, each once. Ranges end where the input does; a fraction f
    is the position floor(f n).

    Args:
        entries: as they are written.
        n: the length of the inputs.
        read: the position that the model reads; None if it reads no single one.

    Raises:
        InputError: for a position beyond the input, "readout" of a model that reads no single row, and if nothing is
            left.
    """
    positions: set[int] = set()
    for one in entries:
        match one:
            case str() if one in (READOUT, POWERS):
                if read is None:
                    raise InputError.of(
                        "positions", one, "this model reads no single row; give positions, or ranges"
                    )
                steps = [0] if one == READOUT else [2**k for k in range(n.bit_length())]
                positions |= {read + sign * step for step in steps for sign in (-1, 1)} & set(range(n))
            case str():
                positions |= set(_range_at(one, n))
            case float():
                positions.add(_share(str(one), n))
            case _ if one < n:
                positions.add(int(one))
            case _:
                raise InputError.of(
                    "positions", one, f"positions from 0 to {n - 1}, those of an input of length {n}"
                )
    if not positions:
        raise InputError.of("positions", list(entries), f"none of them is in an input of length {n}")
    return tuple(sorted(positions))


def _range_at(text: str, n: int) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError.of("positions", text, KINDS)
    start, stop = (
        None if end is None else _share(end, n) if "." in end else int(end) for end in match.groups()[:2]
    )
    return range(n)[slice(start, stop, None if match[3] is None else int(match[3]))]


def _share(fraction: str, n: int) -> int:
    """The fraction of n, rounded down: of the decimal number as it is written, not of the nearest binary one."""
    return math.floor(Fraction(fraction) * n)
