"""The `jaxsens` command. Each module holds a few subcommands. Slow imports happen where they are used."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, NoReturn, cast

from jaxsens.core.base import stopping

_DESCRIPTION = """Measure how much changing one input symbol changes a transformer's output, and
how this scales with the length of the input."""

_MORE = """`jaxsens COMMAND --help` lists the options of a command and gives an example.
`jaxsens --tyro-print-completion bash` prints tab completion; also zsh, fish.
`jaxsens --version` prints the version."""

_IN_ASCII = {
    "«": "<", "»": ">", "…": "...", "±": "+/-", "µ": "u", "−": "-", "′": "'", "‖": "||", "√": "sqrt ", "²": "^2",
    "◦": "o", "␣": "_", "↵": "/", "⇥": ">", "∅": "(empty)", "₁": "1", "₂": "2", "∞": "inf", "—": "-",
}  # fmt: skip
"""Signs of this package's own, for encodings that lack them."""


def main(arguments: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Runs the command line and returns the exit code: 0, 1 (a point failed, or the disk is full), 2 (bad input), or
    128 + the signal's number.

    In the main thread, Ctrl-C, SIGTERM and SIGHUP stop the command once its work is saved; a second signal has its
    usual effect immediately. If the process runs only this command (`own_process`), a second signal ends it even in the
    middle of a step.
    """
    with of_a_command(own_process) as request:
        try:
            code = _main(arguments)
        except KeyboardInterrupt:
            code = 128 + (request.number or signal.SIGINT)
            print("jaxsens: stopped; the same command goes on from anything that was kept", file=sys.stderr)
        number = request.answer()
    return code if number is None else 128 + number


def run() -> NoReturn:
    """Runs this process's command line and exits with its exit code.

    After a signal it skips the interpreter's teardown, which does not wait for running computations and crashes when
    they use objects that are already torn down.
    """
    code = main(own_process=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code > 128:
        os._exit(code)
    sys.exit(code)


@contextmanager
def of_a_command(own_process: bool) -> Iterator[stopping.StopRequest]:
    """Like `noting` for `ENDING`, but also prints at once that the command stops after the current step.

    own_process: whether the process runs only this command. A second signal then ends it immediately, also while the
        main thread is in compiled code. Files are written atomically, so those on disk are intact.
    """
    message = "stopping after this step; again to stop now"
    with stopping.noting(*stopping.ENDING) as request, stopping.compiling(message, own_process):
        request.own_process = own_process
        try:
            yield request
        finally:
            request.own_process = False
            # A later Ctrl-C ends the process without a traceback.
            if own_process and signal.SIGINT in request.previous:
                request.previous[signal.SIGINT] = signal.SIG_DFL


def _main(arguments: Sequence[str] | None) -> int:
    # Imported here so that signals are recorded from the start.
    import tyro

    from jaxsens.cli import constructed, corpus, measure, plan, serve, shared, sweep, trained
    from jaxsens.core.base.errors import InputError
    from jaxsens.core.base.files import remedy, takes_no_more
    from jaxsens.core.base.strict import did_you_mean
    from jaxsens.core.base.text import printable

    _open_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    shared.ARGUMENTS[:] = arguments
    if list(arguments) == ["--version"]:
        from importlib.metadata import version

        print(f"jaxsens {version('jaxsens')}")
        return 0
    groups: dict[str, tuple[Callable[..., int], ...]] = {
        "Everyday commands:": (
            *(measure.measure, sweep.sweep, sweep.report, sweep.status),
            *(plan.plan, corpus.corpus, serve.serve, sweep.schema),
        ),
        "Commands for papers:": (
            *(trained.train, trained.theorem6, constructed.constructions, constructed.restrictions),
        ),
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(groups), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    commands = {command.__name__: command for group in groups.values() for command in group}
    name, *options = arguments
    wants_help, folded = bool({"-h", "--help"} & {*options}), cast(Any, shared.Folded(sys.stdout))
    try:
        if name.startswith("--tyro-"):  # tab completion, of all commands
            return tyro.extras.subcommand_cli_from_dict(commands, prog="jaxsens", args=arguments)
        if name not in commands:
            raise InputError(f"{name}: no such command{did_you_mean(name, commands)}")
        with redirect_stdout(folded) if wants_help else shared.warnings_in_words():
            code = tyro.cli(commands[name], prog=f"jaxsens {name}", args=options)
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. Without this, the interpreter would report the error again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except (InputError, OSError) as error:
        why = str(error)
        if isinstance(error, OSError):
            where = "" if error.filename is None else f"{error.filename}: "
            why = f"{where}{error.strerror or error}"
            if takes_no_more(error):
                why += f": what was written so far is kept; {remedy(error)}, then run the same command again"
        print(f"jaxsens: {printable(why)}", file=sys.stderr)
        return 1 if takes_no_more(error) else 2
    return code


def _open_streams() -> None:
    """Lets standard output and error take every character, whatever their encoding, and be closed.

    Signs of this package that the encoding lacks are written in ASCII; other characters, as of a text, as escapes.
    """
    codecs.register_error("jaxsens", _in_ascii)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as it runs
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="jaxsens")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeEncodeError) and error.object[error.start] in _IN_ASCII:
        return _IN_ASCII[error.object[error.start]], error.start + 1
    return codecs.backslashreplace_errors(error)


def _overview(groups: Mapping[str, Collection[Callable[..., int]]]) -> str:
    """Returns the commands in their groups, a line each: the first of their help."""
    parts = [
        "\n".join([name, *(f"  {one.__name__:15} {str(one.__doc__).splitlines()[0]}" for one in commands)])
        for name, commands in groups.items()
    ]
    return "\n\n".join(["usage: jaxsens COMMAND [OPTIONS]", _DESCRIPTION, *parts, _MORE])
