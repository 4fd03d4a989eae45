"""Sharpness: how much a loss rises if Gaussian noise is added to a trained model's parameters.

Hahn and Rofin (2024, "Why are Sensitive Functions Hard for Transformers?", section 5) measure it so, and prove that it
cannot stay small for models of sensitive functions as inputs grow, unless layer normalisation blows up
(`jaxsens.layer_norm_blowup`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxsens.base import inputs
from jaxsens.base.errors import InputError, Problems, collecting
from jaxsens.base.precision import numerics
from jaxsens.base.programs import compiled
from jaxsens.base.strict import naming_arguments
from jaxsens.base.told import facts


@dataclass(frozen=True)
class Sharpness:
    """How much a loss rises under noise.

    Attributes:
        loss: The loss of the given parameters.
        rises: For each draw of the noise, the loss with it minus `loss`.
        noise: The standard deviation of the noise, as it was given.
        relative: Whether it is relative to each parameter array's root mean square.
        perturbed: The number of parameters that noise was added to.
        norm: The Euclidean length of these parameters.
    """

    loss: float
    rises: tuple[float, ...]
    noise: float
    relative: bool
    perturbed: int
    norm: float

    @property
    def mean(self) -> float:
        """The mean rise over the draws: the sharpness."""
        return float(np.mean(self.rises))

    @property
    def standard_error(self) -> float:
        """The standard error of `mean`, from the draws."""
        return float(np.std(self.rises, ddof=1) / math.sqrt(len(self.rises)))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        kind = "of each array's root mean square" if self.relative else "absolute"
        rows: dict[str, object] = {
            "loss": self.loss,
            "mean rise": f"{self.mean:.4g} (standard error {self.standard_error:.2g})",
            "noise": f"{self.noise:.4g}, {kind}",
            "draws": len(self.rises),
            "parameters with noise": self.perturbed,
        }
        return facts("Sharpness", rows, "How much the loss rises under Gaussian noise in the parameters.")

    @property
    def radius(self) -> float | None:
        """noise * sqrt(perturbed), near which the noise's Euclidean length is; None for relative noise."""
        return None if self.relative else self.noise * math.sqrt(self.perturbed)


@naming_arguments
def sharpness(
    loss: Callable[..., Any],
    parameters: Any,
    noise: float = 0.02,
    draws: int = 10,
    seed: int = 0,
    *,
    data: tuple[Any, ...] = (),
    relative: bool = False,
    without: Collection[str] = (),
) -> Sharpness:
    """The rise of a loss under independent Gaussian noise on every parameter, averaged over draws of the noise.

    For a quadratic loss with Hessian A, the expectation is noise^2 / 2 times the trace of A.

    Args:
        loss: A function that JAX can trace, called as loss(parameters, *data), with a scalar result. Reuse function
            objects: the program is compiled once for each, and for each shape.
        parameters: A pytree of arrays, such as `model.parameters`. Arrays of integers are left as they are.
        noise: The standard deviation of the noise. Hahn and Rofin (2024) use 0.02.
        draws: How often the noise is drawn, at least 2. Hahn and Rofin (2024) use 10.
        seed: The seed of the noise. Models of one structure get the same noise.
        data: What else the loss is called with, the same in every draw: arrays, such as inputs and targets.
        relative: Whether the noise of each array is `noise` times the root mean square of that array.
        without: Names of parameters without noise, as on the path to an array: fields of dataclasses, keys of
            dictionaries. ("learned",) leaves out learned position embeddings.

    Raises:
        InputError: Listing each argument that cannot be used.

    Cost: `draws` + 1 evaluations of the loss, one after the other, in one compiled function.
    """
    with collecting("sharpness") as problems:
        if not isinstance(data, tuple):
            problems.add("data", data, "a tuple of what the loss is called with after the parameters")
        elif not callable(loss) or isinstance(loss, type) or not inputs.takes(loss, 1 + len(data)):
            remedy = "a function of the parameters, and of each value of `data`, with a scalar result"
            problems.add("loss", loss, remedy)
        inputs.count("draws", draws, problems, least=2)
        inputs.count("seed", seed, problems)
        kept = _checked(parameters, noise, relative, without, problems)
    leaves = jax.tree.leaves(parameters)
    wide = any(leaf.dtype == np.float64 for leaf in leaves)
    with numerics("float64" if wide else "float32"):
        keys = jax.random.split(jax.random.key(seed), draws)
        found, moved = _losses(loss, float(noise), relative, tuple(kept), parameters, keys, data)
        base, losses = float(found), np.asarray(moved, np.float64)
    moving = [np.asarray(leaf, np.float64) for leaf, moves in zip(leaves, kept, strict=True) if moves]
    norm = math.sqrt(sum(float(np.sum(array**2)) for array in moving))
    number = sum(array.size for array in moving)
    return Sharpness(base, tuple((losses - base).tolist()), float(noise), relative, number, norm)


@compiled(static=4)
def _losses(
    loss: Callable[..., Any],
    noise: float,
    relative: bool,
    kept: tuple[bool, ...],
    parameters: Any,
    keys: Array,
    data: tuple[Any, ...],
) -> tuple[Array, Array]:
    """The loss, and the loss with each draw of the noise, one after the other."""

    def one(key: Array) -> Array:
        moved = jax.tree.map(operator.add, parameters, _noise(parameters, key, noise, relative, kept))
        return _scalar(loss(moved, *data))

    return _scalar(loss(parameters, *data)), jax.lax.map(one, keys)


@naming_arguments
def parameter_noise(
    parameters: Any, key: Array, noise: float, relative: bool = False, without: Collection[str] = ()
) -> Any:
    """One draw of the noise of `sharpness`: a pytree like `parameters`.

    Draw k of `sharpness` has the key `jax.random.split(jax.random.key(seed), draws)[k]`.
    """
    with collecting("parameter_noise") as problems:
        try:
            jax.random.fold_in(key, 0)
        except (TypeError, ValueError):
            problems.add("key", key, "one key, such as jax.random.key(seed)")
        kept = _checked(parameters, noise, relative, without, problems)
    return _noise(parameters, key, float(noise), relative, kept)


def _noise(parameters: Any, key: Array, noise: float, relative: bool, kept: Sequence[bool]) -> Any:
    leaves, structure = jax.tree.flatten(parameters)
    drawn = []
    for k, (leaf, moves) in enumerate(zip(leaves, kept, strict=True)):
        array = jnp.asarray(leaf)
        if not moves:
            drawn.append(jnp.zeros_like(array))
            continue
        scale = noise * jnp.sqrt(jnp.mean(jnp.square(array))) if relative else noise
        drawn.append(scale * jax.random.normal(jax.random.fold_in(key, k), array.shape, array.dtype))
    return jax.tree.unflatten(structure, drawn)


def _scalar(value: Any) -> Float[Array, ""]:
    array = jnp.asarray(value)
    if array.shape:
        raise InputError(f"sharpness: loss returns shape {array.shape}: return one number, such as a mean")
    return array


def _names(path: tuple[Any, ...]) -> set[str]:
    """The names on the path to an array: fields and keys, and the numbers of places in a list as texts."""
    return {
        str(next(getattr(part, each) for each in ("name", "key", "idx") if hasattr(part, each)))
        for part in path
    }


def _checked(parameters: Any, noise: Any, relative: Any, without: Any, problems: Problems) -> list[bool]:
    """For each array, whether noise is added to it. Notes what cannot be used."""
    inputs.number("noise", noise, problems, above=0, below=float("inf"))
    inputs.choice("relative", relative, (True, False), problems)
    named = isinstance(without, Collection) and all(isinstance(one, str) for one in without)
    if isinstance(without, str) or not named:
        problems.add("without", without, 'names of parameters, such as ("learned",)')
        return []
    paths = jax.tree_util.tree_leaves_with_path(parameters)
    found: set[str] = set().union(*(_names(path) for path, _ in paths))
    if not all(isinstance(leaf, jax.Array | np.ndarray) for _, leaf in paths):
        problems.add("parameters", type(parameters).__name__, "a pytree of arrays, such as model.parameters")
        return []
    if missing := sorted(set(without) - found):
        problems.add("without", missing, f"names of these parameters: {', '.join(sorted(found)) or 'none'}")
    moved = [
        bool(jnp.issubdtype(leaf.dtype, jnp.floating)) and not _names(path) & {*without}
        for path, leaf in paths
    ]
    if not any(moved):
        remedy = "at least one array of floats with noise: those of `without` have none"
        problems.add("parameters", type(parameters).__name__, remedy)
    return moved
