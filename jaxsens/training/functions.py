"""Regression of functions of binary words: many small transformers trained at once, one for each function and seed.

The functions and the loss are those of Hahn and Rofin (2024): uniform words, and the mean squared error of one output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxsens.base import stopping
from jaxsens.base.errors import rule_for
from jaxsens.base.precision import numerics
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.models.transformer.parameters import TransformerParameters, initialise
from jaxsens.training.config import OptimiserConfig
from jaxsens.training.optimiser import transformation

Function = Callable[[Any], Any]
"""From words (..., n) of whole numbers to float32 (...): arrays of NumPy or of JAX."""

FUNCTIONS: dict[str, Function] = {
    "parity": lambda words: (words.sum(axis=-1) % 2).astype("float32"),
    "majority": lambda words: (2 * words.sum(axis=-1) > words.shape[-1]).astype("float32"),
    "first": lambda words: words[..., 0].astype("float32"),
    "mean": lambda words: words.mean(axis=-1, dtype="float32"),
}
"""Functions from words of 0s and 1s to numbers from 0 to 1 (Hahn and Rofin 2024)."""

STEPS_A_CALL = 50
"""Steps between two moments at which a signal can end the training."""


class Trained(NamedTuple):
    """A trained model: the function and the seed that it was trained for, and its parameters."""

    function: str
    seed: int
    parameters: TransformerParameters


def mean_squared_error(
    config: TransformerConfig, parameters: Any, words: Int[Array, "words n"], targets: Float[Array, " words"]
) -> Float[Array, ""]:
    """The loss: of the model's only output, averaged over the words."""
    outputs = jax.vmap(partial(layers.apply, config, parameters))(words)
    return jnp.mean((outputs[:, 0] - targets) ** 2)


def train_functions(
    config: TransformerConfig,
    functions: Sequence[str],
    n: int,
    seeds: Sequence[int],
    optimiser: OptimiserConfig,
    batch: int,
) -> tuple[Trained, ...]:
    """Trains a model of `config` for each function and seed on uniform words of n symbols, all in one compiled loop.

    Models of one seed have the same first weights. Each reads its own words, which depend on its function, its seed and
    the step.

    Cost: one compilation for each length; a step costs what it does for each model alone.
    """
    for name in functions:
        rule_for("train_functions", "function", name, FUNCTIONS)
    models = [(name, seed) for name in functions for seed in seeds]
    with numerics(config.dtype):
        first = {seed: initialise(config, seed) for seed in seeds}
        parameters = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(first[seed] for _, seed in models))
        trained = parameters, jax.vmap(transformation(optimiser).init)(parameters)
        order = tuple(functions)
        kinds = jnp.array([order.index(name) for name, _ in models])
        keys = jnp.stack(
            [jax.random.fold_in(jax.random.key(seed), order.index(name)) for name, seed in models]
        )
        for begun in range(0, optimiser.steps, STEPS_A_CALL):
            stopping.check()
            steps = jnp.arange(begun, min(begun + STEPS_A_CALL, optimiser.steps))
            trained = _run(config, optimiser, order, n, batch, trained, kinds, keys, steps)
        found = jax.tree.map(np.asarray, trained[0])
    return tuple(
        Trained(name, seed, jax.tree.map(lambda leaf, k=k: leaf[k], found))
        for k, (name, seed) in enumerate(models)
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), donate_argnums=5)
def _run(
    config: TransformerConfig,
    optimiser: OptimiserConfig,
    functions: tuple[str, ...],
    n: int,
    batch: int,
    trained: tuple[Any, Any],
    kinds: Array,
    keys: Array,
    steps: Array,
) -> tuple[Any, Any]:
    transform = transformation(optimiser)

    def one(parameters: Any, state: Any, kind: Array, key: Array, step: Array) -> tuple[Any, Any]:
        words = jax.random.bernoulli(jax.random.fold_in(key, step), shape=(batch, n)).astype(jnp.int32)
        targets = jnp.stack([FUNCTIONS[name](words) for name in functions])[kind]
        gradient = jax.grad(partial(mean_squared_error, config))(
            parameters, words, targets.astype(config.dtype)
        )
        updates, state = transform.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    def step(carry: tuple[Any, Any], number: Array) -> tuple[tuple[Any, Any], None]:
        return jax.vmap(one, in_axes=(0, 0, 0, 0, None))(*carry, kinds, keys, number), None

    return jax.lax.scan(step, trained, steps)[0]
