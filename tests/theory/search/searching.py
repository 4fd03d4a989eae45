"""What the tests of the search share: models, meshes, and the truth by `flip_sensitivity` of every word."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import jaxsens
from jaxsens.core.base.errors import Problems
from jaxsens.core.engines.options import AskedEngine, Auto
from jaxsens.core.measures import L2, Norm
from jaxsens.core.models.adapters import as_model
from jaxsens.core.placement.placement import Placement
from jaxsens.theory.search.problem import SearchTask, problem_of, search_space
from jaxsens.theory.search.worst_input import worst_input
from tests.small_models import random_parameters, small

ONE = Mesh(np.array(jax.devices()[:1]), ("flips",))


def model_of(seed: int = 0, length: int = 6, **changes: Any) -> jaxsens.Transformer:
    """A small float64 transformer with random biases, one layer if not told otherwise."""
    config = small(**{"layers": 1, **changes})
    return jaxsens.Transformer(config, parameters=random_parameters(config, seed, length))


def words_over(alphabet: int, n: int, fixed: dict[int, int] | None = None) -> np.ndarray:
    """All words, with the fixed symbols put in."""
    free = [p for p in range(n) if p not in (fixed or {})]
    words = np.zeros((alphabet ** len(free), n), int)
    words[:, free] = list(product(range(alphabet), repeat=len(free)))
    for position, symbol in (fixed or {}).items():
        words[:, position] = symbol
    return words


def truth(model: Any, words: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The largest and the mean sensitivity of every word, by `flip_sensitivity`."""
    measured = jaxsens.flip_sensitivity(model, words, **options, placement=jaxsens.Placement(ONE))
    norms = measured.norms.reshape(len(words), -1).astype(float)
    return norms.max(axis=1), norms.mean(axis=1)


def problem(
    model: Any, n: int, objective: Any = "max", norm: Norm | None = None, engine: AskedEngine | None = None
) -> SearchTask:
    """The problem as `worst_input` makes it. For use within `numerics`."""
    subject = as_model(model)
    space = search_space(
        subject, n, np.arange(subject.alphabet_size or 0), jaxsens.theory.Search(), Problems("test")
    )
    return problem_of(
        subject,
        space,
        jaxsens.theory.Search(objective=objective),
        norm or L2(),
        engine or Auto(),
        Placement(ONE),
    )


OPTIONS = ("measure", "progress")


def searched(model: Any, n: int, flips: Any = None, engine: Any = "vmap", **options: Any) -> Any:
    """The result of `worst_input` on one device; options other than `OPTIONS` are those of the search."""
    given = {name: options.pop(name) for name in OPTIONS if name in options}
    search = jaxsens.theory.Search(**options)
    return worst_input(model, n, flips, search=search, engine=engine, placement=Placement(ONE), **given)
