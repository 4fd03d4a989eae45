"""Sharpness, layer-norm blow-up and sensitivity of trained models against the length (Hahn and Rofin 2024).

title = "..."
claim = "..."
functions = ["parity", "majority", "first", "mean"]
lengths = [4, 8, 12]                each length has models of its own
seeds = 4                           of the first weights and of the words, or a list
batch = 64                          words a step
words = 512                         on which all is measured
noise = 0.02                        standard deviation of the noise on the parameters
draws = 10                          of the noise
without = ["learned"]               parameters without noise
fitted_below = 1e-3                 a model with a larger mean squared error counts as not fitted

[model]                             the fields of a transformer; one output follows
[optimiser]                         as in a training config
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import AfterValidator

from jaxsens.asked.flips import Substitute
from jaxsens.base import inputs
from jaxsens.base.errors import Problems, collecting
from jaxsens.base.sealed import digest
from jaxsens.base.strict import Positive, checked_by, field_names
from jaxsens.base.told import markdown_table
from jaxsens.experiments.jobs.job import Named, RowsJob
from jaxsens.experiments.report.panels import grid, line_style
from jaxsens.experiments.sweep.config import Lengths, Seeds
from jaxsens.experiments.trained.table_experiment import TableExperiment
from jaxsens.models.config_tables import plain, read_config
from jaxsens.models.parts.initialisation import generator
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.module import Transformer, check_runs
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.training.blowup import layer_norm_blowup
from jaxsens.training.config import OptimiserConfig
from jaxsens.training.functions import FUNCTIONS, Trained, mean_squared_error, train_functions
from jaxsens.training.sharpness import sharpness

FLIPPED = 64
"""Words of which every flip is measured, for the sensitivity."""


def _functions(names: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [name for name in names if name not in FUNCTIONS]
    if wrong or not names or len(set(names)) < len(names):
        raise ValueError(f"give some of {', '.join(FUNCTIONS)}, each once")
    return names


@dataclass(frozen=True)
class SharpModel:
    """What was measured of one trained model.

    Attributes:
        function, seed: what it was trained for.
        loss: the mean squared error on words that it was not trained on.
        sharpness, sharpness_error: the mean rise of that loss under noise, and its standard error over the draws.
        blowup: the product over the layer normalisations of their largest factors, averaged over the words; None
            without layer normalisation.
        sensitivity: the squared changes of the output, summed over the flips of a word and averaged over words; of the
            function itself it is the average sensitivity, n for parity.
        norm: the Euclidean length of the parameters that noise was added to.
    """

    function: str
    seed: int
    loss: float
    sharpness: float
    sharpness_error: float
    blowup: float | None
    sensitivity: float
    norm: float


@dataclass(frozen=True)
class SharpnessRow:
    """All models of one length."""

    n: int
    models: tuple[SharpModel, ...]

    def summary(self) -> str:
        """The mean sharpness of each function."""
        names = dict.fromkeys(model.function for model in self.models)
        means = {
            name: np.mean([one.sharpness for one in self.models if one.function == name]) for name in names
        }
        return "sharpness " + ", ".join(f"{name} {value:.2g}" for name, value in means.items())


def _model(name: str, table: Any, problems: Problems) -> TransformerConfig | None:
    if not isinstance(table, dict):
        problems.add(name, table, "a table")
        return None
    for key in table.keys() & {"alphabet_size", "logits"}:
        problems.messages.append(f"{name}.{key}: follows from the functions; leave it out")
    found = read_config({**table, "alphabet_size": 2, "logits": 1}, name, problems)
    if found is not None and not isinstance(found, TransformerConfig):
        problems.add(f"{name}.kind", table.get("kind"), '"transformer"')
        return None
    return found


@dataclass(frozen=True, kw_only=True)
class SharpnessExperiment(TableExperiment[int, SharpnessRow]):
    """The config of `jaxsens sharpness`.

    Attributes:
        lengths: n, rising. Each length has models of its own.
        model: the fields of a transformer; its alphabet and its one output follow.
        optimiser: as in a training config.
        functions: that models are trained on, of `jaxsens.training.functions.FUNCTIONS`.
        seeds: of the first weights and of the words.
        batch: words a step.
        words: on which all is measured.
        noise: the standard deviation of the noise on the parameters.
        draws: of the noise.
        without: names of parameters without noise.
        fitted_below: a model with a larger mean squared error counts as not fitted, and enters no mean.
    """

    stem = "sharpness"
    parts = "lengths"
    columns = ("function", "n", *(name for name in field_names(SharpModel) if name != "function"))
    lengths: Lengths
    model: Annotated[TransformerConfig, checked_by(_model)]
    optimiser: OptimiserConfig
    functions: Annotated[tuple[str, ...], AfterValidator(_functions)] = tuple(FUNCTIONS)
    seeds: Seeds = (0,)
    batch: Positive = 64
    words: Annotated[int, checked_by(inputs.count, least=2)] = 512
    noise: Annotated[float, checked_by(inputs.number, above=0, below=float("inf"))] = 0.02
    draws: Annotated[int, checked_by(inputs.count, least=2)] = 10
    without: tuple[str, ...] = ()
    fitted_below: Annotated[float, checked_by(inputs.number, above=0, below=float("inf"))] = 1e-3

    def __post_init__(self) -> None:
        with collecting("config") as problems:
            check_runs(self.model, self.lengths[-1], problems)

    def job(self, folder: Path) -> RowsJob[int, SharpnessRow]:
        """Trains the models of each length and measures them. What is measured is kept in `folder`."""
        unused = ("lengths", "title", "claim", "fitted_below", "model")
        settings = {name: value for name, value in asdict(self).items() if name not in unused}
        described = {"config": digest({**settings, "model": plain(self.model)})}
        items = [Named(f"n = {n}", n, ("models", n)) for n in self.lengths]
        return RowsJob(items, partial(_measured, self), SharpnessRow, described, folder, "rows")

    def listed(self, rows: Sequence[SharpnessRow]) -> Iterator[dict[str, Any]]:
        """A line for each model."""
        return ({**asdict(model), "n": row.n} for row in rows for model in row.models)

    def fitted(self, rows: Sequence[SharpnessRow], function: str) -> dict[int, list[SharpModel]]:
        """By length, the models of a function whose error is below `fitted_below`."""
        return {
            row.n: [m for m in row.models if m.function == function and m.loss < self.fitted_below]
            for row in rows
        }

    def markdown(self, rows: Sequence[SharpnessRow]) -> str:
        """Means over the fitted models by function and length, and slopes of the sharpness against n."""
        lines, slopes = [], []
        for function in self.functions:
            found = self.fitted(rows, function)
            for row in rows:
                models, all_of = found[row.n], sum(m.function == function for m in row.models)
                cells = (_mean([getattr(m, name) for m in models]) for name in _MEANS.values())
                lines.append([function, row.n, f"{len(models)} of {all_of}", *cells])
            fit = slope([(float(n), m.sharpness) for n, models in found.items() for m in models])
            text = "too few fitted models" if fit is None else f"{fit[0]:.2g} [{fit[1]:.2g}, {fit[2]:.2g}]"
            slopes.append(f"{function}: slope of the sharpness against n {text}")
        return "\n".join([markdown_table(("function", "n", "fitted", *_MEANS), lines), "", *slopes])

    def figure(self, rows: Sequence[SharpnessRow]) -> Figure:
        """A dot for each fitted model and a line through the means, for each function."""
        shown = [name for name in _PANELS if name != "blowup" or self.model.layer_norm != "none"]
        heading = self.title or "Sharpness of trained models"
        with grid(heading, len(shown), len(shown), (4.4, 4.2)) as (figure, places):
            for axes, name in zip(places, shown, strict=True):
                self._draw(axes, name, rows)
            places[0].legend(fontsize=9)
        return figure

    def _draw(self, axes: Axes, name: str, rows: Sequence[SharpnessRow]) -> None:
        for k, function in enumerate(self.functions):
            style = line_style(k)
            found = {n: models for n, models in self.fitted(rows, function).items() if models}
            means = [np.mean([getattr(model, name) for model in models]) for models in found.values()]
            points = [(n, getattr(model, name)) for n, models in found.items() for model in models]
            if not points:
                continue
            axes.plot([*found], means, color=style.colour, marker=style.marker, markersize=5, label=function)
            axes.plot(*zip(*points, strict=True), color=style.colour, marker=".", linestyle="", alpha=0.4)
        axes.set_yscale("log")
        axes.set_xlabel("length n")
        axes.set_title(_PANELS[name], fontsize=10)
        axes.set_xticks(self.lengths)


_PANELS = {
    "sharpness": "sharpness: rise of the loss under noise",
    "blowup": "layer-norm blow-up",
    "sensitivity": "sensitivity of the output",
}
"""The panels of the figure, by what is measured of a model."""

_MEANS = {
    "sharpness": "sharpness",
    "blow-up": "blowup",
    "sensitivity": "sensitivity",
    "parameter norm": "norm",
}
"""The columns of the Markdown table that are means over models, with what they are of."""


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3g}" if known else ""


def _measured(experiment: SharpnessExperiment, n: int) -> SharpnessRow:
    given = (experiment.functions, n, experiment.seeds, experiment.optimiser, experiment.batch)
    found = train_functions(experiment.model, *given)
    return SharpnessRow(n, tuple(measure_model(experiment, n, trained) for trained in found))


def measure_model(experiment: SharpnessExperiment, n: int, trained: Trained) -> SharpModel:
    """Measures one trained model on words that depend on the length and the seed only."""
    config = experiment.model
    words = generator(trained.seed, f"sharpness.n={n}").integers(0, 2, (experiment.words, n), dtype=np.int32)
    targets = np.asarray(FUNCTIONS[trained.function](words), config.dtype)
    model = Transformer(config, parameters=trained.parameters)
    found = sharpness(
        _loss(config),
        trained.parameters,
        experiment.noise,
        experiment.draws,
        trained.seed,
        data=(words, targets),
        without=experiment.without,
    )
    changes = flip_sensitivity(model, words[:FLIPPED], Substitute(positions=range(n)), progress=False).norms
    blowup = None if config.layer_norm == "none" else float(layer_norm_blowup(model, words).product.mean())
    return SharpModel(
        function=trained.function,
        seed=trained.seed,
        loss=found.loss,
        sharpness=found.mean,
        sharpness_error=found.standard_error,
        blowup=blowup,
        sensitivity=float(np.sum(np.square(changes)) / min(len(words), FLIPPED)),
        norm=found.norm,
    )


@cache
def _loss(config: TransformerConfig) -> Callable[..., Any]:
    """The loss of parameters, words and targets: the same function each time, so that it is compiled once."""
    return partial(mean_squared_error, config)


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """The least-squares slope of y against x with its 95% interval; None for fewer than three points or equal x."""
    from scipy.stats import linregress, t

    if len(points) < 3 or len({x for x, _ in points}) < 2:
        return None
    found: Any = linregress(*np.array(points).T)
    half = float(t.ppf(0.975, len(points) - 2)) * found.stderr
    return float(found.slope), float(found.slope - half), float(found.slope + half)
