"""CSV text from rows, the same bytes for the same rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV: floats to the last digit, None as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_field(row[column]) for column in columns])
    return text.getvalue()


def _field(value: Any) -> Any:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else value
