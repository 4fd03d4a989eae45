"""A wrong value of any option of any command is one paragraph on standard error, exit code 2, and no traceback."""

from __future__ import annotations

import io
import logging
import os
import re
import socket

import pytest

from jaxsens.cli import main
from tests.core.sweeps.tiny import TINY

WRONG = ("", "nan", "-1", "1e400", "'", ".", "missing/such.file", "\udc80")
"""A command line has no NUL; a byte that is no UTF-8 becomes half of a surrogate pair."""
BASE: dict[str, tuple[str, ...]] = {
    "sweep": ("CONFIG", "--out", "out", "--list"),
    "plan": ("missing.toml",),
    "measure": ("--model", "alphabet_size=2", "--n", "4"),
    "corpus": ("--pretrained", "missing", "--texts", "missing.txt"),
    "train": ("missing.toml", "--out", "out"),
    "theorem6": ("missing.toml", "--out", "out"),
    "generalisation": ("missing.toml", "--out", "out"),
    "report": ("missing",),
    "status": ("missing",),
    "constructions": ("missing", "--measure"),
    "restrictions": ("--models", "0"),
    "serve": ("--model", "one=missing"),
}
"""What a command is called with beside the option: little work, or what is refused."""
ARGUMENT = "without an option"


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and standard error of a command."""
    try:
        code = main(list(words))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    return code, capsys.readouterr().err


def options(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The options of a command that take a value, as its help tells them."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return sorted(set(re.findall(r"(--[a-z0-9-]+) [A-Z{\[]", capsys.readouterr().out)))


def what_is_wrong(command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Gives an option, or the argument without one, a wrong value; returns what is wrong with the end of it."""
    given = list(BASE[command])
    if option == ARGUMENT:
        given[0] = value
    else:
        if option in given:
            at = given.index(option)
            del given[at : at + 2]
        given += [option, value]
    try:
        code, said = ended(capsys, command, *given)
    except Exception as error:  # noqa: BLE001 - of any class
        return f"{command} {option} {value!r}: {type(error).__name__}: {error}"
    if code not in (0, 2) or "Traceback" in said or (code and not said.strip()):
        return f"{command} {option} {value!r}: exit code {code}: {said}"
    return None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CONFIG").write_text(TINY)


@pytest.mark.parametrize(
    "command",
    [
        name if name in ("report", "status", "train") else pytest.param(name, marks=pytest.mark.long)
        for name in BASE
    ],
)
def test_a_wrong_value_of_an_option_is_one_error(command, capsys):
    asked = options(command, capsys) + [ARGUMENT] * (not BASE[command][0].startswith("-"))
    assert asked
    wrong = [what_is_wrong(command, option, value, capsys) for option in asked for value in WRONG]
    assert [one for one in wrong if one] == []


def test_a_model_without_a_place_starts_no_service(capsys):
    code, said = ended(capsys, "serve", "--model", "one")
    assert code == 2
    assert "--model = 'one='" in said
    assert "http://" not in said


def test_a_service_closes_no_log_of_the_process_that_it_runs_in(capsys):
    class Log(logging.StreamHandler):
        def close(self) -> None:
            self.stream.close()
            super().close()

    log, umask = Log(io.StringIO()), os.umask(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        code, said = ended(capsys, "serve", "--model", "one=os:getcwd", "--port", str(port))
    finally:
        os.umask(umask)
    assert code == 2, said
    assert f"http://127.0.0.1:{port}" in said  # it did run
    assert not log.stream.closed
