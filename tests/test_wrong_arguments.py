"""A wrong argument is one error that names it; every measure of an output is taken of every kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxsens
from jaxsens import logic, theory
from tests.core.flip_sensitivity.test_adapters import EquinoxModel, LinenModel
from tests.refusals import refusal, refused
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


class Mean(nnx.Module):
    """A module of somebody else, with a method of a name that this package uses too."""

    def __init__(self) -> None:
        self.table = nnx.Param(jnp.arange(6.0).reshape(2, 3))

    def __call__(self, tokens: Any) -> Any:
        return self.table[...][tokens].mean(axis=0)

    def output_of(self) -> None:
        """Not what the package means by it."""


def of_torch() -> Any:
    """A model that runs a PyTorch module."""
    torch = pytest.importorskip("torch")
    return jaxsens.from_torch(torch.nn.EmbeddingBag(2, 3).eval())


MODELS: dict[str, Any] = {
    "Linen": lambda: (LinenModel(), LinenModel().init(jax.random.key(0), jnp.zeros(4, int))),
    "Linen, bound": lambda: LinenModel().bind(LinenModel().init(jax.random.key(0), jnp.zeros(4, int))),
    "Equinox": lambda: EquinoxModel(jax.random.key(0)),
    "PyTorch": of_torch,
    "transformer": lambda: jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, logits=3)),
    "LSTM": lambda: jaxsens.training.LSTM(jaxsens.training.LSTMConfig(2, width=4, logits=3)),
    "RNN": lambda: jaxsens.training.RNN(jaxsens.training.RNNConfig(2, width=4, logits=3)),
    "convolution": lambda: jaxsens.training.Convolution(
        jaxsens.training.ConvolutionConfig(2, width=4, logits=3)
    ),
    "formula": lambda: jaxsens.compile_formula("#L[Q_1] > #L[Q_0]", ["0", "1"], read="everything"),
    "construction": lambda: jaxsens.construction("parity", read="everything"),
    "Flax NNX": Mean,
    "function": lambda: lambda tokens: jnp.stack([tokens.sum() / 4.0, tokens[0] * 1.0, tokens.max() * 0.5]),
    "pair": lambda: (lambda table, tokens: table[tokens].mean(axis=0), jnp.arange(6.0).reshape(2, 3)),
}
MEASURES: tuple[Any, ...] = (
    "l2", "l1", "linf", "cosine", "kl", jaxsens.Decision(), jaxsens.LogProbability(1),
    jaxsens.Function(jnp.sum), jaxsens.Comparison(lambda y, new: jnp.sum(jnp.abs(new - y))),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning")  # of functions that cancel
@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_every_measure_is_taken_of_every_kind_of_model(name):
    model = MODELS[name]()
    for measure in MEASURES:
        result = jaxsens.flip_sensitivity(model, [0, 1, 1, 0], 2, measure, progress=False)
        assert len(result.values), measure
    said = refused(
        "measure", jaxsens.flip_sensitivity, model, [0, 1, 1, 0], 2, jaxsens.LogProbability("word")
    )
    assert "encodes no text" in said


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
