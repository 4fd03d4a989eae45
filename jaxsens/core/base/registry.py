"""What packages around the core bring, by entry points: engines, kinds and sources of models, tables of a sweep.

The names come from the metadata of what is installed, so that messages, help and schemas are the same whatever was
imported before. The object behind a name is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal

from jaxsens.core.base.errors import InputError

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
    return MappingProxyType({name: entry for name, entry in by_name.items() if _is_there(entry)})


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
        found = load(self.group, name)
        if getattr(found, "kinds", None) is not self or found.kind != name:
            raise InputError(f"jaxsens.{self.group}: {name!r} is {found!r}, which is no class of this kind")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*self._own, *self.brought))

    def __len__(self) -> int:
        return len(self._own) + len(self.brought)


def _is_there(entry: EntryPoint) -> bool:
    package, _, below = entry.module.partition(".")
    return package != "jaxsens" or find_spec(f"jaxsens.{below.partition('.')[0]}") is not None
