"""Commands that run in this process."""

from __future__ import annotations

import re

import pytest

from jaxsens.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:  # of what the parser of options finds
        code = end.code if isinstance(end.code, int) else 2
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], names: str, *arguments: object) -> str:
    """Checks that a command ends with one error that has these names, parted by spaces; returns it."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for name in names.split():
        assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", err), err
    return err
