"""The activations of published models, under the names that their `config.json` uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Activation = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]

_erf: Activation = partial(jax.nn.gelu, approximate=False)
_tanh: Activation = partial(jax.nn.gelu, approximate=True)


def _quick(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _erf,
    "gelu_python": _erf,
    "gelu_new": _tanh,
    "gelu_pytorch_tanh": _tanh,
    "gelu_python_tanh": _tanh,
    "gelu_accurate": _tanh,
    "gelu_fast": _tanh,  # its constant is sqrt(2 / pi) to ten digits
    "quick_gelu": _quick,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""The activation of each name: Gaussian error linear units with erf, with tanh, or with a sigmoid, and others."""
