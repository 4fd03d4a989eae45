"""What the subcommands share: the types of their arguments, and how they speak."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from jaxsens.errors import Faults, collecting
from jaxsens.files import remedy, takes_no_more, try_writing_to

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
    elif path.exists() and not path.is_file():
        faults.add(option, str(path), "the name of an ordinary file, which is put in its place; this is none")
    else:
        _check_place(option, path, path.parent, faults)


def check_folder(command: str, path: Path) -> None:
    """Refuses an --out in which nothing can be kept, before anything is computed for it.

    Raises:
        InputError: if it is none, or cannot be written to.
        OSError: if the disk takes no more, which is no fault of the command.
    """
    with collecting(command) as faults:
        if path.is_dir() or not os.path.lexists(path):
            _check_place("--out", path, path, faults)
        else:
            faults.add("--out", str(path), "the name of a directory; this is a file")


def _check_place(option: str, path: Path, folder: Path, faults: Faults) -> None:
    try:
        try_writing_to(folder)
    except NotADirectoryError as error:
        faults.add(option, str(path), f"another place: {error.filename} is no directory")
    except OSError as error:
        if takes_no_more(error):
            raise
        faults.add(
            option, str(path), f"another place: nothing can be written to {error.filename} ({error.strerror})"
        )


def write_output(option: str, path: Path, write: Callable[[], None], text: str = "") -> int:
    """Writes what was computed. Where that fails, says so and prints the `text` all the same. Returns the exit code."""
    try:
        write()
    except OSError as error:
        print(text, end="", flush=True)
        advice = f"; {remedy(error)}" if takes_no_more(error) else ""
        print(
            f"jaxsens: {option} = {str(path)!r}: not written: {error.strerror or error}{advice}",
            file=sys.stderr,
        )
        return 1
    return 0
