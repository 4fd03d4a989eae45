"""The Theorem 6 experiment: what a cell holds, and that any run goes on where the last one ended."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxsens.asked.engines import Vmap
from jaxsens.asked.flips import Substitute
from jaxsens.asked.measures import L1
from jaxsens.base.errors import InputError
from jaxsens.experiments.jobs.job import Outcome
from jaxsens.experiments.sweep import points as sweep_points
from jaxsens.experiments.sweep.placement_table import PlacementTable
from jaxsens.experiments.sweep.points import Measurement
from jaxsens.experiments.theorem6 import results as theorem6_results
from jaxsens.experiments.theorem6 import run as theorem6
from jaxsens.experiments.theorem6.config import Theorem6, load_theorem6_config, parse_theorem6_config
from jaxsens.experiments.theorem6.recurrent_parity import exact_parity_rnn
from jaxsens.experiments.theorem6.results import (
    Cell,
    Subject,
    cell_path,
    is_theorem6,
    lines_of,
    measure_cell,
    models_folder,
    read_cells,
    read_plan,
    tokens_to_flip,
)
from jaxsens.experiments.theorem6.run import run_theorem6
from jaxsens.languages import Dyck, Parity
from jaxsens.models.networks.baselines import LSTM
from jaxsens.models.networks.baselines_config import LSTMConfig
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.training.evaluation import accuracy, cross_entropy
from jaxsens.training.events import TrainingInterrupted
from tests.disks import files_of_at_most
from tests.experiments.tiny import printed, quiet
from tests.experiments.tiny_training import PREDICTION, RECOGNITION, THEOREM6, write_training

ROOT = Path(__file__).resolve().parents[2]
EVALUATION = Theorem6(
    lengths=(8,), seeds=(0, 3), words=8, inputs=2, measure=Measurement(Substitute(sample=5), engine=Vmap())
)


@pytest.fixture
def experiment(tmp_path) -> Theorem6:
    write_training(tmp_path)
    return parse_theorem6_config(THEOREM6, "tiny", tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Outcome]:
    """The directory of the experiment, run once, and how the run ended; tests must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    write_training(folder)
    return folder / "out", run_theorem6(
        parse_theorem6_config(THEOREM6, "tiny", folder), folder / "out", quiet()
    )


@pytest.fixture
def out(finished, tmp_path) -> Path:
    """A copy of that directory."""
    return shutil.copytree(finished[0], tmp_path / "out")


def lstm(logits: int, alphabet: int = 2) -> LSTM:
    return LSTM(LSTMConfig(alphabet_size=alphabet, width=4, logits=logits), seed=1)


def tables(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.csv")}


def test_a_cell_of_a_predicting_model_is_what_the_library_says_seed_by_seed():
    model, parity = lstm(3), Parity(0.3)
    cell = measure_cell(Subject("lstm", "prediction", parity, model, "f"), 9, EVALUATION)
    assert cell.recognition == ()
    for row, flips, seed in zip(cell.prediction, cell.sensitivity, (0, 3), strict=True):
        expected = cross_entropy(model, parity, 9, words=8, seed=seed)
        assert (row.cross_entropy, row.excess) == (expected.mean, expected.excess)
        assert (row.standard_error, row.choice) == (expected.standard_error, None)
        tokens = tokens_to_flip("prediction", parity, 9, 2, seed)
        assert tokens.shape == (2, 10)
        assert (tokens[:, 0] == 2).all()
        assert (tokens[:, 1:] < 2).all()
        result = flip_sensitivity(model, tokens, Substitute(sample=5, seed=seed), engine="vmap")
        assert (flips.mean, flips.max, flips.flips, flips.population) == (result.mean, result.max, 5, 16)


@pytest.mark.long
def test_a_run_stopped_in_every_part_of_its_first_cell_still_comes_to_the_cells_end(
    experiment, finished, tmp_path, monkeypatch
):
    """Preempted after every part that it finishes, it does each of them once."""
    places = {"cross_entropy": theorem6_results, "flip_sensitivity": sweep_points}
    done, original = [], {name: getattr(module, name) for name, module in places.items()}

    def ends_with_a_signal(name):
        def measure(*arguments, **options):
            found = original[name](*arguments, **options)
            done.append(name)
            os.kill(os.getpid(), signal.SIGTERM)
            return found

        return measure

    for name, module in places.items():
        monkeypatch.setattr(module, name, ends_with_a_signal(name))
    runs = 0
    while not cell_path(tmp_path / "out", "lstm", 2).exists():
        outcome = run_theorem6(experiment, tmp_path / "out", quiet())
        assert outcome.exit_code == 143
        runs += 1
        assert len(done) == runs, "a run did more than one part, or none"
    assert done == ["cross_entropy", "flip_sensitivity"] * 2
    for name, module in places.items():
        monkeypatch.setattr(module, name, original[name])
    assert run_theorem6(experiment, tmp_path / "out", quiet()).finished == 6
    assert tables(tmp_path / "out") == tables(finished[0])
    assert not list((tmp_path / "out" / "cells").rglob(".*"))


def test_a_cell_of_a_recognising_model_holds_accuracy_and_margin():
    model, dyck = lstm(2, alphabet=4), Dyck(2, 0.4)
    cell = measure_cell(Subject("lstm", "recognition", dyck, model, "f"), 8, EVALUATION)
    assert cell.prediction == ()
    expected = accuracy(model, dyck, 8, words=8, seed=3)
    assert (cell.recognition[1].accuracy, cell.recognition[1].margin) == (expected.accuracy, expected.margin)
    tokens = tokens_to_flip("recognition", dyck, 8, 2, 0)
    assert (tokens[:, -1] == 4).all()
    assert (
        cell.sensitivity[0].population == 2 * 8 * 3
    )  # the boundary symbol is read out, all others are flipped


def test_brackets_have_a_choice_and_the_line_of_theorem_6():
    model, dyck = lstm(5, alphabet=4), Dyck(2, 0.4)
    row = measure_cell(Subject("lstm", "prediction", dyck, model, "f"), 8, EVALUATION).prediction[0]
    expected = cross_entropy(model, dyck, 8, words=8, seed=0)
    assert (row.choice, row.choice_error) == (expected.choice, expected.choice_standard_error)
    lines = lines_of(dyck, 8)
    assert lines.bound == pytest.approx(lines.optimum + (lines.choice_bound or 0))
    assert lines.choice_bound == pytest.approx(dyck.closing_choice_probability(8) * 0.6 * np.log(2))
    assert lines_of(Dyck(1, 0.4), 8).bound is None
    assert lines_of(Parity(0.4), 8).bound is None


def test_the_key_of_a_cell_depends_on_what_its_numbers_depend_on():
    def key(name="a", p=0.5, fingerprint="f", n=8, **changes):
        subject = Subject(name, "prediction", Parity(p), None, fingerprint)
        return subject.key(n, dataclasses.replace(EVALUATION, **changes))

    keys = [
        key(),
        key(n=9),
        key(fingerprint="g"),
        key(p=0.4),
        key(words=9),
        key(seeds=(0, 4)),
        key(inputs=1),
        key(measure=Measurement(Substitute(sample=6), engine=Vmap())),
        key(measure=Measurement(Substitute(sample=5), L1(), Vmap())),
    ]
    assert len(set(keys)) == len(keys)
    assert key(name="b") == keys[0]
    placement = PlacementTable(memory_budget=10**6, batch_size=2)
    assert key(placement=placement, title="t", lengths=(8, 9)) == keys[0]


def test_a_run_trains_evaluates_and_writes_tables_and_the_next_one_keeps_everything(
    experiment, finished, out
):
    _, outcome = finished
    assert (outcome.finished, outcome.planned, outcome.failures, outcome.exit_code) == (6, 6, (), 0)
    rows = list(csv.DictReader(io.StringIO((out / "cross_entropy.csv").read_text())))
    assert [(row["model"], row["n"], row["seed"]) for row in rows[:3]] == [
        ("lstm", "2", "0"), ("lstm", "2", "1"), ("lstm", "4", "0"),
    ]  # fmt: skip
    parity = Parity(0.5)
    exact = next(row for row in rows if row["model"] == "rnn")
    assert float(exact["cross_entropy"]) == pytest.approx(parity.optimal_cross_entropy(2))
    assert float(exact["unigram"]) == parity.unigram_cross_entropy(2)
    assert exact["bound"] == ""
    flips = list(csv.DictReader(io.StringIO((out / "sensitivity.csv").read_text())))
    assert len({row["mean"] for row in flips if row["model"] == "rnn"}) == 1
    assert not (out / "recognition.csv").exists()
    assert is_theorem6(out)
    written = tables(out)
    again = quiet()
    assert run_theorem6(experiment, out, again).finished == 6
    assert "6 of 6 were done before" in printed(again)
    assert "loss" not in printed(again)
    assert tables(out) == written


def test_a_damaged_cell_is_measured_again_and_a_missing_one_too(experiment, out):
    written = tables(out)
    damaged = cell_path(out, "lstm", 4)
    damaged.write_text(damaged.read_text().replace('"words": 4', '"words": 5'))
    cell_path(out, "rnn", 6).unlink()
    with pytest.raises(InputError, match=r"n=4\.json: .*run `jaxsens theorem6` again"):
        read_cells(out, read_plan(out))
    console = quiet()
    assert run_theorem6(experiment, out, console).finished == 6
    assert "damaged, computed again: lstm n=4: " in printed(console)
    assert "does not match its checksum" in printed(console)
    assert "4 of 6 were done before" in printed(console)
    assert tables(out) == written


def test_a_training_that_fails_does_not_stop_the_others(experiment, tmp_path, monkeypatch):
    def failing(config, directory, progress):
        raise InputError("no such luck")

    monkeypatch.setattr(theorem6, "train", failing)
    out, console = tmp_path / "out", quiet()
    outcome = run_theorem6(experiment, out, console)
    assert [str(failure) for failure in outcome.failures] == ["lstm: no such luck"]
    assert (outcome.exit_code, outcome.finished) == (1, 3)
    model, exact = read_plan(out).models
    assert (model.failure, model.keys, model.steps, exact.steps) == ("no such luck", {}, None, None)
    monkeypatch.undo()
    run_theorem6(experiment, out, console)
    assert [model.steps for model in read_plan(out).models] == [4, None]


def test_a_checkpoint_that_cannot_be_kept_ends_the_experiment_and_is_no_failed_model(tmp_path):
    write_training(tmp_path, PREDICTION.replace("width = 4", "width = 64"))
    experiment = parse_theorem6_config(THEOREM6.replace("[2, 4, 6]", "[2]"), "tiny", tmp_path)
    out = tmp_path / "out"
    with files_of_at_most(100_000):
        outcome = run_theorem6(experiment, out, quiet())
    why = f"File too large: nothing more can be kept in {out}; raise the limit on the size of a file (ulimit -f)"
    assert (outcome.unwritable, outcome.failures, outcome.exit_code) == (why, (), 1)
    assert outcome.finished == 0
    assert run_theorem6(experiment, out, quiet()).finished == 2


def test_a_disk_that_takes_no_more_ends_the_evaluation_and_keeps_what_is_done(
    experiment, tmp_path, monkeypatch
):
    def full(cell, path, write=Cell.write):
        if cell.n == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(cell, path)

    monkeypatch.setattr(Cell, "write", full)
    outcome = run_theorem6(experiment, tmp_path / "out", quiet())
    assert (outcome.finished, outcome.failures, outcome.exit_code) == (2, (), 1)
    assert "make room there" in outcome.unwritable


def test_another_evaluation_never_stands_beside_the_report_of_the_one_before(experiment, out, tmp_path):
    (out / "report.html").write_text("of the one before")
    run_theorem6(experiment, out, quiet())
    assert (out / "report.html").exists()
    run_theorem6(
        parse_theorem6_config(THEOREM6.replace("words = 4", "words = 6"), "tiny", tmp_path), out, quiet()
    )
    assert not (out / "report.html").exists()


def test_a_cell_that_fails_does_not_stop_the_others(experiment, tmp_path, monkeypatch):
    def failing(subject, n, evaluation, *rest):
        if (subject.name, n) == ("rnn", 4):
            raise ValueError("no such luck")
        return measure_cell(subject, n, evaluation, *rest)

    monkeypatch.setattr(theorem6, "measure_cell", failing)
    outcome = run_theorem6(experiment, tmp_path / "out", quiet())
    assert [str(failure) for failure in outcome.failures] == ["rnn n=4: ValueError: no such luck"]
    assert (outcome.exit_code, outcome.finished) == (1, 5)


def test_a_directory_with_another_training_is_refused_before_anything_is_trained(experiment, out, tmp_path):
    written = (out / "theorem6.toml").read_text()
    path = tmp_path / "lstm.toml"
    path.write_text(f"seed = 1\n{path.read_text()}")
    other = parse_theorem6_config(THEOREM6 + "# changed\n", "tiny", tmp_path)
    with pytest.raises(InputError, match=r'model "lstm": seed: 0 there, 1 here: name another') as caught:
        run_theorem6(other, out, quiet())
    assert f"or remove {models_folder(out, 'lstm')} to train it again" in str(caught.value)
    assert (out / "theorem6.toml").read_text() == written
    shutil.rmtree(models_folder(out, "lstm"))
    assert run_theorem6(other, out, quiet()).finished == 6
    assert (out / "theorem6.toml").read_text() != written


def test_a_changed_run_that_is_stopped_in_training_leaves_config_and_plan_of_one_run(
    out, tmp_path, monkeypatch
):
    def stopped(config, directory, progress):
        raise TrainingInterrupted(2, directory, 15)

    write_training(tmp_path)
    names = ("theorem6.toml", "theorem6.json")
    written = [(out / name).read_bytes() for name in names]
    other = parse_theorem6_config(THEOREM6.replace("words = 4", "words = 6"), "tiny", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(theorem6, "train", stopped)
        assert run_theorem6(other, out, quiet()).exit_code == 143
    assert [(out / name).read_bytes() for name in names] == written
    run_theorem6(other, out, quiet())
    assert read_plan(out).words == 6
    assert (out / "theorem6.toml").read_text() == other.text


def test_a_run_stopped_in_its_first_training_is_told_from_no_run_and_from_a_sweep(tmp_path):
    models_folder(tmp_path, "lstm").mkdir(parents=True)
    assert is_theorem6(tmp_path)
    with pytest.raises(
        InputError, match="its models are not trained to the end; run `jaxsens theorem6` again"
    ):
        read_plan(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    assert not is_theorem6(tmp_path)
    with pytest.raises(InputError, match="no models were trained here"):
        read_plan(tmp_path / "nowhere")


def test_a_plan_in_which_anything_was_changed_is_refused(out):
    text = (out / "theorem6.json").read_text()
    (out / "theorem6.json").write_text(text.replace('"words": 4', '"words": 5'))
    with pytest.raises(
        InputError, match=r"theorem6\.json: its content.*checksum.*run `jaxsens theorem6` again"
    ):
        read_plan(out)


def test_a_table_that_a_changed_config_has_no_rows_for_is_removed(experiment, tmp_path):
    write_training(tmp_path, RECOGNITION, "told.toml")
    told = '[[model]]\nname = "told"\ntrain = "told.toml"\n'
    out = tmp_path / "out"
    run_theorem6(
        parse_theorem6_config(f"lengths = [2, 4]\nwords = 4\n{told}", "tiny", tmp_path), out, quiet()
    )
    assert (out / "recognition.csv").is_file()
    assert not (out / "cross_entropy.csv").exists()
    run_theorem6(experiment, out, quiet())
    assert not (out / "recognition.csv").exists()
    assert (out / "cross_entropy.csv").is_file()


def test_ctrl_c_while_evaluating_leaves_what_was_measured(experiment, tmp_path, monkeypatch):
    def interrupted(subject, n, evaluation, *rest):
        if n == 4:
            raise KeyboardInterrupt
        return measure_cell(subject, n, evaluation, *rest)

    monkeypatch.setattr(theorem6, "measure_cell", interrupted)
    outcome = run_theorem6(experiment, tmp_path / "out", quiet())
    assert (outcome.stopped_by, outcome.exit_code, outcome.finished) == (signal.SIGINT, 130, 2)
    assert [(cell.model, cell.n) for cell in read_cells(tmp_path / "out", read_plan(tmp_path / "out"))] == [
        ("lstm", 2),
        ("rnn", 2),
    ]


@pytest.mark.long
def test_sigterm_while_training_is_saved_and_the_next_run_goes_on(tmp_path):
    endless = PREDICTION.replace("every = 4", "every = 0").replace(
        "steps = 4}", 'steps = 200000, schedule = "constant"}'
    )
    train = write_training(tmp_path, endless)
    (tmp_path / "theorem6.toml").write_text(THEOREM6)
    command = [sys.executable, "-m", "jaxsens.cli", "theorem6", str(tmp_path / "theorem6.toml"), "--out"]
    found = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, str(tmp_path / "out")], cwd=ROOT, env=found, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process.stderr as log:
        for line in log:
            if "/200000" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = log.read()
    assert process.wait(60) == 143
    assert "To resume: jaxsens theorem6" in rest
    saved = max((models_folder(tmp_path / "out", "lstm") / "checkpoints").glob("step-*"))
    step = int(saved.name.removeprefix("step-"))
    train.write_text(endless.replace("steps = 200000", f"steps = {step + 4}"))
    console = quiet()
    assert (
        run_theorem6(load_theorem6_config(tmp_path / "theorem6.toml"), tmp_path / "out", console).finished
        == 6
    )
    assert f"lstm: goes on from step {step}" in printed(console)


def test_the_exact_network_moves_by_the_same_at_every_length():
    subject = Subject("rnn", "prediction", Parity(0.5), exact_parity_rnn(0.5), "exact")
    short, long = (measure_cell(subject, n, EVALUATION) for n in (8, 200))
    assert short.sensitivity[0].mean == long.sensitivity[1].max > 10
    assert long.prediction[0].excess == pytest.approx(0, abs=1e-12)
