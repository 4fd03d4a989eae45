"""The config of the Theorem 6 experiment: a TOML file, read strictly, every fault reported at once and nothing run.

title = "..."                       for the report
claim = "..."
lengths = [16, 32, 64]              n, the symbols of a word or prefix; the boundary symbol is not counted
seeds = 5                           of the words that are drawn: 0..4, or a list
words = 64                          so many words a length and seed for cross-entropy and accuracy
inputs = 1                          so many words a length and seed whose flips are measured
fit_from = 2                        only lengths from this one on enter the fitted exponents

[measure]                           as in a sweep: engine, norm, outputs, sample, batch_size, memory_budget

[[model]]                           name, description, and one of
train = "file.toml"                 a training config, relative to this file
[model.train]                       or the tables of a training config themselves
exact = "rnn"                       or the hand-set recurrent network for PARITY, with its end_probability
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from jaxsens.errors import Faults, InputError
from jaxsens.experiments.points import Measurement
from jaxsens.experiments.sweep_config import Lengths, Seeds, check_points
from jaxsens.experiments.variants import Name
from jaxsens.languages import Language, Parity
from jaxsens.models.config import TransformerConfig
from jaxsens.models.config_tables import CONFIGS, build
from jaxsens.models.transformer import check_runs
from jaxsens.sensitivity.adapters import measurable
from jaxsens.sensitivity.choice import choose
from jaxsens.strict import STRICT, field_names, messages, read_table
from jaxsens.training.config import Task, TrainConfig
from jaxsens.training.recurrent_parity import exact_parity_rnn


@dataclass(frozen=True)
class TrainedEntry:
    """A model to train. Attributes: its name, what it is in one line, and its training config."""

    name: str
    description: str
    config: TrainConfig

    @property
    def task(self) -> Task:
        """What it is trained for."""
        return self.config.task

    @property
    def language(self) -> Language:
        """What it learns."""
        return self.config.language


@dataclass(frozen=True)
class ExactEntry:
    """The hand-set recurrent network for PARITY. Attributes: its name, what it is in one line, and the language."""

    name: str
    description: str
    language: Parity
    task: ClassVar[Task] = "prediction"


Entry = TrainedEntry | ExactEntry
"""One model of the experiment."""


@dataclass(frozen=True)
class Theorem6:
    """The experiment, checked and complete.

    Attributes:
        title, claim: for the report; may be empty.
        lengths: n, the symbols of a word or prefix, rising, at least 2.
        seeds: of the words.
        words: words a length and seed for cross-entropy and accuracy.
        inputs: words a length and seed whose flips are measured.
        fit_from: only lengths from this one on enter the fitted exponents.
        measure: how they are measured.
        models: in the order of the config.
        text: the config as it was given.
    """

    title: str
    claim: str
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    words: int
    inputs: int
    fit_from: int
    measure: Measurement
    models: tuple[Entry, ...]
    text: str


@dataclass(frozen=True)
class _Model:
    """A `[[model]]` as it is written."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Name
    description: str = ""
    train: str | dict[str, Any] | None = None
    exact: Literal["rnn"] | None = None
    end_probability: float | None = None


@dataclass(frozen=True)
class _Tables:
    """The config's tables as they are written."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    lengths: Lengths
    seeds: Seeds = (0,)
    words: Annotated[int, Field(ge=2)] = 64
    inputs: Annotated[int, Field(ge=1)] = 1
    fit_from: Annotated[int, Field(ge=2)] = 2
    title: str = ""
    claim: str = ""
    measure: Measurement = field(default_factory=Measurement)
    model: tuple[_Model, ...] = ()


_ADAPTER = TypeAdapter(_Tables)
_KEYS = {"": field_names(_Tables), "measure": field_names(Measurement), "model": field_names(_Model)}


def load_theorem6_config(path: str | os.PathLike[str]) -> Theorem6:
    """Reads and checks the experiment's config.

    Raises:
        InputError: if the file cannot be read, is no TOML, or has faults: all of them, with their paths.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"config = {str(path)!r}: a readable TOML file is needed ({error})") from error
    return parse_theorem6_config(text, str(path), Path(path).parent)


def parse_theorem6_config(text: str, subject: str = "config", folder: Path = Path()) -> Theorem6:
    """As `load_theorem6_config`, from the text itself. Files that it names are looked for in `folder`."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{subject}: not TOML: {error}") from error
    faults = Faults(subject)
    tables = read_table(_ADAPTER, raw, "", faults, _KEYS)
    if tables is None:
        # What can be said of the training configs is said together with the rest.
        written = raw.get("model", [])
        for k, table in enumerate(written if isinstance(written, list) else ()):
            model = read_table(TypeAdapter(_Model), table, "", Faults(""), {})
            if model is not None:
                _entry(model, f"model[{k}]", folder, faults)
        faults.raise_if_any()
        raise InputError(f"{subject}: cannot be used")
    entries = [_entry(model, f"model[{k}]", folder, faults) for k, model in enumerate(tables.model)]
    if not tables.model:
        faults.add("model", [], "name at least one model, each in a table [[model]]")
    for name, count in Counter(model.name for model in tables.model).items():
        if count > 1:
            faults.add("model.name", name, "this name is taken by another model")
    models = tuple(entry for entry in entries if entry is not None)
    for entry in models:
        _check_entry(entry, tables.lengths, tables.measure, faults)
    check_points(len(models), tables.lengths, tables.seeds, faults)
    faults.raise_if_any()
    return Theorem6(
        title=tables.title,
        claim=tables.claim,
        lengths=tables.lengths,
        seeds=tables.seeds,
        words=tables.words,
        inputs=tables.inputs,
        fit_from=tables.fit_from,
        measure=tables.measure,
        models=models,
        text=text,
    )


def _entry(model: _Model, path: str, folder: Path, faults: Faults) -> Entry | None:
    """The model that a table describes, or None after noting every fault."""
    if (model.train is None) == (model.exact is None):
        faults.messages.append(f'{path}: give either train, a training config, or exact = "rnn"')
        return None
    if model.exact is not None:
        return _exact(model, path, faults)
    if model.end_probability is not None:
        faults.add(f"{path}.end_probability", model.end_probability, 'it goes with exact = "rnn"')
    try:
        if isinstance(model.train, str):
            config = TrainConfig.from_toml(folder / model.train)
        else:
            config = TrainConfig.from_table(model.train or {})
    except InputError as error:
        faults.messages += [f"{path}.train: {message}" for message in messages(error)]
        return None
    return TrainedEntry(model.name, model.description or _line(config), config)


def _exact(model: _Model, path: str, faults: Faults) -> ExactEntry | None:
    if model.end_probability is None:
        faults.add(f"{path}.end_probability", None, "that of PARITY, which the network knows")
        return None
    try:
        parity = Parity(model.end_probability)
    except InputError as error:
        faults.messages += [f"{path}.{message}" for message in messages(error)]
        return None
    return ExactEntry(model.name, model.description or "recurrent network for PARITY, set by hand", parity)


def _line(config: TrainConfig) -> str:
    """What a trained model is, in one line."""
    kind = next(name for name, made in CONFIGS.items() if isinstance(config.model, made))
    n = config.data.lengths
    return f"{kind}, trained on {n[0]} to {n[1]} symbols in {config.optimiser.steps} steps"


def _check_entry(entry: Entry, lengths: Sequence[int], measure: Measurement, faults: Faults) -> None:
    """Notes the lengths that a model cannot be evaluated at, outputs that it lacks, and an engine that refuses it."""
    where = f'model "{entry.name}"'
    if entry.task == "recognition":
        without = [n for n in lengths if entry.language.length_probabilities(n)[n] == 0]
        if without:
            remedy = f"lengths for which {entry.language.name} has words, which {where} is to recognise"
            faults.add("lengths", without, remedy)
    if isinstance(entry, TrainedEntry) and isinstance(entry.config.model, TransformerConfig):
        own = Faults("lengths")
        check_runs(entry.config.model, lengths[-1] + 1, own)
        faults.messages += [f"lengths: {where}, with the boundary symbol: {fault}" for fault in own.messages]
    size = 2 if entry.task == "recognition" else entry.language.outcomes
    if isinstance(measure.outputs, tuple) and measure.outputs[-1] >= size:
        faults.add("measure.outputs", measure.outputs, f"{where} has the outputs 0 to {size - 1}")
    if measure.engine != "auto":
        trained = isinstance(entry, TrainedEntry)
        model = build(entry.config.model) if trained else exact_parity_rnn(entry.language.end_probability)
        try:
            choose(measurable(model), measure.engine, measure.norm, None, n=lengths[0])
        except InputError as error:
            faults.messages.append(f"measure.engine: {where}: {error}")
