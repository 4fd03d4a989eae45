"""AdamW with its schedule and gradient clipping, and the compiled steps of training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxsens.core.base.errors import no_rule
from jaxsens.training.config import OptimiserConfig, Task, TrainableConfig, TrainConfig
from jaxsens.training.sequence import initial_parameters, next_symbol_loss, recognition_loss

UNDECAYED = frozenset({"bias", "b1", "b2", "output_bias", "head_bias", "scale", "sink"})
"""The names of the parameters that weight decay leaves alone: biases, scores of sinks, scales of normalisation."""


class TrainState(NamedTuple):
    """What training changes: the model's parameters and the optimiser's state."""

    parameters: Any
    optimiser: Any


class StepMetrics(NamedTuple):
    """The loss of each step, and the global norm of its gradient before any clipping."""

    loss: Float[Array, " steps"]
    gradient_norm: Float[Array, " steps"]


@dataclass(frozen=True)
class StepConfig:
    """The part of a config that the compiled steps depend on."""

    model: TrainableConfig
    task: Task
    optimiser: OptimiserConfig


def schedule(config: OptimiserConfig) -> optax.Schedule:
    """The learning rate as a function of the step: with a warmup 0 at step 0, and the largest after it."""
    largest, warmup = config.learning_rate, config.warmup
    match config.schedule:
        case "constant":
            return optax.warmup_constant_schedule(0.0 if warmup else largest, largest, warmup)
        case "warmup-cosine":
            return optax.warmup_cosine_decay_schedule(0.0, largest, warmup, config.steps)
    raise no_rule("schedule", "schedule", config.schedule, ("constant", "warmup-cosine"))


def transformation(config: OptimiserConfig) -> optax.GradientTransformation:
    """Clipping, then AdamW. Weight decay leaves the parameters of `UNDECAYED` alone."""
    adam = optax.adamw(schedule(config), weight_decay=config.weight_decay, mask=_decayed)
    return optax.chain(optax.clip_by_global_norm(config.clip), adam) if config.clip else adam


def _decayed(parameters: Any) -> Any:
    # By name and not by shape: the biases of a recurrent layer are a matrix with a row for each gate.
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name not in UNDECAYED, parameters)


def initial_state(config: TrainConfig) -> TrainState:
    """The state before the first step. Call it within `numerics` of the model's dtype."""
    parameters = initial_parameters(config.model, config.seed)
    return TrainState(parameters, transformation(config.optimiser).init(parameters))


def state_shapes(config: TrainConfig) -> TrainState:
    """`initial_state` with shapes and dtypes as leaves. Call it within `numerics` of the model's dtype."""
    return jax.eval_shape(partial(initial_state, config))


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def run_steps(
    config: StepConfig, state: TrainState, tokens: Array, targets: Array
) -> tuple[TrainState, StepMetrics]:
    """One step of training for each batch of a call, compiled once for each length. Donates the given state."""
    loss_of = next_symbol_loss if config.task == "prediction" else recognition_loss
    transform = transformation(config.optimiser)

    def step(state: TrainState, batch: tuple[Array, Array]) -> tuple[TrainState, StepMetrics]:
        loss, gradient = jax.value_and_grad(partial(loss_of, config.model))(state.parameters, *batch)
        updates, optimiser = transform.update(gradient, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(parameters, optimiser), StepMetrics(loss, optax.tree.norm(gradient))

    return jax.lax.scan(step, state, (tokens, targets))


def learning_rate(config: OptimiserConfig, step: int) -> float:
    """The learning rate of a step."""
    return float(jnp.asarray(schedule(config)(step)))
