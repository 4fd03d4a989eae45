from __future__ import annotations

import pytest

from jaxsens.analysis.data import check_points, spreads, statistic_columns
from jaxsens.errors import InputError
from jaxsens.experiments.results import KEY_COLUMNS
from tests.analysis.synthetic import points, power

TABLE = points({"a": {"mean": power(-1), "q90": power(0)}})


def test_what_is_no_key_column_is_a_statistic():
    assert statistic_columns(TABLE) == ("mean", "q90")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.drop(columns=["seed"]), r"\['seed'\] are missing"),
        (TABLE[list(KEY_COLUMNS)], "one column per statistic"),
        (TABLE[:0], "no rows"),
        (TABLE.assign(mean=-1.0), "negative"),
        (TABLE.assign(mean=float("inf")), "infinite"),
    ],
)
def test_a_table_that_is_no_table_of_points_is_refused(table, message):
    with pytest.raises(InputError, match=message):
        check_points(table)


def test_spreads_are_over_the_seeds_there_are():
    table = points({"a": {"mean": lambda n, seed: float(n + seed)}, "b": {"mean": power(0)}}, lengths=(4, 8))
    table.loc[(table["n"] == 8) & (table["seed"] == 0), "mean"] = float("nan")
    found = spreads(table, "a", "mean")
    assert list(found) == [4, 8]
    assert (found[4].low, found[4].median, found[4].high, found[4].seeds) == (4, 5, 6, 3)
    assert (found[8].low, found[8].median, found[8].high, found[8].seeds) == (9, 9.5, 10, 2)
