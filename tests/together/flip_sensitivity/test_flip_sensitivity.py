from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens

CONFIG = jaxsens.TransformerConfig(alphabet_size=3, width=8, heads=2, layers=2, feed_forward=16)
SHALLOW = CONFIG.replace(
    layers=1, feed_forward=0
)  # Quick to compile, where depth has no part in what is tested.


@pytest.fixture(scope="module")
def model():
    return jaxsens.Transformer(CONFIG, seed=0)


# Inputs of nine symbols, and on eight devices nine flips or more: one program serves most of these tests.
def word(n=9, seed=0):
    return np.append(np.random.default_rng(seed).integers(0, 3, n - 1), 3)


def loop(model, tokens, flips):
    """The user's own loop: one call a flip."""
    base = np.asarray(model(tokens))
    changed = [np.where(np.arange(len(tokens)) == i, s, tokens) for i, s in flips]
    return np.array([np.linalg.norm(np.asarray(model(x)) - base) for x in changed])


def test_the_result_matches_a_users_own_loop(model):
    tokens = word(9)
    result = jaxsens.flip_sensitivity(model, tokens)
    assert len(result) == 8 * 2
    expected = loop(model, tokens, zip(result.positions, result.symbols, strict=True))
    np.testing.assert_allclose(result.norms, expected, rtol=2e-5)
    assert result.max == result.norms.max()
    assert result.argmax.norm == result.max


def test_several_inputs_give_what_each_gives_alone(model):
    tokens = np.stack([word(seed=seed) for seed in range(3)])
    together = jaxsens.flip_sensitivity(model, tokens)
    for k in range(3):
        alone = jaxsens.flip_sensitivity(model, tokens[k])
        part = together.of_input(k)
        # Another number of rows in a product, or another engine after many calls, sums in another order.
        np.testing.assert_allclose(part.norms, alone.norms, rtol=2e-5)
        np.testing.assert_array_equal(part.symbols, alone.symbols)
        assert part.population == alone.population == len(part)
    assert together.profile().shape == (3, 9, 3)


def test_the_readout_and_the_end_of_sequence_are_left_out_unless_asked_for(model):
    tokens = np.array([0, 3, 1, 2, 3, 0, 2, 1, 3])
    default = jaxsens.flip_sensitivity(model, tokens)
    assert set(default.positions) == {0, 2, 3, 5, 6, 7}
    assert 3 not in default.symbols
    asked = jaxsens.flip_sensitivity(model, tokens, flips=jaxsens.Substitute(positions=[1, 4, 8]))
    assert len(asked) == 3 * 3
    assert np.isnan(default.profile()[4]).all()
    assert np.isnan(default.profile()[8]).all()
    assert np.isfinite(default.profile()[0]).sum() == 2


def test_norms_and_outputs_are_those_asked_for():
    def model(tokens):
        return jnp.array([3.0, -4.0, 0.5]) * tokens[0]

    def measure(**options):
        return jaxsens.flip_sensitivity(model, [0, 1], 2, **options).norms.tolist()

    assert measure(measure="l1") == [7.5]
    assert measure(measure="linf") == [4.0]
    assert measure(measure=jaxsens.L2(outputs=[0, 1])) == [5.0]
    assert measure(measure=jaxsens.L2(outputs=[2])) == [0.5]


def test_the_l2_norm_does_not_underflow_in_float32():
    result = jaxsens.flip_sensitivity(lambda t: jnp.array([3e-30, 4e-30]) * t[0], [0, 1], 2)
    np.testing.assert_allclose(result.norms, [5e-30], rtol=1e-6)


def test_the_readout_position_of_the_config_is_the_one_left_out():
    result = jaxsens.flip_sensitivity(jaxsens.Transformer(SHALLOW.replace(readout=1)), word(5))
    assert set(result.positions) == {0, 2, 3}
    mean = jaxsens.flip_sensitivity(jaxsens.Transformer(SHALLOW.replace(readout="mean")), [0, 1, 2])
    assert set(mean.positions) == {0, 1, 2}


def test_float64_models_are_measured_in_float64_whatever_the_global_setting():
    model = jaxsens.Transformer(SHALLOW.replace(dtype="float64"))
    result = jaxsens.flip_sensitivity(model, word(6))
    assert result.norms.dtype == np.float64
    assert result.dtype == "float64"
    assert jnp.ones(1).dtype == jnp.float32


def test_a_second_input_of_the_same_length_does_not_compile_again(model):
    jaxsens.flip_sensitivity(model, word(seed=1))
    other = jaxsens.Transformer(CONFIG, seed=5)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr(
            jax.stages.Lowered, "compile", lambda *a, **k: compiled.append(a) or pytest.fail("compiled again")
        )
        jaxsens.flip_sensitivity(model, word(seed=2))
        jaxsens.flip_sensitivity(other, word(seed=3))
    assert not compiled


def refused(*arguments, **options):
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.flip_sensitivity(*arguments, **options)
    return str(caught.value)


def test_all_problems_of_the_arguments_are_named_at_once(model):
    message = refused(model, [[0.5, 1.0]], "none", "l3", readout=-7, placement=3, engine="fast", progress=1)
    for name in ("tokens", "flips", "measure", "readout", "placement", "engine", "progress"):
        assert f"{name} = " in message
    with pytest.raises(
        jaxsens.InputError, match=r"(?s)Placement: 2 errors.*batch_size = 0.*memory_budget = -1"
    ):
        jaxsens.Placement(batch_size=0, memory_budget=-1)


def test_each_bad_argument_is_named_with_its_value_and_a_remedy(model):
    assert "outputs = [8]: the model has the outputs 0 to 7" in refused(
        model, [0, 1], measure=jaxsens.L2(outputs=[8])
    )
    assert "flips = None: say which" in refused(lambda t: t.sum() * 1.0, [0, 1])
    assert "nothing to flip" in refused(model, [3])
    assert "callable" in refused(7, [0, 1])


def test_a_record_that_holds_a_model_is_refused_with_the_place_of_the_model(model):
    record: Any = SimpleNamespace(model=model)
    assert "model = SimpleNamespace: pass its .model, a Transformer" in refused(record, [0, 1])
    with pytest.raises(jaxsens.InputError, match=r"its \.model, a Transformer"):
        jaxsens.analysis.layer_changes(record, [0, 1])
    with pytest.raises(jaxsens.InputError, match=r"its \.model, a Transformer"):
        jaxsens.theory.lemma5(record, 4)


def test_models_that_cannot_be_measured_are_refused_with_the_remedy():
    assert "shape (3, 2)" in refused(lambda t: jnp.ones((3, 2)) * t[0], [0, 1, 1], 2)
    assert "not finite" in refused(lambda t: jnp.log(t[0] * 0.0), [0, 1], 2)
    assert "not finite under 1 of 1 flips" in refused(lambda t: 1 / (1.0 - t[0]), [0, 1], 2)
    assert "its output has shape (3,)" in refused(lambda t: t * 1.0, [0, 1, 1], 2)
    assert "JAX cannot trace it" in refused(lambda t: jnp.asarray(np.sin(np.asarray(t)).sum()), [0, 1], 2)
    counter = iter(range(100))
    assert "two calls on the same input differ" in refused(lambda t: t.sum() * 1.0 + next(counter), [0, 1], 2)


def test_a_model_for_one_length_only_may_have_as_many_outputs():
    weights = jnp.arange(9.0).reshape(3, 3)
    assert len(jaxsens.flip_sensitivity(lambda t: weights @ t, [0, 1, 1], 2)) == 2
