"""Measured <= worst input found = true maximum <= certified <= Lemma 5's closed form, on models of every kind."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.theory.certified.bound import certified_bound
from jaxsens.theory.lemma5 import lemma5
from tests.theory.certified_truth import drawn
from tests.tolerances import REFERENCE

N = 5
DRAWN = [
    pytest.param(layers, seed, marks=[] if seed < 1 else pytest.mark.slow)
    for layers in (1, 2, 3)
    for seed in range(30)
]


def below(a: float, b: float) -> bool:
    """a <= b, but for the rounding of a measurement in float64."""
    return a <= b * (1 + REFERENCE.relative) + REFERENCE.absolute


def chain(model: Transformer, norm: Any) -> list[str]:
    """The links of the chain that do not hold, by name."""
    words = np.array(list(itertools.product(range(model.config.alphabet_size), repeat=N)))
    engine = "vmap"  # one program for all words
    measured = jaxsens.flip_sensitivity(model, words[[3, 17]], measure=norm, engine=engine).max
    every = jaxsens.flip_sensitivity(model, words, measure=norm, engine=engine).max
    found = jaxsens.theory.worst_input(model, N, measure=norm, engine=engine).value
    certified = certified_bound(model, N, measure=norm).value
    proved = lemma5(model, N, measure=norm)
    links = {
        "measured <= found": below(measured, found),
        "found = true maximum": below(found, every) and below(every, found),
        "true maximum <= certified": below(every, certified),
        "certified <= closed form": below(certified, proved.closed_form),
        "true maximum <= recursion": below(every, proved.bound),
    }
    return [name for name, holds in links.items() if not holds]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("layers", "seed"), DRAWN)
def test_every_link_holds(layers, seed):
    # Lemma 5 has a closed form without masks only: every other model has none.
    unmasked = {"mask": "none"} if seed % 2 == 0 else {}
    model, options = drawn(seed + 1000 * layers, layers, readout="last", **unmasked)
    assert chain(model, options["measure"]) == []
    assert not unmasked or np.isfinite(lemma5(model, N).log_closed_form)
