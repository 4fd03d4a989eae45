"""The `jaxsens` command: what it prints, where it writes, how it refuses, and how it goes on after a stop."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from jaxsens import Transformer, TransformerConfig, construction, flip_sensitivity, load_result
from jaxsens.core.placement.run import _chunks as whole
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.inputs import RandomWords, Symbols
from tests.commands import refused, run
from tests.core.sweeps.tiny import TINY, draw_nothing

ROOT = Path(__file__).resolve().parents[1]
SIZES = ["width=4", "heads=1", "layers=1", "feed_forward=0"]
SMALL = ["--model", "alphabet_size=2", *SIZES]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace("lengths = [4, 6]", "lengths = [4, 6, 8]"))
    return path


@pytest.fixture
def undrawn(monkeypatch):
    draw_nothing(monkeypatch)


def test_a_sweep_ends_with_tables_plots_and_a_report(faked, config, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed, log = run(capsys, "sweep", config, "--out", out)
    assert code == 0
    assert "12/12" in log
    assert str(out / "report.html") in printed.replace("\n", "")
    for name in ("points.csv", "summary.csv", "report.html", "sweep.toml", "sweep.json"):
        assert (out / name).stat().st_size > 0
    assert {path.suffix for path in (out / "figures").iterdir()} == {".svg"}


def test_a_full_disk_is_no_bad_input(monkeypatch, tmp_path, capsys):
    def full(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory / "sweep.json"))

    monkeypatch.setattr("jaxsens.core.sweep.read_plan", full)
    code, _, err = run(capsys, "report", tmp_path)
    assert code == 1
    why = "No space left on device: what was written so far is kept; make room there, then run the same command again"
    assert err == f"jaxsens: {tmp_path / 'sweep.json'}: {why}\n"


def test_the_last_shard_writes_the_report_and_the_others_say_what_is_missing(
    faked, undrawn, config, tmp_path, capsys
):
    out = tmp_path / "out"
    code, _, log = run(capsys, "sweep", config, "--out", out, "--shard", "0/2")
    assert code == 0
    assert "6 of 12 points are done" in log
    assert not (out / "report.html").exists()
    run(capsys, "sweep", config, "--out", out, "--shard", "1/2")
    assert (out / "report.html").exists()


def test_a_shard_beyond_the_points_says_so_and_fails_nothing(config, tmp_path, capsys):
    code, _, log = run(capsys, "sweep", config, "--out", tmp_path / "out", "--only", "n=4", "--shard", "4/9")
    assert (code, "could be" in log) == (0, False)
    assert "shard 4/9 has no points; 0 of 12 points are done" in log


def test_the_commands_that_a_sweep_tells_are_quoted(faked, undrawn, config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "$(touch x) 'y'"
    _, _, err = run(capsys, "sweep", config, "--out", name, "--shard", "0/2")
    assert f"`{shlex.join(['jaxsens', 'report', name])}` plots them" in err
    run(capsys, "sweep", config, "--out", name)
    (tmp_path / name / "report.html").unlink()
    assert f"`{shlex.join(['jaxsens', 'report', name])}` writes it" in run(capsys, "status", name)[1]


def test_listing_points_runs_nothing(config, tmp_path, capsys):
    out = tmp_path / "out"
    code, printed, _ = run(
        capsys, "sweep", config, "--out", out, "--list", "--only", "n=4", "--only", "seed=1"
    )
    assert code == 0
    lines = printed.splitlines()
    assert len(lines) <= 10
    assert [" ".join(line.split()) for line in lines[-5:-2]] == [
        "variant 2: softmax, leftmost-hard",
        "n 1: 4",
        "seed 1: 1",
    ]
    assert lines[-2] == "0 of 2 points are done"
    assert lines[-1].startswith("the missing points take about ")
    assert " on this machine if idle, " in lines[-1]
    assert not out.exists()


def test_python_m_is_the_command():
    command = [sys.executable, "-m", "jaxsens", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout.startswith("jaxsens ")


@pytest.mark.long
def test_the_script_is_the_command(config, tmp_path):
    command = [sys.executable, "scripts/sweep_n.py", str(config), "--out", str(tmp_path), "--list"]
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, env=found)
    assert "\n0 of 12 points are done\n" in ran.stdout
    assert len((ROOT / "scripts" / "sweep_n.py").read_text().splitlines()) < 12


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("sweep none.toml --out x", "none.toml"),
        ("report nowhere", "nowhere"),
        ("measure --n 8", "--model alphabet_size"),
        ("measure --model alphabet_size=2", "--tokens"),
        ("measure --model alphabet_size=2 --n 4 --tokens 01", "--tokens"),
        ("measure --model alphabet_size=2 --tokens 0a1", "--tokens"),
        ("measure --model alphabet_size=2 --n 1", "--n"),
        ("measure --model alphabet_size=2 alphabet_size=3 --n 8", "--model alphabet_size"),
        ("measure --model alphabet_size --n 8", "--model field=value"),
        ("measure --model alphabet_size=2 --n 8 --save /proc/x.parquet", "/proc"),
        ("measure --model alphabet_size=2 --n 8 --quiet", "--quiet --save --html"),
        ("measure --model alphabet_size=2 --n 8 --seed -3 --top -1", "--seed --top"),
        ("corpus --pretrained nowhere --seed -3 --top -1", "--seed --top"),
        ("theorem6 none.toml --out /proc/x", "--out"),
        ("train none.toml --out /dev/null", "--out"),
        ("constructions --measure --out /dev/null", "--out"),
        ("measure --model alphabet_size=2 --n 8 --save x.csv", "--save .parquet"),
        ("measure --model alphabet_size=2 --n 8 --save /dev/null/x.parquet", "/dev/null"),
        ("measure --model alphabet_size=2 --n 8 --config none.toml", "--config"),
        (f"measure --n 8 --config {ROOT}/configs/theorem6_hour.toml", "model [model]"),
        ("measure --n 8 --config number.toml --variant own", "variant [[variant]]"),
        ("measur --n 8", "measur measure"),
        ("measure --model construction=parity width=4 --n 8", "--model width"),
        ("measure --model formula=Q_1 --n 8", "--model alphabet"),
        ("measure --model formula='Q_1 &' alphabet=01 --n 8", "--model formula column 6"),
        ("measure --model formula=Q_1 construction=parity --n 8", "formula construction"),
        ("sweep none.toml --out x --share-above 5", "--share-above"),
        ("sweep none.toml --out x --processes 2 --process 0 --coordinator h:99999", "--coordinator"),
        ("sweep none.toml --out x --processes 2", "--coordinator --processes --process"),
        (
            "sweep none.toml --out x --coordinator a --processes 2 --process 2",
            "--coordinator HOST:PORT --process",
        ),
        ("sweep none.toml --out x --coordinator a:1 --processes 2 --process 2", "--process --processes"),
        ("plan none.toml", "--on a100"),
        ("plan none.toml --on h100 --write job.txt", "--write"),
        ("plan none.toml --on h1000", "--on h100"),
    ],
)
def test_bad_input_is_one_message_on_stderr_and_exit_code_2(line, names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("number.toml").write_text("variant = 3\n")
    assert refused(capsys, names, *shlex.split(line)).startswith("jaxsens: ")


def test_the_example_is_a_sweep(capsys):
    code, text, _ = run(capsys, "sweep", "--example")
    assert code == 0
    assert [variant.name for variant in parse_sweep_config(text).variants] == [
        "softmax",
        "leftmost-hard",
        "cold",
    ]
    assert len(parse_sweep_config(text).points) == 60


def test_the_schema_takes_every_config_of_a_sweep_and_no_mistake(capsys):
    jsonschema = pytest.importorskip("jsonschema")
    code, text, _ = run(capsys, "schema")
    assert code == 0
    valid = jsonschema.Draft202012Validator(json.loads(text)).is_valid
    configs = [tomllib.loads(path.read_text("utf-8")) for path in ROOT.glob("configs/**/*.toml")]
    sweeps = [one for one in configs if {"variant", "variants"} & one.keys()]
    assert len(sweeps) > 20
    assert all(map(valid, sweeps))
    for wrong in (
        {"lenghts": [8]},
        {"seeds": "5"},
        {"variants": ["softmx"]},
        {"measure": {"flips": {"kind": "delete", "k": 3}}},
        {"measure": {"measure": "function"}},
        {"model": {"layers": "two"}},
        {"bounds": {"worst": "no"}},
    ):
        assert not valid({"lengths": [8, 16], "variants": ["softmax"], **wrong}), wrong


@pytest.mark.long
def test_measure_agrees_with_the_library_and_is_the_sweeps_point(tmp_path, capsys):
    saved = tmp_path / "result.parquet"
    arguments = ["--n", "12", "--seed", "3", "--inputs", "2", "--measure", "l1", "--json", "--save", saved]
    code, out, _ = run(capsys, "measure", *SMALL, "--variant", "unbounded", *arguments)
    assert code == 0
    summary = json.loads(out)
    model = TransformerConfig(
        alphabet_size=2, width=4, heads=1, layers=1, feed_forward=0, positions=("sinusoidal", "length")
    )
    tokens = RandomWords(2).tokens(Symbols(2, 2), 12, 3)
    expected = flip_sensitivity(Transformer(model, seed=3), tokens, measure="l1")
    assert summary["mean"] == expected.mean
    assert summary["max"] == expected.max
    assert summary["quantiles"]["q90"] == expected.quantile(0.9)
    assert summary["tokens"] == tokens.tolist()
    assert (summary["n"], summary["inputs"], summary["flips"], summary["population"]) == (12, 2, 22, 22)
    top = summary["top"]
    assert len(top) == 5
    assert [flip["norm"] for flip in top] == sorted(map(float, expected.norms), reverse=True)[:5]
    assert (top[0]["position"], top[0]["symbol"]) == expected.argmax[1:3]
    assert top[0]["replaces"] == tokens[top[0]["input"], top[0]["position"]]
    assert summary["engine"] == {"name": expected.engine.name, "reason": expected.engine.reason}
    assert np.array_equal(load_result(saved).norms, expected.norms)


def test_measure_prints_a_table(capsys):
    code, out, _ = run(capsys, "measure", *SMALL, "--tokens", "0110", "--top", "2")
    assert code == 0
    facts = dict(line.split(maxsplit=1) for line in out.splitlines() if line[:1].isalpha())
    assert facts["n"].split() == ["5"]
    assert facts["flips"].split() == ["4"]
    assert facts["model"].strip() == "float32, on cpu"
    assert {"engine", "mean", "q50", "max"} <= set(facts)
    assert sum(line.startswith("│") for line in out.splitlines()) == 2


def keys_of(value):
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [*(value if isinstance(value, dict) else []), *(key for one in inside for key in keys_of(one))]


@pytest.mark.long
def test_measure_reads_the_model_of_a_sweeps_config_and_options_win(config, capsys):
    code, out, _ = run(
        capsys, "measure", "--config", config, "--n", "6", "--json", "--flips", "substitute", "sample=3"
    )
    summary = json.loads(out)
    assert (code, summary["model"]["width"], summary["flips"], summary["population"]) == (0, 4, 3, 5)
    own = '[[variant]]\nname = "own"\nmodel = {heads = 2}\n'
    config.write_text(config.read_text() + own)
    options = ["--variant", "own", "--model", "width=6", "positions=none", "dtype=float64"]
    _, out, _ = run(capsys, "measure", "--config", config, "--n", "6", "--json", *options)
    model = json.loads(out)["model"]
    assert (model["heads"], model["width"], model["positions"], model["dtype"]) == (2, 6, [], "float64")


def test_a_word_may_be_numbers_and_gets_the_end_symbol(capsys):
    _, out, _ = run(capsys, "measure", "--model", "alphabet_size=12", *SIZES, "--tokens", "11, 0 3", "--json")
    assert json.loads(out)["tokens"] == [[11, 0, 3, 12]]


@pytest.mark.long
def test_measure_takes_a_construction_in_a_condition(capsys):
    options = ["construction=parity", "condition=bounded-softmax", "read=everything", "dtype=float64"]
    code, out, _ = run(capsys, "measure", "--model", *options, "--tokens", "0110", "--json")
    assert code == 0
    summary = json.loads(out)
    model = construction("parity", "bounded-softmax", read="everything")
    expected = flip_sensitivity(model, np.array([[0, 1, 1, 0]]))
    assert (summary["max"], summary["mean"]) == (expected.max, expected.mean)
    assert summary["model"]["read"] == "everything"


def test_measure_takes_a_formula_whose_symbols_have_names_and_drops_the_network_of_the_config(config, capsys):
    options = ["--model", "formula=Y Q_a", "alphabet=b,a", "autoregressive=true", "--config", config]
    code, out, err = run(capsys, "measure", *options, "--tokens", "abba", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["tokens"] == [[1, 0, 0, 1]]
    assert [flip["norm"] for flip in summary["top"]] == [1, 0, 0]
    assert summary["top"][0]["position"] == 2
    assert summary["model"] == {
        "type": "FormulaModel",
        "formula": "Y Q_a",
        "alphabet": ["b", "a"],
        "condition": "temperature",
        "autoregressive": True,
        "dtype": "float64",
        "read": "output",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Everyday commands:"),
        (["swep"], 'swep: no such command; did you mean "sweep"?'),
        (["sweep"], "CONFIG and --out missing; `jaxsens sweep --example` prints a config"),
        (["theorem6"], "CONFIG and --out missing; configs/theorem6_quick.toml is a config"),
        (["measure", "--n", "many"], "--n: 'many' is not a whole number"),
        (["measure", "--seed", "1.5"], "--seed: '1.5' is not a whole number"),
        (["corpus", "--save", ""], "--save: an empty name; give a directory"),
        (["serve", "--reports", ""], "--reports: an empty name; give a directory"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_exits_with_2_and_names_the_option(arguments, message, capsys):
    err = refused(capsys, "", *arguments)
    assert message in " ".join(err.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert "None" not in err


MODEL = ("measure", "--model", "alphabet_size=3", "width=4", "heads=1", "layers=1", "--n", "24")
MEASURE = (*MODEL, "--engine", "vmap", "--placement", "batch_size=2", "--inputs", "2", "--quiet")


@pytest.fixture
def stopped(monkeypatch, interruptible):
    """Has `main` stopped by a signal after so many chunks; None for never."""

    def after(chunks: int | None, number: int = signal.SIGTERM) -> None:
        seen: list[int] = []

        def signalled(*given):
            for finished in whole(*given):
                seen.append(1)
                if len(seen) == chunks:
                    os.kill(os.getpid(), number)
                yield finished

        monkeypatch.setattr("jaxsens.core.placement.run._chunks", signalled)
        monkeypatch.setattr("jaxsens.core.placement.run._SHORT", 0.0)
        monkeypatch.setattr("jaxsens.core.placement.run._CHUNK_SECONDS", 1e-9)

    return after


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_measured_is_kept_and_the_command_that_is_told_goes_on(
    stopped, tmp_path, monkeypatch, capsys, number
):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *MEASURE, "--save", "whole.parquet")[0] == 0
    whole, name = load_result("whole.parquet"), "$(touch x) it's.parquet"
    stopped(1, number)
    code, _, err = run(capsys, *MEASURE, "--save", name)
    assert code == 128 + number
    partial = load_result(name)
    assert 0 < len(partial) < len(whole)
    assert not partial.complete
    assert f"stopped; {len(partial)} of {len(whole)} flips were measured, and are kept in {name}" in err
    told = shlex.split(err.partition("To go on: ")[2].splitlines()[0])
    assert told == ["jaxsens", *MEASURE, "--save", name]
    stopped(1, number)
    code, _, err = run(capsys, *told[1:])
    assert code == 128 + number
    assert len(load_result(name)) > len(partial), "a second stop lost what the first one kept"
    stopped(None)
    assert run(capsys, *told[1:])[0] == 0
    result = load_result(name)
    assert result.complete
    for field in ("inputs", "positions", "symbols"):
        np.testing.assert_array_equal(getattr(result, field), getattr(whole, field))
    np.testing.assert_allclose(result.norms, whole.norms, rtol=1e-5)


def test_a_file_that_is_whole_is_measured_anew(tmp_path, capsys):
    file = tmp_path / "flips.parquet"
    assert run(capsys, *MEASURE, "--save", file)[0] == 0
    assert run(capsys, *MEASURE, "--measure", "l1", "--save", file)[0] == 0
    assert load_result(file).measure.kind == "l1"


def test_without_a_file_it_is_said_that_nothing_was_written(stopped, tmp_path, capsys):
    stopped(1)
    code, _, err = run(capsys, *MEASURE, "--html", tmp_path / "page.html")
    assert code == 143
    assert "nothing was written: --save FILE keeps them" in err


@pytest.mark.long
def test_an_estimate_that_is_stopped_keeps_nothing(stopped, tmp_path, capsys):
    stopped(1)
    file = tmp_path / "flips.parquet"
    code, _, err = run(capsys, *MODEL, "--engine", "first-order", "--quiet", "--save", file)
    assert code == 143
    assert "nothing was written: run the same command again" in err
    assert not file.exists()


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("--measure l1", "--save measure"),
        ("--seed 1", "--save"),
        ("--flips 0,1", "--save flips"),
        ("--engine first-order", "--save engine"),
    ],
)
def test_what_another_command_kept_is_not_overwritten(stopped, tmp_path, monkeypatch, capsys, more, names):
    monkeypatch.chdir(tmp_path)
    stopped(1)
    run(capsys, *MEASURE, "--save", "partial.parquet")
    kept = Path("partial.parquet").read_bytes()
    stopped(None)
    refused(capsys, names, *MEASURE, "--save", "partial.parquet", *more.split())
    assert Path("partial.parquet").read_bytes() == kept
