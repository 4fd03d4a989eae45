"""The engine of first-order estimates, as it is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from jaxsens.core.base.registry import Seed, kind_of
from jaxsens.core.base.strict import OptionalPositive, Positive
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.measures import Measure

NAME = "first-order"

MANY_OUTPUTS = 64
"""More outputs than these are sketched by default: a backward pass for each takes as long as exact engines do."""

SKETCH = 32
"""Of so many combinations: a norm's relative standard error is at most 1/8."""


@kind_of(AskedEngine, NAME)
class FirstOrder(AskedEngine):
    """Estimates the effect of every flip in O(n^2) at any depth, for the same attention as `Incremental`, and measures
    some flips exactly. The result says of each value whether it is `exact`, and its `accuracy`.

    Args:
        sketch: estimate this many random combinations of the outputs instead of each; for `L2` alone, whose expectation
            it keeps. It takes as many backward passes; the norm's relative standard error is at most
            1 / sqrt(2 sketch). From as many as there are outputs on, each is estimated. None: 32 for `L2` of more than
            64 outputs, otherwise each.
        verify: the number of flips measured exactly, half of them the largest estimates.
        seed: of the sketch and of the sample of verified flips.

    >>> FirstOrder(sketch=24, verify=64).sketch
    24
    """

    sketch: OptionalPositive = None
    verify: Positive = 64
    seed: Seed = 0
    exact: ClassVar[bool] = False
    beyond: ClassVar[bool] = True

    def seeded(self, seed: int) -> Any:
        return replace(self, seed=seed)

    def combined(self, measure: Measure, outputs: int) -> int | None:
        """Returns how many random combinations of so many outputs are estimated; None for each output by itself."""
        own = SKETCH if outputs > MANY_OUTPUTS and measure.order == 2 else outputs
        wished = own if self.sketch is None else self.sketch
        return wished if wished < outputs else None

    def refusal(self, measure: Measure) -> str | None:
        if measure.estimate is None:
            return (
                f'it cannot estimate measure = "{measure.kind}", which jumps where an estimate is slightly off; give '
                'another measure, or use engine="vmap"'
            )
        if self.sketch is not None and measure.order != 2:
            return f"sketch = {self.sketch}: only for L2, whose expectation it keeps, not {measure!r}; leave it out"
        return None

    # Names are read, and objects made, without JAX: what computes is imported where it is used.

    def runner(self, model: Any, measure: Measure) -> Any:
        from jaxsens.first_order.estimate import first_order_engine

        return first_order_engine(model, self, measure)

    def estimate(self, model: Any, measure: Measure, n: int, budget: int) -> Any:
        from jaxsens.first_order.estimate import Blocks

        return Blocks(self.runner(model, measure), model, n, self, budget)

    def planned(self, run: Any) -> Any:
        from jaxsens.first_order.estimate import PlannedEstimate

        return PlannedEstimate.of(self, run)

    @classmethod
    def instead(cls, run: Any) -> str | None:
        from jaxsens.first_order.estimate import estimated_instead

        return estimated_instead(cls(), run)
