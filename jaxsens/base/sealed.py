"""Checksummed files: a digest that detects any change, and JSON files sealed with it.

A sealed JSON file holds its kind, its content, and the digest of both. A saved result stores the same digest, over its
metadata and arrays, in its metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jaxsens.base.files import keep_text

if TYPE_CHECKING:
    import numpy as np


class DamagedFile(Exception):
    """Raised if a file is damaged or was written for another purpose. The message names the file and the problem."""


def write_sealed(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], indent: int | None = 1
) -> None:
    """Writes a JSON object with its kind and checksum, atomically; on one line if `indent` is None.

    A file that holds just this already is left as it is.
    """
    # Convert to JSON and back first, as a reader would: tuples become lists, and numeric keys become strings.
    sealed = json.loads(json.dumps({"kind": kind, "content": dict(content)}))
    keep_text(path, json.dumps({**sealed, "sha256": digest(sealed)}, indent=indent) + "\n")


def read_sealed(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Returns the object written by `write_sealed`.

    Raises:
        FileNotFoundError: if there is no such file.
        DamagedFile: if the file is damaged, or holds another kind.
    """
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        if not isinstance(stored, dict) or not stored.keys() >= {"kind", "content", "sha256"}:
            raise DamagedFile(f"{path}: not written by jaxsens: it has no kind, content and checksum")
        stated = stored.pop("sha256")
        found, content = stored["kind"], stored["content"]
        sound = stated == digest(stored) and isinstance(content, dict)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error
    if not sound:
        raise DamagedFile(f"{path}: its content does not match its checksum")
    if found != kind:
        raise DamagedFile(f"{path}: it holds a {found}, not a {kind}")
    return content


def digest(stored: Mapping[str, Any], arrays: Iterable[np.ndarray] = ()) -> str:
    """Returns the SHA-256 of JSON values, in any file layout, and of arrays: their dtypes, shapes and bytes."""
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    found = hashlib.sha256(text.encode())
    for array in arrays:
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
