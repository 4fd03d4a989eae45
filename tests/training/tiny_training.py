"""Trainings that take a second, for tests of what surrounds them."""

from __future__ import annotations

from pathlib import Path

from jaxsens.training.config import TrainConfig

PREDICTION = """
language = {name = "parity", end_probability = 0.5}
model = {kind = "lstm", width = 4}
data = {lengths = [1, 3], distinct = 1, batch = 4, steps_per_call = 2}
optimiser = {steps = 4}
evaluation = {every = 4, lengths = [3], words = 4}
"""

RECOGNITION = PREDICTION.replace('kind = "lstm"', 'kind = "rnn"') + 'task = "recognition"\n'

TRANSFORMER = PREDICTION.replace(
    '{kind = "lstm", width = 4}',
    '{width = 4, heads = 1, layers = 1, feed_forward = 0, positions = "inverse"}',
)

THEOREM6 = """
title = "tiny"
lengths = [2, 4, 6]
seeds = 2
words = 4
[measure]
engine = "vmap"
[[model]]
name = "lstm"
train = "lstm.toml"
[[model]]
name = "rnn"
exact = "rnn"
end_probability = 0.5
"""


def write_training(folder: Path, text: str = PREDICTION, name: str = "lstm.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def trained_into(folder: Path, text: str = PREDICTION) -> Path:
    from jaxsens.training.loop import train

    train(TrainConfig.from_toml(write_training(folder, text, "train.toml")), folder / "run")
    return folder / "run"
