"""Sliding windows: what they see, and that engines that skip what they hide compute what others do."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import theory
from jaxsens.core.base.errors import EstimateWarning, InputError, Problems
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.masks import SlidingWindow, TwoSidedWindow
from jaxsens.core.models.transformer.layered import Attention
from jaxsens.core.models.transformer.layers import LayeredTransformer
from jaxsens.core.models.transformer.module import plain, read_config

N, WIDTH = 150, 9


def unbounded(queries, keys):
    """The same window, as a rule that says nothing of what it connects."""
    return (keys <= queries) & (keys > queries - WIDTH)


@dataclasses.dataclass(frozen=True)
class Windowed(LayeredTransformer):
    """A transformer with a window in every layer."""

    bounded: bool = True

    def attention(self, layer: int) -> Attention:
        mask = SlidingWindow(WIDTH) if self.bounded else unbounded  # its spans are known, or not
        return dataclasses.replace(super().attention(layer), mask=mask)

    def at_length(self, n: int) -> Windowed:
        return dataclasses.replace(self, n=n)


def test_it_compares_by_value_and_sees_the_last_keys():
    mask = Attention(2, mask=SlidingWindow(3))
    assert mask == Attention(2, mask=SlidingWindow(3)) != Attention(2, mask=SlidingWindow(4))
    assert hash(mask) == hash(Attention(2, mask=SlidingWindow(3)))
    i = jnp.arange(6)
    seen = np.asarray(mask.sees(i[:, None], i[None, :]))
    assert seen.tolist() == [[0 <= query - key < 3 for key in range(6)] for query in range(6)]


@pytest.mark.parametrize(
    "window",
    [
        *(SlidingWindow(width) for width in (1, 3, 20, 2**30)),
        *(TwoSidedWindow(reach) for reach in (0, 1, 3, 20, 2**30)),
    ],
    ids=str,
)
def test_its_spans_are_those_of_what_it_sees(window):
    n, mask = 12, Attention(2, mask=window)
    assert mask.one_sided == (isinstance(window, SlidingWindow) or not window.reach)
    i = jnp.arange(n)
    seen = np.asarray(mask.sees(i[:, None], i[None, :]))
    for first in range(n):
        for stop in range(first + 1, n + 1):
            for bounds in ((first, stop), (jnp.asarray(first), jnp.asarray(stop))):
                rows = np.flatnonzero(seen[:, first:stop].any(1))
                assert tuple(map(int, mask.rows_that_see(bounds, n))) == (rows[0], rows[-1] + 1)


def test_theory_refuses_windows_to_both_sides_by_name():
    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, mask=TwoSidedWindow(2)), seed=0)
    for bound in (theory.lemma5, theory.certified_bound):
        with pytest.raises(InputError, match=f"{bound.__name__} has no rule for the mask TwoSidedWindow"):
            bound(model, 8)


def test_a_config_takes_windows_by_layer_and_tables_of_a_file():
    sizes: dict[str, Any] = {"alphabet_size": 2, "layers": 2}
    table = {**sizes, "mask": ["none", {"type": "SlidingWindow", "width": 4}]}
    problems = Problems("")
    config = read_config(table, "model", problems)
    assert not problems
    assert config == jaxsens.TransformerConfig(**sizes, mask=("none", SlidingWindow(4)))
    assert plain(config)["mask"] == table["mask"]
    both = {**sizes, "mask": {"type": "TwoSidedWindow", "reach": 0}}
    assert read_config(both, "model", problems) == jaxsens.TransformerConfig(**sizes, mask=TwoSidedWindow(0))
    # A name is written as before: what a sweep has measured keeps its keys.
    assert plain(jaxsens.TransformerConfig(**sizes, mask="future"))["mask"] == "future"


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("engine", ["incremental", "first-order"])
def test_engines_that_skip_what_a_window_hides_compute_what_others_do(engine):
    config = jaxsens.TransformerConfig(
        alphabet_size=3, width=8, heads=2, layers=3, feed_forward=8, dtype="float64", mask="future"
    )
    with numerics("float64"):
        parameters = jaxsens.Transformer(config, seed=0).parameters
    tokens = np.random.default_rng(0).integers(0, 3, N)
    positions = [0, 77, 124, 125, 134, 140, 148]

    def measured(bounded: bool) -> np.ndarray:
        model = (Windowed(config, bounded=bounded), parameters)
        asked: Any = jaxsens.FirstOrder(verify=4) if engine == "first-order" else engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EstimateWarning)
            return jaxsens.flip_sensitivity(
                model, tokens, flips=jaxsens.Substitute(3, positions=positions), engine=asked
            ).norms

    skipping, every = measured(True), measured(False)
    np.testing.assert_allclose(skipping, every, rtol=1e-10, atol=1e-14)
    assert skipping[:6].max() < 1e-14  # three layers of eight positions back: from 149 to 125
    assert skipping[6:8].max() > 1e-10
