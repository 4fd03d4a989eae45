"""Files that are read only as they were written: the one digest of them all, and JSON files sealed with it.

A sealed JSON file holds its kind, its content, and the digest of both. A saved result keeps the same digest, over its
metadata and its arrays, in its metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jaxsens.files import write_text

if TYPE_CHECKING:
    import numpy as np


class DamagedFile(Exception):
    """A file that is not, or no longer, what was written for this purpose. The message names the file and the fault."""


def write_sealed(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], indent: int | None = 1
) -> None:
    """Writes a JSON object with its kind and checksum, atomically; on one line where `indent` is None."""
    # Through JSON and back, as it is read: tuples are lists there, and numbers that are keys strings.
    sealed = json.loads(json.dumps({"kind": kind, "content": dict(content)}))
    write_text(path, json.dumps({**sealed, "sha256": digest(sealed)}, indent=indent) + "\n")


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
        sound = stated == digest(stored) and isinstance(content, dict)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
    if not sound:
        raise DamagedFile(f"{path}: its content does not have the checksum it states")
    if found != kind:
        raise DamagedFile(f"{path}: it holds a {found}, not a {kind}")
    return content


def digest(stored: Mapping[str, Any], arrays: Iterable[np.ndarray] = ()) -> str:
    """SHA-256 of JSON values, whatever their layout in a file, and of arrays: their dtypes, shapes and bytes."""
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    found = hashlib.sha256(text.encode())
    for array in arrays:
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
