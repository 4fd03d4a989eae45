"""One layer: nothing is prepared or computed but what the row that is read out needs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.measures import L2
from tests.small_models import small


def operations(compiled) -> float:
    return (compiled.cost_analysis() or {})["flops"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("weighting", ["softmax", "average-hard", "leftmost-hard"])
def test_preparing_costs_no_more_than_the_length(weighting):
    config, counts = small(layers=1, weighting=weighting), []
    engine = DifferenceEngine(L2(), None, config)
    with numerics("float64"):
        parameters = jaxsens.Transformer(config).parameters
        for n in (256, 512, 1024):
            tokens = jax.ShapeDtypeStruct((n,), jnp.int32)
            counts.append(operations(jax.jit(engine.prepare).lower(parameters, tokens).compile()))
    assert max(np.diff(np.log2(counts))) < 1.1, counts
