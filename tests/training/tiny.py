"""Trainings that are over in a second or two."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import Event, train

TINY: dict[str, Any] = {
    "language": {"name": "parity", "end_probability": 0.3},
    "model": {"kind": "rnn", "width": 4},
    "data": {"lengths": [2, 4], "distinct": 2, "batch": 8, "steps_per_call": 2},
    "optimiser": {"steps": 12, "learning_rate": 0.05, "warmup": 2},
    "evaluation": {"every": 6, "lengths": [3, 8], "words": 4},
    "checkpoint": {"every": 4, "keep": 2},
}

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


def table(**changes: Any) -> dict[str, Any]:
    """TINY as a table of its own; a table among the changes replaces single keys, anything else a whole value.

    A language with a name replaces the language.
    """
    made = copy.deepcopy(TINY)
    for key, value in changes.items():
        joined = isinstance(value, dict) and not (key == "language" and "name" in value)
        made[key] = {**made.get(key, {}), **value} if joined else value
    return made


def tiny(**changes: Any) -> TrainConfig:
    return TrainConfig.from_table(table(**changes))


class Heard(list[Event]):
    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self if isinstance(event, kind)]


def write_training(folder: Path, text: str = PREDICTION, name: str = "lstm.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def trained_into(folder: Path, text: str = PREDICTION) -> Path:
    train(TrainConfig.from_toml(write_training(folder, text, "train.toml")), folder / "run")
    return folder / "run"
