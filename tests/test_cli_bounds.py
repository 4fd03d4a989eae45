"""The commands for papers: sweeps with bounds, restrictions, training, Theorem 6."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal

import numpy as np
import pytest

from jaxsens import flip_sensitivity
from jaxsens.cli import main
from jaxsens.core.sweeps import job
from jaxsens.theory.tables import restrictions as restrictions_table
from jaxsens.theory.tables.record import BoundRecord
from jaxsens.theory.tables.sweep import Bounds
from jaxsens.training import loop
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import Saved, TrainingInterrupted
from tests.commands import refused, run
from tests.core.sweeps.tiny import TINY, draw_nothing, measured_by
from tests.training.tiny import PREDICTION, THEOREM6, write_training

CONFIG = TINY.replace("[4, 6]", "[4, 5, 6]") + "\n[bounds]\nrestarts = 1\n"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep whose bounds are computed and drawn; a stand-in measures its points."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "tiny.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patched:
        measured_by(patched)
        assert main(["sweep", str(folder / "tiny.toml"), "--out", str(folder / "out")]) == 0
    return folder


@pytest.mark.long
def test_a_sweep_ends_with_the_bounds_in_its_report(swept):
    page = (swept / "out" / "report.html").read_text("utf-8")
    assert "Bounds over all inputs" in page
    assert "Inputs that matter" in page
    assert {file.stem for file in (swept / "out" / "figures").glob("*.svg")} >= {
        "bounds",
        "inputs-that-matter",
    }
    lines = (swept / "out" / "bounds.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3 * 2


@pytest.mark.long
def test_run_again_it_computes_nothing_and_report_writes_the_same(swept, monkeypatch, capsys):
    draw_nothing(monkeypatch)
    files = [*(swept / "out" / "bounds").rglob("*.json"), swept / "out" / "bounds.csv"]
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
    assert main(["sweep", str(swept / "tiny.toml"), "--out", str(swept / "out")]) == 0
    assert all(file.stat().st_mtime_ns == before[file][0] for file in files if file.suffix == ".json")
    assert main(["report", str(swept / "out")]) == 0
    assert {file: file.read_bytes() for file in files} == {file: text for file, (_, text) in before.items()}


@pytest.mark.long
def test_a_shard_counts_points_and_bounds_apart_and_a_full_disk_is_said(swept, monkeypatch, tmp_path, capsys):
    def answered(table, bound, reporter, shared, placement):
        point = bound.point
        return BoundRecord(bound.key, point.variant, point.n, point.seed, worst=1 / point.n)

    measured_by(monkeypatch)
    monkeypatch.setattr(Bounds, "answer", answered)
    again = ["sweep", str(swept / "tiny.toml"), "--out", str(tmp_path)]
    assert main([*again, "--shard", "0/2"]) == 0
    log = capsys.readouterr().err
    assert f"6 of 12 points and 6 of 12 bounds are done; `jaxsens report {tmp_path}` plots them" in log

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BoundRecord, "write", full)
    assert main(again) == 1
    log = capsys.readouterr().err.replace("\n", " ")
    why = f"stopped: No space left on device: nothing more can be kept in {tmp_path}; make room there."
    assert f"{why} 12 of 12 points and 6 of 12 bounds are done. To resume: jaxsens {' '.join(again)}" in log
    assert not (tmp_path / "report.html").exists()
    monkeypatch.undo()


def test_a_table_that_cannot_be_written_is_refused_before_it_is_computed(tmp_path, monkeypatch, capsys):
    (tmp_path / "afile").write_text("")

    def never(*arguments, **options):
        raise AssertionError("computed")

    monkeypatch.setattr(restrictions_table, "measure_restriction", never)
    for path in ("afile/x.md", "afile/y/x.md", "."):
        assert main(["restrictions", "--models", "0", "--out", str(tmp_path / path)]) == 2
        said = capsys.readouterr().err
        assert "--models = 0" in said
        assert f"--out = '{tmp_path / path}': " in said
    assert main(["constructions", "--measure", "--out", str(tmp_path / "afile" / "x.md")]) == 2
    assert f"{tmp_path / 'afile'} is not a directory" in capsys.readouterr().err
    rows = tmp_path / "t.md.rows"
    rows.write_text("mine")
    for command in (["restrictions", "--models", "0"], ["constructions", "--measure", "--cap", "9"]):
        assert main([*command, "--out", str(tmp_path / "t.md")]) == 2
        assert f"{rows}, where rows would be kept, is a file" in capsys.readouterr().err
    assert rows.read_text() == "mine"


def test_the_table_of_restrictions_is_written(tmp_path, capsys):
    arguments = ["restrictions", "--models", "1", "--longest", "64"]
    assert main([*arguments, "--out", str(tmp_path / "table.md")]) == 0
    head, _, *rows = (tmp_path / "table.md").read_text("utf-8").splitlines()
    assert head.startswith("| model | depth | n = 64 |")
    assert [row.split("|")[2].strip() for row in rows] == ["1", "2"]
    assert all("| 1/1 | 0 | 2/2 |" in row for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]  # which holds the rows now


def test_a_stopped_table_goes_on_with_the_rows_that_it_has(tmp_path, monkeypatch, capsys):
    arguments = ["restrictions", "--models", "1", "--longest", "128", "--out", str(tmp_path / "table.md")]
    measured = []

    def row(place, free_fraction):
        measured.append(place)
        if len(measured) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        _, depth, n = place
        refusal = "too long" if depth == 2 else ""  # its numbers are NaN
        share = {} if refusal else {"accepted": True, "largest_change": 0.0, "free_fraction": 0.5, "c": 1}
        return restrictions_table.RestrictionRow("0", depth, n, 1.0, refusal=refusal, **share)

    monkeypatch.setattr(restrictions_table, "measure_restriction", row)
    assert main(arguments) == 143
    assert f"3 of 4 rows are kept in {tmp_path / 'table.md.rows'}" in capsys.readouterr().err
    assert not (tmp_path / "table.md").exists()
    damaged = sorted((tmp_path / "table.md.rows").iterdir())[0]
    damaged.write_text(damaged.read_text().replace("0.5", "0.7").replace("too long", "too late"))
    main(arguments)
    assert len(measured) == 5, "the damaged row and the missing one are computed, and no other"
    assert "damaged, computed again" in capsys.readouterr().err
    resumed = (tmp_path / "table.md").read_text()
    (tmp_path / "table.md").unlink()
    shutil.rmtree(tmp_path / "table.md.rows", ignore_errors=True)
    main(arguments)
    assert (tmp_path / "table.md").read_text() == resumed


def test_a_table_that_is_there_is_not_replaced_by_a_part_of_it(tmp_path, monkeypatch, capsys):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    row = restrictions_table.RestrictionRow("0", 1, 64, 1.0, accepted=True, largest_change=0.0)
    monkeypatch.setattr(restrictions_table, "measure_restriction", lambda *arguments: row)
    monkeypatch.setattr(job, "write_sealed", full)
    (tmp_path / "t.md").write_text("the whole table")
    assert main(["restrictions", "--models", "1", "--out", str(tmp_path / "t.md")]) == 1
    assert (tmp_path / "t.md").read_text() == "the whole table"
    assert "No space left on device" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a tiny training for prediction, made by the command."""
    folder = tmp_path_factory.mktemp("train")
    assert main(["train", str(write_training(folder)), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_train_writes_a_checkpoint_metrics_and_a_plot_and_says_what_came_out(trained, capsys, tmp_path):
    code, out, log = run(capsys, "train", trained.parent / "lstm.toml", "--out", trained)
    assert code == 0
    assert "at step 4" in log
    assert "trained for 4 steps" in out
    assert str(trained / "training.png") in out
    assert {path.name for path in trained.iterdir()} >= {"checkpoints", "metrics.csv", "evaluation.csv"}


def test_measure_takes_a_checkpoint_with_the_boundary_symbol_first(trained, capsys):
    code, out, err = run(capsys, "measure", trained, "--tokens", "0110", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["tokens"] == [[2, 0, 1, 1, 0]]
    expected = flip_sensitivity(load_checkpoint(trained).model, np.array([[2, 0, 1, 1, 0]]))
    assert (summary["mean"], summary["flips"]) == (expected.mean, 3)
    assert summary["model"]["type"] == "CheckpointModel"
    code, out, _ = run(capsys, "measure", trained, "--n", "8", "--json")
    assert [len(word) for word in json.loads(out)["tokens"]] == [8]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("measure nowhere --n 8", "CHECKPOINT"),
        ("measure RUN --n 8 --model width=4", "--model width"),
        ("measure RUN --n 8 --model formula=Q_1 alphabet=01", "formula checkpoint"),
        ("measure RUN --n 8 --variant leftmost-hard", "--variant"),
        ("measure RUN --n 8 --config CONFIG", "--config"),
        ("measure --n 8 --model formula=Q_1 alphabet=01 --variant leftmost-hard", "--variant formula"),
        ("measure RUN --tokens 012", "--tokens"),
        ("train none.toml --out x", "none.toml"),
        ("theorem6 none.toml --out x", "none.toml"),
    ],
)
def test_what_cannot_be_trained_or_measured_is_one_message_and_exit_code_2(trained, capsys, line, names):
    sweep = trained.parent / "sweep.toml"
    sweep.write_text("[model]\nalphabet_size = 2\n")
    named = {"RUN": trained, "CONFIG": sweep}
    refused(capsys, names, *(named.get(part, part) for part in line.split()))


def test_another_config_in_the_directory_of_a_training_is_refused(trained, capsys, tmp_path):
    other = write_training(tmp_path, PREDICTION.replace("width = 4", "width = 5"))
    refused(capsys, "model.width", "train", other, "--out", trained)


def test_a_training_that_diverges_exits_with_1(tmp_path, capsys):
    wild = PREDICTION.replace("steps = 4", "steps = 400, learning_rate = 1e38, clip = 0.0")
    code, _, err = run(capsys, "train", write_training(tmp_path, wild), "--out", tmp_path / "run")
    assert code == 1
    assert "failed: optimiser.learning_rate = 1e+38" in err


def test_a_training_that_is_stopped_says_how_to_resume(tmp_path, capsys, monkeypatch):
    def stopped(config, directory, progress):
        raise TrainingInterrupted(2, directory, 15)

    monkeypatch.setattr(loop, "train", stopped)
    code, _, err = run(capsys, "train", write_training(tmp_path), "--out", tmp_path / "run")
    assert code == 143
    assert "stopped; 2 of 4 steps are done. To resume: jaxsens train" in err


def test_a_training_without_evaluations_ends_with_a_plot(tmp_path, capsys):
    config = write_training(tmp_path, PREDICTION.replace("every = 4", "every = 0"))
    for _ in range(2):
        code, out, err = run(capsys, "train", config, "--out", tmp_path / "run")
        assert code == 0, err
        assert str(tmp_path / "run" / "training.png") in out
    assert (tmp_path / "run" / "training.png").stat().st_size > 0
    assert not (tmp_path / "run" / "evaluation.csv").exists()


@pytest.mark.long
def test_measure_says_how_far_the_training_of_a_model_is(trained, tmp_path, capsys):
    class Stop(Exception):
        """The process ends here."""

    def stopping(event):
        if isinstance(event, Saved):
            raise Stop

    text = PREDICTION.replace("steps = 4}", "steps = 8}") + "checkpoint = {every = 2}\n"
    with pytest.raises(Stop):
        loop.train(TrainConfig.from_toml(write_training(tmp_path, text)), tmp_path / "run", stopping)
    code, out, _ = run(capsys, "measure", tmp_path / "run", "--n", "6")
    assert code == 0
    assert "incomplete: 2 of 8 steps" in out
    _, out, _ = run(capsys, "measure", tmp_path / "run", "--n", "6", "--json")
    assert json.loads(out)["training"] == {"step": 2, "steps": 8}
    _, out, _ = run(capsys, "measure", trained, "--n", "6", "--json")
    assert json.loads(out)["training"] == {"step": 4, "steps": 4}
    _, out, _ = run(capsys, "measure", "--n", "6", "--model", "alphabet_size=2", "width=4", "--json")
    assert json.loads(out)["training"] is None


@pytest.mark.long
def test_theorem6_ends_with_a_report_which_report_writes_again(tmp_path, capsys, monkeypatch):
    write_training(tmp_path)
    (tmp_path / "theorem6.toml").write_text(THEOREM6)
    out = tmp_path / "out"
    options = ("--format", "pdf", "--width", "one")
    code, printed, log = run(capsys, "theorem6", tmp_path / "theorem6.toml", "--out", out, *options)
    assert code == 0, log
    assert str(out / "report.html") in printed.replace("\n", "")
    for name in ("points.csv", "evaluation.csv", "summary.csv", "sweep.toml"):
        assert (out / name).stat().st_size > 0
    assert {path.suffix for path in (out / "figures").iterdir()} == {".pdf"}
    page = (out / "report.html").read_text("utf-8")
    assert "rnn: after n = 6 symbols the cross-entropy, the mean over seeds, is 0.8664" in page
    (out / "report.html").unlink()
    draw_nothing(monkeypatch)
    code, again, _ = run(capsys, "report", out)
    assert (code, again) == (0, printed)
    assert (out / "report.html").stat().st_size > 0
