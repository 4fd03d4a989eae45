"""The objects that a user gives by kind, such as `Substitute`, `L2` and `Vmap`, and what packages bring.

Packages bring engines, kinds and sources of models, and tables of a sweep by entry points. The names come from the
metadata of what is installed, so that messages, help and schemas are the same whatever was imported before. The object
behind a name is imported when it is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, dataclass_transform

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, path_of
from jaxsens.core.base.strict import checked_by, config, did_you_mean, read_table

T = TypeVar("T")

Seed = Annotated[int, checked_by(inputs.count, most=math.inf)]
"""A seed of random numbers, of any size."""


# What packages bring

Group = Literal["engines", "model_kinds", "model_sources", "sweep_tables"]
"""`engines`: classes of options of an engine. `model_kinds`: kinds of networks, `kind` in a `[model]` table.
`model_sources`: readers of `[model]` tables, by the key that names the model. `sweep_tables`: tables of a sweep's
config beside `[model]` and `[measure]`."""


@cache
def entries(group: Group) -> MappingProxyType[str, EntryPoint]:
    """Returns the entry points of a group, in the order of their names. Those of a package of jaxsens that is not there
    are left out.

    Raises:
        InputError: if two packages bring the same name.
    """
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=f"jaxsens.{group}"), key=lambda entry: entry.name):
        other = by_name.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise InputError(
                f"two packages bring {entry.name!r} of jaxsens.{group}, {other.value} and {entry.value}: uninstall one"
            )
    for name, entry in [*by_name.items()]:
        package, _, below = entry.module.partition(".")
        if package == "jaxsens" and find_spec(f"jaxsens.{below.partition('.')[0]}") is None:
            del by_name[name]
    return MappingProxyType(by_name)


def load(group: Group, name: str) -> Any:
    """Imports and returns the object of a name in `entries(group)`."""
    return entries(group)[name].load()


class Kinds(Mapping[str, type[Any]]):
    """The classes of a group by name: those of one module in their order, then those that packages bring."""

    def __init__(self, group: Group, module: str) -> None:
        self.group: Group = group
        self.module, self._own = module, dict[str, type[Any]]()

    @property
    def brought(self) -> tuple[str, ...]:
        """The names that packages bring."""
        if taken := self._own.keys() & entries(self.group).keys():
            raise InputError(
                f"a package brings jaxsens' own names of jaxsens.{self.group}, {taken}: uninstall it"
            )
        return tuple(entries(self.group))

    def __setitem__(self, name: str, kind: type[Any]) -> None:
        if kind.__module__ == self.module:  # others come by their entry points, whatever was imported before
            self._own[name] = kind

    def __getitem__(self, name: str) -> type[Any]:
        if name not in self.brought:
            return self._own[name]
        kind = load(self.group, name)
        if getattr(kind, "kinds", None) is not self or kind.kind != name:
            raise InputError(f"jaxsens.{self.group}: {name!r} is {kind!r}, which is not a class of this kind")
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self.brought))

    def __len__(self) -> int:
        return len(self._own) + len(self.brought)


# Objects of a kind


class Option:
    """A value of one argument. Its class is one of the kinds of an abstract class below this one.

    Attributes:
        kind: the word for it in a config and on the command line.
        argument: the argument that it is a value of.
    """

    kind: ClassVar[str]
    argument: ClassVar[str]
    kinds: ClassVar[Any]

    @classmethod
    def shorthand(cls, value: Any) -> Any:
        """Returns what to make of a value that is neither an object, nor a name, nor a table; None if it is nothing."""
        del value
        return None

    def seeded(self, seed: int) -> Any:
        """Returns the object with a seed, if it draws anything."""
        del seed
        return self

    def settings(self) -> dict[str, Any]:
        """Returns the fields that differ from their defaults."""
        pairs = [(field, getattr(self, field.name)) for field in dataclasses.fields(cast(Any, self))]
        return {field.name: value for field, value in pairs if value != field.default}

    def table(self) -> dict[str, Any]:
        """Returns the object as JSON values: its kind, and the fields that differ from their defaults."""
        return {"kind": self.kind, **{name: _listed(value) for name, value in self.settings().items()}}

    def __repr__(self) -> str:
        first = dataclasses.fields(cast(Any, self))[:1]
        positional = {field.name for field in first if not field.kw_only and field.name in self._spoken()}
        arguments = [
            f"{value!r}" if name in positional else f"{name}={value!r}"
            for name, value in self._written().items()
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _written(self) -> dict[str, Any]:
        """The fields that are written, as a user writes them."""
        return {name: _listed(value) for name, value in self.settings().items()}

    @classmethod
    def _spoken(cls) -> tuple[str, ...]:
        """The fields that are written without their names."""
        return ()


@dataclass_transform(frozen_default=True, kw_only_default=False, field_specifiers=(dataclasses.field,))
def kind_of(base: Any, kind: str) -> Callable[[type[T]], type[T]]:
    """Makes a class a kind of the values of an argument: a config (`jaxsens.core.base.strict`), known by the word
    `kind`."""

    def decorate(cls: type[T]) -> type[T]:
        made: Any = config(cls)
        made.__repr__ = Option.__repr__
        made.kind = kind
        base.kinds[kind] = made
        return made

    return decorate


def read(base: Any, value: Any, problems: Problems, name: str | None = None, *, file: bool = False) -> Any:
    """Returns the object that a value of an argument stands for; None after adding errors.

    Args:
        base: the abstract class: `Flips`, `Measure` or `AskedEngine`.
        value: an object, the name of a kind, a table `{"kind": ..., ...}`, or a shorthand.
        problems: collects the errors.
        name: what to call the value in messages; by default the argument's name.
        file: whether the value comes from a file, where nothing but tables, names and shorthands are.
    """
    name = str(base.argument) if name is None else name
    if isinstance(value, base):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    elif not (isinstance(value, Mapping) and "kind" in value):
        table = base.shorthand(value)
        if table is None:
            problems.add(name, value, f"one of {', '.join(base.kinds)}, or an object such as {base.example}")
            return None
        value = table
    table = {str(field): one for field, one in value.items()}
    kind = table.pop("kind")
    cls = base.kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        hint = did_you_mean(kind, base.kinds) if isinstance(kind, str) else ""
        path = path_of(name) if hint else (*path_of(name), "kind")
        problems.add(path, kind, f"one of {', '.join(base.kinds)}{hint if 'mean' in hint else ''}")
    elif file:
        return read_table(cls, table, name, problems)
    else:
        try:
            return cls(**table)
        except InputError as error:
            problems.include(error.problems, name)
    return None


def _listed(value: Any) -> Any:
    """Tuples as lists, as one writes them, and as JSON has them."""
    return [_listed(one) for one in value] if isinstance(value, tuple) else value
