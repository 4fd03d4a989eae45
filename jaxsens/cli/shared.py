"""Argument types and output helpers shared by the subcommands."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import tyro
from rich.console import Console
from tyro.constructors import PrimitiveConstructorSpec

from jaxsens.core.base.errors import InputError, Location, Problems, collecting
from jaxsens.core.base.files import remedy, takes_no_more, try_writing_to
from jaxsens.core.base.program_cache import KeptPrograms, cache_in
from jaxsens.core.base.registry import Option, read
from jaxsens.core.base.strict import read_table
from jaxsens.core.base.text import print_text, printable

if TYPE_CHECKING:
    from jaxsens.core.sweeps.job import Outcome


def _integer(values: list[str]) -> int:
    try:
        return int(values[0])
    except ValueError:
        raise ValueError(f"{values[0]!r} is not a whole number") from None


def _named(values: list[str]) -> Path:
    """Returns a path. The empty one, as of a variable that is not set, would be the current folder."""
    if not values[0]:
        raise ValueError("an empty name; give a directory, or . for the current one")
    return Path(values[0])


def _spec(metavar: str, read: Callable[[list[str]], Any], nargs: int | Literal["*"] = 1) -> Any:
    """Returns how to read an option that may be left out. Tyro's own messages for these mention Python's None."""
    return PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )


@dataclasses.dataclass(frozen=True)
class OptionGroup:
    """A group of options of a command; the default of each is what it has where it was not given."""

    def flags(self) -> dict[str, Any]:
        """Returns the values of the options that were given, by what a user calls them, as messages show them."""
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        given = {field.name: value for field, value in values if value != field.default}
        texts = {key: " ".join(one) if isinstance(one, tuple) else one for key, one in given.items()}
        return {flag(key): str(one) if isinstance(one, Path) else one for key, one in texts.items()}


def check_there(option: str, path: Path | None, problems: Problems) -> None:
    """Collects an error if there is nothing to read at a path that was given."""
    if path is not None and not path.exists():
        problems.add(option, str(path), "no such file or directory")


def default(text: str, metavar: str | None = None, about: str | None = None) -> Any:
    """Sets the default that help states for an option, the metavar of its value, and what help says about it."""
    hint = f"(default: {text})" if text else ""
    return tyro.conf.arg(help_behavior_hint=hint, metavar=metavar, help=about)


def one_of(names: Iterable[str], more: str = "") -> str:
    """Returns the metavar of an option that takes one of these names."""
    return f"{{{','.join(names)}}}{more}"


Text = Annotated[str | None, _spec("NAME", lambda words: words[0])]
Names = Annotated[tuple[str, ...] | None, _spec("NAME [NAME ...]", tuple, nargs="*")]
Number = Annotated[int, _spec("INT", _integer)]
Count = Annotated[int | None, _spec("INT", _integer)]
File = Annotated[Path | None, _spec("FILE", lambda words: Path(words[0]))]
NewFile = Annotated[File, default("not written")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Json = Annotated[Flag, tyro.conf.arg(name="json", help_behavior_hint="")]
Config = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="CONFIG", help_behavior_hint="")]]
Only = tyro.conf.UseAppendAction[Annotated[tuple[str, ...], default("all", "KEY=VALUE")]]
Out = Annotated[Path, _spec("DIR", _named)]
OptionalOut = Annotated[Path | None, _spec("DIR", _named)]
Folder = tyro.conf.Positional[Annotated[Path, _spec("DIR", _named), tyro.conf.arg(help_behavior_hint="")]]

_CACHED = (
    "Where compiled programs are kept for later commands, in a folder for each version of jaxlib, backend and "
    "processor; off to keep none."
)
CacheFolder = Annotated[Text, default("in the user's cache folder", "DIR", _CACHED)]


def programs_kept(folder: str | None) -> KeptPrograms:
    """`jaxsens.programs_kept` in the folder that the option names; "off" keeps nothing."""
    if folder == "off":
        return KeptPrograms(why_not="--compilation-cache off")
    return cache_in(folder, "compilation cache", "--compilation-cache", "another folder, or off")


def flag(key: str) -> str:
    """Returns the option for a key: `batch_size` gives `--batch-size`. A checkpoint stands without one."""
    return "CHECKPOINT" if key == "checkpoint" else f"--{key.replace('_', '-')}"


# The words behind an option


def of_words(base: Any, texts: Sequence[str], problems: Problems, name: str) -> Any:
    """Returns the object that words such as ("neighbours", "k=8", "sample=1000") describe; None after adding errors.

    The first may be a shorthand too, such as "2" or "3,4" for `Substitute`. A config without kinds has only words such
    as `field=value`. `name` is the option, for messages.
    """
    has_kinds = issubclass(base, Option)
    table = fields_of(texts[1:] if has_kinds else texts, problems, name)
    if table is None or not has_kinds:
        return None if table is None else read_table(base, table, name, problems)
    kind = value_of(texts[0]) if texts else ""
    shorthand = {"kind": kind} if isinstance(kind, str) else base.shorthand(kind)
    return read(base, kind if shorthand is None else {**shorthand, **table}, problems, name, file=True)


def fields_of(texts: Sequence[str], problems: Problems, name: str) -> dict[str, Any] | None:
    """Returns the table that words such as ("k=8", "sample=1000") describe; None after adding errors."""
    own, table = Problems(), dict[str, Any]()
    for word in texts:
        field, equals, text = word.partition("=")
        if not equals or not field.isidentifier():
            remedy = "field=value, with a value as in TOML; several are joined by commas, as in positions=0,5"
            own.add(name, word, remedy)
        elif field in table:
            own.add((name, field), value_of(text, field), "once")
        else:
            table[field] = value_of(text, field)
    problems.include(own)
    return None if own else table


def value_of(text: str, field: str = "") -> Any:
    """Returns the value that a text means: a TOML value, a list of values joined by commas, or the text itself.

    A formula is always the text itself, and a token is unless it is digits, an id, or in quotes. The alphabet 10 is the
    symbols 1 and 0.
    """
    spoken = re.fullmatch(r"""[0-9]+|".*"|'.*'""", text, re.DOTALL)
    if field == "formula" or (field in ("token", "against") and not spoken):
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except ValueError:
        table = {}
    value = table.get("value")
    if len(table) == 1 and not isinstance(value, date | time):
        return text if field == "alphabet" and not isinstance(value, str | list) else value
    if "," in text and text[:1] not in tuple("\"'[{"):
        return [value_of(part) for part in text.removesuffix(",").split(",")]
    return text


@contextmanager
def flags_named(names: Mapping[str, str | Location]) -> Iterator[None]:
    """Renames arguments to options in `InputError`s raised in the block."""
    try:
        yield
    except InputError as error:
        problems = [one.renamed(names) for one in error.problems]
        raise type(error)(*problems, subject=error.subject) from error


ARGUMENTS: list[str] = []
"""Those of this command, without the program, for `command_line`."""


def command_line() -> str:
    """Returns this command as a line for the shell."""
    return shlex.join(["jaxsens", *ARGUMENTS])


def say_end(console: Console, outcomes: Sequence[Outcome], done: str) -> bool:
    """Prints the failures of jobs. Returns whether the last one ended early; then it also prints why, what is `done`,
    and how to resume it."""
    for failure in (failure for outcome in outcomes for failure in outcome.failures):
        print_text(console, f"failed: {failure}")
    last = outcomes[-1]
    if last.ended_early:
        why = f": {last.unwritable}. " if last.stopped_by is None else "; "
        print_text(console, f"stopped{why}{done}. To resume: {command_line()}")
    return last.ended_early


class Folded:
    """A stream that wraps long lines between words. Tyro itself wraps only the text in its boxes."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)  # such as the encoding, on which the boxes depend

    def write(self, text: str) -> int:
        """Writes the text. Wrapped lines lose their colours."""
        width = shutil.get_terminal_size().columns
        for line in text.splitlines(keepends=True):
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\n"))
            if len(plain) > width:
                indent = "    " if plain.startswith("usage:") else ""
                folded = textwrap.fill(plain, width, subsequent_indent=indent, break_on_hyphens=False)
                line = folded + "\n" * line.endswith("\n")
            self._output.write(line)
        return len(text)


@contextmanager
def warnings_in_words() -> Iterator[None]:
    """Prints warnings as single lines on stderr, without their line of source code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(
            f"jaxsens: warning: {printable(str(message))}", file=sys.stderr, flush=True
        )
        yield


def check_output(option: str, path: Path | None, problems: Problems) -> None:
    """Collects an error if a file cannot be written, before anything is computed for it. Missing parent directories
    are fine: they are created when the file is written."""
    if path is None:
        return
    if path.is_dir():
        problems.add(option, str(path), "a file name; this is a directory")
    elif path.exists() and not path.is_file():
        problems.add(option, str(path), "a regular file or a new name; this is a special file")
    else:
        check_directory(option, path.parent, problems, path)


def check_folder(command: str, path: Path) -> None:
    """Rejects an --out directory that cannot be used, before anything is computed for it: with InputError, but with
    OSError if the disk is full, which is not an error in the command."""
    with collecting(command) as problems:
        check_directory("--out", path, problems)


def check_directory(option: str, path: Path, problems: Problems, file: Path | None = None) -> None:
    """Collects an error if a directory, or that of a new `file`, cannot be used, before anything is computed for it."""
    if file is None and os.path.lexists(path) and not path.is_dir():
        problems.add(option, str(path), "a directory name; this is a file")
        return
    named = str(file or path)
    try:
        try_writing_to(path)
    except NotADirectoryError as error:
        problems.add(option, named, f"another path: {error.filename} is not a directory")
    except OSError as error:
        if takes_no_more(error):
            raise
        problems.add(option, named, f"another path: {error.filename} cannot be written to ({error.strerror})")


def write_output(option: str, path: Path, write: Callable[[], object], text: str = "") -> int:
    """Writes a result. If that fails, reports the error and prints `text` instead. Returns the exit code."""
    try:
        write()
    except OSError as error:
        print(text, end="", flush=True)
        advice = f"; {remedy(error)}" if takes_no_more(error) else ""
        why = f"not written: {error.strerror or error}{advice}"
        print(f"jaxsens: {option} = {str(path)!r}: {why}", file=sys.stderr)
        return 1
    return 0
