"""Batches, the schedule, the clipping, the weight decay and the compiled steps, beside what they should be by hand."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens.core.base.programs import numerics
from jaxsens.core.models.transformer.module import build, network
from jaxsens.training.config import OptimiserConfig
from jaxsens.training.steps import (
    batches,
    initial_state,
    learning_rate,
    loss_of,
    one_hot_draws,
    run_steps,
    transformation,
)
from tests.training.tiny import tiny


def test_the_schedules_are_the_formulas():
    cosine = OptimiserConfig(steps=100, learning_rate=0.5, warmup=20)
    constant = OptimiserConfig(steps=100, learning_rate=0.5, warmup=20, schedule="constant")
    for step in (0, 1, 19, 20, 21, 60, 99, 100):
        rising = 0.5 * step / 20
        falling = 0.5 * (1 + math.cos(math.pi * (step - 20) / 80)) / 2
        assert learning_rate(cosine, step) == pytest.approx(rising if step < 20 else falling, abs=1e-7)
        assert learning_rate(constant, step) == pytest.approx(min(rising, 0.5), abs=1e-7)
    at_once = OptimiserConfig(steps=100, learning_rate=0.5, schedule="constant")
    assert learning_rate(at_once, 0) == 0.5


def by_hand(config: Any, steps: int) -> tuple[Any, list[float], list[float]]:
    """Adam with clipping and decoupled weight decay, a step at a time in NumPy."""
    options = config.optimiser
    parameters = jax.tree.map(np.asarray, initial_state(config).parameters)
    loss_and_gradient = jax.jit(jax.value_and_grad(partial(loss_of, config.model, "prediction")))
    first = jax.tree.map(np.zeros_like, parameters)
    second = jax.tree.map(np.zeros_like, parameters)
    losses, norms = [], []
    for k in range(steps):
        tokens, targets, _ = batches(config, 2 * (k // 2))
        loss, gradient = loss_and_gradient(parameters, tokens[k % 2], targets[k % 2])
        norm = math.sqrt(sum(float(np.sum(np.asarray(g) ** 2)) for g in jax.tree.leaves(gradient)))
        losses.append(float(loss))
        norms.append(norm)
        scale = min(1.0, options.clip / norm) if options.clip else 1.0
        gradient = jax.tree.map(lambda g, s=scale: np.asarray(g) * s, gradient)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
        rate = learning_rate(options, k)

        def moved(p: Any, m: Any, v: Any, decayed: Any, rate: float = rate, k: int = k) -> Any:
            step = (m / (1 - 0.9 ** (k + 1))) / (np.sqrt(v / (1 - 0.999 ** (k + 1))) + 1e-8)
            return p - rate * (step + options.weight_decay * decayed * p)

        decays = jax.tree.map(np.zeros_like, parameters)  # of the RNN: its matrices, and not its biases
        layers = tuple(
            dataclasses.replace(layer, input=np.ones(()), recurrent=np.ones(())) for layer in decays.layers
        )
        decays = dataclasses.replace(decays, embedding=np.ones(()), head=np.ones(()), layers=layers)
        parameters = jax.tree.map(moved, parameters, first, second, decays)
    return parameters, losses, norms


@pytest.mark.quick(1)
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_steps_are_those_of_adam_with_clipping_and_weight_decay(clip):
    options = {"clip": clip, "weight_decay": 0.3, "learning_rate": 0.1}
    config = tiny(model={"dtype": "float64"}, optimiser=options)
    with numerics("float64"):
        expected, losses, norms = by_hand(config, steps=6)
        assert max(norms) > 0.05
        state = initial_state(config)
        for step in (0, 2, 4):
            given = config.model, config.task, config.optimiser
            state, (loss, norm) = run_steps(*given, state, *batches(config, step)[:2])
            np.testing.assert_allclose(loss, losses[step : step + 2], rtol=1e-7)
            np.testing.assert_allclose(norm, norms[step : step + 2], rtol=1e-7)
        for found, wanted in zip(jax.tree.leaves(state.parameters), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


LAYER = {"query", "key", "value", "output", "w1", "w2"}
TRANSFORMER = {"kind": "transformer", "heads": 2, "layers": 1, "layer_norm": "pre"}


@pytest.mark.parametrize(
    ("model", "task", "decayed"),
    [
        ({"kind": "lstm"}, "prediction", {"embedding", "input", "recurrent", "head"}),
        ({"kind": "rnn"}, "prediction", {"embedding", "input", "recurrent", "head"}),
        ({"kind": "convolution"}, "recognition", {"embedding", "kernel", "output", "head"}),
        (TRANSFORMER, "prediction", {"embedding", "head", *LAYER}),
        (
            {**TRANSFORMER, "scores": "additive", "positions": ["index", "learned"]},
            "prediction",
            {"embedding", "components", "learned", "additive", "head", *LAYER},
        ),
    ],
)
def test_weight_decay_shrinks_matrices_and_embeddings_and_neither_biases_nor_norms(model, task, decayed):
    """Where the gradient is 0, weight decay alone moves the parameters."""
    config = tiny(
        task=task, model=model, optimiser={"weight_decay": 0.5, "schedule": "constant", "warmup": 0}
    )
    transform = transformation(config.optimiser)

    @jax.jit
    def without_gradient(parameters: Any) -> Any:
        return transform.update(
            jax.tree.map(jnp.zeros_like, parameters), transform.init(parameters), parameters
        )

    with numerics("float32"):
        ones = jax.tree.map(np.ones_like, network(config.model.kind).drawn(config.model, config.seed))
        updates, _ = without_gradient(ones)
    moved: dict[str, set[bool]] = {}
    for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
        moved.setdefault(jax.tree_util.keystr(path[-1:]).lstrip("."), set()).add(bool(np.any(update)))
    assert {name for name, found in moved.items() if True in found} == decayed
    assert all(len(found) == 1 for found in moved.values())
    assert {name for name in moved if name not in decayed} <= {
        "bias", "b1", "b2", "scale", "output_bias", "head_bias",
    }  # fmt: skip


def test_training_begins_from_the_weights_of_the_models_seed():
    config = tiny(seed=5)
    with numerics("float32"):
        state = initial_state(config)
    drawn = build(config.model, seed=5).parameters
    pairs = zip(jax.tree.leaves(state.parameters), jax.tree.leaves(drawn), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_batch_depends_on_the_seed_and_the_step_and_on_nothing_else():
    config = tiny(data={"batch": 64})
    longer = tiny(data={"batch": 64}, optimiser={"steps": 100}, evaluation={"every": 0}, model={"width": 9})
    assert same(batches(config, 6), batches(config, 6))
    assert same(batches(config, 6), batches(longer, 6))
    assert not same(batches(config, 6), batches(config, 8))
    assert not same(batches(config, 6), batches(tiny(seed=1, data={"batch": 64}), 6))
    tokens = batches(tiny(data={"batch": 64, "lengths": [8, 8]}), 0)[0]
    assert tokens.shape == (2, 64, 9)
    assert not np.array_equal(tokens[0], tokens[1])


@pytest.mark.parametrize("name", ["parity", "2dyck"])
def test_prediction_reads_the_boundary_first_and_is_given_the_law_after_every_prefix(name):
    config = tiny(language={"name": name})
    tokens, targets, optimum = batches(config, 0)
    assert (tokens[..., 0] == config.boundary).all()
    words = tokens[..., 1:]
    laws = config.language.next_probabilities(words)
    np.testing.assert_allclose(targets, laws, rtol=1e-6)
    entropies = -np.sum(laws * np.log(np.where(laws > 0, laws, 1)), axis=-1)
    assert optimum == pytest.approx(entropies.mean(), rel=1e-6)


def test_sampled_targets_are_possible_outcomes_drawn_from_the_law():
    config = tiny(data={"batch": 2000, "targets": "sampled", "lengths": [3, 3]})
    tokens, targets, optimum = batches(config, 0)
    assert set(np.unique(targets)) == {0, 1}
    assert (targets.sum(axis=-1) == 1).all()
    laws = config.language.next_probabilities(tokens[..., 1:])
    assert (laws[targets == 1] > 0).all()
    even = np.broadcast_to((np.cumsum(tokens == 1, axis=-1) % 2 == 0), laws.shape[:-1])
    for state in (even, ~even):
        expected = laws[state][0]
        np.testing.assert_allclose(targets[state].mean(axis=0), expected, atol=0.03)
    drawn = -np.log(laws[targets == 1]).mean()
    assert optimum == pytest.approx(drawn, rel=1e-6)


def test_a_draw_never_takes_an_outcome_of_probability_zero():
    class Ends(np.random.Generator):
        """The least and the largest number that a generator may draw."""

        def random(self, size):  # pyright: ignore[reportIncompatibleMethodOverride]
            return np.broadcast_to([[0.0], [1 - 2.0**-53]], size)

    laws = np.array([[0.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0]])
    drawn = one_hot_draws(laws, Ends(np.random.PCG64(0)))
    assert drawn.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_recognition_reads_the_boundary_last_and_is_given_the_label():
    config = tiny(task="recognition", data={"batch": 20})
    tokens, targets, optimum = batches(config, 0)
    assert (tokens[..., -1] == config.boundary).all()
    assert (tokens.dtype, config.boundary) == (np.int32, 2)
    members = config.language.member(tokens[..., :-1])
    assert np.array_equal(targets[..., 1] == 1, members)
    assert np.array_equal(targets.sum(axis=-1), np.ones(members.shape))
    assert members.mean() == 0.5
    assert optimum == 0


def test_lengths_are_drawn_from_all_that_the_curriculum_allows():
    stages = [{"step": 0, "longest": 3}, {"step": 100, "longest": 6}]
    config = tiny(data={"lengths": [1, 6], "distinct": 6, "curriculum": stages}, optimiser={"steps": 200})
    assert {batches(config, step)[0].shape[-1] - 1 for step in range(0, 100, 2)} == {1, 2, 3}
    assert {batches(config, step)[0].shape[-1] - 1 for step in range(100, 200, 2)} == {1, 2, 3, 4, 5, 6}
