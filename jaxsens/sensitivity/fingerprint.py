"""What a model computes, as one hash: whether a measurement goes on with the model with which it was begun."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.sensitivity.adapters import Measurable


def fingerprint(subject: Measurable, n: int) -> str:
    """SHA-256 of a model's parameters, by path, and of its function on inputs of length n.

    Of a jaxsens transformer the function is its config; of any other model the program that JAX makes of it
    (StableHLO), arrays that it closes over included. That depends on JAX's version, and on the device's kind.
    """
    found = hashlib.sha256(_function(subject, n).encode())
    for path, leaf in jax.tree_util.tree_flatten_with_path(subject.parameters)[0]:
        array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _function(subject: Measurable, n: int) -> str:
    if subject.config is not None:
        return repr(subject.config)
    leaves, structure = jax.tree.flatten(subject.parameters)
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return _program(subject.apply, structure, shapes, n, jnp.asarray(0.0).dtype == jnp.float64)


@lru_cache(maxsize=16)
def _program(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> str:
    """SHA-256 of the program. `wide` (64-bit types are on) is part of the key."""

    def program(parameters: Any, tokens: Any) -> Any:
        return apply(parameters, tokens)

    tokens = jax.ShapeDtypeStruct((n,), np.int32)
    lowered = jax.jit(program).lower(jax.tree.unflatten(structure, shapes), tokens)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
