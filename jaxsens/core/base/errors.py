"""Exceptions for unusable input. One message lists every error found, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

Rule = TypeVar("Rule")


class InputError(ValueError):
    """Raised for an unusable argument. The message names the argument, its value and the remedy."""


class EngineRefusal(InputError):
    """Raised if an engine requested by name cannot measure this model. The message says why, and which engine can."""


class ProcessLost(RuntimeError):
    """Raised where an exchange with the other processes of a mesh fails: at least one of them has ended."""


class PrecisionWarning(UserWarning):
    """Issued if a model needs more digits than its dtype has. The message says where, and gives the remedy."""


class DurationWarning(UserWarning):
    """Issued before a measurement that will take more than half a minute. The message says about how long."""


class EstimateWarning(UserWarning):
    """Issued if an estimate is far from the flips that were also measured exactly. The message says how far."""


class UnchangedWarning(UserWarning):
    """Issued if no flip changed anything that was measured. The message gives the likely reasons, and what to try."""


def no_rule(consumer: str, family: str, kind: object, known: Iterable[type | str] = ()) -> InputError:
    """Returns the error for a kind of part that a function has no rule for.

    Raise it as the last case of every function that treats the kinds of a family (weightings, position terms,
    activations, ...) separately. A new kind is then rejected by name and never takes another kind's rule:

        match activation:
            case "relu" | "tanh":
                return 1.0
            case _:
                raise no_rule("lipschitz_bound", "activation", activation, ("relu", "tanh"))

    Args:
        consumer: The name of the rejecting function, as its caller knows it.
        family: The family of the kind, in the singular: "weighting", "position term", "activation".
        kind: The part, its class, or its name.
        known: The kinds with a rule, as classes or names. Omit it if the list would not help.
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
    """Returns the entry for `name` in a table of rules, which has one for each known name of a family.

    Raises:
        InputError: naming the kind and those the table knows.
    """
    if name not in rules:
        raise no_rule(consumer, family, name, rules)
    return rules[name]


def shortened(text: str, at_most: int) -> str:
    """Returns a text that has at most so many characters, or its beginning, ended by "..."."""
    return text if len(text) <= at_most else text[: at_most - 3] + "..."


class Problems:
    """Collects all errors in an input, so that they can be raised together.

    >>> problems = Problems("SweepConfig")
    >>> problems.add("lengths", [], "give at least three lengths")
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    ...
    jaxsens.core.base.errors.InputError: SweepConfig: lengths = []: give at least three lengths
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.messages: list[str] = []

    def add(self, argument: str, value: object, remedy: str) -> None:
        """Adds the error that `argument` has an unusable `value`; `remedy` says what is accepted."""
        self.messages.append(f"{argument} = {shortened(repr(value), 200)}: {remedy}")

    def extend(self, other: Problems, prefix: str = "") -> None:
        """Adds all errors of `other`, with `prefix` before each argument's name."""
        self.messages.extend(prefix + message for message in other.messages)

    def __bool__(self) -> bool:
        return bool(self.messages)

    def raise_if_any(self, kind: type[InputError] = InputError) -> None:
        """Raises one `InputError`, or a `kind` of it, that lists all errors, if there are any."""
        if not self.messages:
            return
        if len(self.messages) == 1:
            raise kind(f"{self.subject}: {self.messages[0]}")
        listed = "\n".join(f"  - {message}" for message in self.messages)
        raise kind(f"{self.subject}: {len(self.messages)} errors\n{listed}")


@contextmanager
def collecting(subject: str) -> Iterator[Problems]:
    """Collects errors within a `with` block and raises them together at its end."""
    problems = Problems(subject)
    yield problems
    problems.raise_if_any()
