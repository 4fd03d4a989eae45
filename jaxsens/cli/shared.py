"""What the subcommands share: the types of their arguments, and how they speak."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.errors import Faults

Text = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Count = Annotated[int | None, tyro.conf.arg(metavar="INT")]
File = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]


def say(console: Console, text: str) -> None:
    """Prints plain text as it is, whatever the terminal's width."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def check_output(option: str, path: Path | None, faults: Faults) -> None:
    """Notes why a file cannot be written, if it cannot: before anything is computed for it. Folders that are not there
    yet are made when it is written."""
    if path is None:
        return
    if path.is_dir():
        faults.add(option, str(path), "the name of a file; this is a directory")
        return
    folder = path.parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        faults.add(option, str(path), f"a file in another place: {folder} is no directory")
    elif not os.access(folder, os.W_OK | os.X_OK):
        faults.add(option, str(path), f"a file in another place: nothing can be written to {folder}")


def write_output(option: str, path: Path, write: Callable[[], None], text: str = "") -> int:
    """Writes what was computed. Where that fails, says so and prints the `text` all the same. Returns the exit code."""
    try:
        write()
    except OSError as error:
        print(text, end="", flush=True)
        print(f"jaxsens: {option} = {str(path)!r}: not written: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0
