"""Records: what a job keeps of each of its items, under a key and sealed, and the tables made from them.

A record is read back as it was written or not at all. A damaged one counts for nothing: a job reports it and computes
it again, and whoever only reads a directory is told to run the job again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from jaxsens.errors import InputError
from jaxsens.files import write_text
from jaxsens.sealed import DamagedFile, read_sealed, write_sealed

Item = TypeVar("Item")
Found = TypeVar("Found")


class Record:
    """Base class of the frozen dataclasses that are kept as sealed JSON files.

    kind: names, in the file, what it holds.
    """

    kind: ClassVar[str]

    def write(self, path: Path) -> None:
        """Writes the record atomically. Equal records give the same bytes."""
        write_sealed(path, self.kind, asdict(self))  # pyright: ignore[reportArgumentType] - of a dataclass

    @classmethod
    def read(cls, path: Path, key: str | None = None) -> Self:
        """Reads a record, and checks its `key` where one is given.

        Raises:
            FileNotFoundError: if there is no such file.
            DamagedFile: if the file is not what was written, or holds another record.
        """
        content = read_sealed(path, cls.kind)
        try:
            found = _adapter(cls).validate_python(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise DamagedFile(f"{path}: not a {cls.kind}: {where}: {first['msg']}") from error
        if key is not None:
            check_key(path, found.key, key)
        return found


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check_key(path: Path, found: str, wanted: str) -> None:
    """Raises `DamagedFile` if a file's record has another key than the one under which it was looked for."""
    if found != wanted:
        raise DamagedFile(f"{path}: holds the record of another key ({found[:12]}, not {wanted[:12]})")


def read_finished(
    items: Iterable[Item], read: Callable[[Item], Found], again: str
) -> Iterator[tuple[Item, Found]]:
    """Reads the records that are there, one at a time; missing ones are left out.

    Raises:
        InputError: if one is damaged, with `again`, the remedy.
    """
    for item in items:
        try:
            yield item, read(item)
        except FileNotFoundError:
            continue
        except DamagedFile as error:
            raise InputError(f"{error}; {again}") from error


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a CSV file atomically. Floats keep every digit, None is an empty field, and `rows` may have more columns.

    Equal rows give the same bytes.
    """
    import pandas as pd

    # As objects: whole numbers beside None would become floats.
    frame = pd.DataFrame(list(rows), columns=list(columns), dtype=object)
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))
