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

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import AfterValidator, ConfigDict

from jaxsens import inputs
from jaxsens.asked.flips import Substitute
from jaxsens.errors import Problems
from jaxsens.experiments.job import RowsJob, write_table
from jaxsens.experiments.sweep_config import Lengths, Seeds
from jaxsens.models.config import TransformerConfig
from jaxsens.models.config_tables import plain, read_config
from jaxsens.models.initialisation import generator
from jaxsens.models.transformer import Transformer, check_runs
from jaxsens.sealed import digest
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.strict import (
    STRICT,
    Positive,
    checked_by,
    field_names,
    parse_toml,
    read_fields,
    read_table,
    read_toml,
)
from jaxsens.training.blowup import layer_norm_blowup
from jaxsens.training.functions import FUNCTIONS, Trained, mean_squared_error, train_functions
from jaxsens.training.sharpness import sharpness
from jaxsens.training.tables import OptimiserConfig

FLIPPED = 64
"""Words of which every flip is measured, for the sensitivity."""


def _functions(names: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [name for name in names if name not in FUNCTIONS]
    if wrong or not names or len(set(names)) < len(names):
        raise ValueError(f"give some of {', '.join(FUNCTIONS)}, each once")
    return names


@dataclass(frozen=True, kw_only=True)
class _SharpnessSettings:
    """What stands in the config as it is meant."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    lengths: Lengths
    functions: Annotated[tuple[str, ...], AfterValidator(_functions)] = tuple(FUNCTIONS)
    seeds: Seeds = (0,)
    batch: Positive = 64
    words: Annotated[int, checked_by(inputs.count, least=2)] = 512
    noise: Annotated[float, checked_by(inputs.number, above=0, below=float("inf"))] = 0.02
    draws: Annotated[int, checked_by(inputs.count, least=2)] = 10
    without: tuple[str, ...] = ()
    fitted_below: Annotated[float, checked_by(inputs.number, above=0, below=float("inf"))] = 1e-3
    title: str = ""
    claim: str = ""


@dataclass(frozen=True, kw_only=True)
class SharpnessTables(_SharpnessSettings):
    """The keys and tables of a config of `jaxsens sharpness`.

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
        title, claim: of the figure and of sharpness.md, for the reader; may be empty.
    """

    model: dict[str, Any]
    optimiser: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SharpnessExperiment(_SharpnessSettings):
    """The experiment, checked and complete: see `SharpnessTables`."""

    model: TransformerConfig
    optimiser: OptimiserConfig


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


class PlannedLength(NamedTuple):
    """All models of one length, which are trained together."""

    n: int

    @property
    def group(self) -> tuple[str, int]:
        """The time depends on the length."""
        return "models", self.n

    def __str__(self) -> str:
        return f"n = {self.n}"


def load_sharpness(path: str | os.PathLike[str]) -> SharpnessExperiment:
    """Reads and checks a config.

    Raises:
        InputError: If the file cannot be read, is not TOML, or has errors: all of them, with their paths.
    """
    text, _ = read_toml(path)
    return parse_sharpness(text, str(path))


def parse_sharpness(text: str, subject: str = "config") -> SharpnessExperiment:
    """As `load_sharpness`, from the text itself."""
    raw, problems = parse_toml(text, subject), Problems(subject)
    sound = read_fields(SharpnessTables, raw, "", problems)
    optimiser = read_table(OptimiserConfig, raw.get("optimiser", {}), "optimiser", problems)
    model = _model(raw.get("model", {}), sound.get("lengths", ()), problems)
    problems.raise_if_any()
    given = asdict(SharpnessTables(**sound))
    return SharpnessExperiment(**{**given, "model": model, "optimiser": optimiser})


def _model(table: Any, lengths: Sequence[int], problems: Problems) -> TransformerConfig | None:
    if not isinstance(table, dict):
        problems.add("model", table, "a table")
        return None
    for key in table.keys() & {"alphabet_size", "logits"}:
        problems.messages.append(f"model.{key}: follows from the functions; leave it out")
    found = read_config({**table, "alphabet_size": 2, "logits": 1}, "model", problems)
    if found is not None and not isinstance(found, TransformerConfig):
        problems.add("model.kind", table.get("kind"), '"transformer"')
        return None
    if found is not None and lengths:
        check_runs(found, lengths[-1], problems)
    return found


def sharpness_job(experiment: SharpnessExperiment, folder: Path) -> RowsJob[PlannedLength, SharpnessRow]:
    """Trains the models of each length and measures them. What is measured is kept in `folder`."""
    unused = ("lengths", "title", "claim", "fitted_below", "model")
    settings = {name: value for name, value in asdict(experiment).items() if name not in unused}
    described = digest({**settings, "model": plain(experiment.model)})
    items = [PlannedLength(n) for n in experiment.lengths]
    return RowsJob(
        items, partial(_measured, experiment), SharpnessRow, {"config": described}, folder / "rows"
    )


def _measured(experiment: SharpnessExperiment, planned: PlannedLength) -> SharpnessRow:
    found = train_functions(
        experiment.model,
        experiment.functions,
        planned.n,
        experiment.seeds,
        experiment.optimiser,
        experiment.batch,
    )
    return SharpnessRow(planned.n, tuple(measure_model(experiment, planned.n, trained) for trained in found))


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


def write_sharpness_table(path: Path, rows: Sequence[SharpnessRow]) -> None:
    """Writes sharpness.csv: a row for each model."""
    columns = (
        "function",
        "n",
        "seed",
        *(name for name in field_names(SharpModel) if name not in ("function", "seed")),
    )
    listed = [{**asdict(model), "n": row.n} for row in rows for model in row.models]
    write_table(path, columns, listed)


def fitted(
    experiment: SharpnessExperiment, rows: Sequence[SharpnessRow], function: str
) -> dict[int, list[SharpModel]]:
    """By length, the models of a function whose error is below `fitted_below`."""
    return {
        row.n: [m for m in row.models if m.function == function and m.loss < experiment.fitted_below]
        for row in rows
    }


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """The least-squares slope of y against x with its 95% interval; None for fewer than three points or equal x."""
    from scipy.stats import linregress, t

    if len(points) < 3 or len({x for x, _ in points}) < 2:
        return None
    found: Any = linregress(*np.array(points).T)
    half = float(t.ppf(0.975, len(points) - 2)) * found.stderr
    return float(found.slope), float(found.slope - half), float(found.slope + half)


def markdown_table(experiment: SharpnessExperiment, rows: Sequence[SharpnessRow]) -> str:
    """Sharpness, blow-up and sensitivity by function and length, means over the fitted models; and slopes against n."""
    lines = [
        "| function | n | fitted | sharpness | blow-up | sensitivity | parameter norm |",
        "|---|---|---|---|---|---|---|",
    ]
    slopes = []
    for function in experiment.functions:
        found = fitted(experiment, rows, function)
        for row in rows:
            models, all_of = found[row.n], sum(m.function == function for m in row.models)
            start = f"| {function} | {row.n} | {len(models)} of {all_of} |"
            if not models:
                lines.append(f"{start} | | | |")
                continue
            blowups = [m.blowup for m in models if m.blowup is not None]
            cells = [
                f"{np.mean([m.sharpness for m in models]):.3g}",
                f"{np.mean(blowups):.3g}" if blowups else "",
                f"{np.mean([m.sensitivity for m in models]):.3g}",
                f"{np.mean([m.norm for m in models]):.3g}",
            ]
            lines.append(f"{start} {' | '.join(cells)} |")
        points = [(float(n), m.sharpness) for n, models in found.items() for m in models]
        fit = slope(points)
        text = "too few fitted models" if fit is None else f"{fit[0]:.2g} [{fit[1]:.2g}, {fit[2]:.2g}]"
        slopes.append(f"{function}: slope of the sharpness against n {text}")
    return "\n".join([*lines, "", *slopes])
