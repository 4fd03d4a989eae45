"""Checks a network's config, seed, parameters and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, check_fits, collecting
from jaxsens.core.base.programs import numerics

Tree = TypeVar("Tree")
Config = TypeVar("Config")


def checked_making(network: str, config: Any, kind: type[Config], seed: Any) -> tuple[Config, int]:
    """Returns the config, which must be of this kind, and the seed as a Python int.

    Raises:
        InputError: naming each unusable argument.
    """
    with collecting(network) as problems:
        if not isinstance(config, kind):
            problems.add("config", config, f"give a {kind.__name__}")
        else:
            check_size(config, problems)
        seed = inputs.seed(seed, problems)
    return config, seed


_SIZES = ("alphabet_size", "width", "layers", "heads", "head_width", "feed_forward", "logits", "kernel_width")


def check_size(config: Any, problems: Problems) -> None:
    """Adds an error if the parameters of a network do not fit in this machine's memory. It names the largest size."""
    given = {name: getattr(config, name, None) or 0 for name in _SIZES}
    sizes = {name: max(value) if isinstance(value, tuple) else value for name, value in given.items()}
    terms = getattr(config, "position_terms", ())
    sizes["positions"] = max((getattr(term, "max_length", 0) for term in terms), default=0)
    largest = max(sizes, key=lambda name: sizes[name])
    needed, remedy = config.parameter_count * np.dtype(config.dtype).itemsize, "give a smaller one"
    check_fits(largest, sizes[largest], needed, "a network of this size", remedy, problems)


def check_input(tokens: ArrayLike, vocabulary: int, check_length: Callable[[int, Problems], None]) -> None:
    """Rejects a network's input unless it is an array of ids. The ids are checked if their values are known.

    Args:
        tokens: the user's argument.
        vocabulary: the number of symbols that the network reads.
        check_length: adds an error if inputs of a length cannot be read.

    Raises:
        InputError: listing every error.
    """
    if not isinstance(tokens, np.ndarray | np.generic | jax.Array | int | float | complex):
        raise InputError.of("tokens", type(tokens).__name__, "give an array, such as numpy.array([0, 1])")
    with collecting("tokens") as problems:
        if inputs.is_masked(tokens):
            problems.add("tokens", tokens, inputs.UNMASKED)
        shape, dtype = np.shape(tokens), getattr(tokens, "dtype", type(tokens))
        if not jnp.issubdtype(dtype, jnp.integer):
            problems.add("tokens", str(dtype), "whole numbers: symbols are 0 .. alphabet_size - 1")
        if not shape or 0 in shape:
            remedy = "an array of shape (n,) or (batch, n), of at least one symbol"
            problems.add("tokens", f"shape {shape}", remedy)
        else:
            check_length(shape[-1], problems)
        if not problems and not isinstance(tokens, Tracer):
            # With NumPy, because JAX would first wrap ids beyond 32 bits around.
            inputs.check_ids("tokens", np.asarray(tokens), vocabulary, problems)


def instead_of(given: object, wanted: str) -> str:
    """Says what to pass instead of `given`, which may hold it (a training's record has its network in `.model`).

    >>> instead_of(3, "a Transformer")
    'a Transformer'
    """
    held = getattr(given, "model", None)
    return wanted if held is None else f"its .model, a {type(held).__name__}; expected {wanted}"


def checked_parameters(expected: Tree, given: Tree, dtype: str) -> Tree:
    """Returns the given parameters as JAX arrays of `dtype`.

    Args:
        expected: a tree of the same kind whose leaves have the required shapes.
        given: JAX or NumPy arrays.
        dtype: "float32" or "float64".

    Raises:
        InputError: if the structure or a shape is wrong, listing every such shape.
    """
    problems = Problems("parameters")
    want, have = jax.tree.structure(expected), jax.tree.structure(given)
    if want != have:
        problems.add("parameters", have, f"the structure of this config, {want}")
        problems.raise_if_any()
    wanted = jax.tree_util.tree_flatten_with_path(expected)[0]
    for (path, shape), leaf in zip(wanted, jax.tree.leaves(given), strict=True):
        if jnp.shape(leaf) != shape.shape:
            problems.add(jax.tree_util.keystr(path), jnp.shape(leaf), f"shape {shape.shape}")
    problems.raise_if_any()
    with numerics(dtype):
        return parameters_from_numpy(given, dtype)


def parameters_from_numpy(tree: Tree, dtype: str) -> Tree:
    """Returns the parameters as JAX arrays of `dtype`. Call it inside `numerics(dtype)`."""
    with np.errstate(over="ignore"):  # infinite where the type has no such number
        return jax.tree.map(lambda leaf: on_device(np.asarray(leaf).astype(dtype)), tree)


def on_device(array: ArrayLike) -> jax.Array:
    """Converts an array to JAX like `jnp.asarray`, which would compile a program for each new shape and dtype."""
    return array if isinstance(array, jax.Array) else jax.device_put(np.asarray(array))
