"""The options of first-order estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from jaxsens.core.base.registry import Seed
from jaxsens.core.base.strict import OptionalPositive, Positive, config
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.measures import Measure

NAME = "first-order"


@config
class EstimateOptions(AskedEngine):
    """Those of `FirstOrder`, which says what they mean."""

    sketch: OptionalPositive = None
    verify: Positive = 64
    seed: Seed = 0
    exact: ClassVar[bool] = False
    beyond: ClassVar[bool] = True

    def seeded(self, seed: int) -> Any:
        return replace(self, seed=seed)

    def refusal(self, measure: Measure) -> str | None:
        if measure.estimate is None:
            return (
                f'it cannot estimate measure = "{measure.kind}", which jumps where an estimate is slightly off; give '
                'another measure, or use engine="vmap"'
            )
        if self.sketch is not None and measure.order != 2:
            return f"sketch = {self.sketch}: only for L2, whose expectation it keeps, not {measure!r}; leave it out"
        return None
