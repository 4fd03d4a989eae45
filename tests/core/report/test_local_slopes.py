from __future__ import annotations

import math

import pandas as pd
import pytest

from jaxsens.core.report.data import spreads
from jaxsens.core.report.fits import local_slopes
from tests.core.report.synthetic import points, power


def by_length(table: pd.DataFrame, statistic: str = "mean") -> dict[float, list[float]]:
    """The slopes there are, by the middle of their two lengths."""
    return {n: rows[statistic].dropna().tolist() for n, rows in table.groupby("n")}  # pyright: ignore[reportReturnType]


def test_local_slopes_of_a_power_law_are_its_exponent_everywhere():
    laws = {"mean": power(-0.9, 3.0), "max": power(0.5)}
    table = local_slopes(points({"b": laws, "a": laws}, lengths=(70, 10, 20)))
    assert list(dict.fromkeys(table["variant"])) == ["b", "a"]
    for statistic, exponent in (("mean", -0.9), ("max", 0.5)):
        found = by_length(table.query("variant == 'a'"), statistic)
        assert list(found) == pytest.approx([math.sqrt(200), math.sqrt(1400)])
        for slopes in found.values():
            assert slopes == pytest.approx([exponent] * 3)


def test_a_slope_needs_positive_values_at_both_lengths_and_the_same_seed():
    table = points(
        {"a": {"mean": lambda n, seed: 0.0 if (n, seed) == (20, 0) else 1 / n}}, lengths=(10, 20, 40)
    )
    table = table.loc[~((table["n"] == 40) & (table["seed"] == 1)), :]
    first, second = by_length(local_slopes(table)).values()
    assert first == pytest.approx([-1, -1])
    assert second == pytest.approx([-1])
    assert [value.seeds for value in spreads(local_slopes(table), "a", "mean").values()] == [2, 1]
