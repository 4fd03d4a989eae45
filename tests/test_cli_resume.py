"""`jaxsens measure` that is stopped keeps what it measured, and goes on from it when it is run again."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import numpy as np
import pytest

from jaxsens import load_result
from jaxsens.core.placement.run import _chunks as whole
from tests.commands import refused, run

MODEL = ("measure", "--model", "alphabet_size=3", "width=4", "heads=1", "layers=1", "--n", "24")
MEASURE = (*MODEL, "--engine", "vmap", "--placement", "batch_size=2", "--inputs", "2", "--quiet")


@pytest.fixture
def stopped(monkeypatch):
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

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield after
    signal.signal(signal.SIGHUP, before)


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
