"""How bad input is refused: one message that holds every fault found, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class InputError(ValueError):
    """An argument that cannot be used. The message names the argument, its value and what to do instead."""


class EngineRefusal(InputError):
    """An engine was asked for by name but cannot serve this model. The message says why and what can."""


class PrecisionWarning(UserWarning):
    """A model is asked for more digits than its dtype holds. The message says where, and the remedy."""


def no_rule(consumer: str, family: str, kind: object, known: Iterable[type | str] = ()) -> InputError:
    """The error for a kind of part that a function cannot handle, to be raised where its last rule ends.

    Whoever treats the kinds of a family (weightings, position terms, activations, ...) case by case closes the list
    with this error, so that a new kind is refused by name and never takes another kind's rule:

        match activation:
            case "relu" | "tanh":
                return 1.0
            case _:
                raise no_rule("lipschitz_bound", "activation", activation, ("relu", "tanh"))

    Args:
        consumer: Name of the function that refuses, as its caller knows it.
        family: What the kind is a kind of, in the singular: "weighting", "position term", "activation".
        kind: The part, its class, or its name.
        known: The kinds with a rule, as classes or names. Leave it out where the list would not help.
    """

    def name(kind: object) -> str:
        if isinstance(kind, str):
            return kind
        return kind.__name__ if isinstance(kind, type) else type(kind).__name__

    names = ", ".join(map(name, known))
    return InputError(
        f"{consumer} has no rule for the {family} {name(kind)}" + (f"; it knows {names}" if names else "")
    )


class Faults:
    """Collects every fault of an input before any is raised.

    >>> faults = Faults("SweepConfig")
    >>> faults.add("lengths", [], "give at least three lengths")
    >>> faults.raise_if_any()
    Traceback (most recent call last):
    ...
    jaxsens.errors.InputError: SweepConfig: lengths = []: give at least three lengths
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.messages: list[str] = []

    def add(self, argument: str, value: object, remedy: str) -> None:
        """Notes that `argument` has the unusable `value`; `remedy` says what would be accepted."""
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:197] + "..."
        self.messages.append(f"{argument} = {shown}: {remedy}")

    def extend(self, other: Faults, prefix: str = "") -> None:
        """Takes over the faults of a part, each with `prefix` before its argument's name."""
        self.messages.extend(prefix + message for message in other.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def raise_if_any(self) -> None:
        """Raises one `InputError` that lists all the faults, if there are any."""
        if not self.messages:
            return
        if len(self.messages) == 1:
            raise InputError(f"{self.subject}: {self.messages[0]}")
        listed = "\n".join(f"  - {message}" for message in self.messages)
        raise InputError(f"{self.subject}: {len(self.messages)} faults\n{listed}")


@contextmanager
def collecting(subject: str) -> Iterator[Faults]:
    """A `Faults` for the length of a block; raises them together at its end."""
    faults = Faults(subject)
    yield faults
    faults.raise_if_any()


def is_count(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number of at least `least`, of Python or NumPy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def plain_numbers(value: Any) -> Any:
    """NumPy's whole numbers as Python's, in tuples and lists too; anything else as it is."""
    if isinstance(value, tuple | list):
        # A namedtuple, which is built otherwise, is no list of counts.
        return type(value)(map(plain_numbers, value)) if type(value) in (tuple, list) else value
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def keep_plain(config: object, *fields: str) -> None:
    """Makes whole numbers in fields of a frozen dataclass Python's, which compare, print and serialise alike."""
    for name in fields:
        object.__setattr__(config, name, plain_numbers(getattr(config, name)))


def array_of(value: object) -> np.ndarray:
    """The value as an array. What is none (lists of unequal length, a tensor on another device) gives one of dtype
    object: no check takes it."""
    import numpy as np

    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        return np.zeros(0, object)
