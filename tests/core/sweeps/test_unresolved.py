"""A point keeps which of its statistics rounding may decide, and its row says what they are at most."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from jaxsens.core.report.fits import fit_exponents
from jaxsens.core.sweeps.points import describe_point, read_point, write_point
from jaxsens.core.sweeps.sweep import point_row
from tests.core.sweeps.tiny import tiny_sweep
from tests.made_results import made_result

STATISTICS = ("mean", "max")
POINT = tiny_sweep().points[0]
FLOOR = made_result([1e-8, 3e-8, 0.0], resolution=np.full(3, 1e-7))


def test_a_point_keeps_what_its_statistics_are_at_most(tmp_path):
    write_point(tmp_path, POINT, FLOOR, ("mean",), 1.0)
    read, result = read_point(POINT.path(tmp_path), POINT.key, STATISTICS)
    assert read.unresolved == result.unresolved == 3
    assert read.at_most == {"mean": FLOOR.at_most("mean"), "max": FLOOR.at_most("max")}
    assert (read.status("mean"), read.status("max")) == ("at most", "at most")
    row = point_row(read)
    assert (row["max"], row["max_is"], row["unresolved"]) == (FLOOR.at_most("max"), "at most", 3)
    assert read.summary() == "mean at most 1.13e-07, max at most 1.3e-07"


def test_a_sample_that_is_not_resolved_is_at_most_and_no_lower_bound():
    drawn = dataclasses.replace(FLOOR.flips, populations=np.array([100]))
    point = describe_point(POINT, dataclasses.replace(FLOOR, flips=drawn), STATISTICS, 1.0)
    assert point.status("max") == "at most"


def test_a_plateau_of_rounding_is_not_fitted():
    rows = []
    for n in (8, 16, 32, 64, 128, 256):
        true = np.full(4, float(n) ** -4)
        # Engines that subtract outputs see their rounding in place of smaller changes.
        seen = made_result(np.maximum(true, 3e-7), resolution=np.full(4, 1e-6))
        rows.append(point_row(describe_point(POINT, seen, STATISTICS, 1.0)) | {"variant": "a", "n": n})
    mean, _ = fit_exponents(pd.DataFrame(rows))
    assert mean.unresolved == 5  # 16^-4 is 1.5e-5, which 1e-6 blurs by over 1 %
    assert np.isnan(mean.exponent)
    assert mean.without == (16, 32, 64, 128, 256)
