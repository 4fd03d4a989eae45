"""Parameters that are given to a network instead of drawn: are they those that its config describes."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.errors import Faults
from jaxsens.precision import numerics

Tree = TypeVar("Tree")


def checked_parameters(expected: Tree, given: Tree, dtype: str) -> Tree:
    """The given parameters as JAX arrays of `dtype`.

    Args:
        expected: a tree of the same kind whose leaves have the shapes wanted.
        given: arrays of JAX or NumPy.
        dtype: "float32" or "float64".

    Raises:
        InputError: where the structure or a shape is another, listing every shape.
    """
    faults = Faults("parameters")
    want, have = jax.tree.structure(expected), jax.tree.structure(given)
    if want != have:
        faults.add("parameters", have, f"the structure of this config, {want}")
        faults.raise_if_any()
    wanted = jax.tree_util.tree_flatten_with_path(expected)[0]
    for (path, shape), leaf in zip(wanted, jax.tree.leaves(given), strict=True):
        if jnp.shape(leaf) != shape.shape:
            faults.add(jax.tree_util.keystr(path), jnp.shape(leaf), f"shape {shape.shape}")
    faults.raise_if_any()
    with numerics(dtype):
        return parameters_from_numpy(given, dtype)


def parameters_from_numpy(tree: Tree, dtype: str) -> Tree:
    """The same parameters as JAX arrays of `dtype`. Call inside `numerics(dtype)`."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), tree)
