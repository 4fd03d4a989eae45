"""Training is a function of its config: stopped or killed and gone on with, it ends with the same bits."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxsens.training import loop
from jaxsens.training.checkpoints import FOLDER
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import cross_entropy
from jaxsens.training.loop import (
    METRICS,
    Evaluated,
    Event,
    Note,
    Saved,
    Stepped,
    TrainingDiverged,
    TrainingInterrupted,
    train,
)
from jaxsens.training.steps import learning_rate
from tests.refusals import refused
from tests.training.tiny import Heard, table, tiny


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A training straight through, and what it told."""
    directory, heard = tmp_path_factory.mktemp("straight"), Heard()
    return train(tiny(), directory, heard), directory, heard


def stopping(when: Callable[[Event], bool], *numbers: int) -> Heard:
    """A watcher that sends this process signals, SIGTERM unless they are given, at an event."""

    class Stopping(Heard):
        def __call__(self, event):
            super().__call__(event)
            if when(event):
                for number in numbers or (signal.SIGTERM,):
                    os.kill(os.getpid(), number)

    return Stopping()


def stopping_at(step: int, *numbers: int) -> Heard:
    return stopping(lambda event: isinstance(event, Stepped) and event.step == step, *numbers)


def assert_same_files(directory, expected):
    for name in ("metrics.csv", "evaluation.csv"):
        assert (directory / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("steps", "number"), [((2,), signal.SIGTERM), ((4, 10), signal.SIGINT), ((6, 8), signal.SIGTERM)]
)
def test_stopped_and_gone_on_with_a_training_is_the_one_straight_through(straight, tmp_path, steps, number):
    trained, directory, _ = straight
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    for step in steps:
        heard = stopping_at(step, number)
        with pytest.raises(TrainingInterrupted, match=f"saved after step {step}") as caught:
            train(tiny(), tmp_path, heard)
        assert (caught.value.step, caught.value.directory) == (step, tmp_path)
        assert isinstance(caught.value, KeyboardInterrupt)
        assert caught.value.exit_code == 128 + number
        assert heard.of(Stepped)[-1].step == step
        assert (tmp_path / FOLDER / f"step_{step:08d}").is_dir()
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    heard = Heard()
    assert train(tiny(), tmp_path, heard).fingerprint == trained.fingerprint
    assert heard.of(Note)[0].text == f"goes on from step {steps[-1]}"
    assert heard.of(Stepped)[0].step == steps[-1] + 2
    assert_same_files(tmp_path, directory)


def test_links_in_a_trainings_directory_are_replaced_and_what_they_lead_to_is_left_alone(straight, tmp_path):
    _, directory, _ = straight
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    for name in (".lock", "metrics.csv", "evaluation.csv"):
        (outside / name).write_text("mine")
        (out / name).symlink_to(outside / name)
    train(tiny(), out)
    assert_same_files(out, directory)
    assert {path.read_text() for path in outside.iterdir()} == {"mine"}
    shutil.rmtree(out / FOLDER)
    (out / FOLDER).symlink_to(outside)
    refused("directory", train, tiny(), out)
    assert len([*outside.iterdir()]) == 3


def test_a_signal_during_evaluations_ends_them_and_each_is_made_once(straight, tmp_path):
    trained, directory, _ = straight
    evaluated = []
    # Step 0 is stopped twice: without a checkpoint of it, every run would begin its evaluations again.
    for place in ((0, 3), (0, 8), (6, 3)):

        def here(event, place=place):
            return isinstance(event, Evaluated) and (event.step, event.result.n) == place

        heard = stopping(here)
        with pytest.raises(TrainingInterrupted, match=f"step {place[0]}"):
            train(tiny(), tmp_path, heard)
        evaluated += [(event.step, event.result.n) for event in heard.of(Evaluated)]
    assert evaluated == [(0, 3), (0, 8), (6, 3)]
    heard = Heard()
    assert train(tiny(), tmp_path, heard).fingerprint == trained.fingerprint
    assert [(event.step, event.result.n) for event in heard.of(Evaluated)] == [(6, 8), (12, 3), (12, 8)]
    assert_same_files(tmp_path, directory)


def test_a_second_signal_does_not_wait(straight, tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        train(tiny(), tmp_path, stopping_at(6, signal.SIGTERM, signal.SIGINT))
    assert not isinstance(caught.value, TrainingInterrupted)
    assert train(tiny(), tmp_path).fingerprint == straight[0].fingerprint


def test_neither_64_bit_types_nor_another_thread_change_a_bit_of_a_training(straight, tmp_path):
    with jax.enable_x64(True):
        assert train(tiny(), tmp_path / "wide").fingerprint == straight[0].fingerprint
    with ThreadPoolExecutor() as pool:  # no signals are heard in another thread
        assert pool.submit(train, tiny(), tmp_path / "thread").result().fingerprint == straight[0].fingerprint
    for name in ("wide", "thread"):
        assert_same_files(tmp_path / name, straight[1])


@pytest.mark.long
def test_a_constant_schedule_can_go_on_for_longer_and_a_falling_one_cannot(tmp_path):
    constant = {"schedule": "constant"}
    evaluation, heard = {"every": 8, "lengths": [3]}, Heard()
    longer = tiny(optimiser={**constant, "steps": 20}, evaluation=evaluation)
    train(tiny(optimiser=constant, evaluation=evaluation), tmp_path / "constant")
    gone_on = train(longer, tmp_path / "constant", heard)
    at_once = train(longer, tmp_path / "at once")
    assert (gone_on.step, gone_on.fingerprint) == (20, at_once.fingerprint)
    assert_same_files(tmp_path / "constant", tmp_path / "at once")
    dropped = "evaluation.csv: 1 rows dropped, not asked for by this config"  # of step 12, which was the end
    assert dropped in [note.text for note in heard.of(Note)]
    refused("optimiser.steps", train, tiny(optimiser=constant), tmp_path / "constant")
    train(tiny(), tmp_path / "falling")
    refused("optimiser.steps", train, tiny(optimiser={"steps": 20}), tmp_path / "falling")


def rows_of(directory) -> list[dict[str, str]]:
    with open(directory / "evaluation.csv") as file:
        return list(csv.DictReader(file))


def test_a_training_stopped_at_what_becomes_its_end_is_that_of_the_shorter_config(tmp_path):
    """Fingerprint, config and tables are those of the config, whatever it was that was stopped."""
    options = {"schedule": "constant"}
    evaluation = {"every": 2}
    short, long = (tiny(optimiser={**options, "steps": steps}, evaluation=evaluation) for steps in (4, 8))
    with pytest.raises(TrainingInterrupted):
        train(long, tmp_path / "a", stopping_at(4))
    ended = train(short, tmp_path / "a")
    straight = train(short, tmp_path / "b")
    assert ended.config == straight.config == short
    assert ended.fingerprint == straight.fingerprint
    assert_same_files(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("changes", [{"words": 6}, {"lengths": [8, 3, 5]}, {"lengths": [3]}, {"every": 4}])
def test_evaluations_asked_for_in_another_way_after_the_end_are_made_and_the_others_dropped(
    straight, tmp_path, changes
):
    trained, directory, _ = straight
    shutil.copytree(directory, tmp_path / "run")
    config = tiny(evaluation=changes)
    again = train(config, tmp_path / "run")
    assert (again.config, again.fingerprint) == (config, trained.fingerprint)
    fresh = train(config, tmp_path / "fresh")
    assert fresh.fingerprint == trained.fingerprint
    found, asked = rows_of(tmp_path / "run"), rows_of(tmp_path / "fresh")
    assert [row for row in found if row["step"] == "12"] == [row for row in asked if row["step"] == "12"]
    assert found == [row for row in asked if row in found]
    heard = Heard()
    train(config, tmp_path / "run", heard)
    assert heard == [Note("ended before, at step 12")]
    train(tiny(evaluation={"every": 0}), tmp_path / "run")
    assert not (tmp_path / "run" / "evaluation.csv").exists()


def test_metrics_and_evaluations_are_what_was_told_and_measured(straight):
    trained, directory, heard = straight
    with open(directory / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == METRICS
    assert [int(row["step"]) for row in rows] == [2, 4, 6, 8, 10, 12]
    for row, event in zip(rows, heard.of(Stepped), strict=True):
        assert (float(row["loss"]), float(row["optimum"])) == (event.loss, event.optimum)
        assert (int(row["step"]), int(row["length"]), event.steps) == (event.step, event.length, 12)
        assert float(row["learning_rate"]) == learning_rate(tiny().optimiser, event.step - 2)
        assert float(row["loss"]) > float(row["optimum"])
        assert float(row["gradient_norm"]) > 0
    assert [event.step for event in heard.of(Saved)] == [4, 8, 12]
    rows = rows_of(directory)
    assert [(row["step"], row["n"]) for row in rows] == [(s, n) for s in ("0", "6", "12") for n in ("3", "8")]
    assert {row["words"] for row in rows} == {"4"}
    last = cross_entropy(trained, trained.language, 8, words=4, seed=0)
    assert float(rows[-1]["cross_entropy"]) == last.mean
    assert float(rows[-1]["excess"]) == last.excess
    assert rows[-1]["choice"] == ""


def test_recognition_is_evaluated_by_accuracy_and_margin(tmp_path):
    heard = Heard()
    train(tiny(task="recognition", model={"kind": "convolution"}), tmp_path, heard)
    rows = rows_of(tmp_path)
    assert len(rows) == 6
    for row, event in zip(rows, heard.of(Evaluated), strict=True):
        assert (float(row["accuracy"]), float(row["margin"])) == (event.result.accuracy, event.result.margin)


def test_training_learns(tmp_path):
    """An RNN is far below the unigram level after a few hundred steps, also at ten times the length."""
    config = TrainConfig.from_table(
        table(
            model={"kind": "lstm", "width": 8},
            language={"end_probability": 0.4},
            data={"lengths": [6, 6], "batch": 64, "steps_per_call": 50},
            optimiser={"steps": 400, "learning_rate": 0.02, "warmup": 20},
            evaluation={"every": 0},
            checkpoint={"every": 400},
        )
    )
    trained = train(config, tmp_path)
    found = cross_entropy(trained, trained.language, 60, words=64)
    gap = trained.language.unigram_cross_entropy(60) - trained.language.optimal_cross_entropy(60)
    assert found.excess < 0.1 * gap


def test_a_training_that_diverges_says_where_and_keeps_the_last_sound_state(tmp_path, monkeypatch):
    real, calls = loop.run_steps, []

    def spoiled(*given):
        state, (loss, norm) = real(*given)
        calls.append(given)
        if len(calls) == 3:
            loss = loss.at[1].set(np.nan)
        return state, (loss, norm)

    monkeypatch.setattr(loop, "run_steps", spoiled)
    with pytest.raises(TrainingDiverged, match=r"optimiser\.learning_rate = 0\.05: .* finite at step 5"):
        train(tiny(), tmp_path)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["step_00000004"]
    assert (tmp_path / "metrics.csv").read_text().splitlines()[-1].startswith("6,")
    monkeypatch.undo()
    heard = Heard()
    train(tiny(), tmp_path, heard)
    assert heard.of(Note)[0].text == "goes on from step 4"


ROOT = Path(__file__).resolve().parents[2]
STEPS = 160
CONFIG = table(optimiser={"steps": STEPS}, checkpoint={"every": 4}, evaluation={"every": 80})

RUN = """
import json, sys
from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import TrainingInterrupted
from jaxsens.training.loop import train

try:
    train(TrainConfig.from_table(json.loads(sys.argv[1])), sys.argv[2])
except TrainingInterrupted as stopped:
    print(stopped, file=sys.stderr)
    sys.exit(stopped.exit_code)
"""


def start(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, json.dumps(CONFIG), str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def newest(directory: Path) -> int:
    steps = [int(path.name[5:]) for path in (directory / FOLDER).glob("step_????????")]
    return max(steps, default=0)


def wait_for(process: subprocess.Popen[str], directory: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while newest(directory) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_twice_and_run_again_the_weights_and_files_are_the_same(tmp_path_factory, tmp_path):
    undisturbed, config = tmp_path_factory.mktemp("undisturbed"), TrainConfig.from_table(CONFIG)
    fingerprint, done = train(config, undisturbed).fingerprint, 0
    for more in (4, 40):
        process = start(tmp_path)
        wait_for(process, tmp_path, done + more)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the training ended before it could be killed"
        assert done < newest(tmp_path) < STEPS
        done = newest(tmp_path)
    assert train(config, tmp_path).fingerprint == fingerprint
    for name in ("metrics.csv", "evaluation.csv"):
        assert (tmp_path / name).read_bytes() == (undisturbed / name).read_bytes()
    assert [path.name for path in tmp_path.rglob(".*")] == [".lock"]
