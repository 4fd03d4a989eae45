"""What the command says: help, options and symbols by their names, quiet, and in any encoding of its output."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from jaxsens import PrecisionWarning, load_result
from jaxsens.cli import main, single
from tests.commands import run
from tests.core.sweeps.tiny import TINY, fake_flip_sensitivity, measured_by
from tests.made_results import made
from tests.pretrained.folders import write_folder

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ("measure", "sweep", "report", "status", "plan", "corpus", "serve", "schema")
PAPERS = ("train", "theorem6", "constructions", "restrictions")


def help_of(command: str, capsys, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0
    return out


def test_the_commands_are_one_screen_in_two_groups(capsys, monkeypatch):
    text = help_of("", capsys, monkeypatch)
    assert 20 <= len(text.splitlines()) <= 40
    everyday, papers = text.split("Commands for papers:")
    for part, names in ((everyday, COMMANDS), (papers, PAPERS)):
        assert tuple(re.findall(r"(?m)^  ([a-z0-9]+)  ", part)) == names


@pytest.mark.parametrize("command", [*COMMANDS, *PAPERS])
def test_help_has_an_example_that_the_parser_takes(command, capsys, monkeypatch):
    text = " ".join(help_of(command, capsys, monkeypatch).split("╭")[0].split())
    example = text.split("For example: jaxsens ")[1]
    assert example.split()[0] == command
    assert "Unrecognized" not in run(capsys, *example.split(), "--help")[2]


@pytest.mark.parametrize("command", ["", *COMMANDS, *PAPERS])
def test_help_fits_80_columns_and_states_defaults_that_are_none_of_pythons(command, capsys, monkeypatch):
    text = help_of(command, capsys, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    assert "None" not in text
    assert "(default: False)" not in text


@pytest.mark.long
def test_bad_values_are_answered_together_without_loading_pandas():
    code = (
        "import sys; from jaxsens.cli import main\nassert main(['measure', '--n', '1', '--top', '-1']) == 2\n"
    )
    code += "print([m for m in ('pandas',) if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout.strip() == "[]"
    assert "--n = 1" in ran.stderr
    assert "--top = -1" in ran.stderr


@pytest.mark.long
def test_flips_of_a_formula_are_shown_by_the_names_of_its_symbols(capsys):
    arguments = ["--model", "formula=Y Q_a", "alphabet=b,a", "autoregressive=true", "--tokens", "abba"]
    assert main(["measure", *arguments]) == 0
    rows = [line.split()[1::2] for line in capsys.readouterr().out.splitlines() if line.startswith("\u2502")]
    assert rows[0][:4] == ["0", "2", "a", "b"]
    assert main(["measure", "--model", "formula=Y Q_1", "alphabet=10", "--tokens", "1001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["symbols"] == ["1", "0"]


def test_a_warning_is_a_line_of_the_command_without_its_source(monkeypatch, config, tmp_path, capsys):
    def warned(directory):
        warnings.warn("too few digits", PrecisionWarning, stacklevel=1)
        raise FileNotFoundError(2, "No such file", str(directory))

    monkeypatch.setattr("jaxsens.core.sweep.load_sweep", warned)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["report", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err == f"jaxsens: warning: too few digits\njaxsens: {tmp_path}: No such file\n"


NAME = "[/b]:smile:\x1b[2J"
PRINTED = r"[/b]:smile:\x1b[2J"


def test_names_and_texts_are_printed_as_they_stand_without_control_characters(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tokens = np.zeros((1, 2), np.int32)
    result = made([1.0, 0.5], tokens=tokens, names={0: NAME, 1: NAME}, versions={"device": "cpu"})
    source = SimpleNamespace(names=(NAME, NAME), training=None, expanded={})
    single.summary_of_words(result, cast(Any, source), 1).print()
    assert capsys.readouterr().out.count(PRINTED) == 2
    told = dict.fromkeys(("description", "name", "family", "folder"), NAME)
    model = SimpleNamespace(**told, labels=(), tokens=list)
    summary = single.summary_of_text(result, model, "", 1)
    summary.print()
    printed = capsys.readouterr().out
    assert printed.count(PRINTED) == 4  # what the model is, a token, the one after it, and what replaces it
    assert "\x1b" not in printed
    assert summary.flips[0]["replacement"] == NAME


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.mark.long
@pytest.mark.filterwarnings("always")
def test_quiet_sweeps_and_reports_print_failures_and_warnings_only(monkeypatch, config, tmp_path, capsys):
    def measured(model, tokens, **options):
        if tokens.shape[1] == 6:
            raise ValueError("no such luck")
        warnings.warn("too few digits", PrecisionWarning, stacklevel=1)
        return fake_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, measured)
    out = tmp_path / "out"
    assert main(["sweep", str(config), "--out", str(out), "--only", "variant=softmax", "--quiet"]) == 1
    printed, log = capsys.readouterr()
    assert printed == ""
    assert log.splitlines() == [
        "warning: softmax n=4 seed=0: too few digits",
        "failed: softmax n=6 seed=0: ValueError: no such luck",
        "failed: softmax n=6 seed=1: ValueError: no such luck",
    ]
    assert main(["report", str(out), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_quiet_measure_saves_and_prints_nothing(tmp_path, capsys):
    saved = tmp_path / "x.parquet"
    assert (
        main(["measure", "--model", "construction=parity", "--n", "8", "--quiet", "--save", str(saved)]) == 0
    )
    assert capsys.readouterr() == ("", "")
    assert load_result(saved).n == 8


@pytest.mark.long
def test_what_is_saved_is_kept_where_nobody_reads_what_is_printed(tmp_path):
    words = ["measure", "--model", "construction=parity", "--n", "8", "--json", "--save"]
    command, pipe = [sys.executable, "-m", "jaxsens", *words, str(tmp_path / "x.parquet")], subprocess.PIPE
    ran = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    assert ran.stdout is not None
    ran.stdout.close()
    _, err = ran.communicate(timeout=120)
    assert (ran.returncode, err) == (141, "")
    assert load_result(tmp_path / "x.parquet").n == 8


ENCODINGS = ("ascii", "latin-1", "cp1252")
HELP = ("plan", "status", "train", "theorem6", "sweep", "measure", "corpus", "report", "constructions")
MEASURE = ("measure", "--pretrained", "bert", "--text", "the cat sat on the mat", "--flips", "9,11")


def written(encoding: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """The exit code of a command, and all that it writes."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
    with monkeypatch.context() as patch:
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    for stream in streams:
        stream.seek(0)  # writes what it holds
    return code, "".join(stream.read() for stream in streams)


def check(code: int, text: str) -> None:
    """Fails unless a command did its work, in characters that are read."""
    assert code == 0, text
    assert text
    assert "Traceback" not in text
    assert re.findall(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4})", text) == []


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_help_is_read_in_any_encoding(encoding, monkeypatch):
    for command in HELP:
        check(*written(encoding, monkeypatch, command, "--help"))


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_signs_that_an_encoding_lacks_are_ascii_and_characters_of_a_text_are_escapes(
    encoding, tmp_path, monkeypatch
):
    write_folder(tmp_path / "bert")
    (tmp_path / "t.txt").write_text("the cat sat\na cat slept\n")
    code, text = written(encoding, monkeypatch, *MEASURE)
    check(code, text)
    assert ("<" if encoding == "ascii" else "«") in text
    code, text = written(encoding, monkeypatch, "corpus", "--pretrained", "bert", "--texts", "t.txt")
    check(code, text)
    assert "By position" in text
    code, text = written(encoding, monkeypatch, "measure", "--pretrained", "bert", "--text", "the \u4eca cat")
    assert code == 0
    assert "\\u4eca" in text


def test_help_offers_what_a_command_line_can_say(capsys, monkeypatch):
    text = re.sub(r"[\s\u2502]+", "", help_of("measure", capsys, monkeypatch))
    listed = text.split("--measure{")[1].split("}")[0].split(",")
    assert "l2" in listed
    assert not {"function", "comparison"} & {*listed}
