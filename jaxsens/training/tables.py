"""The tables of a training config, each a frozen dataclass that notes what is wrong with its own values."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import Literal

from jaxsens.errors import Faults
from jaxsens.inputs import is_count, keep_plain
from jaxsens.strict import STRICT


@dataclass(frozen=True)
class _Table:
    """What all tables have in common: NumPy's whole numbers are kept as Python's, as files hold them."""

    def __post_init__(self) -> None:
        keep_plain(self, *(field.name for field in fields(self)))


@dataclass(frozen=True)
class Stage(_Table):
    """From the step `step` on, no input has more than `longest` symbols."""

    __pydantic_config__ = STRICT
    step: int
    longest: int


@dataclass(frozen=True)
class DataConfig(_Table):
    """What is trained on.

    Attributes:
        lengths: the least and the largest number of symbols n of an input, the boundary symbol not counted.
        distinct: so many lengths, evenly spaced between these two, are trained on: each one is compiled for.
        spacing: all lengths differ from the least by multiples of this: 2 for words of even length only.
        batch: inputs a step; all of one length, for nothing is padded.
        steps_per_call: steps that are run by one call of the compiled function, on inputs of one length. Evaluations,
            checkpoints and stages of the curriculum happen between calls.
        curriculum: stages of rising length; the first begins at step 0, the last reaches the largest length.
        targets: of next-symbol prediction. "exact": the language's probabilities of the next symbol after every
            prefix; "sampled": one symbol drawn from them. The expected loss is the same, and with it the optimum;
            the first has less noise.
    """

    __pydantic_config__ = STRICT
    lengths: tuple[int, int] = (1, 64)
    distinct: int = 4
    spacing: int = 1
    batch: int = 64
    steps_per_call: int = 10
    curriculum: tuple[Stage, ...] = ()
    targets: Literal["exact", "sampled"] = "exact"

    def check(self, faults: Faults) -> None:
        """Notes every fault."""
        _counts(self, faults, "data", distinct=1, spacing=1, batch=1, steps_per_call=1)
        if self.targets not in ("exact", "sampled"):
            faults.add("data.targets", self.targets, '"exact" or "sampled"')
        sound = isinstance(self.lengths, tuple) and len(self.lengths) == 2
        if not (sound and is_count(self.lengths[0], 1) and is_count(self.lengths[1], self.lengths[0])):
            faults.add("data.lengths", self.lengths, "the least length, at least 1, and the largest")
        elif is_count(self.spacing, 1) and (self.lengths[1] - self.lengths[0]) % self.spacing:
            faults.add("data.lengths", self.lengths, f"a multiple of data.spacing = {self.spacing} apart")
        elif not faults:
            self._check_curriculum(faults)

    def _check_curriculum(self, faults: Faults) -> None:
        stages = self.curriculum
        if not isinstance(stages, tuple) or not all(isinstance(stage, Stage) for stage in stages):
            faults.add("data.curriculum", stages, "a tuple of stages")
            return
        for k, stage in enumerate(stages):
            _counts(stage, faults, f"data.curriculum[{k}]", step=0, longest=self.lengths[0])
            _multiple(faults, f"data.curriculum[{k}].step", stage.step, self.steps_per_call)
            if is_count(stage.longest) and (stage.longest - self.lengths[0]) % self.spacing:
                remedy = f"{self.lengths[0]} and a multiple of data.spacing = {self.spacing}"
                faults.add(f"data.curriculum[{k}].longest", stage.longest, remedy)
        if not stages or faults:
            return
        for a, b in itertools.pairwise(stages):
            if b.step <= a.step or b.longest <= a.longest:
                faults.add(
                    "data.curriculum", (a, b), "stages by rising step, each longer than the one before"
                )
        if stages[0].step != 0:
            faults.add(
                "data.curriculum[0].step", stages[0].step, "0: the first stage is where training begins"
            )
        if stages[-1].longest != self.lengths[1]:
            remedy = f"{self.lengths[1]}, the largest of data.lengths, in the last stage"
            faults.add(f"data.curriculum[{len(stages) - 1}].longest", stages[-1].longest, remedy)

    def longest(self, step: int) -> int:
        """The largest length at a step."""
        begun = [stage.longest for stage in self.curriculum if stage.step <= step]
        return begun[-1] if begun else self.lengths[1]

    def lengths_at(self, step: int) -> tuple[int, ...]:
        """The lengths that an input may have at a step: those evenly spaced ones within reach, and the longest."""
        least, largest = self.lengths
        longest = self.longest(step)
        gaps, places = max(self.distinct - 1, 1), (largest - least) // self.spacing
        spaced = {least + self.spacing * round(k * places / gaps) for k in range(self.distinct - 1)}
        return tuple(sorted({n for n in spaced if n < longest} | {longest}))


@dataclass(frozen=True)
class OptimiserConfig(_Table):
    """AdamW and its schedule.

    Attributes:
        steps: of training.
        learning_rate: the largest.
        schedule: "warmup-cosine" falls to 0 at the last step, along half a cosine; "constant" stays.
        warmup: so many steps lead up to it from 0, linearly, in either schedule.
        clip: the gradient is scaled down to this global norm where it is longer; 0 leaves it as it is.
        weight_decay: decoupled; of matrices and embeddings, not of biases and normalisation.
    """

    __pydantic_config__ = STRICT
    steps: int
    learning_rate: float = 1e-3
    schedule: Literal["warmup-cosine", "constant"] = "warmup-cosine"
    warmup: int = 0
    clip: float = 1.0
    weight_decay: float = 0.0

    def check(self, faults: Faults) -> None:
        """Notes every fault."""
        _counts(self, faults, "optimiser", steps=1, warmup=0)
        if is_count(self.steps, 1) and is_count(self.warmup) and self.warmup >= self.steps:
            faults.add("optimiser.warmup", self.warmup, f"fewer than optimiser.steps = {self.steps}")
        if self.schedule not in ("warmup-cosine", "constant"):
            faults.add("optimiser.schedule", self.schedule, '"warmup-cosine" or "constant"')
        for name in ("clip", "weight_decay"):
            _number(faults, f"optimiser.{name}", getattr(self, name), positive=False)
        _number(faults, "optimiser.learning_rate", self.learning_rate, positive=True)


@dataclass(frozen=True)
class EvaluationConfig(_Table):
    """What is measured during training: at step 0, every `every` steps and at the end.

    Attributes:
        every: so many steps; 0 for never.
        lengths: numbers of symbols n, the boundary symbol not counted; any, also beyond those trained on.
        words: so many at each length, the same every time.
    """

    __pydantic_config__ = STRICT
    every: int = 500
    lengths: tuple[int, ...] = (16, 64)
    words: int = 64

    def check(self, faults: Faults) -> None:
        """Notes every fault."""
        _counts(self, faults, "evaluation", every=0, words=2)
        if not isinstance(self.lengths, tuple) or not all(is_count(n, 1) for n in self.lengths):
            faults.add("evaluation.lengths", self.lengths, "whole numbers of at least 1")
        elif (self.every and not self.lengths) or len(set(self.lengths)) < len(self.lengths):
            faults.add("evaluation.lengths", self.lengths, "at least one length, and none twice")


@dataclass(frozen=True)
class CheckpointConfig(_Table):
    """When checkpoints are written, besides the one at the end.

    Attributes:
        every: so many steps.
        keep: so many of the newest are kept.
    """

    __pydantic_config__ = STRICT
    every: int = 500
    keep: int = 2

    def check(self, faults: Faults) -> None:
        """Notes every fault."""
        _counts(self, faults, "checkpoint", every=1, keep=1)


def check_calls(
    faults: Faults,
    data: DataConfig | None,
    optimiser: OptimiserConfig | None,
    evaluation: EvaluationConfig | None,
    checkpoint: CheckpointConfig | None,
) -> None:
    """Notes what does not happen between two calls of the compiled function. A table with faults is None."""
    if data is None:
        return
    for name, value in (
        ("optimiser.steps", optimiser.steps if optimiser else 0),
        ("evaluation.every", evaluation.every if evaluation else 0),
        ("checkpoint.every", checkpoint.every if checkpoint else 0),
    ):
        _multiple(faults, name, value, data.steps_per_call)
    begun = [stage.step for stage in data.curriculum]
    if begun and optimiser and begun[-1] >= optimiser.steps:
        where = f"data.curriculum[{len(begun) - 1}].step"
        faults.add(where, begun[-1], f"a step before the last, optimiser.steps = {optimiser.steps}")


def _counts(table: object, faults: Faults, path: str, **least: int) -> None:
    for name, smallest in least.items():
        value = getattr(table, name)
        if not is_count(value, smallest):
            faults.add(f"{path}.{name}", value, f"a whole number of at least {smallest}")


def _multiple(faults: Faults, name: str, value: int, calls: int) -> None:
    if is_count(value) and value % calls:
        faults.add(name, value, f"a multiple of data.steps_per_call = {calls}")


def _number(faults: Faults, name: str, value: object, positive: bool) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not number or (positive and value == 0):
        faults.add(name, value, "a number above 0" if positive else "a number of at least 0")
