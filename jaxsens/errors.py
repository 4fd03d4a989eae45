"""How bad input is refused: one message that holds every fault found, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """An argument that cannot be used. The message names the argument, its value and what to do instead."""


class EngineRefusal(InputError):
    """An engine was asked for by name but cannot serve this model. The message says why and what can."""


class PrecisionWarning(UserWarning):
    """A model is asked for more digits than its dtype holds. The message says from which length on, and the remedy."""


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
    """Whether a value is a whole number of at least `least`; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
