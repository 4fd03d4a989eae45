"""What the README says is true: its code runs, its commands are the ones CI runs, its names and links exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", README)


def test_there_are_two_commands_and_four_examples():
    assert [len(text.splitlines()) for text in blocks("sh")] == [1, 1]
    assert len(blocks("python")) == 4


SWEEP, TESTS = (text.strip() for text in blocks("sh"))


def test_ci_runs_the_readmes_test_command_and_stops_where_it_fails():
    # `a && b && c` alone would not stop a script under `set -e` when a or b fails.
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert f"{TESTS} || exit 1" in lines


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


@pytest.mark.parametrize(
    "code", blocks("python"), ids=["any model", "own model", "every input", "construction"]
)
def test_the_code_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.strip()


def test_relative_links_lead_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def first_column(heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"(?m)^\| \[?`([^`]+)`", section)


def test_the_table_of_variants_names_those_of_the_quickstart():
    config = tomllib.loads((ROOT / "configs" / "quickstart.toml").read_text("utf-8"))
    assert first_column("Variants") == list(config["variants"])


def test_the_table_of_engines_names_them_all():
    from jaxsens.sensitivity.choice import ENGINES
    from jaxsens.sensitivity.first_order.estimate import NAME

    assert first_column("Engines") == [*ENGINES, NAME]


def test_every_shipped_config_is_in_the_readme():
    shipped = {f"configs/{file.name}" for file in (ROOT / "configs").glob("*.toml")}
    assert shipped <= set(first_column("The sweep"))


def test_every_subcommand_in_the_readme_is_one(capsys):
    from jaxsens.cli import main

    named = set(re.findall(r"\bjaxsens ([a-z0-9]+)\b", "\n".join(re.findall(r"`([^`\n]+)`", README))))
    assert named == {"sweep", "report", "measure", "constructions", "restrictions", "train", "theorem6"}
    for name in named:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code in (None, 0), name
        assert f"jaxsens {name}" in capsys.readouterr().out
