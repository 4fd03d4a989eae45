"""What is measured of a cell so far: a run that is stopped again and again still comes to the cell's end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxsens.sealed import DamagedFile, read_sealed, write_sealed
from jaxsens.stopping import check

_KIND = "parts of a cell of theorem6"


def parts_path(directory: Path, model: str, n: int) -> Path:
    """Where the parts of a cell are kept until it is whole."""
    return directory / "cells" / model / f".n={n}.parts.json"


class Parts:
    """Parts of a cell by name, each computed once.

    path: where they are kept from one run to the next; None for nowhere.
    key: of the cell, see `Evaluation.key`: parts of another one count for nothing.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self._path, self._key = path, key
        self._parts: dict[str, Any] = {} if path is None else _read(path, key)

    @property
    def seconds(self) -> float:
        """What all parts took, in earlier runs too."""
        return sum(part["seconds"] for part in self._parts.values())

    def of(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name, as JSON gives it back; computed and kept where it is not there yet."""
        if name not in self._parts:
            check()
            began = time.perf_counter()
            found = compute()
            self._parts[name] = {"found": found, "seconds": time.perf_counter() - began}
            if self._path is not None:
                write_sealed(self._path, _KIND, {"key": self._key, "parts": self._parts})
        return self._parts[name]["found"]


def _read(path: Path, key: str) -> dict[str, Any]:
    try:
        stored = read_sealed(path, _KIND)
    except (FileNotFoundError, DamagedFile):
        return {}
    return stored["parts"] if stored["key"] == key else {}
