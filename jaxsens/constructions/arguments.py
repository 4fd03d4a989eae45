"""What the lemmas' functions accept: each check refuses with one message, or returns the first value as Python's own.

NumPy's scalars count as the numbers they are; True and False are none.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

from jaxsens.errors import collecting
from jaxsens.inputs import is_count


def positive(subject: str, **values: float) -> float:
    """Numbers above 0."""
    return float(_first(subject, lambda value: is_real(value) and value > 0, "a number above 0", values))


def at_least_0(subject: str, **values: float) -> float:
    """Numbers of at least 0."""
    remedy = "a number of at least 0"
    return float(_first(subject, lambda value: is_real(value) and value >= 0, remedy, values))


def within(subject: str, limit: float, **values: float) -> float:
    """Numbers above 0 and below `limit`."""
    remedy = f"a number above 0 and below {limit}"
    return float(_first(subject, lambda value: is_real(value) and 0 < value < limit, remedy, values))


def count(subject: str, **values: int) -> int:
    """Whole numbers of at least 1."""
    return int(_first(subject, lambda value: is_count(value, 1), "a whole number of at least 1", values))


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _first(subject: str, accepted: Callable[[Any], bool], remedy: str, values: dict[str, Any]) -> Any:
    with collecting(subject) as faults:
        for name, value in values.items():
            if not accepted(value):
                faults.add(name, value, remedy)
    return next(iter(values.values()))
