"""The first-order benchmarks: their tables, what they refuse, and that their methods measure what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import accuracy, costs, first_order, methods
from benchmarks.options import ESTIMATES, Case


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
