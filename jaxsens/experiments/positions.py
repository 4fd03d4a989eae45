"""`positions` of a `[measure]` table: which positions are flipped, said for inputs of every length.

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
from typing import Annotated

from pydantic import BeforeValidator

from jaxsens.errors import InputError, Problems
from jaxsens.inputs import is_count, is_real
from jaxsens.models.layered import readout_row

READOUT, POWERS = "readout", "powers"

KINDS = (
    f'positions from 0 on, fractions of n from 0 to below 1, ranges such as "0:16", "-16:" or "0.25:0.75", "{READOUT}" '
    f'or "{POWERS}" (at distances 1, 2, 4, ... from the readout)'
)

_END = r"(-?\d+|0?\.\d+|1\.0+)?"
_RANGE = re.compile(rf"{_END}:{_END}(?::(\d+))?")


def _checked(value: object) -> object:
    """A list of `KINDS`, as a tuple."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"should be a list of {KINDS}")
    wrong = [one for one in value if not _is_known(one)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: should be {KINDS}")
    return tuple(value)


def _is_known(one: object) -> bool:
    if isinstance(one, str):
        found = _RANGE.fullmatch(one)
        return one in (READOUT, POWERS) or (found is not None and found[3] not in ("0", "00"))
    return is_count(one) or (isinstance(one, float) and is_real(one) and 0 <= one < 1)


Positions = Annotated[tuple[int | float | str, ...], BeforeValidator(_checked)]
"""The entries of `positions`, as they are written."""


def positions_at(entries: Sequence[int | float | str], n: int, readout: int | str | None) -> tuple[int, ...]:
    """The positions of an input of length n, sorted, each once. Ranges end where the input does; a fraction f is the
    position floor(f n).

    Args:
        entries: as a config has them.
        n: length of the inputs.
        readout: of the model: "last", a position, "mean", or None if it does not say.

    Raises:
        InputError: for a position beyond the input, "readout" of a model that reads no single row, and if nothing is
            left.
    """
    found: set[int] = set()
    for one in entries:
        match one:
            case str() if one in (READOUT, POWERS):
                row = None if readout is None else readout_row(readout, n)
                if row is None:
                    raise InputError(
                        f"positions = {one!r}: this model reads no single row; give positions, or ranges"
                    )
                steps = [0] if one == READOUT else [2**k for k in range(n.bit_length())]
                found |= {row + sign * step for step in steps for sign in (-1, 1)} & set(range(n))
            case str():
                found |= set(_range_at(one, n))
            case float():
                found.add(_share(str(one), n))
            case _ if one < n:
                found.add(int(one))
            case _:
                raise InputError(f"positions = {one}: an input of length {n} has the positions 0 to {n - 1}")
    if not found:
        raise InputError(f"positions = {list(entries)}: none of them is in an input of length {n}")
    return tuple(sorted(found))


def _range_at(text: str, n: int) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InputError(f"positions = {text!r}: {KINDS}")
    start, stop = (
        None if end is None else _share(end, n) if "." in end else int(end) for end in match.groups()[:2]
    )
    return range(n)[slice(start, stop, None if match[3] is None else int(match[3]))]


def _share(fraction: str, n: int) -> int:
    """The fraction of n, rounded down: of the decimal number as it is written, not of the nearest binary one."""
    return math.floor(Fraction(fraction) * n)


def check_positions(
    entries: Sequence[int | float | str] | None,
    lengths: Sequence[int],
    readout: int | str | None,
    where: str,
    problems: Problems,
) -> None:
    """Notes the first length at which a model's inputs do not have the positions."""
    for n in lengths if entries is not None else ():
        try:
            positions_at(entries or (), n, readout)
        except InputError as error:
            problems.messages.append(f"measure.{where}{error}")
            return
