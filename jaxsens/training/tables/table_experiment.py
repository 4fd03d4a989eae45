"""Experiments that train and measure in parts, a row each, and write the rows as CSV, Markdown table and figure."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, cast

from matplotlib.figure import Figure
from pydantic import ConfigDict

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.files import write_text
from jaxsens.core.base.strict import STRICT, parse_toml, read_table, read_toml
from jaxsens.core.report.panels import write_figure
from jaxsens.core.sweeps.jobs.job import Row, RowsJob, Value, write_table


@dataclass(frozen=True, kw_only=True)
class TableExperiment(abc.ABC, Generic[Value, Row]):
    """An experiment as its config describes it: the keys and tables of the file are the fields of the class.

    Attributes:
        stem: of the files that are written: STEM.csv, STEM.md, STEM.svg and STEM.png.
        parts: what its rows are of, for messages.
        columns: of the CSV file.
        title, claim: of the figure and of the Markdown file, for the reader; may be empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    stem: ClassVar[str]
    parts: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    title: str = ""
    claim: str = ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads and checks a config.

        Raises:
            InputError: If the file cannot be read, is not TOML, or has errors: all of them, with their paths.
        """
        return cls.parse(read_toml(path)[0], str(path))

    @classmethod
    def parse(cls, text: str, subject: str = "config") -> Self:
        """As `load`, from the text itself."""
        problems = Problems(subject)
        made = read_table(cls, parse_toml(text, subject), "", problems)
        problems.raise_if_any()
        return cast("Self", made)

    @abc.abstractmethod
    def job(self, folder: Path) -> RowsJob[Value, Row]:
        """What computes the rows; what is done is kept in `folder`."""

    @abc.abstractmethod
    def listed(self, rows: Sequence[Row]) -> Iterable[Mapping[str, Any]]:
        """The lines of the CSV file, by column."""

    @abc.abstractmethod
    def markdown(self, rows: Sequence[Row]) -> str:
        """The rows as a Markdown table."""

    @abc.abstractmethod
    def figure(self, rows: Sequence[Row]) -> Figure:
        """The rows as a figure."""

    def write(self, folder: Path, rows: Sequence[Row]) -> tuple[str, Path]:
        """Writes the files, each atomically; returns the Markdown table, and the figure's path."""
        table = self.markdown(rows)
        write_table(folder / f"{self.stem}.csv", self.columns, self.listed(rows))
        above = (f"# {self.title}" if self.title else "", self.claim.strip())
        write_text(folder / f"{self.stem}.md", "\n\n".join(filter(None, (*above, table))) + "\n")
        return table, write_figure(folder, self.stem, self.figure(rows))
