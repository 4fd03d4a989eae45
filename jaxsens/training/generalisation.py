"""Length generalisation: models trained on short words of several languages, and their accuracy by bin of lengths.

A word counts as right if a recogniser labels it right, or if a predictor tells at every position which symbols may come
next (`jaxsens.training.evaluation.next_symbols`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import numpy as np
from matplotlib.figure import Figure
from pydantic import AfterValidator, ConfigDict, Field

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import write_text
from jaxsens.core.base.inputs import count
from jaxsens.core.base.sealed import digest
from jaxsens.core.base.strict import STRICT, Positive, checked_by, parse_toml, read_table, read_toml
from jaxsens.core.base.text import markdown_table
from jaxsens.core.report.panels import grid
from jaxsens.core.sweeps.config import NAME, NAME_RULE, Seeds
from jaxsens.core.sweeps.job import Named, RowsJob, write_table
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.training.config import DataConfig, OptimiserConfig, TrainConfig
from jaxsens.training.curves import write_figure
from jaxsens.training.evaluation import accuracy, next_symbols
from jaxsens.training.loop import train_shown

Bin = tuple[int, int]

COLUMNS = ("language", "model", "seed", "least", "largest", "words", "accuracy", "standard_error")
"""The columns of accuracy.csv."""

EVALUATED = 2**31
"""The seed of the words that are evaluated, the same for every model. No training has it."""


def _rising(bins: tuple[Bin, ...]) -> tuple[Bin, ...]:
    past = 0
    for least, largest in bins:
        if not past < least <= largest:
            raise ValueError(
                f"should be rising lengths of at least 1, each in one bin, not {least}, {largest}"
            )
        past = largest
    return bins


Place = tuple[str, str, int]
"""A training: a language's label, a model's label and a seed."""


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


@dataclass(frozen=True, kw_only=True)
class Generalisation:
    """The config of `jaxsens generalisation`.

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
        title, claim: of the figure and of the Markdown file, for the reader; may be empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    bins: Annotated[tuple[Bin, ...], Field(min_length=1), AfterValidator(_rising)]
    language: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    model: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    optimiser: OptimiserConfig
    data: DataConfig = field(default_factory=DataConfig)
    seeds: Seeds = (0,)
    lengths_per_bin: Positive = 2
    words: Annotated[int, checked_by(count, least=2)] = 200
    title: str = ""
    claim: str = ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Generalisation:
        """Reads and checks a config.

        Raises:
            InputError: If the file cannot be read, is not TOML, or has errors: all of them, with their paths.
        """
        return cls.parse(read_toml(path)[0], str(path))

    @classmethod
    def parse(cls, text: str, subject: str = "config") -> Generalisation:
        """As `load`, from the text itself."""
        problems = Problems(subject)
        made = read_table(cls, parse_toml(text, subject), "", problems)
        problems.raise_if_any()
        return cast("Generalisation", made)

    def __post_init__(self) -> None:
        _ = self.trainings

    @cached_property
    def lengths(self) -> tuple[tuple[int, ...], ...]:
        """For each bin, the lengths evaluated."""
        return tuple(_lengths(pair, self.lengths_per_bin) for pair in self.bins)

    @cached_property
    def trainings(self) -> dict[Place, TrainConfig]:
        """The config of each training, by what it is called."""
        found: dict[Place, TrainConfig] = {}
        with collecting("config") as problems:
            languages, models = (
                _labelled(name, getattr(self, name), problems) for name in ("language", "model")
            )
            problems.raise_if_any()
            for (language, task), (model, network) in product(languages.items(), models.items()):
                own = Problems()
                config = _training(self, task, network, own)
                problems.include(replace(one, remedy=f"{one.remedy} ({language}, {model})") for one in own)
                if config is not None:
                    made = {seed: replace(config, seed=seed) for seed in self.seeds}
                    found |= {(language, model, seed): each for seed, each in made.items()}
        return found

    def job(self, folder: Path) -> RowsJob[Place, GeneralisationRow]:
        """Trains what is not trained to the end, and evaluates what is not evaluated yet. All is kept in `folder`."""
        names = {place: "{}, {}, seed {}".format(*place) for place in self.trainings}
        described = {names[place]: config.table() for place, config in self.trainings.items()}
        settings = {"lengths": self.lengths, "words": self.words, "trainings": digest(described)}
        items = [Named(name, place, (place[1], 1)) for place, name in names.items()]
        return RowsJob(items, partial(_trained, self, folder), GeneralisationRow, settings, folder, "rows")

    def write(self, folder: Path, rows: Sequence[GeneralisationRow]) -> tuple[str, Path]:
        """Writes accuracy.csv, .md, .svg and .png, each atomically; returns the table as Markdown, and the figure."""
        table, lines = self.markdown(rows), []
        for row in rows:
            for pair, lengths, *found in zip(self.bins, row.lengths, row.accuracies, row.errors, strict=True):
                line = (row.language, row.model, row.seed, *pair, self.words * len(lengths), *found)
                lines.append(dict(zip(COLUMNS, line, strict=True)))
        write_table(folder / "accuracy.csv", COLUMNS, lines)
        above = (f"# {self.title}" if self.title else "", self.claim.strip())
        write_text(folder / "accuracy.md", "\n\n".join(filter(None, (*above, table))) + "\n")
        return table, write_figure(folder, "accuracy", self.figure(rows))

    def markdown(self, rows: Sequence[GeneralisationRow]) -> str:
        """The accuracies: a line for each language and model, a column for each bin, mean over seeds.

        With several seeds, the least and the largest follow in brackets.
        """
        lines = []
        for named in dict.fromkeys((row.language, row.model) for row in rows):
            found = np.array([row.accuracies for row in rows if (row.language, row.model) == named])
            cells = (
                f"{one.mean():.3f}" + (f" [{one.min():.2f}, {one.max():.2f}]" if len(one) > 1 else "")
                for one in found.T
            )
            lines.append([*named, *cells])
        return markdown_table(
            ["language", "model", *(f"{least} to {largest}" for least, largest in self.bins)], lines
        )

    def figure(self, rows: Sequence[GeneralisationRow]) -> Figure:
        """A panel for each bin: models by languages, with the mean accuracy over the seeds in each cell."""
        languages = list(dict.fromkeys(row.language for row in rows))
        models = list(dict.fromkeys(row.model for row in rows))
        bins = self.bins
        heading, size = self.title or "Accuracy by length", (0.75 * len(languages) + 0.5, 0.5 * len(models))
        with grid(heading, len(bins), len(bins), size, (1.6, 1.9), sharey=True) as (figure, places):
            image = None
            for k, (axes, (least, largest)) in enumerate(zip(places, bins, strict=True)):
                means = np.full((len(models), len(languages)), np.nan)
                for i, j in np.ndindex(*means.shape):
                    shown = (models[i], languages[j])
                    found = [row.accuracies[k] for row in rows if (row.model, row.language) == shown]
                    if found:
                        means[i, j] = np.mean(found)
                        colour = "white" if means[i, j] < 0.6 else "black"
                        axes.text(j, i, f"{means[i, j]:.2f}", ha="center", va="center", color=colour)
                image = axes.imshow(means, vmin=0, vmax=1, cmap="viridis", aspect="auto")
                axes.set_title(f"{least} to {largest} symbols", fontsize=10)
                axes.set_xticks(range(len(languages)), languages, rotation=35, ha="right")
                axes.set_yticks(range(len(models)), models)
                axes.tick_params(length=0)
                for spine in axes.spines.values():
                    spine.set_visible(False)
            if image is not None:
                figure.colorbar(image, ax=places, label="share of words all right", shrink=0.9)
        return figure


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
    given: Generalisation, language: dict[str, Any], model: dict[str, Any], problems: Problems
) -> TrainConfig | None:
    """The config of one language and model with seed 0, evaluated and saved at the end only."""
    every = [n for some in given.lengths for n in some]
    task = language.get("task", "prediction")
    table = {
        "task": task,
        "language": {key: value for key, value in language.items() if key != "task"},
        "model": model,
        "data": asdict(given.data),
        "optimiser": asdict(given.optimiser),
        "evaluation": {"every": 0, "lengths": every},
        "checkpoint": {"every": given.optimiser.steps, "keep": 1},
    }
    try:
        config = TrainConfig.from_table(table)
    except InputError as error:
        problems.include(error.problems)
        return None
    if task == "recognition":
        without = [n for n in every if not config.language.has_members(n)]
        if without:
            problems.add(
                "bins", without, "lengths for which the language has words, which are to be recognised"
            )
    return config


def _trained(experiment: Generalisation, folder: Path, place: Place, reporter: Reporter) -> GeneralisationRow:
    config, (language, name, seed) = experiment.trainings[place], place
    place_of_model = folder / "models" / language / name / f"seed={seed}"
    model = train_shown(config, place_of_model, "{}, {}, seed {}".format(*place), reporter)

    def right(n: int) -> tuple[float, float]:
        given = model, config.language, n, experiment.words, EVALUATED
        if config.task == "prediction":
            return next_symbols(*given)
        found = accuracy(*given)
        return found.accuracy, found.accuracy_standard_error

    accuracies, errors = [], []
    for lengths in experiment.lengths:
        shares, each = np.array([right(n) for n in lengths]).T
        accuracies.append(float(shares.mean()))
        errors.append(float(np.sqrt(np.sum(each**2)) / len(each)))
    return GeneralisationRow(*place, experiment.lengths, tuple(accuracies), tuple(errors), model.fingerprint)
