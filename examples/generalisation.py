"""Length generalisation: models trained on short words of several languages, and their accuracy by bin of lengths.

    python examples/generalisation.py configs/atlas/huang2024.toml --out results/huang2024

A word is right if a recogniser labels it right, or if a predictor tells at every position which symbols may come next.
The folder receives the table (accuracy.md, accuracy.csv), a heat map and the trained models; run it again to resume.
The config has

- `bins`: the least and the largest length of each; `lengths_per_bin`: how many of its lengths are evaluated, evenly
  spaced, the largest among them; `words`: evaluated at each of them; `seeds`: the number of trainings;
- `[[language]]`: its `label`, its `task` ("prediction" unless given), and the options of `jaxsens.language`;
- `[[model]]`: its `label`, and the keys of a training config's `[model]`; `[optimiser]`, `[data]`: as there.
"""

from __future__ import annotations

import argparse
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import jaxsens
from jaxsens.core.base.text import markdown_table
from jaxsens.core.sweeps.config import NAME, NAME_RULE
from jaxsens.training.evaluation import accuracy, logits
from jaxsens.training.steps import sequence_logits, with_boundary

EVALUATED = 2**31
"""The seed of the words that are evaluated, the same for every model. No training has it."""


def next_symbols(trained: jaxsens.training.TrainedModel, n: int, words: int, seed: int = EVALUATED) -> float:
    """Returns the share of prefixes of n symbols after each of whose n + 1 beginnings the set of possible outcomes is
    right (Huang et al. 2024): an outcome is predicted if it gets more than half of the least positive probability that
    the language gives there."""
    language, config = trained.language, trained.config.model
    prefixes = language.sample_prefixes(words, n, np.random.default_rng((seed, 2, n)))
    laws = language.next_probabilities(prefixes)
    read = with_boundary(prefixes, language, "prediction")
    outputs = logits(config, trained.model.parameters, read, sequence_logits)
    predicted = np.exp(outputs - np.logaddexp.reduce(outputs, axis=-1, keepdims=True))
    least = np.min(np.where(laws > 0, laws, np.inf), axis=-1, keepdims=True)
    return float(np.mean(np.all((predicted > least / 2) == (laws > 0), axis=(1, 2))))


def lengths_of(least: int, largest: int, number: int) -> list[int]:
    """Returns the lengths of a bin that are evaluated."""
    if number > largest - least:
        return [*range(least, largest + 1)]
    return sorted({round(float(n)) for n in np.linspace(least, largest, number + 1)[1:]})


def measured(given: dict[str, Any], folder: Path) -> pd.DataFrame:
    """Trains what is not trained to the end; returns a row for each training and bin."""
    labels = [one["label"] for one in [*given["language"], *given["model"]]]
    if wrong := [label for label in labels if not NAME.fullmatch(label)]:  # they name folders
        raise SystemExit(f"labels {wrong}: {NAME_RULE}")
    rows = []
    for language, model, seed in product(given["language"], given["model"], range(given["seeds"])):
        place, task = (language["label"], model["label"], seed), language.get("task", "prediction")
        table = {
            "task": task,
            "seed": seed,
            "language": {key: value for key, value in language.items() if key not in ("label", "task")},
            "model": {key: value for key, value in model.items() if key != "label"},
            "data": given["data"],
            "optimiser": given["optimiser"],
            "evaluation": {"every": 0},
            "checkpoint": {"every": given["optimiser"]["steps"], "keep": 1},
        }
        config = jaxsens.training.TrainConfig.from_table(table, "{}, {}, seed {}".format(*place))
        trained = jaxsens.training.train(config, folder / "models" / place[0] / place[1] / f"seed={seed}")
        for least, largest in given["bins"]:
            lengths, words = lengths_of(least, largest, given["lengths_per_bin"]), given["words"]
            if task == "prediction":
                shares = [next_symbols(trained, n, words) for n in lengths]
            else:
                shares = [accuracy(trained, trained.language, n, words, EVALUATED).accuracy for n in lengths]
            rows.append((*place, least, largest, words * len(lengths), float(np.mean(shares))))
        print("{}, {}, seed {}: trained and evaluated".format(*place), flush=True)
    columns = ["language", "model", "seed", "least", "largest", "words", "accuracy"]
    return pd.DataFrame(rows, columns=columns)


def table(rows: pd.DataFrame) -> str:
    """Returns a line for each language and model: in each bin the mean over seeds, with the least and largest."""
    lines = []
    groups: Any = rows.groupby(["language", "model"], sort=False)
    for named, own in groups:
        each = own.groupby("least")["accuracy"].agg(["mean", "min", "max"]).to_numpy()
        several = own["seed"].nunique() > 1
        cells = (f"{mean:.3f}" + (f" [{low:.2f}, {high:.2f}]" if several else "") for mean, low, high in each)
        lines.append([*map(str, named), *cells])
    bins = rows[["least", "largest"]].drop_duplicates().itertuples(index=False)
    return markdown_table(["language", "model", *(f"{low} to {high}" for low, high in bins)], lines)


def figure(rows: pd.DataFrame, title: str) -> Figure:
    """Draws a panel for each bin: models by languages, with the mean accuracy over the seeds in each cell."""
    bins: list[Any] = [*rows.groupby(["least", "largest"])]
    languages, models = (list(rows[name].unique()) for name in ("language", "model"))
    size = (len(bins) * (0.75 * len(languages) + 0.5) + 1.6, 0.5 * len(models) + 1.9)
    drawn = Figure(figsize=size, layout="constrained")
    drawn.suptitle(title)
    places = drawn.subplots(1, len(bins), sharey=True, squeeze=False)[0]
    image: Any = None
    for axes, ((least, largest), own) in zip(places, bins, strict=True):
        means = own.pivot_table("accuracy", "model", "language").loc[models, languages].to_numpy()
        for (i, j), value in np.ndenumerate(means):
            colour = "white" if value < 0.6 else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour)
        image = axes.imshow(means, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_title(f"{least} to {largest} symbols", fontsize=10)
        axes.set_xticks(range(len(languages)), languages, rotation=35, ha="right")
        axes.set_yticks(range(len(models)), models)
    drawn.colorbar(image, ax=[*places], label="share of words all right", shrink=0.9)
    return drawn


def main() -> None:
    """Trains, evaluates, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "config", type=Path, help="configs/atlas/huang2024.toml, yang2025.toml, or one like them"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder that everything is written into")
    options = parser.parse_args()
    given = tomllib.loads(options.config.read_text("utf-8"))
    rows = measured(given, options.out)
    rows.to_csv(options.out / "accuracy.csv", index=False)
    text = "\n\n".join((f"# {given['title']}", given["claim"], table(rows)))
    (options.out / "accuracy.md").write_text(f"{text}\n", "utf-8")
    figure(rows, given["title"]).savefig(options.out / "accuracy.png", dpi=150)
    print(table(rows))


if __name__ == "__main__":
    main()
