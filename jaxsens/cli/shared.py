"""What the subcommands share: the types of their arguments, and how they speak."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import tyro
from rich.console import Console
from tyro.constructors import PrimitiveConstructorSpec

from jaxsens.errors import Faults, InputError, collecting
from jaxsens.files import remedy, takes_no_more, try_writing_to, write_text
from jaxsens.stopping import Stopped

if TYPE_CHECKING:
    from jaxsens.experiments.job import Outcome


def _whole(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"{words[0]!r} is no whole number") from None


def _spec(
    metavar: str,
    read: Callable[[list[str]], Any],
    choices: tuple[str, ...] | None = None,
    nargs: int | Literal["*"] = 1,
) -> Any:
    """How an option that may be left out is read. Tyro's own messages for those speak of Python's None."""
    return PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )


def one_of(*names: str) -> Any:
    """An option that takes one of these names."""
    return _spec(f"{{{','.join(names)}}}", lambda words: words[0], names)


def default(words: str, metavar: str | None = None) -> Any:
    """What help says of an option that is left out; and what it calls the value."""
    hint = f"(default: {words})" if words else ""
    return tyro.conf.arg(help_behavior_hint=hint, metavar=metavar)


Text = Annotated[str | None, _spec("NAME", lambda words: words[0])]
Names = Annotated[tuple[str, ...] | None, _spec("NAME [NAME ...]", tuple, nargs="*")]
Number = Annotated[int, _spec("INT", _whole)]
Count = Annotated[int | None, _spec("INT", _whole)]
File = Annotated[Path | None, _spec("FILE", lambda words: Path(words[0]))]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Config = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="CONFIG", help_behavior_hint="")]]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def flag(key: str) -> str:
    """The option of a key."""
    return f"--{key.replace('_', '-')}"


@contextmanager
def flags_named(names: Mapping[str, str]) -> Iterator[None]:
    """Where the library refuses an argument, names the option that it came from."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for argument, option in names.items():
            said = rf"(^|: |- ){re.escape(argument)}(?= = |: |,|\[)"
            text = re.sub(said, rf"\g<1>{option}", text, flags=re.MULTILINE)
        if text == str(error):
            raise
        raise type(error)(text) from error


def say(console: Console, text: str) -> None:
    """Prints plain text as it is, whatever the terminal's width."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_why_ended(console: Console, outcome: Outcome, done: str, again: str) -> None:
    """Says why a job ended early: what is `done`, in words, and the command to run `again`."""
    why = f": {outcome.unwritable}. " if outcome.stopped_by is None else "; "
    say(console, f"stopped{why}{done}. To resume: {again}")


class Folded(io.TextIOBase):
    """Output whose long lines are folded between words: Tyro folds what it puts in boxes, and nothing else."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - as in io.TextIOWrapper
        """As of the output itself, on which the boxes depend."""
        return self._output.encoding

    def isatty(self) -> bool:
        """As the output itself, on which colours depend."""
        return self._output.isatty()

    def write(self, text: str) -> int:
        """Writes the text, folded; without colours where it is."""
        width = shutil.get_terminal_size().columns
        for line in text.splitlines(keepends=True):
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\n"))
            if len(plain) > width:
                indent = "    " if plain.startswith("usage:") else ""
                folded = textwrap.fill(plain, width, subsequent_indent=indent, break_on_hyphens=False)
                line = folded + "\n" * line.endswith("\n")
            self._output.write(line)
        return len(text)

    def flush(self) -> None:
        """Passes everything on."""
        self._output.flush()


@contextmanager
def warnings_in_words() -> Iterator[None]:
    """Warnings are lines of the command, without the line of code that they come from."""

    def show(message: Warning | str, *where: object, **more: object) -> None:
        print(f"jaxsens: warning: {message}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


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


def put_out(path: Path | None, table: str, outcome: Outcome) -> int:
    """Prints a measured table, or writes it to the file of --out. Returns the exit code.

    Raises:
        Stopped: if a signal cut the measurement short; then there is no table.
    """
    if outcome.stopped_by is not None:
        raise Stopped(outcome.stopped_by)
    for failure in outcome.failures:
        say(Console(stderr=True), f"failed: {failure}")
    if path is None:
        print(table, end="")
        return outcome.exit_code
    return write_output("--out", path, lambda: write_text(path, table), table) or outcome.exit_code
