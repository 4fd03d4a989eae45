"""An engine whose values are a formula, for tests of where flips are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxsens import Placement
from jaxsens.core.base.programs import Platform
from jaxsens.core.engines.engine import Cost, Engine, FlipBlock
from jaxsens.core.placement import run


@dataclass(frozen=True)
class Formula(Engine):
    """A flip's change is a formula of position, symbol and token; every `every`-th position is declined, if given."""

    every: int = 0
    scale: float = 1.0

    def prepare(self, parameters: Any, tokens: Any) -> Any:
        return tokens.astype(jnp.float32)

    def changed(self, parameters: Any, prepared: Any, block: FlipBlock) -> Any:
        changes = self.changes(parameters, prepared, block)
        return changes, jnp.zeros(len(changes))

    def changes(self, parameters: Any, prepared: Any, block: FlipBlock) -> Any:
        positions, symbols = block.single
        value = parameters * (100.0 * positions + 10.0 * symbols + prepared[positions] + 1) * self.scale
        if self.every:
            value = jnp.where(positions % self.every == 0, jnp.nan, value)
        return value[:, None]

    def output(self, parameters: Any, prepared: Any) -> Any:
        return jnp.zeros(1)

    @property
    def fallback(self) -> Engine | None:
        return Formula(self.measure, self.outputs, scale=-1.0) if self.every else None

    def preferred_batch(self, n: int, platform: Platform) -> int:
        return 5

    def cost(self, parameters: Any, tokens: Any, platform: Platform) -> Cost:
        return Cost(1.0, 1.0, 1, 1.0, compiling=1.0)


TOKENS = np.array([np.arange(11) % 3, (np.arange(11) + 1) % 3], np.int32)
FLIPS = [(b, p, s) for b in range(2) for p in range(11) for s in range(3) if s != TOKENS[b, p]]
INPUTS, POSITIONS, SYMBOLS = (np.array(column) for column in zip(*FLIPS, strict=True))
EXPECTED = np.array([100.0 * p + 10.0 * s + TOKENS[b, p] + 1 for b, p, s in FLIPS], np.float32)


def mesh_of(count: int) -> Mesh:
    """The first devices, in one axis."""
    return Mesh(np.array(jax.devices()[:count]), ("flips",))


def spread(
    engine: Engine, where: Placement, progress: Any = None, finished: run.Finished | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    given = jnp.float32(1), TOKENS, INPUTS, POSITIONS[:, None], SYMBOLS[:, None], where, progress
    values, elsewhere = run.Measuring(engine, *given, finished=finished or run.Finished()).numbers()
    return values[:, 0], elsewhere
