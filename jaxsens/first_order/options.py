"""The options of first-order estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from jaxsens.core.base.registry import Seed
from jaxsens.core.base.strict import OptionalPositive, Positive, config
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.measures import Measure

NAME = "first-order"

MANY_OUTPUTS = 64
"""More outputs than these are sketched by default: a backward pass for each takes as long as exact engines do."""

SKETCH = 32
"""Of so many combinations: a norm's relative standard error is at most 1/8."""


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
