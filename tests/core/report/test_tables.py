from __future__ import annotations

import csv
import io
import math

import numpy as np
import pandas as pd
from rich.console import Console

from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.report.page import summary_table, write_summary
from tests.core.report.synthetic import points, power, six_variants


def printed(fits, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table(fits))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_summary_csv_has_exactly_the_columns_promised_and_every_digit(tmp_path):
    fits = fit_exponents(six_variants())
    write_summary(tmp_path / "summary.csv", fits)
    lines = (tmp_path / "summary.csv").read_text().splitlines()
    assert (
        lines[0]
        == "variant,statistic,exponent,ci_low,ci_high,points,seeds,values,zeros,bounds,unresolved,settled"
    )
    for row, fit in zip(csv.DictReader(lines), fits, strict=True):
        assert (row["variant"], row["statistic"]) == (fit.variant, fit.statistic)
        assert (int(row["points"]), int(row["seeds"])) == (fit.points, fit.seeds)
        for column in ("exponent", "ci_low", "ci_high"):
            expected = getattr(fit, column)
            assert float(row[column]) == expected or (math.isnan(expected) and row[column] == "nan")
    assert np.sum(np.isnan(pd.read_csv(tmp_path / "summary.csv")["exponent"].to_numpy())) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["summary.csv"]


def test_a_narrow_terminal_cuts_nothing_off_beside_a_long_name():
    name = "average-sensitivity-per-position"
    text = printed(fit_exponents(points({"temperature-bounded": {name: power(-1)}})), 80)
    assert "…" not in text
    assert "[−1.00, −1.00]" in text
    assert "falls about as" in text


def test_the_terminal_table_takes_a_variants_name_literally():
    assert "[bold]odd" in printed(fit_exponents(points({"[bold]odd": {"mean": power(-1)}})))


def test_the_terminal_table_counts_no_seeds_where_no_seed_has_a_slope():
    text = " ".join(printed(fit_exponents(points({"soft": {"max": power(-1)}}, lengths=(8, 16)))).split())
    assert "has too few values for a trend (no seed has 3 values for a slope;" in text
    assert "seeds" not in text.split("variant")[0]
