"""Formulas and constructions as a sweep's models: what a table says, how it is refused, what is then measured."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from jaxsens import PrecisionWarning, load_sweep
from jaxsens.core.base.errors import Problems
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sources import read_source
from jaxsens.core.sweeps.sweep import Sweep, read_plan, run_sweep
from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.formal.constructions.compiler import CompiledTransformer
from tests.core.sweeps.tiny import fake_flip_sensitivity, measured_by, printed, quiet

PARITY = {"formula": "odd( #L[Q_1] )", "alphabet": "01"}


def read(**table: Any) -> Any:
    problems = Problems("test")
    source = read_source(table, "model", problems)
    problems.raise_if_any()
    return source


def problems_of(**table: Any) -> list[str]:
    problems = Problems("test")
    assert read_source(table, "model", problems) is None
    return [*map(str, problems)]


def test_a_formula_is_compiled_in_the_condition_that_the_table_names():
    source = read(**PARITY, condition="unbounded", read="everything", dtype="float32", autoregressive=False)
    assert (source.weights, source.expanded["type"]) == ("constructed", "FormulaModel")
    model = source.build(4, 0)
    assert isinstance(model, CompiledTransformer)
    assert (model.promise.condition, model.config.dtype, model.outputs) == ("unbounded", "float32", None)
    assert (source.symbols.alphabet_size, source.symbols.end_of_sequence) == (2, None)
    assert not source.bounded
    assert model.exact_length is not None
    assert source.exact_length == model.exact_length > 16
    assert model.accepts("0111")
    assert not model.accepts("0110")


def test_no_seed_changes_a_constructed_model_but_every_seed_changes_the_inputs():
    text = 'lengths = [8]\nseeds = 2\n[model]\nformula = "Y Q_1"\nalphabet = "01"\n[[variant]]\nname = "y"\n'
    first, second = parse_sweep_config(text).points
    assert first.model() is second.model()
    assert not np.array_equal(first.tokens(), second.tokens())
    assert first.key != second.key


def test_a_formula_is_expanded_as_logic_prints_it_with_the_defaults():
    expected = {
        "type": "FormulaModel",
        "formula": "odd(#L[Q_1])",
        "alphabet": ["0", "1"],
        "condition": "temperature",
        "autoregressive": False,
        "dtype": "float64",
        "read": "output",
    }
    assert read(**PARITY).expanded == expected
    spelled_out = {"formula": "odd(#L[(Q_1)])", "alphabet": ["0", "1"], "condition": "temperature"}
    assert read(**spelled_out).expanded == expected


def test_a_construction_is_expanded_with_its_options_and_the_condition_it_has():
    source = read(construction="chiang-cholak-parity", sharpness=2.0, read="everything")
    assert (source.weights, source.expanded["type"]) == ("constructed", "ConstructionModel")
    assert source.symbols.end_of_sequence == 2
    expanded = source.expanded
    assert expanded["options"] == {"sharpness": 2.0}
    assert expanded["condition"] is None
    reference = source.build(4, 0)
    assert isinstance(reference, ReferenceTransformer)
    assert reference.variant.sharpness == 2.0
    parity = read(construction="parity")
    assert parity.expanded["condition"] == "temperature"
    assert parity.expanded == read(construction="parity", condition="temperature").expanded
    assert parity.build(4, 0).accepts("0111")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"formula": "Q_a & (Q_b", "alphabet": 3, "conditoin": "x", "read": "all"},
            ["alphabet = 3: a string", "read = 'all': should be 'output'",
             'conditoin: unknown key; did you mean "condition"',
             "formula: line 1, column 11: expected"],
        ),
        (
            {"formula": "Q_a & Q_b", "alphabet": "01", "condition": "hot"},
            ["condition = 'hot': one of", "formula: Q_a: the alphabet", "formula: Q_b: the alphabet"],
        ),
        ({"formula": "X #L[Q_1] > 1", "alphabet": "01", "condition": "leftmost-hard", "autoregressive": True},
         ["condition = 'leftmost-hard': counting", "autoregressive: X"]),
        ({"formula": "Q_a"}, ["alphabet: required"]),
        ({"formula": "Q_1", "alphabet": "01", "width": 8}, ["width: unknown key"]),
        ({"formula": 3, "alphabet": ["0", 1]},
         ["formula = 3: should be a valid string", "alphabet[1] = 1: should be a valid string"]),
        ({"construction": "parrity"}, ["construction = 'parrity': one of parity"]),
        ({"construction": "parity", "width": 8, "dtype": 64},
         ["dtype = 64: should be 'float32'", "width = 8: it has no options"]),
        ({"construction": "parity", "path": 1}, ["path = 1: it has no options"]),
        ({"construction": "parity", "make": 1}, ["make = 1: it has no options"]),
        ({"construction": "parity", "reweighted": "cold"}, ["reweighted = 'cold': one of softmax"]),
        ({"construction": "chiang-cholak-parity", "reweighted": "softmax"},
         ["reweighted = 'softmax': only compiled networks have another"]),
        ({"construction": "parity", "shape": {"width": 8}}, ["shape: no option of a construction is a table"]),
    ],
)  # fmt: skip
def test_every_problem_is_said_at_once_with_its_place(table, expected):
    found = problems_of(**table)
    for beginning in expected:
        assert [text for text in found if text.startswith(f"model.{beginning}")], (beginning, found)
    assert len(found) == len(expected), found


def test_a_table_that_names_two_models_is_refused():
    (problem,) = problems_of(**PARITY, construction="parity", kind="lstm")
    assert problem == "model: formula and construction and kind each name a model; give one of them"


MIXED = """
lengths = [6, 9]
seeds = 1
[model]
construction = "parity"
[measure]
engine = "vmap"
[[variant]]
name = "random"
model = {kind = "transformer", alphabet_size = 2, width = 4, heads = 1, layers = 1, feed_forward = 0}
[[variant]]
name = "temperature"
[[variant]]
name = "control"
model = {condition = "bounded-softmax", read = "before-rounding"}
[[variant]]
name = "reference"
model = {construction = "chiang-cholak-parity", read = "everything"}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The directory of a sweep over random weights, a construction, its control and a reference."""
    directory = tmp_path_factory.mktemp("mixed")
    sweep = parse_sweep_config(MIXED)
    assert not run_sweep(sweep, directory, sweep.points, quiet()).failures
    return directory


@pytest.mark.long
def test_one_sweep_measures_random_weights_and_constructions(mixed):
    rows = load_sweep(mixed).points
    n = np.array([6, 9])
    largest = {name: np.asarray(rows["max"][rows["variant"] == name]) for name in rows["variant"].unique()}
    assert largest["temperature"].tolist() == [1, 1]
    assert np.all((largest["control"] > 0) & (largest["control"] < 0.1))
    assert np.all(largest["random"] > 0)
    assert largest["reference"] * n == pytest.approx(1, abs=0.2)


@pytest.mark.long
def test_the_plan_says_what_is_constructed_and_what_is_measured(mixed):
    plan = {variant.name: variant for variant in read_plan(mixed).variants}
    assert [v.weights for v in plan.values()] == ["random", "constructed", "constructed", "constructed"]
    assert [v.outputs for v in plan.values()] == [
        "every coordinate",
        "the coordinate of the result",
        "what the last rounding reads",
        "every coordinate",
    ]
    assert [v.bounded for v in plan.values()] == [True, False, True, True]
    assert plan["random"].exact_length is None
    assert all((plan[name].exact_length or 0) > 12 for name in ("temperature", "reference"))


def warned(sweep: Sweep, tmp_path: Any, monkeypatch: Any) -> Console:
    """A run whose measurements all warn."""

    def warning(model: Any, tokens: Any, **options: Any) -> Any:
        warnings.warn(f"n = {tokens.shape[1]} is too long", PrecisionWarning, stacklevel=1)
        return fake_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, warning)
    console = quiet()
    with warnings.catch_warnings():
        warnings.simplefilter("default", PrecisionWarning)
        assert not run_sweep(sweep, tmp_path, sweep.points, console).failures
    return console


def test_a_warning_is_printed_beside_the_progress_once_a_variant(tmp_path, monkeypatch):
    text = printed(warned(parse_sweep_config(MIXED), tmp_path, monkeypatch))
    lines = [line.partition("]  ")[2] for line in text.splitlines() if "warning" in line]
    names = ("random", "temperature", "control", "reference")
    assert lines == [f"warning: {name} n=6 seed=0: n = 6 is too long" for name in names]
