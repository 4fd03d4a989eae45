"""First mistakes of those who bring their own model: each gets one clear error that says what to write instead."""

from __future__ import annotations

import dataclasses
import textwrap
import types
import warnings
from collections import namedtuple
from contextlib import nullcontext
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

import jaxsens
from tests import refusals

TOKENS = np.array([0, 1, 1, 0, 1])
TABLE = jax.random.normal(jax.random.key(0), (2, 4))
PARAMETERS = {"embedding": TABLE, "scale": jnp.float32(2.0)}


def network(tokens):
    return jnp.tanh(TABLE[tokens]).mean(0)


def apply(parameters, tokens):
    return parameters["scale"] * jnp.tanh(parameters["embedding"][tokens]).mean(0)


def refused(model: Any, tokens: Any = TOKENS, flips: Any = 2, **options: Any) -> str:
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.flip_sensitivity(model, tokens, flips, **options)
    return str(caught.value)


@dataclasses.dataclass
class Output:
    hidden: Any
    logits: Any


Pair = namedtuple("Pair", ["logits", "hidden"])

TORCH = types.ModuleType("torch.nn.modules.module")
exec(
    "class Module:\n"
    "    def __call__(self, tokens):\n"
    "        raise TypeError('embedding(): argument indices must be Tensor, not DynamicJaxprTracer')\n",
    TORCH.__dict__,
)


class TorchModel(TORCH.Module):
    pass


class NnxBatched(nnx.Module):
    def __init__(self):
        self.embed = nnx.Embed(2, 4, rngs=nnx.Rngs(0))

    def __call__(self, tokens):
        batch, n = tokens.shape
        return self.embed(tokens).sum(1) / n + 0 * batch


MODELS = {
    "dict": (lambda t: {"logits": network(t)}, "network(tokens)['logits']"),
    "tuple": (lambda t: (network(t), t), "network(tokens)[0]"),
    "dataclass": (lambda t: Output(t, network(t)), "network(tokens).logits"),
    "random key": (lambda t: jax.random.key(0), "it returns an array of key<fry>"),
    "complex": (lambda t: jnp.fft.fft(network(t)), "jnp.stack([y.real, y.imag]).ravel()"),
    "nothing": (lambda t: network(t)[:0], "its output is empty (shape (0,))"),
    "class": (NnxBatched, "NnxBatched(...)"),
    "torch": (TorchModel(), "jaxsens.from_torch(module.eval())"),
    "config": (jaxsens.training.LSTMConfig(2, 4, 1), "jaxsens.training.LSTM(config, seed=0)"),
    "path": ("results/x", "jaxsens.training.load_checkpoint(path).model"),
    "pair of one argument": (
        (network, PARAMETERS),
        "network(tokens): it is called as function(parameters, tokens)",
    ),
    "two arguments": (apply, "apply(parameters, tokens): it is called as model(tokens)"),
    "a keyword": (lambda t, *, train: t, "lambda tokens: model(tokens, deterministic=True)"),
    "no argument": (lambda: 1.0, "<lambda>(): it is called as model(tokens)"),
    "array": (TABLE, "(function, parameters)"),
    "None": (None, "callable tokens -> array"),
    "torch in a lambda": (lambda t: TorchModel()(t), "jaxsens.from_torch(module.eval())"),
    "NumPy": (lambda t: np.tanh(np.asarray(TABLE)[np.asarray(t)]).mean(0), "write it with jax.numpy"),
    "float": (lambda t: float(t.sum()), "write it with jax.numpy"),
    "a list": (lambda t: [1.0, 2.0][t[0]], "write it with jax.numpy"),
    "a mask": (lambda t: TABLE[t[t > 0]].sum(0), "write it with jax.numpy"),
    "batch": (NnxBatched(), "lambda tokens: model(tokens[None])[0]"),
    "its own problem": (lambda t: TABLE[t] @ jnp.ones(3), "it raised TypeError: dot_general requires"),
    "callback": (
        lambda t: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((5,), "int32"), t)[:2] * 1.0,
        'jax.pure_callback(..., vmap_method="sequential")',
    ),
    "Equinox dropout": (lambda t: eqx.nn.Dropout(0.5)(network(t)), "switch off randomness"),
    "linen parameters alone": (
        (nn.Embed(2, 4), nn.Embed(2, 4).init(jax.random.key(0), TOKENS)["params"]),
        '(module, {"params": parameters})',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "remedy"), MODELS.values(), ids=MODELS)
def test_what_is_no_model_or_returns_no_array_is_refused_with_what_to_write(model, remedy):
    message = refused(model)
    assert message.startswith("model")
    assert remedy in message


def test_a_model_inside_another_trace_is_refused_with_the_remedy():
    def inside(table):
        return jaxsens.flip_sensitivity(lambda t: table[t].mean(0), TOKENS, 2).max

    def beside(table):
        return jaxsens.flip_sensitivity((lambda p, t: p[t].mean(0), table), TOKENS, 2).max

    for call in (jax.jit(inside), jax.grad(beside)):
        with pytest.raises(
            jaxsens.InputError, match="it holds values that are being traced: call this outside"
        ):
            call(TABLE)


@pytest.mark.long
def test_one_hot_rows_of_integers_are_measured_as_inputs_with_a_warning():
    rows = np.eye(3, dtype=int)[[0, 2, 1, 1]]
    table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)))
    known = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=4, heads=1, layers=1, feed_forward=0))
    for model in (lambda t: table[t].mean(0), known):
        with pytest.warns(UserWarning, match=r"4 inputs of 3 symbols .*, give tokens.argmax\(-1\)") as found:
            assert len(jaxsens.flip_sensitivity(model, rows, 2).tokens) == 4
        assert found[0].filename == __file__
    for tokens in (rows[:1], rows + 1, rows.argmax(-1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jaxsens.flip_sensitivity(lambda t: table[t % 3].mean(0), tokens, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it reads three symbols, so rows of four are none of its one-hot rows
        jaxsens.flip_sensitivity(known, np.eye(4, dtype=int), 2)


def test_a_function_and_its_parameters_are_a_model():
    pair, expected = (apply, PARAMETERS), jaxsens.flip_sensitivity(partial(apply, PARAMETERS), TOKENS, 2)
    np.testing.assert_allclose(jaxsens.flip_sensitivity(pair, TOKENS, 2).norms, expected.norms, rtol=1e-6)
    halved = {**PARAMETERS, "scale": jnp.float32(1.0)}
    with pytest.MonkeyPatch.context() as patch:  # parameters are arguments: others do not compile again
        patch.setattr(jax.stages.Lowered, "compile", lambda *a, **k: pytest.fail("compiled again"))
        half = jaxsens.flip_sensitivity((apply, halved), TOKENS, 2)
    np.testing.assert_allclose(2 * half.norms, expected.norms, rtol=1e-6)


def test_parameters_of_a_pair_that_are_no_arrays_are_part_of_the_function():
    def model(parameters, tokens):
        return (
            getattr(jnp, parameters["squash"])(parameters["table"][tokens])
            .reshape(parameters["heads"], -1)
            .mean(1)
        )

    parameters = {"table": np.asarray(TABLE, np.float64), "heads": 5, "squash": "tanh"}
    result = jaxsens.flip_sensitivity((model, parameters), TOKENS, 2)
    assert len(result) == 4
    assert result.dtype == "float64"


def numpy_model(tokens: np.ndarray) -> np.ndarray:
    return np.tanh(np.asarray(PLAIN)[tokens]).mean(0)


PLAIN = np.random.default_rng(0).normal(size=(2, 4))


def test_the_lines_for_a_model_outside_jax_work():
    lines = refused(lambda t: numpy_model(np.asarray(t))).split("called back:\n")[1]
    names: dict[str, Any] = {"jax": jax, "np": np, "numpy_model": numpy_model, "d": 4}
    exec(textwrap.dedent(lines), names)
    result = jaxsens.flip_sensitivity(names["model"], [0, 1] * 40, flips=2)
    expected = np.linalg.norm(np.tanh(PLAIN[1]) - np.tanh(PLAIN[0])) / 80
    np.testing.assert_allclose(result.norms, expected, rtol=1e-4)


ACCEPTED = {
    "jit": jax.jit(network),
    "a number": lambda t: jnp.sin(t * 1.0).sum(),
    "bfloat16": lambda t: network(t).astype(jnp.bfloat16),
    "a constant": lambda t: 1.0,
    "default arguments": lambda t, train=False: network(t),
    "a method": jaxsens.Transformer(
        jaxsens.TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=4)
    ).__call__,
    "a batch of one": lambda t: jax.vmap(network)(t[None])[0],
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_is_a_model_is_measured(kind):
    # Two outputs of 8 bits tell no change to 1 %.
    expected = {"a constant": jaxsens.UnchangedWarning, "bfloat16": jaxsens.PrecisionWarning}.get(kind)
    with pytest.warns(expected) if expected else nullcontext():
        assert len(jaxsens.flip_sensitivity(ACCEPTED[kind], TOKENS, 2)) == 4


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("cpu", "jax.sharding.Mesh(numpy.array(jax.devices('cpu')), (\"flips\",))"),
        (AbstractMesh((2,), ("flips",)), "mesh = AbstractMesh("),
        (jax.devices()[:2], 'jax.sharding.Mesh(numpy.array(devices), ("flips",))'),
        (2, "mesh = 2: the devices to spread flips over"),
        (Mesh(np.array([]), ("flips",)), "mesh = Mesh("),
    ],
)
def test_what_is_no_mesh_is_refused_with_the_lines_that_make_one(mesh, said):
    message = refusals.refused("mesh", jaxsens.Placement, mesh)
    assert said in message
    assert "jaxsens.flip_sensitivity(model, tokens, placement=jaxsens.Placement(mesh))" in message
