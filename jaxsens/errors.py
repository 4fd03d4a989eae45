"""How unusable input is refused: one message that lists every error found, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

Rule = TypeVar("Rule")


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


def rule_for(consumer: str, family: str, name: str, rules: Mapping[str, Rule]) -> Rule:
    """The entry of a table of rules, one for each name of a family; `no_rule` where it has none.

    Raises:
        InputError: naming the kind and those the table knows.
    """
    if name not in rules:
        raise no_rule(consumer, family, name, rules)
    return rules[name]


class Faults:
    """Collects all errors of an input, so that they are raised together.

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
        """Notes that `argument` has the unusable `value`; `remedy` says what is accepted."""
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:197] + "..."
        self.messages.append(f"{argument} = {shown}: {remedy}")

    def extend(self, other: Faults, prefix: str = "") -> None:
        """Adds the errors of a part, each with `prefix` before its argument's name."""
        self.messages.extend(prefix + message for message in other.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def raise_if_any(self) -> None:
        """Raises one `InputError` that lists all errors, if there are any."""
        if not self.messages:
            return
        if len(self.messages) == 1:
            raise InputError(f"{self.subject}: {self.messages[0]}")
        listed = "\n".join(f"  - {message}" for message in self.messages)
        raise InputError(f"{self.subject}: {len(self.messages)} errors\n{listed}")


@contextmanager
def collecting(subject: str) -> Iterator[Faults]:
    """Collects errors within a `with` block and raises them together at its end."""
    faults = Faults(subject)
    yield faults
    faults.raise_if_any()
