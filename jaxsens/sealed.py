"""JSON files that say what they hold and are read only as they were written: kind, content, and the SHA-256 of both."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from jaxsens.files import write_text


class DamagedFile(Exception):
    """A file that is not, or no longer, what was written for this purpose. The message names the file and the fault."""


def write_sealed(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], indent: int | None = 1
) -> None:
    """Writes a JSON object with its kind and checksum, atomically; on one line where `indent` is None."""
    sealed = {"kind": kind, "content": dict(content)}
    write_text(path, json.dumps({**sealed, "sha256": _digest(sealed)}, indent=indent) + "\n")


def read_sealed(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The object that `write_sealed` wrote there.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if it is damaged, or holds another kind.
    """
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        if not isinstance(stored, dict) or not stored.keys() >= {"kind", "content", "sha256"}:
            raise DamagedFile(f"{path}: no file that jaxsens wrote: it has no kind, content and checksum")
        stated = stored.pop("sha256")
        found, content = stored["kind"], stored["content"]
        sound = stated == _digest(stored) and isinstance(content, dict)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
    if not sound:
        raise DamagedFile(f"{path}: its content does not have the checksum it states")
    if found != kind:
        raise DamagedFile(f"{path}: it holds a {found}, not a {kind}")
    return content


def _digest(stored: Mapping[str, Any]) -> str:
    # Through JSON and back, as it is read: tuples are lists there.
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
