"""How flips are measured: the objects of `engine`."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from jaxsens.asked.value import Answer, kind_of
from jaxsens.base import inputs
from jaxsens.base.errors import Problems
from jaxsens.base.strict import OptionalPositive, Positive, checked_by

if TYPE_CHECKING:
    from jaxsens.asked.measures import Measure


def _seed(name: str, value: Any, problems: Problems) -> int:
    del name
    return inputs.seed(value, problems)


Seed = Annotated[int, checked_by(_seed)]

MANY_OUTPUTS = 64
"""More outputs than these are sketched by default: a backward pass for each takes as long as exact engines do."""

SKETCH = 32
"""Of so many combinations: a norm's relative standard error is at most 1/8."""


class AskedEngine(Answer, abc.ABC):
    """An engine, as it is asked for."""

    question: ClassVar[str] = "engine"
    example: ClassVar[str] = "jaxsens.FirstOrder(verify=128)"
    kinds: ClassVar[dict[str, type[Any]]] = {}

    @property
    def exact(self) -> bool:
        """Whether every flip is measured."""
        return True


@kind_of(AskedEngine, "auto")
class Auto(AskedEngine):
    """`Difference` if only that is accurate, otherwise the exact engine estimated to be fastest for several inputs,
    including compilation. The choice is the same on every machine; `jaxsens.explain` reports it with the reason and the
    cost."""


@kind_of(AskedEngine, "vmap")
class Vmap(AskedEngine):
    """The specification: one forward pass per flip, for every model and every kind of flip."""


@kind_of(AskedEngine, "incremental")
class Incremental(AskedEngine):
    """What a flip changes of a forward pass, for softmax or sigmoid attention that is visible: jaxsens transformers,
    and pairs of a `jaxsens.Layered` and its parameters."""


@kind_of(AskedEngine, "difference")
class Difference(AskedEngine):
    """Carries the change through a jaxsens transformer exactly, without subtracting outputs."""


@kind_of(AskedEngine, "first-order")
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
    """

    sketch: OptionalPositive = None
    verify: Positive = 64
    seed: Seed = 0

    @property
    def exact(self) -> bool:
        return False

    def combined(self, measure: Measure, outputs: int) -> int | None:
        """Returns how many random combinations of so many outputs are estimated; None for each output by itself."""
        own = SKETCH if outputs > MANY_OUTPUTS and measure.kind == "l2" else outputs
        wished = own if self.sketch is None else self.sketch
        return wished if wished < outputs else None

    def refusal(self, measure: Measure) -> str | None:
        """Returns why a measure cannot be estimated in this way, or None."""
        if not measure.smooth:
            return (
                f'it cannot estimate measure = "{measure.kind}", which jumps where an estimate is slightly off; give '
                'another measure, or use engine="vmap"'
            )
        if self.sketch is not None and measure.kind != "l2":
            return f"sketch = {self.sketch}: only for L2, whose expectation it keeps, not {measure!r}; leave it out"
        return None
