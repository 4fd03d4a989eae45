"""The base class of the networks, as Flax NNX modules. They hold the parameters; pure functions do the mathematics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jaxsens.core.base.programs import compiled, numerics
from jaxsens.core.models.networks.config import NetworkConfig
from jaxsens.core.models.networks.given import checked_making, checked_parameters, on_device

Config = TypeVar("Config", bound=NetworkConfig)
Parameters = TypeVar("Parameters")


class Network(nnx.Module, Generic[Config, Parameters]):
    """A network of a config, with its parameters.

    Args:
        config: its shape and choices.
        seed: the seed of random parameters.
        parameters: those to use instead; their shapes must be those of the config.

    Attributes:
        of: of each class derived from it, the class of its configs.
        drawn: the function of (config, seed) that returns random parameters.
        shaped: the function of a config that returns a tree of the shapes of its parameters.
        output_of: the pure function of (config, parameters, tokens) that returns the output on one input.
        rows_of: the one that returns the last layer at every position.

    Raises:
        InputError: naming each unusable argument.
    """

    of: ClassVar[type[Any]]
    drawn: ClassVar[Callable[[Any, int], Any]]
    shaped: ClassVar[Callable[[Any], Any]]

    output_of: ClassVar[Callable[..., Array]]
    rows_of: ClassVar[Callable[..., Array]]

    def __init__(self, config: Config, seed: int = 0, parameters: Parameters | None = None) -> None:
        self.config, seed = checked_making(type(self).__name__, config, self.of, seed)
        if parameters is None:
            given = type(self).drawn(config, seed)
        else:
            given = checked_parameters(type(self).shaped(config), parameters, config.dtype)
        self.variables = nnx.data(jax.tree.map(nnx.Param, given))

    @property
    def parameters(self) -> Parameters:
        """The parameters as a pytree of plain arrays."""
        return jax.tree.map(
            lambda variable: variable[...],
            self.variables,
            is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
        )

    def __call__(self, tokens: ArrayLike) -> Float[Array, "*batch outputs"]:
        """Returns the output on each input: (width,), or (logits,) with a linear head. Compiled once per shape."""
        return self._run(self.output_of, "(n)->(d)", tokens)

    def activations(self, tokens: ArrayLike) -> Float[Array, "*batch n width"]:
        """Returns the last layer at every position of each input, before any pooling. Compiled once per shape."""
        return self._run(self.rows_of, "(n)->(n,d)", tokens)

    def _check(self, tokens: ArrayLike) -> None:
        """Raises InputError for tokens of the wrong type, shape or range."""
        raise NotImplementedError

    def _run(self, function: Callable[..., Array], signature: str, tokens: ArrayLike) -> Array:
        self._check(tokens)
        with numerics(self.config.dtype):
            return _of_each(function, signature, self.config, self.parameters, on_device(tokens))


@compiled(static=3)
def _of_each(
    function: Callable[..., Array], signature: str, config: Any, parameters: Any, tokens: Array
) -> Array:
    return jnp.vectorize(partial(function, config, parameters), signature=signature)(tokens)
