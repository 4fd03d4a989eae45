"""metrics.csv and evaluation.csv: tables that grow with the training, as CSV files that are always whole.

The last column, "check", is a CRC-32 of the row and of all before it. Without it a changed digit would go unnoticed.
Rows are kept as text, of which the checks are taken. No field needs quotes: all are numbers or names of columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from jaxsens.errors import InputError
from jaxsens.files import write_text
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import CrossEntropy, Recognition

Value = int | float | None
Row = tuple[str, ...]

METRICS = ("step", "length", "loss", "optimum", "gradient_norm", "learning_rate")
"""The columns of metrics.csv."""

_KEYS = ("step", "n", "words")
EVALUATIONS = {
    "prediction": (*_KEYS, "cross_entropy", "excess", "standard_error", "choice", "choice_standard_error"),
    "recognition": (*_KEYS, "accuracy", "accuracy_standard_error", "margin", "margin_standard_error"),
}
"""The columns of evaluation.csv, by task: the step, and the fields of what is found there in their order."""

_CHECK = "check"


def checked_rows(text: str) -> list[Row]:
    """The rows of a CSV file, header first, without their checks.

    Raises:
        ValueError: naming the first row that is not as it was written.
    """
    rows = [tuple(line.split(",")) for line in text.removesuffix("\n").split("\n")] if text else []
    bare = [row[:-1] for row in rows]
    if rows and rows[0][-1:] != (_CHECK,):
        raise ValueError(f"line 1 does not end in {_CHECK}")
    for line, (row, whole) in enumerate(zip(rows, with_checks(bare), strict=True), start=1):
        if row != whole:
            raise ValueError(f"line {line} is not as it was written")
    return bare


def with_checks(rows: Sequence[Row]) -> list[Row]:
    """The rows, header first, with their checks."""
    found, check = [], 0
    for row in rows:
        check = zlib.crc32(",".join(row).encode(), check)
        found.append((*row, str(check) if found else _CHECK))
    return found


class Records:
    """A table whose first column is the step; kept in memory and written whole. Without rows there is no file.

    Args:
        path: of the CSV file.
        columns: their names, "step" the first.
        last: rows of later steps are dropped: the training goes on from there. Without it all rows are.

    Raises:
        InputError: if the file has other columns, or was changed since it was written.
    """

    def __init__(self, path: Path, columns: Sequence[str], last: int | None) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows: list[Row] = []
        if last is not None and path.is_file():
            self.rows = [row for row in self._read() if int(row[0]) <= last]

    def add(self, *values: Value) -> None:
        """Adds a row. Numbers are written so that reading gives them back exactly; None as an empty field."""
        if len(values) != len(self.columns):
            raise TypeError(f"{self.path.name} has the columns {self.columns}, not {len(values)} values")
        self.rows.append(tuple("" if value is None else repr(value) for value in values))

    def has(self, *first: int) -> bool:
        """Whether a row begins with these values."""
        wanted = tuple(map(repr, first))
        return any(row[: len(wanted)] == wanted for row in self.rows)

    def write(self) -> None:
        """Writes the file, atomically; removes it where there are no rows."""
        if not self.rows:
            self.path.unlink(missing_ok=True)
            return
        rows = with_checks([self.columns, *self.rows])
        write_text(self.path, "".join(f"{','.join(row)}\n" for row in rows))

    def _read(self) -> list[Row]:
        remedy = f"a table of {', '.join(self.columns)}; remove the file to begin it again"
        try:
            header, *rows = checked_rows(self.path.read_text(encoding="utf-8")) or [()]
        except ValueError as error:
            raise InputError(f"{self.path}: damaged: {error}: {remedy}") from error
        if header != self.columns:
            raise InputError(f"{self.path}: its columns are {list(header)}: {remedy}")
        return rows


class EvaluationTable(Records):
    """The evaluations of a training so far, by step and then in the order of the config's lengths.

    Rows that the config does not ask for are dropped: those of other steps, lengths or numbers of words, which an
    earlier config of this training asked for.

    Args:
        path: of evaluation.csv.
        config: of the training.
        last: rows of later steps are dropped. Without it all rows are.

    Raises:
        InputError: if the file is there and no such table.
    """

    def __init__(self, path: Path, config: TrainConfig, last: int | None) -> None:
        self.config = config
        super().__init__(path, EVALUATIONS[config.task], last)
        before = len(self.rows)
        self.rows = [row for row in self.rows if self._asked_for(row)]
        self.dropped = before - len(self.rows)

    def missing(self, step: int) -> tuple[int, ...]:
        """The lengths that are to be evaluated at a step and are not."""
        if not self._due(step):
            return ()
        words = self.config.evaluation.words
        return tuple(n for n in self.config.evaluation.lengths if not self.has(step, n, words))

    def add_result(self, step: int, result: CrossEntropy | Recognition) -> None:
        """Adds what was found at a step."""
        self.add(step, *astuple(result))
        self.rows.sort(key=self._place)

    def _due(self, step: int) -> bool:
        every = self.config.evaluation.every
        return every > 0 and (step % every == 0 or step == self.config.optimiser.steps)

    def _asked_for(self, row: Row) -> bool:
        evaluation, (step, n, words) = self.config.evaluation, row[:3]
        return self._due(int(step)) and n in map(str, evaluation.lengths) and words == str(evaluation.words)

    def _place(self, row: Row) -> tuple[int, int]:
        return int(row[0]), self.config.evaluation.lengths.index(int(row[1]))
