"""Digests of models: of their parameters and of what they compute."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.programs import OfArrays, kept
from jaxsens.core.models.subjects.adapters import Measurable


def fingerprint(subject: Measurable, n: int, weights: str | None = None) -> str:
    """Returns the SHA-256 of a model's parameters (`weights_of`, if known) and of its function on inputs of length n.

    The function of a jaxsens transformer is given by its config, a PyTorch module by its description. For any other
    model it is the lowered JAX program (StableHLO), with the arrays that it closes over; it depends on JAX's
    version and the kind of device.
    """
    weights = weights_of(subject) if weights is None else weights
    return hashlib.sha256(f"{_function(subject, n)} {weights}".encode()).hexdigest()


_digests: OfArrays[str] = OfArrays()


def weights_of(subject: Measurable) -> str:
    """Returns the SHA-256 of a model's parameters, by path; of a PyTorch module with its description.

    That of JAX's arrays is kept as long as they are: to read all weights takes longer than to measure a short input.
    """
    leaves, structure = jax.tree.flatten(subject.parameters)
    if subject.torch is not None or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return _read_weights(subject)
    return _digests.get(structure, leaves, lambda: _read_weights(subject))


def _read_weights(subject: Measurable) -> str:
    found = hashlib.sha256((subject.torch.digest() if subject.torch is not None else "").encode())
    for path, leaf in jax.tree_util.tree_flatten_with_path(subject.parameters)[0]:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _function(subject: Measurable, n: int) -> str:
    if subject.config is not None:
        return repr(subject.config)
    if subject.torch is not None:
        return f"PyTorch {subject.readout!r}"
    leaves, structure = jax.tree.flatten(subject.parameters)
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return _program(subject.apply, structure, shapes, n, jnp.result_type(float) == jnp.float64)


@kept
def _program(apply: Any, structure: Any, shapes: tuple[Any, ...], n: int, wide: bool) -> str:
    """Returns the SHA-256 of the program. `wide` (64-bit types are on) is part of the cache key."""

    def program(parameters: Any, tokens: Any) -> Any:
        return apply(parameters, tokens)

    tokens = jax.ShapeDtypeStruct((n,), np.int32)
    lowered = jax.jit(program).lower(jax.tree.unflatten(structure, shapes), tokens)
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
