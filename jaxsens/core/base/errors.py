"""Exceptions for unusable input. One error lists every problem: where it is, what was given, and the remedy.

Validation records problems as data. The front end that received the arguments puts them into words, so one check serves
Python, config files, the command line and HTTP. Work that cannot fit in this machine's memory is such a problem too.
"""

from __future__ import annotations

import copyreg
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from jaxsens.core.base.text import in_words, printable

Rule = TypeVar("Rule")

Location = tuple[str | int, ...]
"""Where a problem is, from the argument inwards: ("flips", "symbols"), ("lengths", 2), ("--flips", "k")."""


class Written(str):
    """The text of a value that is not at hand: one of another process, or one that cannot be pickled."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


NO_VALUE = Written("")
"""The value of a problem that is not one of a value, such as a missing file."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A mistake in an argument. Two are equal if they read alike.

    Attributes:
        path: where it is; () if the problem is not one of a single argument.
        value: what was given there, or `NO_VALUE`.
        remedy: what is accepted, in words that fit every front end: "at least two symbols".
    """

    path: Location
    value: Any
    remedy: str

    @property
    def written(self) -> str:
        """The value as Python writes it, at most 200 characters."""
        return shortened(repr(self.value), 200)

    def below(self, path: str | Location) -> Problem:
        """Returns the problem as one within the argument at `path`."""
        return Problem((*path_of(path), *self.path), self.value, self.remedy)

    def renamed(self, names: Mapping[str, str | Location]) -> Problem:
        """Returns the problem at another place, where `names` has one for its first step, or its first two."""
        for k in (2, 1):
            if (new := names.get(dotted(self.path[:k]))) is not None:
                return Problem((*path_of(new), *self.path[k:]), self.value, self.remedy)
        return self

    def __str__(self) -> str:
        place = " = ".join(part for part in (dotted(self.path), self.written) if part)
        return printable(f"{place}: {self.remedy}" if place else self.remedy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> Any:  # models, functions and devices cannot be pickled, but errors must
        plain = self.value is None or type(self.value) in (bool, int, float, str, Written)
        return Problem, (self.path, self.value if plain else Written(self.written), self.remedy)


class InputError(ValueError):
    """Raised once for all unusable arguments of a call.

    A sentence makes a problem without path and value.

    Attributes:
        problems: the mistakes; each has its `path`, the value given there, and the remedy.
        subject: the function, class or file to which they were given; "" if the problems say it.
    """

    def __init__(self, *problems: Problem | str, subject: str = "") -> None:
        super().__init__(*problems)
        self.problems = tuple(
            one if isinstance(one, Problem) else Problem((), NO_VALUE, one) for one in problems
        )
        self.subject = subject

    @classmethod
    def of(cls, path: str | Location, value: object, remedy: str, subject: str = "") -> Self:
        """Returns the error of one problem."""
        return cls(Problem(path_of(path), value, remedy), subject=subject)

    @classmethod
    def note(cls, path: str | Location, remedy: str, subject: str = "") -> Self:
        """Returns the error of one problem that is not one of a value."""
        return cls.of(path, NO_VALUE, remedy, subject)

    def __str__(self) -> str:
        begin = f"{self.subject}: " if self.subject else ""
        if len(self.problems) == 1:
            return f"{begin}{self.problems[0]}"
        return "\n".join([f"{begin}{len(self.problems)} errors", *(f"  - {one}" for one in self.problems)])

    def json(self) -> dict[str, Any]:
        """Returns the error as JSON values, which `InputError.of_json` reads. Values are texts there."""
        listed = [{"path": one.path, "value": one.written, "remedy": one.remedy} for one in self.problems]
        kind = EngineRefusal if isinstance(self, EngineRefusal) else InputError
        return {"kind": kind.__name__, "subject": self.subject, "problems": listed}

    @staticmethod
    def of_json(table: Mapping[str, Any]) -> InputError:
        """Returns the error that `json` describes."""
        kind = EngineRefusal if table["kind"] == "EngineRefusal" else InputError
        listed = [
            Problem(tuple(one["path"]), Written(one["value"]), one["remedy"]) for one in table["problems"]
        ]
        return kind(*listed, subject=table["subject"])

    def __reduce__(self) -> Any:  # a subclass may be made of other arguments than `args`
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore[reportAttributeAccessIssue]


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


def no_rule(consumer: str, family: str, kind: object, kinds: Iterable[type | str] = ()) -> InputError:
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
        kinds: The kinds with a rule, as classes or names. Omit it if the list would not help.
    """

    def name(kind: object) -> str:
        if isinstance(kind, str):
            return kind
        return kind.__name__ if isinstance(kind, type) else type(kind).__name__

    names = ", ".join(map(name, kinds))
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


def path_of(place: str | Location) -> Location:
    """Returns the path that "measure.flips", "curriculum[0].step" or "config.json: rope_scaling" stands for."""
    if not isinstance(place, str):
        return place
    if not _DOTTED.fullmatch(place):
        return tuple(place.split(": ")) if place else ()
    return tuple(int(step) if step.isdigit() else step for step in _STEP.findall(place))


def dotted(path: Location) -> str:
    """Returns `variant[2].model.width` for ("variant", 2, "model", "width"), `--flips k` after an option, and
    `layer 3: weighting` where a step is no word."""
    text, word = "", True
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        before, word = word, _STEP.fullmatch(step) is not None
        option = text.startswith("--") and " " not in text
        separator = " " if option else "." if before and word else ": "
        text += f"{separator if text else ''}{step}"
    return text


_STEP = re.compile(r"-{0,2}\w[\w-]*")
_DOTTED = re.compile(rf"{_STEP.pattern}(\.\w[\w-]*|\[\d+\])*")


class Problems(list[Problem]):
    """Collects all problems of an input, so that they can be raised together.

    >>> problems = Problems("SweepConfig")
    >>> problems.add("lengths", [], "give at least three lengths")
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    ...
    jaxsens.core.base.errors.InputError: SweepConfig: lengths = []: give at least three lengths
    """

    def __init__(self, subject: str = "") -> None:
        super().__init__()
        self.subject = subject

    def add(self, path: str | Location, value: object, remedy: str) -> None:
        """Adds the problem that an argument has an unusable `value`; `remedy` says what is accepted.

        The path may be written: "lengths", "measure.flips", "curriculum[0].step".
        """
        self.append(Problem(path_of(path), value, remedy))

    def note(self, path: str | Location, remedy: str) -> None:
        """Adds a problem that is not one of a value."""
        self.add(path, NO_VALUE, remedy)

    def include(self, problems: Iterable[Problem], path: str | Location = ()) -> None:
        """Adds the problems of the argument at `path`, except those that are there already."""
        for one in problems:
            placed = one.below(path)
            if placed not in self:
                self.append(placed)

    def raise_if_any(self) -> None:
        """Raises one `InputError` that lists all problems, if there are any."""
        if self:
            raise InputError(*self, subject=self.subject)


@contextmanager
def collecting(subject: str) -> Iterator[Problems]:
    """Collects problems within a `with` block and raises them together at its end."""
    problems = Problems(subject)
    yield problems
    problems.raise_if_any()


# Work that cannot fit in this machine's memory. Estimates are lower bounds: rejected work could not have run. Accepted
# work may still be too large if other programs use much of the memory.

TOKEN_BYTES = 48
"""Bytes needed for one position, to choose and count its flips. A fourth of them remain: its id, and its list."""

FLIP_BYTES = 64
"""Bytes needed to enumerate one flip. Half of them remain: position, symbol, input and norm."""

_LIMIT = Path("/sys/fs/cgroup/memory.max")


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Returns the bytes of memory of this machine, or the limit of the container if that is smaller."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_LIMIT.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # No such limit, or "max".
        return whole


def check_fits(
    argument: str, value: object, needed: float, what: str, remedy: str, problems: Problems
) -> bool:
    """Returns whether `needed` bytes fit in this machine's memory; if not, adds an error for the argument.

    `what` is a noun in the singular, such as "the list of its flips".
    """
    have = machine_memory()
    if needed <= have:
        return True
    problems.add(
        argument, value, f"{what} takes {in_words(needed)}, and this machine has {in_words(have)}; {remedy}"
    )
    return False
