"""What the README says is true: its code runs, its commands are the ones CI runs, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text)


def test_there_are_two_commands_and_an_example():
    assert [len(text.splitlines()) for text in blocks("sh")] == [1, 1]
    assert len(blocks("python")) == 1


def test_it_is_a_screen_and_a_half():
    assert len(README.splitlines()) <= 100


SWEEP, TESTS = (text.strip() for text in blocks("sh"))


def test_ci_runs_the_readmes_test_command_and_stops_where_it_fails():
    # `a && b && c` alone would not stop a script under `set -e` when a or b fails.
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert f"{TESTS} --durations=30 || exit 1" in lines


@pytest.mark.parametrize("command", [SWEEP, TESTS])
def test_a_command_makes_its_own_environment_and_installs_with_pip(command):
    make, install, *_ = (shlex.split(part) for part in command.split(" && "))
    assert make == ["python3", "-m", "venv", ".venv"]
    assert install[:3] == [".venv/bin/pip", "install", "-e"]


def test_the_first_command_sweeps_a_shipped_config():
    program, subcommand, config, option, out = shlex.split(SWEEP.split(" && ")[-1])
    assert (program, subcommand, option) == (".venv/bin/jaxsens", "sweep", "--out")
    assert (ROOT / config).is_file()
    ignored = subprocess.run(["git", "check-ignore", "--quiet", out], cwd=ROOT, check=False)
    assert ignored.returncode in (0, 128), (
        "what the command writes is not ignored by git"
    )  # 128: no repository


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_code_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,), (shown,) = (blocks(kind, (ROOT / page).read_text("utf-8")) for kind in ("python", "text"))
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    number = r"\d+\.\d+"
    assert re.split(number, printed) == re.split(number, shown)
    rounding = pytest.approx([float(each) for each in re.findall(number, shown)], abs=0.011)
    assert [float(each) for each in re.findall(number, printed)] == rounding


def test_the_home_page_has_the_same_code():
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    ((start, end),) = re.findall(r'\{include\} ../README.md\n:start-after: "(.*)"\n:end-before: "(.*)"', home)
    shown = README.split(start)[1].split(end)[0]
    assert re.findall(r"(?m)^```(\w+)", shown) == ["python", "text"]
