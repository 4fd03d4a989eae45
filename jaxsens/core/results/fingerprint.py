"""Digests of models: of their parameters and of what they compute."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.programs import cached
from jaxsens.core.engines.vmap import program_key
from jaxsens.core.models.adapters import Model


def fingerprint(model: Model, n: int, weights: str | None = None) -> str:
    """Returns the SHA-256 of a model's parameters (`weights_of`, if known) and of its function on inputs of length n.

    The function of a jaxsens transformer is given by its config, a PyTorch module by its description. For any other
    model it is the lowered JAX program (StableHLO), with the arrays that it closes over; it depends on JAX's
    version and the kind of device.
    """
    weights = weights_of(model) if weights is None else weights
    return hashlib.sha256(f"{_function(model, n)} {weights}".encode()).hexdigest()


def weights_of(model: Model) -> str:
    """Returns the SHA-256 of a model's parameters, by path; of a PyTorch module with its description.

    That of JAX's arrays is kept as long as they are: to read all weights takes longer than to measure a short input.
    """
    leaves, structure = jax.tree.flatten(model.parameters)
    if model.torch is not None or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return _digest(model.parameters, "" if model.torch is None else model.torch.digest())
    return _digest_of_arrays(structure, *leaves)


@cached
def _digest_of_arrays(structure: Any, *leaves: jax.Array) -> str:
    return _digest(jax.tree.unflatten(structure, leaves))


def _digest(parameters: Any, description: str = "") -> str:
    found = hashlib.sha256(description.encode())
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _function(model: Model, n: int) -> str:
    if model.config is not None:
        return repr(model.config)
    if model.torch is not None:
        return f"PyTorch {model.readout!r}"
    return _program(model.apply, *program_key(model.parameters, n))


@cached
def _program(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> str:
    """Returns the SHA-256 of the program. `wide` (64-bit types are on) is part of the cache key."""

    def program(parameters: Any, tokens: Any) -> Any:
        return apply(parameters, tokens)

    tokens = jax.ShapeDtypeStruct((n,), np.int32)
    parameters = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*one) for one in shapes])
    lowered = jax.jit(program).lower(parameters, tokens)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
