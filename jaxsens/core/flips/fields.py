"""What a user may write in the fields of `flips`. The objects hold tuples.

positions = [0, 1, 0.5, "readout"]      positions from the front, fractions of n, and the row that is read
positions = ["0:16", "-16:"]            ranges as Python's: the first 16 and the last 16
positions = ["0.25:0.75"]               ranges whose ends are fractions of n: the middle half
positions = ["powers"]                  at distances 1, 2, 4, 8, ... before and behind the row that is read
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, cast

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.inputs import array_of, is_count, is_real, plain_numbers, whole_numbers
from jaxsens.core.base.strict import checked_by

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


Groups = tuple[tuple[int, ...], ...]


def _symbols(name: str, value: Any, problems: Problems) -> Any:
    """An alphabet's size, ids, or a mapping of positions to ids; a mapping becomes pairs, sorted by position."""
    if value is None:
        return None
    if is_count(value):
        if value < 2:
            remedy = f"an alphabet has at least 2 symbols; to insert this one alone, give [{value}]"
            problems.add(name, int(value), remedy)
        return inputs.count(name, value, problems, most=inputs.LARGEST_ID)
    if isinstance(value, Mapping) or _is_pairs(value):
        return _by_position(name, dict(value), problems)
    array = whole_numbers(value)
    if array is None or array.ndim != 1 or not array.size:
        remedy = (
            "the number of symbols, a sequence of symbol ids, or a mapping of positions to such sequences"
        )
        problems.add(name, value, remedy)
        return None
    return _ids(name, array, problems)


def _is_pairs(value: Any) -> bool:
    """Whether the value is the form that mappings have in the object and in files: pairs of a position and ids."""
    try:
        return bool(value) and all(is_count(place) and isinstance(ids, list | tuple) for place, ids in value)
    except (TypeError, ValueError):
        return False


def _by_position(name: str, value: Mapping[Any, Any], problems: Problems) -> Any:
    """The lists by position, in their order: groups insert the j-th of each together. A file has its keys as texts."""
    if not value:
        problems.add(name, dict(value), "at least one position")
    lists: dict[int, tuple[int, ...]] = {}
    for key, ids in value.items():
        position = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not is_count(position):
            problems.add(f"{name}: position", key, "0-based positions")
        elif inputs.symbols(ids, None, problems, name=f"{name}[{key}]").size:
            lists[int(position)] = tuple(cast(Any, whole_numbers(ids)).tolist())
    return tuple(sorted(lists.items()))


def _ids(name: str, value: Any, problems: Problems) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(sorted(set(inputs.symbols(value, None, problems, name=name).tolist())))


def _groups(name: str, value: Any, problems: Problems) -> Groups | None:
    """Groups of positions, each sorted, sorted by their first."""
    if value is None:
        return None
    remedy = "sequences of 0-based positions, each position in one of them: [(3, 4, 5), (9,)]"
    try:
        arrays = [whole_numbers(group) for group in value]
    except TypeError:
        arrays = [None]
    if not arrays or any(group is None or group.ndim != 1 or not group.size for group in arrays):
        problems.add(name, value, remedy)
        return None
    groups = [tuple(sorted(group.tolist())) for group in arrays if group is not None]
    every = [position for group in groups for position in group]
    if min(every) < 0:
        problems.add(f"{name}: position", min(every), "0-based positions")
        return None
    if len(set(every)) < len(every):
        twice = next(position for position in every if every.count(position) > 1)
        problems.add(f"{name}: position", twice, "each position in one group, and once")
        return None
    return tuple(sorted(groups))


def _pairs(name: str, value: Any, problems: Problems) -> Any:
    pairs = whole_numbers(value)
    if pairs is None or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        problems.add(name, value, "pairs of a 0-based position and a symbol id: [(3, 17), (5, 2)]")
        return ()
    if pairs[:, 0].min() < 0:
        problems.add(f"{name}: position", int(pairs[:, 0].min()), "0-based positions")
    inputs.check_ids(f"{name}: symbol", pairs[:, 1], None, problems)
    return tuple(sorted({(int(position), int(symbol)) for position, symbol in pairs}))


Symbols = Annotated[int | Sequence[int] | np.ndarray | Mapping[int, Any] | None, checked_by(_symbols)]
Ids = Annotated[Sequence[int] | np.ndarray | None, checked_by(_ids)]
OptionalId = Annotated[int | None, checked_by(inputs.optional_count, least=0)]
Positions = Annotated[Sequence[int | float | str] | np.ndarray | None, checked_by(checked_positions)]
OptionalGroups = Annotated[Sequence[Sequence[int]] | None, checked_by(_groups)]
PositionSymbols = Annotated[Sequence[tuple[int, int]] | np.ndarray, checked_by(_pairs)]
