"""Tables of a sweep's config beside `[model]` and `[measure]`, which packages bring by entry points.

An entry point of `jaxsens.sweep_tables` has the table's name. Its object is a subclass of `PointTable` or of
`RecordTable`: a frozen, hashable dataclass, whose fields are the table's keys, with `STRICT` as its config of pydantic.

DIR/NAME.csv        what comes of the table, as the class's `columns`
DIR/NAME/           the records of a `RecordTable`, one JSON file a point
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import entries, load
from jaxsens.core.base.sealed import digest
from jaxsens.core.base.strict import read_table
from jaxsens.core.engines.engine import Cost
from jaxsens.core.models.adapters import Model
from jaxsens.core.placement.placement import Placement
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.points import Point, PointMetadata
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sources import ModelSource


class SweepTable(abc.ABC):
    """A table of a sweep's config.

    columns: of NAME.csv.
    """

    columns: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def check(self, sources: Mapping[str, ModelSource], keys: Mapping[str, Any], problems: Problems) -> None:
        """Adds what the table cannot ask of these models, by variant, in a config with the other `keys`, such as
        "lengths" and "measure". Keys with errors of their own are missing."""

    @abc.abstractmethod
    def sections(self, data: Any, results: Sequence[Any]) -> list[Any]:
        """Returns the sections of the report.

        Args:
            data: the `SweepData` of the report.
            results: of a `PointTable` the rows of NAME.csv; of a `RecordTable` the records, in the plan's order.
        """


class PointTable(SweepTable):
    """A table of statistics that are computed with each point and stored in its file."""

    @abc.abstractmethod
    def applies(self, source: ModelSource) -> bool:
        """Returns whether a model has the statistics. A point without them is measured again if it has."""

    @abc.abstractmethod
    def of_point(self, model: Any, result: FlipSensitivity) -> Any:
        """Returns the statistics of a point as JSON values."""

    @abc.abstractmethod
    def table_rows(self, point: PointMetadata, values: Any) -> Iterable[Mapping[str, Any]]:
        """Returns the rows of NAME.csv of a point with these statistics."""

    @abc.abstractmethod
    def cost(self, model: Model, n: int) -> Cost:
        """Returns the cost of the statistics of an input of length n, as that of its preparation."""


class RecordTable(SweepTable):
    """A table of what is computed for each point after all points are measured, with a record of its own.

    record: the class of the records, with the `key` of a `TablePoint`. Its attributes make a row of NAME.csv.
    task: what is computed, in words.
    """

    record: ClassVar[type[Any]]
    task: ClassVar[str]

    @abc.abstractmethod
    def expanded(self, point: Point) -> dict[str, Any]:
        """Returns everything that determines the record of a point, as JSON values."""

    @abc.abstractmethod
    def answer(
        self, item: TablePoint, reporter: Reporter, shared: dict[Any, Any], placement: Placement
    ) -> Any:
        """Computes a record. `shared` is one dictionary for all points of a job."""


@dataclass(frozen=True)
class TablePoint:
    """What the table of a name asks of a point."""

    name: str
    table: RecordTable
    point: Point

    @cached_property
    def key(self) -> str:
        """SHA-256 of everything that determines the record."""
        return digest(self.table.expanded(self.point))

    @property
    def group(self) -> tuple[str, int]:
        """That of the point."""
        return self.point.group

    def path(self, directory: Path) -> Path:
        """Where a sweep directory keeps the record."""
        return self.point.path(directory, self.name, "json", self.key)

    def __str__(self) -> str:
        return f"{self.name} of {self.point}"


def read_sweep_table(name: str, value: Any, problems: Problems) -> SweepTable | None:
    """Returns the table of a name, or None after adding all its errors.

    Raises:
        InputError: if no installed package brings a table of this name, or what it brings is none.
    """
    installed = entries("sweep_tables")
    if name not in installed:
        there = f" (there are {', '.join(installed)})" if installed else ""
        raise InputError(
            f"[{name}]: no installed package has this table of a sweep{there}: install the one that has"
        )
    kind = load("sweep_tables", name)
    if not (isinstance(kind, type) and issubclass(kind, (PointTable, RecordTable))):
        raise InputError(f"[{name}]: {installed[name].value} is neither a PointTable nor a RecordTable")
    return read_table(kind, value, name, problems)
