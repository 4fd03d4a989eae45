from __future__ import annotations

from jaxsens.core.report.data import spreads, statistic_columns
from tests.core.report.synthetic import points, power

TABLE = points({"a": {"mean": power(-1), "q90": power(0)}})


def test_what_is_no_key_column_is_a_statistic():
    assert statistic_columns(TABLE) == ("mean", "q90")


def test_spreads_are_over_the_seeds_there_are():
    table = points({"a": {"mean": lambda n, seed: float(n + seed)}, "b": {"mean": power(0)}}, lengths=(4, 8))
    table.loc[(table["n"] == 8) & (table["seed"] == 0), "mean"] = float("nan")
    found = spreads(table, "a", "mean")
    assert list(found) == [4, 8]
    assert (found[4].low, found[4].median, found[4].high, found[4].seeds) == (4, 5, 6, 3)
    assert (found[8].low, found[8].median, found[8].high, found[8].seeds) == (9, 9.5, 10, 2)
