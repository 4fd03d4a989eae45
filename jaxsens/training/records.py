"""Tables of numbers that grow with the training, as CSV files that are always whole.

The last column, "check", is a CRC-32 of the row and of all before it: a changed digit is a number too, which nothing
else would tell from the one that was written.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxsens.errors import InputError
from jaxsens.files import write_text

Value = int | float | None
Row = tuple[str, ...]

METRICS = ("step", "length", "loss", "optimum", "gradient_norm", "learning_rate")
"""The columns of metrics.csv."""

_CHECK = "check"


def checked_rows(text: str) -> list[Row]:
    """The rows of a CSV file, header first, without their checks. A file of an earlier version has none.

    Raises:
        ValueError: naming the first row that is not as it was written.
    """
    rows = [tuple(row) for row in csv.reader(io.StringIO(text))]
    if not rows or rows[0][-1:] != (_CHECK,):
        return rows
    bare = [row[:-1] for row in rows]
    for line, (row, whole) in enumerate(zip(rows, _with_checks(bare), strict=True), start=1):
        if row != whole:
            raise ValueError(f"line {line} is not as it was written")
    return bare


def _with_checks(rows: Sequence[Row]) -> list[Row]:
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
        InputError: if the file has other columns, a row that is not of numbers, or was changed since it was written.
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

    def keep(self, wanted: Callable[[Row], bool]) -> int:
        """Drops the rows that are not wanted; returns how many these were."""
        before = len(self.rows)
        self.rows = [row for row in self.rows if wanted(row)]
        return before - len(self.rows)

    def write(self) -> None:
        """Writes the file, atomically; removes it where there are no rows."""
        if not self.rows:
            self.path.unlink(missing_ok=True)
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(_with_checks([self.columns, *self.rows]))
        write_text(self.path, text.getvalue())

    def _read(self) -> list[Row]:
        remedy = f"a table of {', '.join(self.columns)}; remove the file to begin it anew"
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}: not UTF-8 ({error}): {remedy}") from error
        try:
            header, *rows = checked_rows(text) or [()]
        except (ValueError, csv.Error) as error:
            raise InputError(f"{self.path}: damaged: {error}: {remedy}") from error
        if tuple(header) != self.columns:
            raise InputError(f"{self.path}: its columns are {list(header)}: {remedy}")
        for line, row in enumerate(rows, start=2):
            if len(row) != len(self.columns) or not row[0].isdecimal() or not all(map(_is_value, row)):
                raise InputError(f"{self.path}: line {line} cannot be read: {remedy}")
        return rows


def _is_value(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True
