"""Tiny trainings, over in a second or two."""

from __future__ import annotations

import copy
from typing import Any

from jaxsens.training.config import TrainConfig
from jaxsens.training.loop import Event

TINY: dict[str, Any] = {
    "language": {"name": "parity", "end_probability": 0.3},
    "model": {"kind": "rnn", "width": 4},
    "data": {"lengths": [2, 4], "distinct": 2, "batch": 8, "steps_per_call": 2},
    "optimiser": {"steps": 12, "learning_rate": 0.05, "warmup": 2},
    "evaluation": {"every": 6, "lengths": [3, 8], "words": 4},
    "checkpoint": {"every": 4, "keep": 2},
}


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
