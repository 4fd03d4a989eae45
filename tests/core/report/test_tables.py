from __future__ import annotations

import csv
import math

import numpy as np
import pandas as pd

from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.report.page import write_summary
from tests.core.report.synthetic import six_variants


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
