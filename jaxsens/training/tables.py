"""The tables of a training config, each a frozen, validated dataclass."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jaxsens.base import inputs
from jaxsens.base.errors import Problems, collecting
from jaxsens.base.strict import Count, Positive, checked_by, config

NotNegative = Annotated[float, checked_by(inputs.number, least=0, below=float("inf"))]


def _range(name: str, value: Any, problems: Problems) -> tuple[int, int]:
    least, largest = (
        inputs.plain_numbers(value) if isinstance(value, tuple | list) and len(value) == 2 else (0, 0)
    )
    if not (inputs.is_count(least, 1) and inputs.is_count(largest, least)):
        problems.add(name, value, "the least length, at least 1, and the largest")
    return least, largest


def _lengths(name: str, value: Any, problems: Problems) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or not all(inputs.is_count(n, 1) for n in value):
        problems.add(name, value, "whole numbers of at least 1")
    elif len(set(value)) < len(value):
        problems.add(name, value, "each length once")
    else:
        return tuple(map(int, value))
    return ()


@config
class Stage:
    """From the step `step` on, no input has more than `longest` symbols."""

    step: Count
    longest: Positive


@config
class DataConfig:
    """What is trained on.

    Attributes:
        lengths: the least and the largest number of symbols n of an input, the boundary symbol not counted.
        distinct: the number of lengths, evenly spaced between these two, to train on: each one is compiled for.
        spacing: all lengths differ from the least by multiples of this: 2 for words of even length only.
        batch: inputs a step; all of one length, since nothing is padded.
        steps_per_call: steps that are run by one call of the compiled function, on inputs of one length. Evaluations,
            checkpoints and stages of the curriculum happen between calls.
        curriculum: stages of rising length; the first begins at step 0, the last reaches the largest length.
        targets: of next-symbol prediction. "exact": the language's probabilities of the next symbol after every
            prefix; "sampled": one symbol drawn from them. The expected loss is the same, and with it the optimum;
            the first has less noise.
    """

    lengths: Annotated[tuple[int, int], checked_by(_range)] = (1, 64)
    distinct: Positive = 4
    spacing: Positive = 1
    batch: Positive = 64
    steps_per_call: Positive = 10
    curriculum: tuple[Stage, ...] = ()
    targets: Literal["exact", "sampled"] = "exact"

    def __post_init__(self) -> None:
        with collecting("DataConfig") as problems:
            least, largest = self.lengths
            if (largest - least) % self.spacing:
                problems.add("lengths", self.lengths, f"a multiple of spacing = {self.spacing} apart")
            else:
                self._check_curriculum(problems)

    def _check_curriculum(self, problems: Problems) -> None:
        stages, (least, largest) = self.curriculum, self.lengths
        for k, stage in enumerate(stages):
            if stage.longest < least or (stage.longest - least) % self.spacing:
                remedy = f"{least} and a multiple of spacing = {self.spacing}"
                problems.add(f"curriculum[{k}].longest", stage.longest, remedy)
            if stage.step % self.steps_per_call:
                remedy = f"a multiple of steps_per_call = {self.steps_per_call}"
                problems.add(f"curriculum[{k}].step", stage.step, remedy)
        if not stages or problems:
            return
        for a, b in itertools.pairwise(stages):
            if b.step <= a.step or b.longest <= a.longest:
                problems.add("curriculum", (a, b), "stages by rising step, each longer than the one before")
        if stages[0].step != 0:
            problems.add("curriculum[0].step", stages[0].step, "0: the first stage is where training begins")
        if stages[-1].longest != largest:
            remedy = f"{largest}, the largest of lengths, in the last stage"
            problems.add(f"curriculum[{len(stages) - 1}].longest", stages[-1].longest, remedy)

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


@config
class OptimiserConfig:
    """AdamW and its schedule.

    Attributes:
        steps: of training.
        learning_rate: the largest.
        schedule: "warmup-cosine" falls to 0 at the last step, along half a cosine; "constant" stays.
        warmup: the number of steps over which the rate first rises from 0, linearly, in either schedule.
        clip: the gradient is scaled down to this global norm if it is longer; 0 leaves it as it is.
        weight_decay: decoupled; of matrices and embeddings, not of biases and normalisation.
    """

    steps: Positive
    learning_rate: Annotated[float, checked_by(inputs.number, above=0, below=float("inf"))] = 1e-3
    schedule: Literal["warmup-cosine", "constant"] = "warmup-cosine"
    warmup: Count = 0
    clip: NotNegative = 1.0
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        with collecting("OptimiserConfig") as problems:
            if self.warmup >= self.steps:
                problems.add("warmup", self.warmup, f"fewer than steps = {self.steps}")


@config
class EvaluationConfig:
    """What is measured during training: at step 0, every `every` steps and at the end.

    Attributes:
        every: the number of steps between evaluations; 0 for none.
        lengths: numbers of symbols n, the boundary symbol not counted; any, also beyond those trained on.
        words: the number of words at each length, the same every time.
    """

    every: Count = 500
    lengths: Annotated[tuple[int, ...], checked_by(_lengths)] = (16, 64)
    words: Annotated[int, checked_by(inputs.count, least=2)] = 64

    def __post_init__(self) -> None:
        with collecting("EvaluationConfig") as problems:
            if self.every and not self.lengths:
                problems.add("lengths", self.lengths, "at least one length")


@config
class CheckpointConfig:
    """When checkpoints are written, besides the one at the end.

    Attributes:
        every: the number of steps between checkpoints.
        keep: the number of checkpoints kept, the newest ones.
    """

    every: Positive = 500
    keep: Positive = 2


def check_calls(tables: Mapping[str, Any], problems: Problems) -> None:
    """Notes what does not happen between two calls of the compiled function. A table with errors is None."""
    data, optimiser = tables["data"], tables["optimiser"]
    if data is None:
        return
    for table, field in (("optimiser", "steps"), ("evaluation", "every"), ("checkpoint", "every")):
        value = getattr(tables[table], field, 0)
        if value % data.steps_per_call:
            remedy = f"a multiple of data.steps_per_call = {data.steps_per_call}"
            problems.add(f"{table}.{field}", value, remedy)
    begun = [stage.step for stage in data.curriculum]
    if begun and optimiser and begun[-1] >= optimiser.steps:
        where = f"data.curriculum[{len(begun) - 1}].step"
        problems.add(where, begun[-1], f"a step before the last, optimiser.steps = {optimiser.steps}")
