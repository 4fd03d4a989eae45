"""What a user may write in the fields of `flips`. The objects hold tuples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.inputs import is_count, whole_numbers
from jaxsens.core.base.strict import checked_by
from jaxsens.core.flips.positions import checked_positions

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
