"""What is compared is the same thing, by all methods on a short input; and what follows from the times."""

from __future__ import annotations

import csv
import importlib.util
import io

import numpy as np
import pytest

from benchmarks import agreement
from benchmarks.costs import Cost, Rates, cost
from benchmarks.methods import build
from benchmarks.options import METHODS, NEEDS, REFERENCE, Case, chosen
from benchmarks.rows import COLUMNS, Row, compared, csv_text

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


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize("method", METHODS_HERE)
@pytest.mark.filterwarnings("default")  # those of PyTorch and Captum are not ours
def test_every_method_measures_all_flips_as_float64_does(method, exact):
    norms = build(Case(method, LAYERS, N)).measure(None)
    assert exact.dtype == np.float64
    assert norms.dtype == np.float32
    assert agreement.disagreement(method, norms, exact) is None
    assert agreement.largest_relative_error(norms, exact) < 1e-3


@pytest.mark.long
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


def row(method: str, n: int, seconds: float | None, **more: object) -> Row:
    return Row(method, 2, n, n - 1, measured_flips=more.pop("measured", n - 1), seconds=seconds, **more)  # pyright: ignore[reportArgumentType]


ROWS = compared(
    [
        row("torch", 128, 4.0, limit_seconds=1.0),
        row("captum-1", 128, 3.0, limit_seconds=1.0),
        row("vmap", 128, 2.0, limit_seconds=1.0),
        row("difference", 128, 0.5, limit_seconds=0.1),
        row("torch", 512, None, note="left out: about 256 s expected"),
        row("vmap", 512, 128.0, measured=64, limit_seconds=64.0),
        row("difference", 512, 8.0, limit_seconds=1.6),
    ]
)


def test_the_csv_file_holds_every_column_and_leaves_out_what_was_not_measured():
    read = list(csv.DictReader(io.StringIO(csv_text(ROWS))))
    assert tuple(read[0]) == COLUMNS
    assert [(one["n"], one["method"]) for one in read[:2]] == [("128", "vmap"), ("128", "difference")]
    assert float(read[1]["times_faster_than_rival"]) == pytest.approx(6)
    assert float(read[1]["seconds"]) == 0.5
    assert read[-1]["method"] == "torch"
    assert read[-1]["seconds"] == ""
    assert "256 s" in read[-1]["note"]


def test_the_limit_is_the_larger_of_arithmetic_and_traffic():
    assert Cost(10.0, 4.0).seconds(Rates(5.0, 1.0)) == 4.0
    assert Cost(10.0, 4.0).seconds(Rates(2.0, 4.0)) == 5.0


def test_a_forward_pass_costs_what_a_count_by_hand_says():
    n, d, heads, hidden = 128, 64, 4, 256
    by_hand = (
        3 * 2 * n * d * d
        + 2 * n * n * d
        + heads * n * n
        + 2 * n * n * d
        + 2 * n * d * d
        + 2 * 2 * n * d * hidden
    )
    assert cost(Case("torch", 1, n)).operations == (n - 1) * by_hand
    assert cost(Case("torch", 3, n)).operations == 3 * (n - 1) * by_hand
    keys_and_values, one_row = (
        2 * 2 * n * d * d,
        2 * 2 * n * d + heads * n + 2 * 2 * d * d + 2 * 2 * d * hidden,
    )
    assert cost(Case("vmap", 3, n)).operations == (n - 1) * (2 * by_hand + keys_and_values + one_row)
    closed_form = n * (8 * d + heads) + 2 * n * d * d + 2 * 2 * n * d * hidden
    per_flip = closed_form + by_hand + keys_and_values + one_row
    assert cost(Case("incremental", 3, n)).operations == 3 * by_hand + (n - 1) * per_flip


@pytest.mark.parametrize(("layers", "low", "high"), [(1, 1.9, 4.1), (2, 3.8, 4.1), (3, 7.0, 8.1)])
def test_operations_of_the_difference_engine_grow_as_they_should(layers, low, high):
    grown = (
        cost(Case("difference", layers, 8192)).operations / cost(Case("difference", layers, 4096)).operations
    )
    assert low < grown < high
