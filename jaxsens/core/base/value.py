"""The base of the objects that say what is asked, and how they are read from what a user writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, path_of
from jaxsens.core.base.strict import checked_by, config, did_you_mean, read_table

T = TypeVar("T")


def _seed(name: str, value: Any, problems: Problems) -> int:
    del name
    return inputs.seed(value, problems)


Seed = Annotated[int, checked_by(_seed)]


class Answer:
    """An answer to one question. Its class is one of the kinds of an abstract class below this one.

    Attributes:
        kind: the word for it in a config and on the command line.
        question: the argument that it answers.
    """

    kind: ClassVar[str]
    question: ClassVar[str]
    kinds: ClassVar[Any]

    @classmethod
    def shorthand(cls, value: Any) -> Any:
        """Returns what to make of a value that is neither an object, nor a name, nor a table; None if it is nothing."""
        del value
        return None

    def seeded(self, seed: int) -> Any:
        """Returns the answer with a seed, if it draws anything."""
        del seed
        return self

    def given(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults."""
        pairs = [(field, getattr(self, field.name)) for field in _fields(self)]
        return {field.name: value for field, value in pairs if value != field.default}

    def table(self) -> dict[str, Any]:
        """Returns the object as JSON values: its kind, and the fields that differ from their defaults."""
        return {"kind": self.kind, **{name: _listed(value) for name, value in self.given().items()}}

    def __repr__(self) -> str:
        first = _fields(self)[:1]
        positional = {field.name for field in first if not field.kw_only and field.name in self._spoken()}
        shown = [
            f"{value!r}" if name in positional else f"{name}={value!r}"
            for name, value in self._written().items()
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _written(self) -> dict[str, Any]:
        """The fields that are written, as a user writes them."""
        return {name: _listed(value) for name, value in self.given().items()}

    @classmethod
    def _spoken(cls) -> tuple[str, ...]:
        """The fields that are written without their names."""
        return ()


@dataclass_transform(frozen_default=True, kw_only_default=False, field_specifiers=(dataclasses.field,))
def kind_of(base: Any, kind: str) -> Callable[[type[T]], type[T]]:
    """Makes a class a kind of the answers to a question: a config (`jaxsens.core.base.strict`), known by the word
    `kind`."""

    def decorate(cls: type[T]) -> type[T]:
        made: Any = config(cls)
        made.__repr__ = Answer.__repr__
        made.kind = kind
        base.kinds[kind] = made
        return made

    return decorate


def read(base: Any, value: Any, problems: Problems, name: str | None = None, *, file: bool = False) -> Any:
    """Returns the object that answers a question; None after adding errors.

    Args:
        base: the abstract class: `Flips`, `Measure` or `AskedEngine`.
        value: an object, the name of a kind, a table `{"kind": ..., ...}`, or a shorthand.
        problems: collects the errors.
        name: what to call the value in messages; by default the question's name.
        file: whether the value comes from a file, where nothing but tables, names and shorthands are.
    """
    name = str(base.question) if name is None else name
    if isinstance(value, base):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    elif not (isinstance(value, Mapping) and "kind" in value):
        made = base.shorthand(value)
        if made is None:
            problems.add(name, value, f"{_kinds(base)}, or an object such as {base.example}")
            return None
        value = made
    table = dict(value)
    kind = table.pop("kind")
    known = base.kinds.get(kind) if isinstance(kind, str) else None
    if known is None:
        hint = did_you_mean(kind, base.kinds) if isinstance(kind, str) else ""
        path = path_of(name) if hint else (*path_of(name), "kind")
        problems.add(path, kind, f"{_kinds(base)}{hint if 'mean' in hint else ''}")
        return None
    return read_table(known, table, name, problems, python=not file)


def _fields(asked: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(asked)


def _kinds(base: Any) -> str:
    return f"one of {', '.join(base.kinds)}"


def _listed(value: Any) -> Any:
    """Tuples as lists, as one writes them, and as JSON has them."""
    return [_listed(one) for one in value] if isinstance(value, tuple) else value
