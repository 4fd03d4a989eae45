"""The Theorem 6 experiment: a sweep of models that it trains, with what they predict beside their sensitivity."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens import InputError, Vmap, flip_sensitivity
from jaxsens.cli.status import sweep_status
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import read_plan, read_records, run_whole
from jaxsens.languages import Dyck, Parity
from jaxsens.training import loop
from jaxsens.training.checkpoints import load_checkpoint
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import accuracy, cross_entropy
from jaxsens.training.loop import Stepped
from jaxsens.training.theorem6.run import Theorem6, load_theorem6_config, parse_theorem6_config, run_theorem6
from tests.core.sweeps.tiny import printed, quiet
from tests.refusals import refusal, refused
from tests.several_processes import files_of_at_most
from tests.training.tiny import PREDICTION, RECOGNITION, THEOREM6, TRANSFORMER, trained_into, write_training

POINTS = [(name, n, seed) for name in ("lstm", "rnn") for n in (2, 4, 6) for seed in (0, 1)]
DYCK = """
lengths = [8]
words = 8
inputs = 2
[measure]
flips = {kind = "substitute", sample = 5}
engine = "vmap"
[[model]]
name = "predictor"
[model.train]
language = {name = "2dyck", open_probability = 0.4}
model = {kind = "lstm", width = 4}
data = {lengths = [2, 2], batch = 4, steps_per_call = 2}
optimiser = {steps = 2}
evaluation = {every = 0}
"""
RECOGNISER = DYCK[DYCK.index("[[model]]") :].replace("predictor", "recogniser") + 'task = "recognition"\n'


@pytest.fixture
def experiment(tmp_path) -> Theorem6:
    write_training(tmp_path)
    return parse_theorem6_config(THEOREM6, "tiny", tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The directory of the experiment, run once; tests must not change it."""
    folder = tmp_path_factory.mktemp("finished")
    write_training(folder)
    run_theorem6(parse_theorem6_config(THEOREM6, "tiny", folder), folder / "out", quiet())
    return folder / "out"


@pytest.fixture
def out(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "out")


def ended(experiment: Theorem6, out: Path) -> list[tuple[int, int, int]]:
    """Of the trainings, the points and the evaluations: how many were computed, are done and were planned."""
    return [(one.computed, one.finished, one.planned) for one in run_theorem6(experiment, out, quiet())[1]]


def tables(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.csv")}


def row(directory: Path, name: str, *key: Any) -> dict[str, Any]:
    table = pd.read_csv(directory / name).set_index(["variant", "n", "seed"])
    return table.loc[key].to_dict()


def tokens_of(directory: Path, name: str, n: int, seed: int) -> tuple[Any, Any]:
    """The words of a point, and its flips, from its file."""
    (file,) = (directory / f"points/variant={name}/n={n}").glob(f"seed={seed}-*.parquet")
    result = jaxsens.load_result(file)
    return result.tokens, result


@pytest.mark.long
def test_points_and_evaluations_are_what_the_library_says(finished):
    model, parity = load_checkpoint(finished / "models" / "lstm").model, Parity(0.5)
    for n in (2, 6):
        found, expected = row(finished, "evaluation.csv", "lstm", n, 1), cross_entropy(model, parity, n, 4, 1)
        assert (found["cross_entropy"], found["excess"]) == (expected.mean, expected.excess)
        assert (found["standard_error"], found["optimum"]) == (
            expected.standard_error, parity.optimal_cross_entropy(n),
        )  # fmt: skip
        tokens, result = tokens_of(finished, "lstm", n, 1)
        assert (tokens.shape, tokens[0, 0], int(tokens[0, 1:].max()) < 2) == ((1, n + 1), 2, True)
        again = flip_sensitivity(model, tokens, engine="vmap")
        assert (result.mean, result.max) == (again.mean, again.max)
        assert row(finished, "points.csv", "lstm", n, 1)["mean"] == again.mean
    exact = row(finished, "evaluation.csv", "rnn", 6, 0)["cross_entropy"]
    assert exact == pytest.approx(parity.optimal_cross_entropy(6))
    assert len({row(finished, "points.csv", *key)["mean"] for key in POINTS if key[0] == "rnn"}) == 1
    np.testing.assert_array_equal(tokens_of(finished, "rnn", 6, 1)[0], tokens_of(finished, "lstm", 6, 1)[0])
    state = sweep_status(finished)
    assert (state.points, state.of_points, state.records) == (12, 12, {"evaluation": (12, 12)})


@pytest.mark.long
def test_brackets_have_a_choice_and_a_recogniser_has_accuracy_and_margin(tmp_path):
    assert ended(parse_theorem6_config(DYCK + RECOGNISER), tmp_path) == [(2, 2, 2), (2, 2, 2), (2, 2, 2)]
    dyck = Dyck(2, 0.4)
    predictor, recogniser = (
        load_checkpoint(tmp_path / "models" / name).model for name in ("predictor", "recogniser")
    )
    found, expected = row(tmp_path, "evaluation.csv", "predictor", 8, 0), cross_entropy(predictor, dyck, 8, 8)
    assert (found["choice"], found["choice_error"]) == (expected.choice, expected.choice_standard_error)
    assert found["bound"] == pytest.approx(found["optimum"] + found["choice_bound"])
    gap = dyck.closing_choice_probability(8) * 0.6 * np.log(2)
    assert found["choice_bound"] == pytest.approx(gap)
    found, expected = row(tmp_path, "evaluation.csv", "recogniser", 8, 0), accuracy(recogniser, dyck, 8, 8)
    assert (found["accuracy"], found["margin"]) == (expected.accuracy, expected.margin)
    tokens, result = tokens_of(tmp_path, "recogniser", 8, 0)
    assert (tokens[:, -1] == 4).all()  # the boundary symbol, which is read out and not flipped
    assert (len(result), result.population) == (5, 2 * 8 * 3)
    assert tokens_of(tmp_path, "predictor", 8, 0)[0].tolist() != tokens.tolist()


def test_any_sweep_of_checkpoints_can_be_evaluated_and_no_other_one(tmp_path):
    trained_into(tmp_path)
    config = 'lengths = [4]\n[evaluation]\nwords = 4\n[[variant]]\nname = "a"\nmodel = {checkpoint = "run"}\n'
    sweep = parse_sweep_config(config, "tiny", tmp_path)
    run_whole(sweep, tmp_path / "out", sweep.points, quiet())
    model = load_checkpoint(tmp_path / "run").model
    # The boundary symbol counts in the n of other sweeps.
    found = row(tmp_path / "out", "evaluation.csv", "a", 3, 0)
    assert found["cross_entropy"] == cross_entropy(model, Parity(0.5), 3, 4, 0).mean
    text = 'lengths = [4]\nvariants = ["softmax"]\n[model]\nalphabet_size = 2\n[evaluation]\nwords = 1\n'
    refused("evaluation.words", parse_sweep_config, text)
    refused("evaluation", parse_sweep_config, text.replace("words = 1", ""))


@pytest.mark.long
def test_a_second_run_keeps_everything_and_other_words_change_evaluations_only(experiment, out, tmp_path):
    written = tables(out)
    (out / "report.html").write_text("of the one before")
    assert ended(experiment, out) == [(1, 1, 1), (0, 12, 12), (0, 12, 12)]
    assert (tables(out), (out / "report.html").exists()) == (written, True)
    other = parse_theorem6_config(THEOREM6.replace("words = 4", "words = 6"), "tiny", tmp_path)
    assert ended(other, out) == [(1, 1, 1), (0, 12, 12), (12, 12, 12)]
    assert row(out, "evaluation.csv", "lstm", 2, 0)["words"] == 6
    assert not (out / "report.html").exists()
    # The placement and the title change no numbers.
    moved = experiment.text.replace('"tiny"', '"other"') + "[placement]\nbatch_size = 2\n"
    assert ended(parse_theorem6_config(moved, "tiny", tmp_path), out)[1:] == [(0, 12, 12), (0, 12, 12)]
    flips = parse_theorem6_config("inputs = 2\n" + THEOREM6, "tiny", tmp_path)
    refused("directory", run_theorem6, flips, out, quiet())


def test_parts_train_models_of_their_own_and_measure_once_all_are_trained(finished, tmp_path):
    (tmp_path / "soft.toml").write_text(PREDICTION)
    write_training(tmp_path)
    text = THEOREM6.replace("[4, 6]", "[4]") + '[[model]]\nname = "soft"\ntrain = "soft.toml"\n'
    experiment, out = parse_theorem6_config(text, "tiny", tmp_path), tmp_path / "out"

    def part(shard):
        _, outcomes = run_theorem6(experiment, out, quiet(), shard=shard)
        return [(one.computed, len(one.failures)) for one in outcomes]

    assert part("1/2") == [(1, 1)]  # soft; lstm is that of the other part
    assert [path.name for path in (out / "models").iterdir()] == ["soft"]
    assert part("0/2") == [(2, 0), (9, 0), (9, 0)]
    assert not (out / "points.csv").exists()
    assert part("1/2") == [(2, 0), (9, 0), (9, 0)]
    whole = tmp_path / "whole"
    run_theorem6(experiment, whole, quiet())
    assert tables(out) == tables(whole)
    refused("--shard", run_theorem6, experiment, tmp_path / "other", quiet(), shard="2/2")
    refused("--only", run_theorem6, experiment, tmp_path / "other", quiet(), ["n=3"])
    assert not (tmp_path / "other").exists()


def test_a_training_that_fails_does_not_stop_the_others(experiment, tmp_path, monkeypatch):
    def failing(config, directory, progress):
        raise InputError("no such luck")

    monkeypatch.setattr(loop, "train", failing)
    out = tmp_path / "out"
    _, outcomes = run_theorem6(experiment, out, quiet())
    assert str(outcomes[0].failures[0]) == "lstm: no such luck"
    assert [(one.finished, one.exit_code) for one in outcomes] == [(0, 1), (6, 1), (6, 1)]
    state = sweep_status(out)
    assert (state.points, state.state, len(state.failed)) == (6, "failed", 12)
    assert state.failed[0].message == "lstm could not be trained: no such luck"
    monkeypatch.undo()
    assert ended(experiment, out) == [(1, 1, 1), (6, 12, 12), (6, 12, 12)]


def test_a_checkpoint_that_cannot_be_kept_ends_the_experiment_and_is_no_failed_model(tmp_path):
    write_training(tmp_path, PREDICTION.replace("width = 4", "width = 64"))
    experiment = parse_theorem6_config(THEOREM6.replace("[2, 4, 6]", "[2]"), "tiny", tmp_path)
    out = tmp_path / "out"
    with files_of_at_most(100_000):
        _, (outcome,) = run_theorem6(experiment, out, quiet())
    why = f"File too large: nothing more can be kept in {out}; raise the limit on the size of a file (ulimit -f)"
    assert (outcome.unwritable, outcome.failures, outcome.exit_code) == (why, (), 1)
    assert ended(experiment, out) == [(1, 1, 1), (4, 4, 4), (4, 4, 4)]


def test_a_directory_with_another_training_is_refused_before_anything_is_trained(experiment, out, tmp_path):
    path = tmp_path / "lstm.toml"
    path.write_text(f"seed = 1\n{path.read_text()}")
    other = parse_theorem6_config(THEOREM6 + "# changed\n", "tiny", tmp_path)
    with refusal("model.lstm") as caught:
        run_theorem6(other, out, quiet())
    assert f"or remove {out / 'models' / 'lstm'} to train it again" in str(caught.value)
    assert (out / "sweep.toml").read_text() == THEOREM6
    for folder in (out / "models" / "lstm", out / "points/variant=lstm"):
        shutil.rmtree(folder)
    assert ended(other, out) == [(1, 1, 1), (6, 12, 12), (6, 12, 12)]


def test_a_run_that_is_stopped_in_training_leaves_config_and_plan_and_the_next_goes_on(
    out, tmp_path, monkeypatch
):
    real, names = loop.train, ("sweep.toml", "sweep.json")

    def stopped(config, directory, progress):
        def heard(event):
            progress(event)
            if isinstance(event, Stepped) and event.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        return real(config, directory, heard)

    write_training(tmp_path)
    shutil.rmtree(out / "models")
    written = [(out / name).read_bytes() for name in names]
    other = parse_theorem6_config(THEOREM6.replace("words = 4", "words = 6"), "tiny", tmp_path)
    monkeypatch.setattr(loop, "train", stopped)
    _, (outcome,) = run_theorem6(other, out, quiet())
    assert outcome.exit_code == 143
    assert [(out / name).read_bytes() for name in names] == written
    monkeypatch.undo()
    console = quiet()
    assert [one.finished for one in run_theorem6(other, out, console)[1]] == [1, 12, 12]
    assert "lstm: goes on from step 2" in printed(console)


def test_a_damaged_evaluation_is_computed_again(experiment, out):
    written = tables(out)
    (damaged,) = (out / "evaluation/variant=lstm/n=4").glob("seed=0-*.json")
    damaged.write_text(damaged.read_text().replace('"words": 4', '"words": 5'))
    with pytest.raises(InputError, match="does not match its checksum"):
        read_records(out, read_plan(out), "evaluation")
    assert ended(experiment, out)[1:] == [(0, 12, 12), (1, 12, 12)]
    assert tables(out) == written


INLINE = """
lengths = [4]
[[model]]
name = "lstm"
[model.train]
"""
BRACKETS = """
language = {name = "2dyck"}
task = "recognition"
model = {kind = "lstm", width = 4}
optimiser = {steps = 10}
"""
LEARNED = TRANSFORMER.replace('"inverse"', '{type = "Learned", max_length = 16}')


def test_models_are_trained_by_a_file_or_a_table_or_set_by_hand(tmp_path):
    train = write_training(tmp_path)
    (tmp_path / "theorem6.toml").write_text(THEOREM6)
    read = load_theorem6_config(tmp_path / "theorem6.toml")
    lstm, rnn = read.model
    assert lstm.train == TrainConfig.from_toml(train)
    assert lstm.line == "lstm, trained on 1 to 3 symbols in 4 steps"
    assert (rnn.language, rnn.task, rnn.train) == (Parity(0.5), "prediction", None)
    assert (read.lengths, read.seeds, read.words, read.inputs, read.fit_from) == ((2, 4, 6), (0, 1), 4, 1, 2)
    assert read.measure.engine == Vmap()
    assert read.text == THEOREM6
    (inline,) = parse_theorem6_config(INLINE + PREDICTION).model
    assert inline == lstm


EVERYTHING = """
lengths = [4, 2]
words = 1
sedes = 3
[measure]
engine = "psychic"
[[model]]
name = "a/b"
exact = "rnn"
[[model]]
name = "c"
[model.train]
optimiser = {steps = 0}
"""
PROBLEMS = (
    "lengths words sedes measure.engine model[0].name model[1].train.language model[1].train.optimiser.steps"
)
ONE = 'lengths = [4]\n[[model]]\nname = "a"\n'
OUTPUTS = INLINE.replace("[[model]]", '[measure]\nmeasure = { kind = "l2", outputs = [2] }\n[[model]]')
SOFT = f'{THEOREM6}[[model]]\nname = "soft"\ntrain = "soft.toml"\n'


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (EVERYTHING, PROBLEMS),
        ("lengths = [4]\n", "model"),
        (ONE, "model[0].train"),
        (ONE + 'exact = "rnn"\ntrain = "lstm.toml"\n', "model[0].train"),
        (ONE + "train = 3\n", "model[0].train"),
        (ONE + 'train = "no.toml"\n', "model[0].train"),
        (ONE + 'exact = "rnn"\n', "model[0].end_probability"),
        (ONE + 'exact = "rnn"\nend_probability = 2.0\n', "model[0].end_probability"),
        (ONE + 'exact = "gru"\n', "model[0].exact"),
        (ONE + 'train = "lstm.toml"\nend_probability = 0.5\n', "model[0].end_probability"),
        (ONE + 'train = "lstm.toml"\n[[model]]\nname = "a"\ntrain = "lstm.toml"\n', "model.name"),
        (INLINE.replace("[4]", "[4, 32]") + LEARNED, "lengths"),
        (INLINE.replace("[4]", "[4, 5, 7]") + BRACKETS, "lengths"),
        (OUTPUTS + RECOGNITION, "measure.measure.outputs"),
        (SOFT.replace('"vmap"', '"difference"'), "measure.engine"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path_before_anything_is_trained(tmp_path, text, paths):
    write_training(tmp_path, TRANSFORMER, "soft.toml")
    write_training(tmp_path)
    refused(paths, parse_theorem6_config, text, "config", tmp_path)
    assert parse_theorem6_config(OUTPUTS + PREDICTION).measure.measure.outputs == (2,)
