"""A wrong argument is one error that names it; every measure of an output is taken of every kind of model."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxsens
from jaxsens import logic, theory
from tests.refusals import refusal
from tools.wrong_arguments import RIGHT, WRONG, Call, Tally, own_arguments, tried

CALLS = {
    "load_checkpoint": jaxsens.training.load_checkpoint,
    "load_result": jaxsens.load_result,
    "load": jaxsens.theory.WorstInput.load,
    "language": jaxsens.language,
    "corpus_table": jaxsens.corpus_table,
    "phase_diagram": lambda directory: jaxsens.analysis.phase_diagram(directory),
    "Softmax": jaxsens.Softmax,
    "Attention": jaxsens.Attention,
    "compile_formula": jaxsens.compile_formula,
    "critical_inverse_temperature": jaxsens.analysis.critical_inverse_temperature,
    "from_torch": jaxsens.from_torch,
    "And": logic.And,
    "CountComparison": logic.CountComparison,
    "Constant": logic.Constant,
    "automaton": logic.automaton,
    "violations": lambda formula, alphabet: logic.violations(formula, None, alphabet),
    "subformulas": logic.subformulas,
    "compare": logic.compare,
    "n_gram": logic.n_gram,
    "Lemma5.load": theory.Lemma5.load,
    "evaluate_tokens": logic.evaluate_tokens,
    "hop_induction": logic.hop_induction,
    "check": theory.check,
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_a_wrong_type_is_one_error_that_names_it(name):
    if name == "from_torch":
        pytest.importorskip("torch")
    tally = Tally()
    tried(Call(name, CALLS[name], own_arguments().get(name, {})), tally)
    assert tally.said["refused"] > len(WRONG) / 2
    assert tally.wrong == []


@pytest.mark.parametrize("method", ["save", "to_html", "to_png", "to_svg"])
@pytest.mark.parametrize("wrong", ["object", "minus one", "true", "NUL", "surrogate", "lambda", "NaN"])
def test_a_path_that_no_file_can_have_is_refused(method, wrong):
    with refusal("path"):
        getattr(RIGHT["result"](), method)(WRONG[wrong])


def test_a_restriction_and_an_address_of_wrong_types_are_named():
    with refusal("restriction"):
        theory.check(None, RIGHT["model"]())  # pyright: ignore[reportArgumentType]
    with refusal("address"):
        jaxsens.service.Client(Path("x"), "t")  # pyright: ignore[reportArgumentType]


def test_a_formula_that_needs_no_layer_is_measured_by_a_function_of_its_output():
    model = jaxsens.compile_formula("Q_0", ["0", "1"])
    assert model.config.layers == 0
    found = jaxsens.flip_sensitivity(model, [0, 1, 1, 0], 2, jaxsens.LogProbability(0), progress=False)
    assert found.max == 0  # one output alone
