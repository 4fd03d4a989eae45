"""What is compared is the same thing: all methods, in this process, on a short input."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from benchmarks import agreement
from benchmarks.methods import build
from benchmarks.options import METHODS, NEEDS, REFERENCE, Case, chosen

N, LAYERS = 12, 2


def installed(method: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in NEEDS.get(method, ()))


METHODS_HERE = [
    pytest.param(
        name, marks=pytest.mark.skipif(not installed(name), reason="PyTorch or Captum not installed")
    )
    for name in METHODS
]


@pytest.fixture(scope="module")
def exact():
    return build(Case(REFERENCE, LAYERS, N)).measure(None)


@pytest.mark.quick(0, 4)
@pytest.mark.parametrize("method", METHODS_HERE)
@pytest.mark.filterwarnings("default")  # those of PyTorch and Captum are not ours
def test_every_method_measures_all_flips_as_float64_does(method, exact):
    norms = build(Case(method, LAYERS, N)).measure(None)
    assert exact.dtype == np.float64
    assert norms.dtype == np.float32
    assert agreement.disagreement(method, norms, exact) is None
    assert agreement.largest_relative_error(norms, exact) < 1e-3


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "method", [param for param in METHODS_HERE if not str(param.values[0]).startswith("captum")]
)
@pytest.mark.filterwarnings("default")
def test_a_sample_of_the_flips_gives_the_norms_of_those_flips(method, exact):
    places = chosen(N, 4)
    norms = build(Case(method, LAYERS, N)).measure(places)
    assert agreement.disagreement(method, norms, exact[places]) is None


@pytest.mark.filterwarnings("default")
def test_captum_refuses_a_sample_which_it_would_otherwise_ignore():
    pytest.importorskip("torch")
    pytest.importorskip("captum")
    with pytest.raises(ValueError, match="all positions"):
        build(Case("captum-1", 1, N)).measure(chosen(N, 4))
