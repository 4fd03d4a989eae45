"""Length generalisation: models trained on short words of several languages, and their accuracy by bin of lengths.

title = "..."
claim = "..."
seeds = 3                           of the trainings: 0, 1, 2, or a list
bins = [[1, 50], [51, 100]]         least and largest length of each bin
lengths_per_bin = 2                 evaluated, evenly spaced, the largest among them
words = 200                         at each of these lengths

[[language]]                        label, task ("prediction" or "recognition"), and a language's name and options
[[model]]                           label, and the fields of a training config's [model]
[data], [optimiser]                 as in a training config; the same for all

A word counts as right if a recogniser labels it right, or if a predictor tells at every position which symbols may come
next (`jaxsens.training.evaluation.next_symbols`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field

from jaxsens.errors import InputError, Problems
from jaxsens.experiments.job import RowsJob, write_table
from jaxsens.experiments.sweep_config import NAME, NAME_RULE, Seeds
from jaxsens.inputs import count, is_count
from jaxsens.sealed import digest
from jaxsens.strict import STRICT, Positive, checked_by, messages, parse_toml, read_fields, read_toml
from jaxsens.training.config import TrainConfig
from jaxsens.training.evaluation import accuracy, next_symbols
from jaxsens.training.loop import train

Bin = tuple[int, int]

EVALUATED = 2**31
"""The seed of the words that are evaluated, the same for every model."""


def _bins(name: str, value: Any, problems: Problems) -> tuple[Bin, ...]:
    pairs = value if isinstance(value, tuple | list) else ()
    sound = (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(is_count, pair)) for pair in pairs)
    if not pairs or not all(sound):
        problems.add(name, value, "pairs of the least and the largest length, such as [[1, 50], [51, 100]]")
        return ()
    found = tuple((int(least), int(largest)) for least, largest in pairs)
    past = 0
    for least, largest in found:
        if not past < least <= largest:
            problems.add(name, [least, largest], "rising lengths of at least 1, each in one bin")
        past = largest
    return found


@dataclass(frozen=True)
class GeneralisationTables:
    """The keys and tables of a config of `jaxsens generalisation`.

    Attributes:
        bins: the least and the largest length of each bin, rising.
        language: a table each: its label, its task ("prediction", the default, or "recognition"), and the name and
            options of `jaxsens.language`.
        model: a table each: its label, and the keys of a training config's [model].
        optimiser: as in a training config, the same for all.
        data: as in a training config, the same for all.
        seeds: of the trainings.
        lengths_per_bin: how many lengths of a bin are evaluated, evenly spaced, the largest among them.
        words: evaluated at each of these lengths.
        title, claim: of the figure and of accuracy.md, for the reader; may be empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    bins: Annotated[tuple[Bin, ...], checked_by(_bins)]
    language: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    model: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    optimiser: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)
    seeds: Seeds = (0,)
    lengths_per_bin: Positive = 2
    words: Annotated[int, checked_by(count, least=2)] = 200
    title: str = ""
    claim: str = ""


class PlannedTraining(NamedTuple):
    """A training: a language's label, a model's label and a seed."""

    language: str
    model: str
    seed: int

    @property
    def group(self) -> tuple[str, int]:
        """Trainings of one model take about equally long."""
        return self.model, 1

    def __str__(self) -> str:
        return f"{self.language}, {self.model}, seed {self.seed}"


@dataclass(frozen=True)
class GeneralisationRow:
    """One trained model.

    Attributes:
        language, model, seed: which.
        lengths: for each bin, the lengths evaluated.
        accuracies: for each bin, the share of words that are right, over all its lengths.
        errors: for each bin, the standard error from the sample of words.
        fingerprint: of the trained weights.
    """

    language: str
    model: str
    seed: int
    lengths: tuple[tuple[int, ...], ...]
    accuracies: tuple[float, ...]
    errors: tuple[float, ...]
    fingerprint: str

    def summary(self) -> str:
        """The accuracies."""
        return "accuracy by bin " + ", ".join(f"{value:.3f}" for value in self.accuracies)


@dataclass(frozen=True)
class Generalisation:
    """The experiment, checked and complete.

    Attributes:
        bins: least and largest length of each bin.
        lengths: for each bin, the lengths evaluated.
        words: evaluated at each length.
        trainings: the config of each training, by what it is called.
        title, claim: of the figure and of accuracy.md.
    """

    bins: tuple[Bin, ...]
    lengths: tuple[tuple[int, ...], ...]
    words: int
    trainings: dict[PlannedTraining, TrainConfig]
    title: str = ""
    claim: str = ""


def load_generalisation(path: str | os.PathLike[str]) -> Generalisation:
    """Reads and checks a config.

    Raises:
        InputError: If the file cannot be read, is not TOML, or has errors: all of them, with their paths.
    """
    text, _ = read_toml(path)
    return parse_generalisation(text, str(path))


def parse_generalisation(text: str, subject: str = "config") -> Generalisation:
    """As `load_generalisation`, from the text itself."""
    raw, problems = parse_toml(text, subject), Problems(subject)
    sound = read_fields(GeneralisationTables, raw, "", problems)
    problems.raise_if_any()
    given = GeneralisationTables(**sound)
    lengths = tuple(_lengths(pair, given.lengths_per_bin) for pair in given.bins)
    languages, models = (_labelled(name, getattr(given, name), problems) for name in ("language", "model"))
    problems.raise_if_any()
    trainings: dict[PlannedTraining, TrainConfig] = {}
    for language, model in ((a, b) for a in languages for b in models):
        own = Problems(f"{language}, {model}")
        config = _training(given, languages[language], models[model], lengths, own)
        problems.messages += [f"{own.subject}: {message}" for message in own.messages]
        if config is not None:
            for seed in given.seeds:
                trainings[PlannedTraining(language, model, seed)] = dataclasses.replace(config, seed=seed)
    problems.messages[:] = dict.fromkeys(problems.messages)
    problems.raise_if_any()
    return Generalisation(given.bins, lengths, given.words, trainings, given.title, given.claim)


def _lengths(pair: Bin, number: int) -> tuple[int, ...]:
    least, largest = pair
    spaced = (
        np.linspace(least, largest, number + 1)[1:]
        if number < largest - least + 1
        else range(least, largest + 1)
    )
    return tuple(sorted({round(float(n)) for n in spaced}))


def _labelled(name: str, tables: Sequence[dict[str, Any]], problems: Problems) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for k, table in enumerate(tables):
        label = table.get("label")
        if not isinstance(label, str) or not NAME.fullmatch(label):
            problems.add(f"{name}[{k}].label", label, NAME_RULE)
        elif label in found:
            problems.add(f"{name}[{k}].label", label, "each label once")
        else:
            found[label] = {key: value for key, value in table.items() if key != "label"}
    return found


def _training(
    given: GeneralisationTables,
    language: dict[str, Any],
    model: dict[str, Any],
    lengths: Sequence[Sequence[int]],
    problems: Problems,
) -> TrainConfig | None:
    """The config of one language and model with seed 0, evaluated and saved at the end only."""
    every = [n for some in lengths for n in some]
    task = language.get("task", "prediction")
    table = {
        "task": task,
        "language": {key: value for key, value in language.items() if key != "task"},
        "model": model,
        "data": given.data,
        "optimiser": given.optimiser,
        "evaluation": {"every": 0, "lengths": every},
        "checkpoint": {"every": given.optimiser.get("steps", 1), "keep": 1},
    }
    try:
        config = TrainConfig.from_table(table)
    except InputError as error:
        problems.messages += messages(error)
        return None
    if task == "recognition":
        without = [n for n in every if not config.language.has_members(n)]
        if without:
            problems.add(
                "bins", without, "lengths for which the language has words, which are to be recognised"
            )
    return config


def generalisation_job(
    experiment: Generalisation, folder: Path
) -> RowsJob[PlannedTraining, GeneralisationRow]:
    """Trains what is not trained to the end, and evaluates what is not evaluated yet. All is kept in `folder`."""
    described = {str(each): config.table() for each, config in experiment.trainings.items()}
    settings = {"lengths": experiment.lengths, "words": experiment.words, "trainings": digest(described)}
    measure = partial(_trained, experiment, folder)
    return RowsJob(tuple(experiment.trainings), measure, GeneralisationRow, settings, folder / "rows")


def _trained(experiment: Generalisation, folder: Path, planned: PlannedTraining) -> GeneralisationRow:
    config = experiment.trainings[planned]
    place = folder / "models" / planned.language / planned.model / f"seed={planned.seed}"
    model = train(config, place)
    accuracies, errors = [], []
    for lengths in experiment.lengths:
        found = [_right(config, model, n, experiment.words) for n in lengths]
        shares, each = np.array(found).T
        accuracies.append(float(shares.mean()))
        errors.append(float(np.sqrt(np.sum(each**2)) / len(each)))
    return GeneralisationRow(
        *planned, experiment.lengths, tuple(accuracies), tuple(errors), model.fingerprint
    )


def _right(config: TrainConfig, model: Any, n: int, words: int) -> tuple[float, float]:
    """The share of words of n symbols that are right, and its standard error. No training has their seed."""
    evaluate = next_symbols if config.task == "prediction" else accuracy
    found = evaluate(model, config.language, n, words, EVALUATED)
    return found.accuracy, found.accuracy_standard_error


def write_accuracies(path: Path, experiment: Generalisation, rows: Sequence[GeneralisationRow]) -> None:
    """Writes accuracy.csv: a row for each trained model and bin."""
    columns = ("language", "model", "seed", "least", "largest", "words", "accuracy", "standard_error")
    listed = [
        (row.language, row.model, row.seed, *pair, experiment.words * len(lengths), share, error)
        for row in rows
        for pair, lengths, share, error in zip(
            experiment.bins, row.lengths, row.accuracies, row.errors, strict=True
        )
    ]
    write_table(path, columns, [dict(zip(columns, each, strict=True)) for each in listed])


def markdown_table(experiment: Generalisation, rows: Sequence[GeneralisationRow]) -> str:
    """The accuracies as a Markdown table: a line for each language and model, a column for each bin, mean over seeds.

    With several seeds, the least and the largest follow in brackets.
    """
    heads = [f"{least} to {largest}" for least, largest in experiment.bins]
    lines = [f"| language | model | {' | '.join(heads)} |", "|---" * (2 + len(heads)) + "|"]
    for language, model in dict.fromkeys((row.language, row.model) for row in rows):
        found = np.array([row.accuracies for row in rows if (row.language, row.model) == (language, model)])
        cells = [
            f"{column.mean():.3f}" + (f" [{column.min():.2f}, {column.max():.2f}]" if len(column) > 1 else "")
            for column in found.T
        ]
        lines.append(f"| {language} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)
