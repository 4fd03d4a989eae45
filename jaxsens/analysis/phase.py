"""The phase diagram of softmax: how the sensitivity scales with n against how the inverse temperature does.

The critical line is predicted from the models' scores alone, by `jaxsens.analysis.critical_temperatures`, whose
source is Hayase and Karakida (2026, arXiv 2605.12697).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxsens.analysis.temperatures import critical_temperatures
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.strict import naming_arguments, typed_arguments
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.report.fits import MINIMUM_LENGTHS, fit_exponents, least_squares, t_interval
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import Sweep

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

FAMILIES = {"log n": np.log, "n": np.asarray}
"""What inverse temperatures are powers of."""


@dataclass(frozen=True, eq=False)
class PhaseDiagram:
    """How a statistic of the sensitivity scales with n as the inverse temperature 1/tau(n) is a power of log n or of n.

    Attributes:
        statistic: "max" or another statistic of the sweep.
        slopes: a row for each family ("log n" or "n"), power a of it, and two successive lengths `low` and `high`: the
            `slope` of log statistic on log n, with its interval `ci_low` to `ci_high` over seeds. A row with NaN for
            both lengths has the fit over all of them, and in `left_out` the number of values that did not enter it.
        points: a row for each variant, length and seed: the statistic's `value`, the `critical` inverse temperature,
            and `relative`, 1/tau(n) divided by it.
        predicted: of each family, the power a* of critical ~ family^a*, the mean over seeds of the slope, and the ends
            of its interval.
    """

    statistic: str
    slopes: pandas.DataFrame
    points: pandas.DataFrame
    predicted: dict[str, tuple[float, float, float]]

    def plot(self) -> Figure:
        """Returns a figure: the slopes against a with the predicted line, for each family; and the statistic against
        1/tau(n) as a multiple of the critical one."""
        from jaxsens.core.report.panels import GREY, grid, line_style

        with grid("", 3, 3, (4.4, 3.6)) as (figure, (of_log, of_power, relative)):
            for axes, family in zip((of_log, of_power), FAMILIES, strict=True):
                of_family = self.slopes.query("family == @family").sort_values(by="a")
                pairs = of_family[["low", "high"]].dropna().to_numpy()
                for k, (low, high) in enumerate(np.unique(pairs, axis=0)):
                    rows, style = of_family.query("low == @low and high == @high"), line_style(k)
                    label, line = f"n = {low:g} to {high:g}", style.linestyle
                    axes.plot(
                        rows["a"], rows["slope"], style.marker, ls=line, color=style.colour, label=label
                    )
                fit = of_family.query("low != low")  # NaN
                errors = [fit["slope"] - fit["ci_low"], fit["ci_high"] - fit["slope"]]
                axes.errorbar(
                    fit["a"], fit["slope"], errors, color="black", lw=2.5, capsize=3, label="fit, all n"
                )
                exponent, least, most = self.predicted[family]
                axes.axvline(exponent, color=GREY, ls="--", label=f"predicted a* = {exponent:.2f}")
                axes.axvspan(least, most, color=GREY, alpha=0.2, lw=0)
                for level in (-1, 0):
                    axes.axhline(level, color=GREY, lw=0.7)
                power = "(log n)^a" if family == "log n" else "n^a"
                axes.set(xlabel=f"a: inverse temperature {power}", ylabel=f"slope of {self.statistic} in n")
                axes.legend(fontsize=7, loc="lower right")
            of_power.sharey(of_log)
            for k, (name, rows) in enumerate(self.points.groupby("variant", sort=False)):
                of_n, style = rows.groupby("n")[["relative", "value"]].median(), line_style(k)
                of_n = of_n["relative"], of_n["value"]
                relative.loglog(*of_n, style.marker, ls="-", color=style.colour, label=name)
            relative.axvline(1, color=GREY, ls="--")
            median = f"{self.statistic}, median over seeds"
            relative.set(xlabel="inverse temperature / critical one", ylabel=median)
            relative.legend(fontsize=7)
        return figure

    def __repr__(self) -> str:
        told = (
            f"critical ~ ({family})^{a:.2f} [{low:.2f}, {high:.2f}]"
            for family, (a, low, high) in self.predicted.items()
        )
        return f"PhaseDiagram({self.statistic}; predicted {' or '.join(told)})"


@naming_arguments
@typed_arguments
def phase_diagram(directory: str | os.PathLike[str], *, statistic: str = "max") -> PhaseDiagram:
    """Returns the phase diagram of a finished sweep, such as that of configs/atlas/phase2026.toml.

    The critical inverse temperature of a length and seed is the median over inputs, heads and rows that see at least
    three keys, in the first layer of the first variant: there, scores do not depend on the temperature. Its powers of
    log n and of n are fitted over all lengths, by seed, with an interval of 95 % over seeds. The models are made anew:
    as many calls of `critical_temperatures` as the variant has inputs.

    Args:
        directory: as `jaxsens sweep --out` wrote it. Variants with softmax of (log n)^a or n^a times the scores are
            shown.
        statistic: of the sweep.

    Raises:
        InputError: for a folder that holds no sweep, a statistic that it has not, and a sweep without such variants of
            transformers or published models, or with fewer than three lengths.

    >>> phase_diagram("results/phase2026").slopes  # doctest: +SKIP
    """
    data = load_sweep(directory)
    sweep = parse_sweep_config(data.plan.config, folder=Path(directory))
    schedules = dict(_schedules(sweep))
    if not schedules or statistic not in data.plan.statistics or len(sweep.lengths) < MINIMUM_LENGTHS:
        raise InputError.of(
            "directory",
            str(directory),
            f"wanted a sweep of at least {MINIMUM_LENGTHS} lengths "
            f"with the statistic {statistic!r}, and variants of a transformer whose softmax has a power of n or log n",
            subject="phase_diagram",
        )
    critical = _critical(sweep, next(iter(schedules)), next(iter(schedules.values())))
    table = data.points.loc[data.points["variant"].isin([*schedules])]
    points = table.loc[:, ["variant", "n", "seed"]].assign(value=table[statistic].astype(float))
    keys = list(zip(table["n"], table["seed"], strict=True))
    points["critical"] = [critical[int(n), int(seed)] for n, seed in keys]
    inverse = [float(schedules[name](int(n))) for name, n in zip(table["variant"], table["n"], strict=True)]
    points["relative"] = np.asarray(inverse) / points["critical"]
    return PhaseDiagram(statistic, _slopes(data.points, schedules, statistic), points, _predicted(critical))


def _schedules(sweep: Sweep) -> Iterator[tuple[str, Schedule]]:
    """The variants that are shown, with their inverse temperatures: powers of n or of log n, up to a factor."""
    for variant in sweep.variants:
        weighting = variant.source.weighting
        if isinstance(weighting, Softmax) and weighting.by == "length":
            found = weighting.inverse_temperature
            if not (found.power and found.log_power) and not found.offset and not found.least:
                yield variant.name, found


def _critical(sweep: Sweep, variant: str, schedule: Schedule) -> dict[tuple[int, int], float]:
    found = {}
    for point in sweep.points:
        if point.variant == variant:
            model, words = point.model(), point.tokens()
            beta = np.stack([critical_temperatures(model, word, gaps=()).beta[0] for word in words])
            median = np.quantile(beta[beta > 0], 0.5, method="inverted_cdf")
            found[point.n, point.seed] = float(median) * float(schedule(point.n))
    return found


def _predicted(critical: dict[tuple[int, int], float]) -> dict[str, tuple[float, float, float]]:
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


def _slopes(points: pandas.DataFrame, schedules: dict[str, Schedule], statistic: str) -> pandas.DataFrame:
    import pandas as pd

    rows = []
    for fit in fit_exponents(points.loc[points["variant"].isin([*schedules]), :]):
        if fit.statistic != statistic:
            continue
        schedule = schedules[fit.variant]
        whole = (math.nan, math.nan, fit.exponent, fit.ci_low, fit.ci_high, fit.values - fit.points)
        local = [(one.low, one.high, one.slope, one.ci_low, one.ci_high, 0) for one in fit.local]
        # The constant is a power of both, with a = 0.
        for family, power, other in (
            ("log n", schedule.log_power, schedule.power),
            ("n", schedule.power, schedule.log_power),
        ):
            rows += [] if other else [(family, power, *values) for values in (whole, *local)]
    columns = ["family", "a", "low", "high", "slope", "ci_low", "ci_high", "left_out"]
    return pd.DataFrame(rows, columns=columns)
