"""JSON files that say what they hold: a key, and a checksum over everything else. CSV text from rows."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxsens.experiments.points import canonical
from jaxsens.experiments.store import DamagedFile
from jaxsens.files import write_text


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `content`, which has an entry "key", as JSON with its checksum, atomically."""
    write_text(path, json.dumps({"checksum": _checksum(content), **content}, indent=1) + "\n")


def read_sealed(path: Path, key: str) -> dict[str, Any]:
    """What `write_sealed` wrote there under this key.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if it is not what was written, or was written under another key.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        stated = stored.pop("checksum")
        found = stored["key"]
        sound = stated == _checksum(stored)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
    if not sound:
        raise DamagedFile(f"{path}: its content does not have the checksum it states")
    if found != key:
        raise DamagedFile(f"{path}: it holds something else (key {str(found)[:12]}, not {key[:12]})")
    return stored


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


def _checksum(content: Mapping[str, Any]) -> str:
    # Through JSON and back, as it is read: tuples are lists there.
    return hashlib.sha256(canonical(json.loads(json.dumps(content))).encode()).hexdigest()
