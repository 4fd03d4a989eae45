"""Random initial weights. Every parameter has its own random stream, determined by its name.

A draw depends only on the seed and the parameter's name and shape. Two models with the same seed therefore share all
common parameters, regardless of their weightings, masks, dtypes or other parameters, and a variant differs from the
baseline in only one respect. NumPy draws in float64; the result is rounded once.
"""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.inputs import number
from jaxsens.core.base.strict import typed


def generator(seed: int, name: str) -> np.random.Generator:
    """Returns the random stream of the parameter `name` for `seed` (PCG64, seeded with the SHA-256 of the name)."""
    digest = hashlib.sha256(name.encode()).digest()
    entropy = np.frombuffer(digest, dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *map(int, entropy)])))


class Initialisation(abc.ABC):
    """The distribution of the random entries of matrices, embeddings and vectors. Biases and scales are not drawn."""

    @abc.abstractmethod
    def entries(
        self, draws: np.random.Generator, shape: tuple[int, ...], variance: float
    ) -> Float[np.ndarray, "*shape"]:
        """Returns independent entries in float64. `variance` is the one that suits the parameter's fan-in."""


@dataclass(frozen=True)
class FanIn(Initialisation):
    """Normal entries, of a variance that keeps the size of activations: see `initialise` of each model."""

    def entries(self, draws: np.random.Generator, shape: tuple[int, ...], variance: float) -> np.ndarray:
        return draws.normal(size=shape) * np.sqrt(variance)


@dataclass(frozen=True)
class Uniform(Initialisation):
    """Entries uniform in [-bound, bound], whatever the fan-in, as in Bhattamishra et al. (2023, section 4): 10."""

    bound: float

    def __post_init__(self) -> None:
        _check_positive("Uniform", "bound", self.bound)

    def entries(self, draws: np.random.Generator, shape: tuple[int, ...], variance: float) -> np.ndarray:
        """Uniform; `variance` is not used."""
        del variance
        return draws.uniform(-self.bound, self.bound, size=shape)


@dataclass(frozen=True)
class Normal(Initialisation):
    """Normal entries of one standard deviation, whatever the fan-in."""

    deviation: float

    def __post_init__(self) -> None:
        _check_positive("Normal", "deviation", self.deviation)

    def entries(self, draws: np.random.Generator, shape: tuple[int, ...], variance: float) -> np.ndarray:
        """N(0, deviation^2); `variance` is not used."""
        del variance
        return draws.normal(size=shape) * self.deviation


FAN_IN = FanIn()

_TYPED: dict[str, type] = {"FanIn": FanIn, "Uniform": Uniform, "Normal": Normal}
"""Those that a table in a config file may describe, by `type`."""


def checked(name: str, value: Any, problems: Problems) -> Initialisation:
    """Returns an initialisation given by name, by a table of a config file, or directly; after errors, the default."""
    if isinstance(value, Mapping):
        value = typed(name, value, _TYPED, problems)
        return FAN_IN if value is None else value
    if value == "fan-in":
        return FAN_IN
    if not isinstance(value, Initialisation):
        problems.add(name, value, '"fan-in", Uniform(bound) or Normal(deviation)')
        return FAN_IN
    return value


def draw(law: Any, seed: int, name: str, shape: Sequence[int], variance: float, dtype: str) -> np.ndarray:
    """Returns the entries of a model's parameter, drawn in float64 and rounded to `dtype`. `variance` is the one that
    suits its fan-in."""
    return law.entries(generator(seed, name), tuple(shape), variance).astype(dtype)


def _check_positive(kind: str, name: str, value: object) -> None:
    with collecting(kind) as problems:
        number(name, value, problems, above=0, below=math.inf)
