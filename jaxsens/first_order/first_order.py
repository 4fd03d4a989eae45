"""The engine of first-order estimates, as it is asked for."""

from __future__ import annotations

from typing import Any

from jaxsens.core.base.registry import kind_of
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.measures import Measure
from jaxsens.first_order.options import NAME, EstimateOptions


@kind_of(AskedEngine, NAME)
class FirstOrder(EstimateOptions):
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
