"""The commands about trained models: train, measure of a checkpoint, theorem6."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxsens import flip_sensitivity
from jaxsens.cli import main
from jaxsens.training import loop
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.records import Saved, TrainingInterrupted
from tests.commands import refused, run
from tests.core.sweeps.tiny import draw_nothing
from tests.training.tiny_training import PREDICTION, THEOREM6, write_training


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
