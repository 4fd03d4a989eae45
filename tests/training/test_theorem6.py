"""The Theorem 6 experiment: what a row holds, and that any run goes on where the last one ended."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxsens.core.base.errors import InputError
from jaxsens.core.engines.options import Vmap
from jaxsens.core.flip_sensitivity import flip_sensitivity
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import L1
from jaxsens.core.sweeps.jobs.job import Outcome, RowsJob
from jaxsens.core.sweeps.placement_table import PlacementTable
from jaxsens.core.sweeps.points import Measurement
from jaxsens.languages import Dyck, Language, Parity
from jaxsens.training.baselines import LSTM
from jaxsens.training.baselines_config import LSTMConfig
from jaxsens.training.config import Task
from jaxsens.training.evaluation import accuracy, cross_entropy
from jaxsens.training.events import TrainingInterrupted
from jaxsens.training.theorem6 import results as theorem6_results
from jaxsens.training.theorem6 import run as theorem6
from jaxsens.training.theorem6.config import Theorem6, load_theorem6_config, parse_theorem6_config
from jaxsens.training.theorem6.results import (
    ROWS_FOLDER,
    KeptRow,
    PlannedModel,
    RowPlace,
    complete,
    is_theorem6,
    lines_of,
    measure,
    models_folder,
    read_plan,
    read_rows,
    tokens_to_flip,
)
from jaxsens.training.theorem6.run import Theorem6Job, run_theorem6
from tests.core.sweeps.tiny import printed, quiet
from tests.disks import files_of_at_most
from tests.refusals import refusal, refused
from tests.training.tiny_training import PREDICTION, RECOGNITION, THEOREM6, write_training

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
    return shutil.copytree(finished[0], tmp_path / "out")


def lstm(logits: int, alphabet: int = 2) -> LSTM:
    return LSTM(LSTMConfig(alphabet_size=alphabet, width=4, logits=logits), seed=1)


def tables(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.csv")}


def planned(task: Task, language: Language, name: str = "lstm", fingerprint: str = "f") -> PlannedModel:
    return PlannedModel(name, "", task, dict(language.settings), fingerprint=fingerprint)


def row_of(task: Task, language: Language, model: Any, n: int, seed: int, of: str | None = None) -> Any:
    return measure(RowPlace(planned(task, language), n, seed, of or task), model, EVALUATION).row


def item_of(out: Path, text: str) -> Path:
    plan = read_plan(out)
    job = RowsJob(plan.items, None, KeptRow, {}, out, ROWS_FOLDER)
    found = job.path(next(item for item in job.items if item.name == text))
    assert found is not None
    return found


def test_rows_of_a_predicting_model_are_what_the_library_says():
    model, parity = lstm(3), Parity(0.3)
    for seed in (0, 3):
        row = row_of("prediction", parity, model, 9, seed)
        flips = row_of("prediction", parity, model, 9, seed, "sensitivity")
        expected = cross_entropy(model, parity, 9, words=8, seed=seed)
        assert (row.cross_entropy, row.excess) == (expected.mean, expected.excess)
        assert (row.standard_error, row.choice) == (expected.standard_error, None)
        tokens = tokens_to_flip("prediction", parity, 9, 2, seed)
        assert tokens.shape == (2, 10)
        assert (tokens[:, 0] == 2).all()
        assert (tokens[:, 1:] < 2).all()
        result = flip_sensitivity(model, tokens, Substitute(sample=5, seed=seed), engine="vmap")
        assert (flips.mean, flips.max, flips.flips, flips.population) == (result.mean, result.max, 5, 16)


def test_a_row_of_a_recognising_model_holds_accuracy_and_margin():
    model, dyck = lstm(2, alphabet=4), Dyck(2, 0.4)
    row = row_of("recognition", dyck, model, 8, 3)
    expected = accuracy(model, dyck, 8, words=8, seed=3)
    assert (row.accuracy, row.margin) == (expected.accuracy, expected.margin)
    tokens = tokens_to_flip("recognition", dyck, 8, 2, 0)
    assert (tokens[:, -1] == 4).all()
    flips = row_of("recognition", dyck, model, 8, 0, "sensitivity")
    assert flips.population == 2 * 8 * 3  # the boundary symbol is read out, all others are flipped


def test_brackets_have_a_choice_and_the_line_of_theorem_6():
    model, dyck = lstm(5, alphabet=4), Dyck(2, 0.4)
    row = row_of("prediction", dyck, model, 8, 0)
    expected = cross_entropy(model, dyck, 8, words=8, seed=0)
    assert (row.choice, row.choice_error) == (expected.choice, expected.choice_standard_error)
    lines = lines_of(dyck, 8)
    assert lines.bound == pytest.approx(lines.optimum + (lines.choice_bound or 0))
    assert lines.choice_bound == pytest.approx(dyck.closing_choice_probability(8) * 0.6 * np.log(2))
    assert lines_of(Dyck(1, 0.4), 8).bound is None
    assert lines_of(Parity(0.4), 8).bound is None


def test_where_a_row_is_kept_depends_on_what_its_numbers_depend_on():
    def places(p=0.5, fingerprint="f", n=8, **changes):
        plan = Theorem6Job(dataclasses.replace(EVALUATION, lengths=(n,), **changes), Path("out")).plan
        models = (planned("prediction", Parity(p), "a", fingerprint),)
        job = RowsJob(dataclasses.replace(plan, models=models).items, None, KeptRow, {}, Path("out"))
        assert [item.name for item in job.items[:2]] == [f"a n={n} seed=0 {of}" for of in OF]
        return [job.path(item) for item in job.items[:2]]

    OF = ("prediction", "sensitivity")
    first, both = places(), [places(n=9), places(fingerprint="g"), places(p=0.4)]
    measures = (
        Measurement(Substitute(sample=6), engine=Vmap()),
        Measurement(Substitute(sample=5), L1(), Vmap()),
    )
    flips = [places(inputs=1), *(places(measure=one) for one in measures)]
    words = [places(words=9)]
    assert len({each[0] for each in (first, *both, *words)}) == 5
    assert len({each[1] for each in (first, *both, *flips)}) == 7
    assert {each[0] for each in flips} == {first[0]}
    assert {each[1] for each in words} == {first[1]}
    placement = PlacementTable(memory_budget=10**6, batch_size=2)
    assert places(placement=placement, title="t", seeds=(0, 4)) == first


@pytest.mark.long
def test_a_run_trains_evaluates_and_writes_tables_and_the_next_one_keeps_everything(
    experiment, finished, out
):
    _, outcome = finished
    assert (outcome.finished, outcome.planned, outcome.failures, outcome.exit_code) == (24, 24, (), 0)
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
    assert run_theorem6(experiment, out, again).finished == 24
    assert "24 of 24 were done before" in printed(again)
    assert "loss" not in printed(again)
    assert tables(out) == written


def test_a_damaged_row_is_measured_again_and_a_missing_one_too(experiment, out):
    written = tables(out)
    damaged = item_of(out, "lstm n=4 seed=0 prediction")
    damaged.write_text(damaged.read_text().replace('"words": 4', '"words": 5'))
    item_of(out, "rnn n=6 seed=1 sensitivity").unlink()
    with pytest.raises(InputError, match=rf"{damaged.name}: .*run `jaxsens theorem6` again"):
        read_rows(out, read_plan(out))
    console = quiet()
    assert run_theorem6(experiment, out, console).finished == 24
    assert "damaged, computed again: lstm n=4 seed=0 prediction: " in printed(console)
    assert "does not match its checksum" in printed(console)
    assert "22 of 24 were done before" in printed(console)
    assert tables(out) == written


def test_a_training_that_fails_does_not_stop_the_others(experiment, tmp_path, monkeypatch):
    def failing(config, directory, progress):
        raise InputError("no such luck")

    monkeypatch.setattr(theorem6, "train", failing)
    out, console = tmp_path / "out", quiet()
    outcome = run_theorem6(experiment, out, console)
    assert [str(failure) for failure in outcome.failures] == ["lstm: no such luck"]
    assert (outcome.exit_code, outcome.finished) == (1, 12)
    model, exact = read_plan(out).models
    assert (model.failure, model.fingerprint, model.steps, exact.steps) == ("no such luck", "", None, None)
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
    assert run_theorem6(experiment, out, quiet()).finished == 8


def test_another_evaluation_never_stands_beside_the_report_of_the_one_before(experiment, out, tmp_path):
    (out / "report.html").write_text("of the one before")
    run_theorem6(experiment, out, quiet())
    assert (out / "report.html").exists()
    run_theorem6(
        parse_theorem6_config(THEOREM6.replace("words = 4", "words = 6"), "tiny", tmp_path), out, quiet()
    )
    assert not (out / "report.html").exists()


def test_a_row_that_fails_does_not_stop_the_others_and_leaves_its_length_incomplete(
    experiment, tmp_path, monkeypatch
):
    def failing(place, *rest):
        if (place.model.name, place.n, place.seed, place.of) == ("rnn", 4, 1, "sensitivity"):
            raise ValueError("no such luck")
        return measure(place, *rest)

    out = tmp_path / "out"
    monkeypatch.setattr(theorem6_results, "measure", failing)
    outcome = run_theorem6(experiment, out, quiet())
    told = ["rnn n=4 seed=1 sensitivity: ValueError: no such luck"]
    assert [str(failure) for failure in outcome.failures] == told
    assert (outcome.exit_code, outcome.finished) == (1, 23)
    plan = read_plan(out)
    known = {(one.row.model, one.row.n) for one in complete(read_rows(out, plan), plan)}
    assert known == {(name, n) for name in ("lstm", "rnn") for n in (2, 4, 6)} - {("rnn", 4)}


def test_a_directory_with_another_training_is_refused_before_anything_is_trained(experiment, out, tmp_path):
    written = (out / "theorem6.toml").read_text()
    path = tmp_path / "lstm.toml"
    path.write_text(f"seed = 1\n{path.read_text()}")
    other = parse_theorem6_config(THEOREM6 + "# changed\n", "tiny", tmp_path)
    with refusal("model.lstm") as caught:
        run_theorem6(other, out, quiet())
    assert f"or remove {models_folder(out, 'lstm')} to train it again" in str(caught.value)
    assert (out / "theorem6.toml").read_text() == written
    shutil.rmtree(models_folder(out, "lstm"))
    assert run_theorem6(other, out, quiet()).finished == 24
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
    assert "not trained to the end" in refused("directory", read_plan, tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    assert not is_theorem6(tmp_path)
    assert "no models were trained here" in refused("directory", read_plan, tmp_path / "nowhere")


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
        == 24
    )
    assert f"lstm: goes on from step {step}" in printed(console)
