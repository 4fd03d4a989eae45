"""The Theorem 6 experiment: models are trained, or gone on with, in DIR/models/NAME; then DIR is a sweep of them.

All state is in the files: what was killed is resumed by running it again. Trainings go on from their newest checkpoint,
points and evaluations are kept one by one.

The config is a TOML file, read strictly: `Theorem6Tables` has its keys. All wrong fields are reported at once, then all
that do not fit together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, PlainValidator, ValidationInfo
from rich.console import Console

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.inputs import NORMS, count
from jaxsens.core.base.strict import STRICT, Positive, checked_by, parse_toml, read_fields, read_toml
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import build, check_runs
from jaxsens.core.sweeps.beyond import check_estimates
from jaxsens.core.sweeps.config import Name, Settings, check_measure, check_points
from jaxsens.core.sweeps.job import Named, Outcome, RowsJob, run
from jaxsens.core.sweeps.points import Measurement, select
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sweep import Sweep, SweepVariant, row_of, run_whole
from jaxsens.formal.languages import Language, Parity
from jaxsens.training.baselines import exact_parity_rnn
from jaxsens.training.checkpoints import (
    LearnerSource,
    TrainedModel,
    check_directory,
    load_checkpoint,
    trained_source,
)
from jaxsens.training.config import Task, TrainConfig, logits_of
from jaxsens.training.loop import train_shown
from jaxsens.training.theorem6.evaluation import Evaluation, LanguageWords, check_members


def _training(value: Any, info: ValidationInfo) -> TrainConfig:
    if isinstance(value, str):
        return TrainConfig.from_toml(cast("dict[str, Any]", info.context)["folder"] / value)
    if not isinstance(value, dict):
        raise ValueError("a training config is needed: its file, or its tables")
    return TrainConfig.from_table(value)


@dataclass(frozen=True)
class Theorem6Model:
    """A `[[model]]`, one model of the experiment.

    Attributes:
        name: of the model, unique within the experiment.
        description: one line for plots and tables; made from the training where empty.
        train: a training config: its file, relative to this one, or its tables. Give this or `exact`.
        exact: "rnn", the recurrent network for PARITY whose weights are set by hand.
        end_probability: with `exact`: that of PARITY, which the network knows.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    description: str = ""
    train: Annotated[TrainConfig | None, PlainValidator(_training)] = None
    exact: Literal["rnn"] | None = None
    end_probability: float | None = None

    def __post_init__(self) -> None:
        with collecting("model") as problems:
            if (self.train is None) == (self.exact is None):
                problems.note("train", 'give either train, a training config, or exact = "rnn"')
            elif self.train is not None and self.end_probability is not None:
                problems.add("end_probability", self.end_probability, 'it goes with exact = "rnn"')
            elif self.exact is not None and self.end_probability is None:
                problems.note("end_probability", "give that of PARITY, which the network knows")
            else:
                _ = self.language

    @property
    def line(self) -> str:
        """The description, or the training in words, if there is none."""
        if self.description or self.train is None:
            return self.description or "recurrent network for PARITY, set by hand"
        (least, largest), steps = self.train.data.lengths, self.train.optimiser.steps
        return f"{self.train.model.kind}, trained on {least} to {largest} symbols in {steps} steps"

    @property
    def task(self) -> Task:
        """What it is trained for."""
        return "prediction" if self.train is None else self.train.task

    @property
    def language(self) -> Language:
        """What it learns."""
        return Parity(self.end_probability or 0.0) if self.train is None else self.train.language

    def untrained(self) -> Any:
        """The model with random weights; the hand-set network as it is."""
        if self.train is not None:
            return build(self.train.model)
        return exact_parity_rnn(self.language.settings["end_probability"])

    def source(self, failure: str) -> LearnerSource:
        """The network that is set by hand, or a model that could not be trained because of a failure."""
        end_first = self.task == "prediction"
        learner = partial(
            LearnerSource, end_first=end_first, language=self.language, task=self.task, own_words=True
        )
        if self.train is None:
            model = self.untrained()
            made = {"type": "exact_parity_rnn", "end_probability": self.end_probability}
            made["dtype"] = model.config.dtype
            return learner("constructed", model.config, made, lambda n, seed: model)

        def build(n: int, seed: int) -> Any:
            raise InputError(f"{self.name} could not be trained: {failure}")

        made = {"type": "CheckpointModel", "training": self.train.table()}
        return learner("trained", self.train.model, made, build)


@dataclass(frozen=True)
class Theorem6Tables(Settings):
    """The tables of the experiment's config: n counts the symbols of a word or prefix, without the boundary symbol.

    Attributes:
        words: words a length and seed for cross-entropy and accuracy.
        inputs: words a length and seed whose flips are measured.
        fit_from: only lengths from this one on enter the fitted exponents.
        model: the models.
    """

    words: Annotated[int, checked_by(count, least=2)] = 64
    inputs: Positive = 1
    fit_from: Annotated[int, checked_by(count, least=2)] = 2
    model: tuple[Theorem6Model, ...] = ()


@dataclass(frozen=True)
class Theorem6(Theorem6Tables):
    """The experiment, checked and complete. `text`: the config as it was given."""

    text: str = ""


def load_theorem6_config(path: str | os.PathLike[str]) -> Theorem6:
    """Reads and checks the experiment's config.

    Raises:
        InputError: if the file cannot be read, is not TOML, or has errors: all of them, with their paths.
    """
    text, _ = read_toml(path)
    return parse_theorem6_config(text, str(path), Path(path).parent)


def parse_theorem6_config(text: str, subject: str = "config", folder: Path = Path()) -> Theorem6:
    """As `load_theorem6_config`, from the text itself. Files that it names are looked for in `folder`."""
    raw, problems = parse_toml(text, subject), Problems(subject)
    sound = read_fields(Theorem6Tables, raw, "", problems, folder=folder)
    models, lengths, measure = sound.get("model"), sound.get("lengths", ()), sound.get("measure")
    if models == ():
        problems.add("model", [], "name at least one model, each in a table [[model]]")
    for name, times in Counter(model.name for model in models or ()).items():
        if times > 1:
            problems.add("model.name", name, "this name is taken by another model")
    for model in models or ():
        _check_model(model, lengths, measure, problems)
    if measure is not None:
        _check_measure(measure, problems)
    check_points(len(models or ()), lengths, sound.get("seeds", ()), problems)
    problems.raise_if_any()
    return Theorem6(text=text, **sound)


def _check_measure(measure: Measurement, problems: Problems) -> None:
    if measure.estimates:
        remedy = "this experiment measures every flip exactly: leave exact_up_to out, and give another engine"
        problems.note("measure", remedy)
    else:
        check_estimates(measure, (), problems)
    if measure.flips.drawing(None) != Substitute():
        every = "every symbol of a word, replaced by every other"
        remedy = f"the theorem is about {every}: give no more than sample"
        problems.add("measure.flips", measure.flips.table(), remedy)
    if measure.measure.order is None:
        remedy = f"the theorem is about norms: give one of {', '.join(NORMS)}"
        problems.add("measure.measure", measure.measure.kind, remedy)


def _check_model(
    model: Theorem6Model, lengths: Sequence[int], measure: Measurement | None, problems: Problems
) -> None:
    """Notes lengths that a model cannot be evaluated at, outputs that it lacks, and an engine that refuses it.

    `lengths` is empty, and `measure` None, where they are not known.
    """
    if not lengths:
        return
    where = f'model "{model.name}"'
    check_members(where, model.task, model.language, lengths, problems)
    if model.train is not None and isinstance(model.train.model, TransformerConfig):
        own = Problems()
        check_runs(model.train.model, lengths[-1] + 1, own)
        for one in own:
            problems.note("lengths", f"{where}, with the boundary symbol: {one}")
    size = logits_of(model.language, model.task)
    check_measure(where, size, model.untrained, lengths[:1], measure, problems)


def run_theorem6(
    experiment: Theorem6,
    directory: Path,
    console: Console,
    only: Sequence[str] = (),
    shard: str | None = None,
) -> tuple[Sweep, list[Outcome]]:
    """Trains what is not trained to the end, then measures and evaluates what is not measured yet. See `run`.

    Part K of M trains every M-th model, from the K-th on, because one process trains a model. It measures its points
    only if all models are trained: before that no process knows the keys of the points of all.

    Args:
        experiment: the experiment.
        directory: for all of it.
        console: where to print.
        only, shard: which points are measured, as for `select`.

    Returns:
        The sweep, and how the trainings, the points and the evaluations ended.

    Raises:
        InputError: before any training, if the directory holds trainings by other configs: all of them; after it, if
            the directory holds points of another config.
    """
    trained = {model.name: model.train for model in experiment.model if model.train is not None}
    folders = {name: directory / "models" / name for name in trained}
    problems = Problems(str(directory))
    for name, folder in folders.items():
        try:
            check_directory(folder, trained[name])
        except InputError as error:
            remedy = f"name another directory, or remove {folder} to train it again"
            for one in error.problems:
                problems.note(("model", name), f"{one}: {remedy}")
    problems.raise_if_any()
    select(_sweep(experiment, {}, {}).points, only, shard)  # refuses before anything is trained
    first, every = (0, 1) if shard is None else map(int, shard.split("/"))
    own = {*[*trained][first::every]}
    sources: dict[str, LearnerSource] = {}

    def compute(name: str, reporter: Reporter) -> LearnerSource:
        config, folder = trained[name], folders[name]
        model = train_shown(config, folder, name, reporter) if name in own else _trained(folder, config)
        sources[name] = trained_source(model, own_words=True)
        return sources[name]

    names = sorted(trained, key=lambda name: name not in own)  # the others may be trained meanwhile
    job = RowsJob([Named(name, name, (name, 1)) for name in names], compute, LearnerSource, {}, None)
    job.directory = directory  # what takes no more if a training does not
    outcome = run(job, console)
    failures = {str(failure.item): failure.message for failure in outcome.failures}
    sweep = _sweep(experiment, sources, failures)
    if outcome.ended_early or (shard is not None and failures):
        return sweep, [outcome]
    return sweep, [outcome, *run_whole(sweep, directory, select(sweep.points, only, shard), console)]


def _trained(folder: Path, config: TrainConfig) -> TrainedModel:
    """The model that another part trains."""
    with suppress(InputError):
        if (model := load_checkpoint(folder)).step >= config.optimiser.steps:
            return model
    raise InputError("another part trains it: run this command again when that one has ended")


def _sweep(experiment: Theorem6, sources: Mapping[str, LearnerSource], failures: Mapping[str, str]) -> Sweep:
    """The sweep of the models that were trained. Points of the others fail, and say why."""
    variants = []
    for model in experiment.model:
        source = sources.get(model.name) or model.source(failures.get(model.name, "not trained yet"))
        variants.append(SweepVariant(model.name, model.line, source))
    return Sweep(
        **row_of(experiment, ("title", "claim", "lengths", "seeds", "measure", "text", "fit_from")),
        variants=tuple(variants),
        statistics=("mean", "max"),
        inputs=LanguageWords(experiment.inputs),
        tables={"evaluation": Evaluation(experiment.words)},
        placement=experiment.placement.placement(),
    )
