"""Equal layers are stacked and looped over: what comes out is what layers one after the other give."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.transformer.parameters import Stack, over_layers
from tests.small_models import small


def test_a_fold_takes_layers_in_order_and_keeps_what_each_gave():
    stack = Stack((jnp.asarray(1.0), jnp.asarray([2.0, 3.0, 4.0]), jnp.asarray(5.0)), (1, 3, 1))
    traced: list[int] = []

    def step(k: int, own: Any, carry: Any) -> tuple[Any, Any]:
        traced.append(k)
        return 10 * carry + own, carry

    carry, before = over_layers(step, stack, jnp.asarray(0.0), range(5))
    assert carry == 12345
    assert [float(before[k]) for k in range(5)] == [0, 1, 12, 123, 1234]
    assert traced == [0, 1, 4]  # a run is traced once
    inner, before = over_layers(step, stack, jnp.asarray(0.0), range(1, 4))
    assert inner == 234
    assert before.lengths == (3,)


@pytest.mark.quick(1, 2)
@pytest.mark.parametrize("engine", ["vmap", "incremental", "difference", "first-order"])
def test_a_model_of_equal_layers_is_measured_as_by_forward_passes_of_its_own(engine):
    config = small(alphabet_size=3, layers=5, heads=(2, 1, 1, 1, 2), dtype="float64")
    model, word = jaxsens.Transformer(config, seed=0), np.arange(9) % 3
    assert isinstance(as_model(model).parameters.layers, Stack)
    flips = jaxsens.Substitute(symbols=(0,))
    found = jaxsens.flip_sensitivity(model, word, flips, engine=engine)
    with numerics("float64"):
        flips = zip(found.positions, found.symbols, strict=True)
        flipped = [np.where(np.arange(9) == position, symbol, word) for position, symbol in flips]
        outputs = [np.asarray(model(each)) for each in [word, *flipped]]
    true = np.linalg.norm(np.asarray(outputs[1:]) - outputs[0], axis=-1)
    exact = found.norms if found.estimated is None else found.norms[found.estimated.stratum > 0]
    true = true if found.estimated is None else true[found.estimated.stratum > 0]
    np.testing.assert_allclose(exact, true, rtol=1e-9, atol=1e-14)
