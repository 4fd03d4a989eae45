"""The first-order benchmarks: their tables, what they refuse, and that their methods measure what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import accuracy, costs, first_order, methods
from benchmarks.first_order import Timed, table
from benchmarks.options import ESTIMATES, Case


def test_the_table_has_growth_and_ratios_to_both_vmaps():
    rows = [
        Timed("a scalar", 1024, 0.5, 10.0, 1e9, None),
        Timed("vmap", 1024, 20.0, 5.0, 1e12, 32),
        Timed(first_order.THEN, 1024, 40.0, None, 1e12, 32),
        Timed("a scalar", 2048, 2.0, 20.0, 4e9, None),
        Timed("vmap", 2048, 160.0, 5.0, 8e12, 16),
    ]
    lines = table(4, rows)
    assert "| 4 | 1024 | a scalar | 0.5 |  | 10 | 40 | 80 | 1e+09 | 1e+03 |" in lines
    assert "| 4 | 2048 | a scalar | 2 | 4.00 | 20 | 80 |  | 4e+09 | 2e+03 |" in lines
    assert "| 4 | 1024 | vmap of the baseline | ≈ 40 |" in lines


def test_options_that_cannot_be_used_are_refused_together(capsys):
    assert first_order.main(["--layers", "0", "--turns", "0", "--lengths", "8"]) == 2
    said = capsys.readouterr().err
    for name in ("--layers", "--turns", "--lengths"):
        assert name in said
    assert accuracy.main(["--norms", "mid", "--flips", "2"]) == 2
    assert "--norms" in (told := capsys.readouterr().err)
    assert "--flips" in told


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("name", ESTIMATES)
def test_an_estimate_is_near_the_norms_of_forward_passes_and_takes_fewer_operations(name):
    case = Case(name, 2, 64)
    found = methods.build(case).measure(None)
    assert found.shape == (63,)
    if name == "all outputs":
        exact = methods.build(Case("vmap", 2, 64)).measure(None)
        assert np.median(np.abs(found - exact) / exact) < 0.2
    operations = [costs.first_order_operations(Case(name, 2, n)) for n in (2**12, 2**13)]
    assert 3.4 < operations[1] / operations[0] < 4.5


def test_the_slope_of_errors_is_that_of_a_power_law():
    errors = [(n, [3 / n**2] * 3) for n in (128, 256, 512)]
    found, half = accuracy.slope(errors)
    assert math.isclose(found, -2, abs_tol=1e-9)
    assert half < 1e-6
