"""`python scripts/home_picture.py results/quickstart docs/home.png`: the first picture of the site, for telephones."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from jaxsens.core.sweeps.sweep import read_plan

LINES = {
    "parity-temperature": ("PARITY", "#000000", "s"),
    "softmax": ("random weights", "#0072b2", "o"),
    "parity-neither": ("PARITY's weights", "#d55e00", "^"),
}
"""Variants of `configs/quickstart.toml`: what the label begins with, colour, marker."""


def main(results: str, picture: str) -> None:
    """Draws the mean over flips, as the median over seeds, with each line's name beside its end."""
    points = pd.read_csv(Path(results) / "points.csv")
    variants = {variant.name: variant for variant in read_plan(results).variants}
    lengths = sorted(points["n"].unique())
    figure, axes = plt.subplots(figsize=(4.2, 3.4), layout="constrained")
    for variant, (name, colour, marker) in LINES.items():
        temperature = variants[variant].temperature.replace("^3", "³")
        embeddings = "bounded" if variants[variant].bounded else "unbounded"
        label = f"{name},\ntemperature {temperature},\n{embeddings} embeddings"
        means = points[points["variant"] == variant].groupby("n")["mean"].median()
        axes.loglog(means.index, means, color=colour, marker=marker, linewidth=2.2, markersize=7)
        axes.annotate(
            label,
            (means.index[-1], means.iloc[-1]),
            (9, 0),
            textcoords="offset points",
            color=colour,
            va="center",
        )
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.set_yticks([1, 0.1, 0.01], ["1", "0.1", "0.01"])
    axes.set_ylim(0.0018, 2.6)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"input length n\n(medians over {points['seed'].nunique()} seeds)")
    axes.set_title("Mean change of the output\nwhen one symbol is exchanged", loc="left", fontsize=12)
    figure.savefig(picture, dpi=220, pad_inches=0.1, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
