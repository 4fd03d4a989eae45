"""A training config: a frozen value, made in Python or read strictly from TOML. All wrong fields are reported at once;
where each is right alone, all that do not fit together.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import PlainValidator, ValidationInfo

from jaxsens.core.base import inputs, strict
from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.models.parts.masks import MASKS, mask_of
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import check_runs, plain, read_config
from jaxsens.formal.languages import Language, language
from jaxsens.training.baselines import ConvolutionConfig, LSTMConfig, RNNConfig

TrainableConfig = TransformerConfig | LSTMConfig | RNNConfig | ConvolutionConfig
"""The configs of the networks that can be trained."""

NotNegative = Annotated[float, strict.checked_by(inputs.number, least=0, below=float("inf"))]


def _range(name: str, value: Any, problems: Problems) -> tuple[int, int]:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    least, largest = inputs.plain_numbers(value) if is_pair else (0, 0)
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


@strict.config
class Stage:
    """From the step `step` on, no input has more than `longest` symbols."""

    step: strict.Count
    longest: strict.Positive


@strict.config
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

    lengths: Annotated[tuple[int, int], strict.checked_by(_range)] = (1, 64)
    distinct: strict.Positive = 4
    spacing: strict.Positive = 1
    batch: strict.Positive = 64
    steps_per_call: strict.Positive = 10
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


@strict.config
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

    steps: strict.Positive
    learning_rate: Annotated[float, strict.checked_by(inputs.number, above=0, below=float("inf"))] = 1e-3
    schedule: Literal["warmup-cosine", "constant"] = "warmup-cosine"
    warmup: strict.Count = 0
    clip: NotNegative = 1.0
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        with collecting("OptimiserConfig") as problems:
            if self.warmup >= self.steps:
                problems.add("warmup", self.warmup, f"fewer than steps = {self.steps}")


@strict.config
class EvaluationConfig:
    """What is measured during training: at step 0, every `every` steps and at the end.

    Attributes:
        every: the number of steps between evaluations; 0 for none.
        lengths: numbers of symbols n, the boundary symbol not counted; any, also beyond those trained on.
        words: the number of words at each length, the same every time.
    """

    every: strict.Count = 500
    lengths: Annotated[tuple[int, ...], strict.checked_by(_lengths)] = (16, 64)
    words: Annotated[int, strict.checked_by(inputs.count, least=2)] = 64

    def __post_init__(self) -> None:
        with collecting("EvaluationConfig") as problems:
            if self.every and not self.lengths:
                problems.add("lengths", self.lengths, "at least one length")


@strict.config
class CheckpointConfig:
    """When checkpoints are written, besides the one at the end.

    Attributes:
        every: the number of steps between checkpoints.
        keep: the number of checkpoints kept, the newest ones.
    """

    every: strict.Positive = 500
    keep: strict.Positive = 2


Task = Literal["prediction", "recognition"]

CAUSAL = (*(name for name, mask in MASKS.items() if not mask.earlier), "a SlidingWindow")
"""The masks under which what is predicted at a position depends on nothing behind it, as messages name them."""

DERIVED = ("alphabet_size", "logits", "end_symbol", "readout")
"""Fields of a network's config that follow from the language and the task."""


def logits_of(language: Language, task: Task) -> int:
    """How many logits a model has: one an outcome of the next symbol, or one a label."""
    return language.outcomes if task == "prediction" else 2


def _language(name: str, value: Any, problems: Problems) -> Language | None:
    if isinstance(value, Language):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        remedy = 'a table with a name, such as {name = "parity", end_probability = 0.1}'
        problems.add(name, value, remedy)
        return None
    try:
        return language(**value)
    except InputError as error:
        problems.include(error.problems, name)
    return None


def _model(value: Any, info: ValidationInfo) -> Any:
    """The network's config; where the language has errors, checked with a stand-in for its alphabet."""
    if isinstance(value, TrainableConfig):
        return value
    with strict.field_errors() as problems:
        if not isinstance(value, dict) or info.context is None:
            problems.add("model", value, "the table, or the config, of a network")
            return None
        task, learned = info.context["task"], info.data.get("language")
        for key in DERIVED:
            if key in value:
                problems.note(("model", key), "follows from the language and the task; leave it out")
        fields = {key: one for key, one in value.items() if key not in DERIVED}
        if task == "prediction" and fields.get("kind", "transformer") == "transformer":
            fields.setdefault("mask", "future")
        fields["alphabet_size"] = 2 if learned is None else len(learned.alphabet)
        fields["logits"] = 2 if learned is None else logits_of(learned, task)
        made = read_config(fields, "model", problems)
        if made is not None and not isinstance(made, TrainableConfig):
            trainable = ", ".join(one.kind for one in get_args(TrainableConfig))
            problems.add("model.kind", made.kind, f"a kind that can be trained, one of {trainable}")
    return made


@strict.config
class TrainConfig:
    """Everything that determines a training.

    Attributes:
        language: what is learned; in a file its name and the options of `jaxsens.language`.
        model: the network's config; in a file without the alphabet, the logits and the readout, which follow from the
            language and the task. Its `logits` are filled in where they are None: one for each outcome of the
            language to predict the next symbol, one for each label (no member, member) to recognise words.
        optimiser, data, evaluation, checkpoint: see their classes.
        task: "prediction" of the next symbol, or "recognition" of whole words.
        seed: of the first weights, the data and the evaluations.

    A prediction model reads the boundary symbol, then the word: its output at position i is about the symbol after i
    symbols of the word. So it must be causal: a recurrent network, or a transformer with a mask of `CAUSAL`. Of a
    transformer that reads the length of its input (by a position embedding with n in it, or a temperature by "length"),
    the output at position i is trained as in the whole word: it is not what the model puts out on the prefix alone,
    which is what is evaluated and measured. A temperature by "query" has no such difference.

    A recognition model reads the word, then the boundary symbol, where its logits are read (a convolution's after its
    average). The boundary symbol is the model's end-of-sequence symbol, number `alphabet_size`.

    Raises:
        InputError: listing every wrong field; where there is none, all that do not fit together.

    >>> table = {"language": {"name": "parity"}, "model": {"kind": "lstm", "width": 4}, "optimiser": {"steps": 20}}
    >>> TrainConfig.from_table(table, "an example").optimiser.steps
    20
    """

    language: Annotated[Language, strict.checked_by(_language)]
    model: Annotated[TrainableConfig, PlainValidator(_model)]
    optimiser: OptimiserConfig
    data: DataConfig = field(default_factory=DataConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    task: Task = "prediction"
    seed: strict.Count = 0

    def __post_init__(self) -> None:
        outputs, name = logits_of(self.language, self.task), self.language.name
        if self.model.logits is None:
            object.__setattr__(self, "model", self.model.replace(logits=outputs))
        model, symbols = self.model, len(self.language.alphabet)
        with collecting("TrainConfig") as problems:
            self._check_task(problems)
            if model.alphabet_size != symbols:
                problems.add("model.alphabet_size", model.alphabet_size, f"{symbols}, the symbols of {name}")
            if model.logits != outputs:
                remedy = f"{outputs} for the {self.task} of {name}, or None"
                problems.add("model.logits", model.logits, remedy)
            self._check_calls(problems)
            self._check_lengths(problems)

    def _check_task(self, problems: Problems) -> None:
        model, pooled = self.model, isinstance(self.model, ConvolutionConfig)
        if not pooled and model.readout != "last":
            problems.add("model.readout", model.readout, '"last"')
        if not model.end_symbol:
            problems.add("model.end_symbol", model.end_symbol, "True: it is the boundary symbol")
        if self.task == "recognition":
            return
        if self.language.no_law is not None:
            problems.note("language", self.language.no_law)
        if pooled:
            remedy = "another kind, or recognition: it averages over the whole input"
            problems.add("model.kind", "convolution", remedy)
        elif isinstance(model, TransformerConfig):
            remedy = f"one of {', '.join(CAUSAL)} in every layer, to predict the next symbol"
            for mask in dict.fromkeys(model.layer(k).mask for k in range(model.layers)):
                if mask_of("training", mask).earlier:
                    problems.add("model.mask", mask, remedy)

    def _check_calls(self, problems: Problems) -> None:
        """Notes what does not happen between two calls of the compiled function."""
        calls, curriculum = self.data.steps_per_call, self.data.curriculum
        for table, name in (("optimiser", "steps"), ("evaluation", "every"), ("checkpoint", "every")):
            value = getattr(getattr(self, table), name)
            if value % calls:
                problems.add(f"{table}.{name}", value, f"a multiple of data.steps_per_call = {calls}")
        if curriculum and curriculum[-1].step >= self.optimiser.steps:
            where = f"data.curriculum[{len(curriculum) - 1}].step"
            remedy = f"a step before the last, optimiser.steps = {self.optimiser.steps}"
            problems.add(where, curriculum[-1].step, remedy)

    def _check_lengths(self, problems: Problems) -> None:
        if not isinstance(self.model, TransformerConfig):
            return
        read = [("data.lengths", self.data.lengths[1])]
        read += [("evaluation.lengths", n) for n in self.evaluation.lengths if self.evaluation.every]
        for name, n in read:
            own = Problems()
            check_runs(self.model, n + 1, own)
            for one in own:
                problems.note(name, f"{n} and the boundary symbol: {one}")

    @property
    def boundary(self) -> int:
        """The number of the boundary symbol: before a word to predict, behind a word to recognise."""
        return len(self.language.alphabet)

    @classmethod
    @strict.typed_arguments
    def from_toml(cls, path: str | os.PathLike[str]) -> TrainConfig:
        """Reads and checks a config file.

        Raises:
            InputError: if the file cannot be read, is not TOML, or has errors: all of them, with their paths.
        """
        _, raw = strict.read_toml(path, "path")
        return cls.from_table(raw, str(path))

    @classmethod
    @strict.typed_arguments
    def from_table(cls, table: Mapping[str, Any], subject: str = "config") -> TrainConfig:
        """The config of a table as TOML or `table` gives it.

        Raises:
            InputError: which begins with `subject` and lists errors with their paths, as the class does.
        """
        problems = Problems(subject)
        made = strict.read_table(
            cls, {"model": {}, **table}, (), problems, task=table.get("task", "prediction")
        )
        problems.raise_if_any()
        return cast("TrainConfig", made)

    def table(self) -> dict[str, Any]:
        """The whole config with every default written out, as JSON values that `from_table` reads."""
        network = {key: value for key, value in plain(self.model).items() if key not in ("type", *DERIVED)}
        names = ("optimiser", "data", "evaluation", "checkpoint")
        tables = {name: asdict(getattr(self, name)) for name in names}
        return {
            "task": self.task,
            "seed": self.seed,
            "language": plain(self.language.settings),
            "model": {"kind": self.model.kind, **network},
            **json.loads(json.dumps(tables)),
        }
