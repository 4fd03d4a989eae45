"""The phase diagram of softmax: how sensitivity scales with n, against how the inverse temperature does.

    jaxsens sweep configs/atlas/phase2026.toml --out results/phase2026
    python examples/phase.py results/phase2026

Variants of a finished sweep with softmax of (log n)^a or n^a times the scores are shown: the slope of log statistic on
log n, against a. The critical line comes from the scores alone. The critical inverse temperature of a length and seed
is the median over inputs, heads and rows that see at least three keys, in the first layer of the first variant, where
scores do not depend on the temperature. Its powers of log n and of n are fitted over all lengths, by seed, with an
interval of 95 % over seeds (Hayase and Karakida 2026, arXiv 2605.12697). Prints both, and writes phase.csv, with the
slopes, and phase.png into the folder. docs/atlas/phase2026.md has the results.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import jaxsens
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.report.fits import fit_exponents, least_squares, t_interval
from jaxsens.core.report.panels import GREY, grid, line_style
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import Sweep

FAMILIES = {"log n": np.log, "n": np.asarray}
"""What inverse temperatures are powers of."""

Powers = dict[str, tuple[float, float, float]]


def schedules_of(sweep: Sweep) -> dict[str, Schedule]:
    """Returns the inverse temperatures of the variants that are shown: powers of n or of log n, up to a factor."""
    found = {}
    for variant in sweep.variants:
        weighting = variant.source.weighting
        if isinstance(weighting, jaxsens.Softmax) and weighting.by == "length":
            one = weighting.inverse_temperature
            if not (one.power and one.log_power) and not one.offset and not one.least:
                found[variant.name] = one
    return found


def critical_of(sweep: Sweep, variant: str, schedule: Schedule) -> dict[tuple[int, int], float]:
    """Returns the critical inverse temperature of each length and seed."""
    found = {}
    for point in sweep.points:
        if point.variant == variant:
            model, words = point.model(), point.tokens()
            each = [jaxsens.analysis.critical_temperatures(model, word).beta[0] for word in words]
            beta = np.stack(each)
            median = np.quantile(beta[beta > 0], 0.5, method="inverted_cdf")
            found[point.n, point.seed] = float(median) * float(schedule(point.n))
    return found


def predicted_of(critical: dict[tuple[int, int], float]) -> Powers:
    """Returns of each family the power a* of critical ~ family^a*, the mean over seeds, and its interval's ends."""
    found = {}
    for family, of in FAMILIES.items():
        slopes = []
        for seed in dict.fromkeys(seed for _, seed in critical):
            n = np.array([length for length, one in critical if one == seed], np.float64)
            beta = np.array([critical[int(length), seed] for length in n])
            slopes.append(least_squares(np.log(of(n)), np.log(beta)) if np.isfinite(beta).all() else math.inf)
        known = np.isfinite(slopes).all()
        found[family] = (float(np.mean(slopes)), *(t_interval(slopes) if known else (math.nan, math.nan)))
    return found


def slopes_of(points: pd.DataFrame, schedules: dict[str, Schedule], statistic: str) -> pd.DataFrame:
    """Returns a row for each family, power a and two successive lengths; and one with the fit over all of them."""
    rows = []
    for fit in fit_exponents(points.loc[points["variant"].isin([*schedules]), :]):
        if fit.statistic != statistic:
            continue
        schedule = schedules[fit.variant]
        whole = (math.nan, math.nan, fit.exponent, fit.ci_low, fit.ci_high)
        local = [(one.low, one.high, one.slope, one.ci_low, one.ci_high) for one in fit.local]
        # The constant is a power of both, with a = 0.
        for family, power, other in (
            ("log n", schedule.log_power, schedule.power),
            ("n", schedule.power, schedule.log_power),
        ):
            rows += [] if other else [(family, power, *values) for values in (whole, *local)]
    return pd.DataFrame(rows, columns=["family", "a", "low", "high", "slope", "ci_low", "ci_high"])


def diagram(folder: Path, statistic: str = "max") -> tuple[pd.DataFrame, pd.DataFrame, Powers]:
    """Returns the slopes; a row for each variant, length and seed, with the `critical` inverse temperature and its own
    `relative` to that; and what is predicted of each family."""
    data = jaxsens.load_sweep(folder)
    sweep = parse_sweep_config(data.plan.config, folder=folder)
    schedules = schedules_of(sweep)
    if not schedules or statistic not in data.plan.statistics:
        raise SystemExit(
            f"{folder}: a sweep of softmax variants by length is needed, with {statistic} measured"
        )
    first = next(iter(schedules))
    critical = critical_of(sweep, first, schedules[first])
    table = data.points.loc[data.points["variant"].isin([*schedules])]
    points = table.loc[:, ["variant", "n", "seed"]].assign(value=table[statistic].astype(float))
    keys = list(zip(table["variant"], table["n"], table["seed"], strict=True))
    points["critical"] = [critical[int(n), int(seed)] for _, n, seed in keys]
    inverse = np.array([float(schedules[name](int(n))) for name, n, _ in keys])
    points["relative"] = inverse / points["critical"]
    return slopes_of(data.points, schedules, statistic), points, predicted_of(critical)


def figure(slopes: pd.DataFrame, points: pd.DataFrame, predicted: Powers, statistic: str) -> Figure:
    """Draws the slopes against a with the predicted line, for each family; and the statistic against the inverse
    temperature as a multiple of the critical one."""
    with grid("", 3, 3, (4.4, 3.6)) as (drawn, (of_log, of_power, relative)):
        for axes, family in zip((of_log, of_power), FAMILIES, strict=True):
            of_family = slopes.query("family == @family").sort_values(by="a")
            fit, local = of_family[of_family["low"].isna()], of_family.dropna(subset=["low", "high"])
            pieces: Any = local.groupby(["low", "high"])
            for k, ((low, high), rows) in enumerate(pieces):
                style = line_style(k)
                label = f"n = {low:g} to {high:g}"
                drawing = {"ls": style.linestyle, "color": style.colour, "label": label}
                axes.plot(rows["a"], rows["slope"], style.marker, **drawing)
            errors = [fit["slope"] - fit["ci_low"], fit["ci_high"] - fit["slope"]]
            axes.errorbar(
                fit["a"], fit["slope"], errors, color="black", lw=2.5, capsize=3, label="fit, all n"
            )
            exponent, least, most = predicted[family]
            axes.axvline(exponent, color=GREY, ls="--", label=f"predicted a* = {exponent:.2f}")
            axes.axvspan(least, most, color=GREY, alpha=0.2, lw=0)
            for level in (-1, 0):
                axes.axhline(level, color=GREY, lw=0.7)
            power = "(log n)^a" if family == "log n" else "n^a"
            axes.set(xlabel=f"a: inverse temperature {power}", ylabel=f"slope of {statistic} in n")
            axes.legend(fontsize=7, loc="lower right")
        of_power.sharey(of_log)
        for k, (name, rows) in enumerate(points.groupby("variant", sort=False)):
            of_n, style = rows.groupby("n")[["relative", "value"]].median(), line_style(k)
            relative.loglog(
                of_n["relative"], of_n["value"], style.marker, ls="-", color=style.colour, label=name
            )
        relative.axvline(1, color=GREY, ls="--")
        relative.set(xlabel="inverse temperature / critical one", ylabel=f"{statistic}, median over seeds")
        relative.legend(fontsize=7)
    return drawn


def main() -> None:
    """Computes, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="as jaxsens sweep --out wrote it")
    parser.add_argument("--statistic", default="max", help="of the sweep")
    options = parser.parse_args()
    slopes, points, predicted = diagram(options.folder, options.statistic)
    slopes.to_csv(options.folder / "phase.csv", index=False)
    figure(slopes, points, predicted, options.statistic).savefig(options.folder / "phase.png", dpi=150)
    print(slopes[slopes["low"].isna()].drop(columns=["low", "high"]).to_string(index=False))
    for family, (a, low, high) in predicted.items():
        print(f"critical inverse temperature ~ ({family})^{a:.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
