"""What is no number: measured as NaN or not measured yet, of the model or of an engine that overflowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.errors import InputError
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.measures import L2
from jaxsens.core.placement import run
from jaxsens.core.placement.placement import Placement
from tests.core.flip_sensitivity.formula import EXPECTED, INPUTS, POSITIONS, SYMBOLS, TOKENS, Formula
from tests.together.flip_sensitivity.test_placement import mesh_of


def test_a_flip_measured_as_nan_is_told_from_one_not_measured_yet():
    def model(tokens: Any) -> Any:
        return jnp.where(tokens[1] == 1, jnp.nan, jnp.sum(tokens).astype(jnp.float32))

    tokens, seen = np.zeros(64, np.int32), []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        jaxsens.flip_sensitivity(
            model, tokens, 2, progress=stop, placement=jaxsens.Placement(mesh_of(1), batch_size=2)
        )
    partial = caught.value.partial
    assert len(partial) == seen[-1] < partial.population
    assert partial.positions[np.isnan(partial.norms)].tolist() == [1]
    with pytest.raises(InputError, match="not finite under 1 of 63 flips, first at position 1"):
        partial.joined(jaxsens.flip_sensitivity(model, tokens, partial.remaining))


def test_flips_under_which_an_engine_overflows_go_to_the_fallback():
    @dataclass(frozen=True)
    class Overflowing(Formula):
        def changes(self, parameters: Any, prepared: Any, block: FlipBlock) -> Any:
            change = super().changes(parameters, prepared, block)
            return jnp.where(block.places % 4 == 0, jnp.inf, change)

        @property
        def fallback(self) -> Engine:
            return Formula(self.measure, self.outputs, scale=-1.0)

    # Changes, since the norm of what holds inf is NaN.
    flips = INPUTS, POSITIONS[:, None], SYMBOLS[:, None]
    changes, declined = run.Measuring(
        Overflowing(L2(), None), jnp.float32(1), TOKENS, *flips, Placement(mesh_of(1))
    ).changes()
    np.testing.assert_array_equal(np.abs(changes[:, 0]), EXPECTED)
    assert declined
