"""AdamW with its schedule and gradient clipping, and the compiled steps of training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxsens.models.config_tables import NetworkConfig
from jaxsens.training.config import Task, TrainConfig
from jaxsens.training.loss import next_symbol_loss, recognition_loss
from jaxsens.training.sequence import initial_parameters
from jaxsens.training.tables import OptimiserConfig

UNDECAYED = frozenset({"bias", "b1", "b2", "output_bias", "head_bias", "scale"})
"""The names of the parameters that weight decay leaves alone: biases, and the scales of normalisation."""


class TrainState(NamedTuple):
    """What training changes: the model's parameters and what the optimiser remembers."""

    parameters: Any
    optimiser: Any


class Measured(NamedTuple):
    """Of each step: its loss, and the gradient's global norm before any clipping."""

    loss: Float[Array, " steps"]
    gradient_norm: Float[Array, " steps"]


@dataclass(frozen=True)
class StepConfig:
    """The part of a config that the compiled steps depend on."""

    model: NetworkConfig
    task: Task
    optimiser: OptimiserConfig


def schedule(config: OptimiserConfig) -> optax.Schedule:
    """The learning rate as a function of the step: 0 at step 0 with a warmup, the largest after it."""
    if config.schedule == "constant":
        after = optax.constant_schedule(config.learning_rate)
    else:
        after = optax.cosine_decay_schedule(config.learning_rate, config.steps - config.warmup)
    if not config.warmup:
        return after
    rising = optax.linear_schedule(0.0, config.learning_rate, config.warmup)
    return optax.join_schedules([rising, after], [config.warmup])


def transformation(config: OptimiserConfig) -> optax.GradientTransformation:
    """Clipping, then AdamW; weight decay leaves the parameters of `UNDECAYED` alone."""
    adam = optax.adamw(schedule(config), weight_decay=config.weight_decay, mask=_decayed)
    return optax.chain(optax.clip_by_global_norm(config.clip), adam) if config.clip else adam


def _decayed(parameters: Any) -> Any:
    # By name and not by shape: the biases of a recurrent layer are a matrix, a row a gate.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name not in UNDECAYED, parameters)


def initial_state(config: TrainConfig) -> TrainState:
    """The state before the first step. Call inside `numerics` of the model's dtype."""
    parameters: Any = initial_parameters(config.model, config.seed)
    return TrainState(parameters, transformation(config.optimiser).init(parameters))


def state_shapes(config: TrainConfig) -> TrainState:
    """The tree of `initial_state` with shapes and dtypes as leaves. Call inside `numerics` of the model's dtype."""
    return jax.eval_shape(partial(initial_state, config))


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def run_steps(
    config: StepConfig, state: TrainState, tokens: Array, targets: Array
) -> tuple[TrainState, Measured]:
    """One step of training for each batch of a call, compiled once for each length. The given state is used up."""
    loss_of = next_symbol_loss if config.task == "prediction" else recognition_loss
    transform = transformation(config.optimiser)

    def step(state: TrainState, batch: tuple[Array, Array]) -> tuple[TrainState, Measured]:
        loss, gradient = jax.value_and_grad(partial(loss_of, config.model))(state.parameters, *batch)

        updates, optimiser = transform.update(gradient, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(parameters, optimiser), Measured(loss, optax.tree.norm(gradient))

    return jax.lax.scan(step, state, (tokens, targets))


def learning_rate(config: OptimiserConfig, step: int) -> float:
    """The learning rate of a step."""
    return float(jnp.asarray(schedule(config)(step)))
