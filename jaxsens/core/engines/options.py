"""How flips are measured: the objects of `engine`."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from jaxsens.core.base.errors import no_rule
from jaxsens.core.base.registry import Kinds, Option, kind_of
from jaxsens.core.base.strict import OptionalPositive

if TYPE_CHECKING:
    from jaxsens.core.measures import Measure


TIERS = (1, 8, 64, 1000)
"""The numbers of calls that `Auto` distinguishes. A sweep that grows from 40 points to 41 keeps its engines."""

MANY_CALLS = TIERS[-1]
"""The calls that share their programs where nobody counts them: of a service, a search, and of a model that this
process measures again."""


class AskedEngine(Option, abc.ABC):
    """An engine, as it is asked for. Each of its options has a default.

    Packages bring engines by entry points of the group `jaxsens.engines`. They define `runner`; those that estimate
    also `estimate`. `Auto` chooses none of them.

    Attributes:
        exact: whether every flip is measured, block by block.
        beyond: whether a sweep that names no engine estimates long inputs by it, if no other is installed that does.
    """

    argument: ClassVar[str] = "engine"
    example: ClassVar[str] = "jaxsens.Vmap()"
    kinds: ClassVar[Kinds] = Kinds("engines", __name__)
    exact: ClassVar[bool] = True
    beyond: ClassVar[bool] = False

    def shared_by(self, calls: int) -> AskedEngine:
        """Returns the options for one of so many calls that share their programs."""
        del calls
        return self

    def refusal(self, measure: Measure) -> str | None:
        """Returns why the engine does not serve a measure, or None."""
        del measure
        return None

    def runner(self, model: Any, measure: Measure) -> Any:
        """Returns the `Engine` that computes the changes of the output of a `Model`.

        Raises:
            EngineRefusal: if it does not serve the model or the measure.
        """
        del model, measure
        raise no_rule("flip_sensitivity", "engine", type(self).__name__, AskedEngine.kinds)

    def estimate(self, model: Any, measure: Measure, n: int, budget: int) -> Any:
        """Returns what an engine that is not `exact` does with inputs of length n, within a memory budget.

        Its `first` are the parameters of its first block. Its `result(whole, placement, progress, ready)` returns the
        `FlipSensitivity` of a `whole` without values; `ready` is the first input as the engine prepares it.
        """
        del model, measure, n, budget
        raise no_rule("estimates", "engine", type(self).__name__)

    def planned(self, run: Any) -> Any:
        """Returns a `PlannedRun` of this engine with what it does otherwise than block by block."""
        return run

    @classmethod
    def instead(cls, run: Any) -> str | None:
        """Returns what this engine would cost instead of a `PlannedRun`, and give up; None if that need not be said."""
        del run
        return None


def estimating() -> AskedEngine | None:
    """Returns the engine that estimates long inputs where none is named; None if none or several are installed."""
    kinds = AskedEngine.kinds
    brought = [kinds[name] for name in kinds.brought if kinds[name].beyond]
    return brought[0]() if len(brought) == 1 else None


@kind_of(AskedEngine, "auto")
class Auto(AskedEngine):
    """`Difference` if only that is accurate, otherwise the exact engine estimated to be fastest, compilation included.
    The choice is the same on every machine of a platform; `jaxsens.explain` reports it with the reason and the cost.

    Args:
        calls: how many calls like this one share the compiled programs. By default 1 for the first such call of a
            process, and many for later ones; a sweep counts its seeds.

    >>> Auto(calls=1000).calls
    1000
    """

    calls: OptionalPositive = None

    def shared_by(self, calls: int) -> Auto:
        return self if self.calls else Auto(Auto(calls).tier)

    @property
    def tier(self) -> int:
        """The largest of `TIERS` that `calls` reaches."""
        return max(tier for tier in TIERS if tier <= (self.calls or 1))


@kind_of(AskedEngine, "vmap")
class Vmap(AskedEngine):
    """The specification: one forward pass per flip, for every model and every kind of flip.

    >>> import jaxsens
    >>> jaxsens.flip_sensitivity(lambda tokens: tokens.sum() / 4.0, [0, 1, 1], 2, engine=Vmap()).max
    0.25
    """


@kind_of(AskedEngine, "incremental")
class Incremental(AskedEngine):
    """What a flip of any kind changes of a forward pass, for softmax or sigmoid attention that is visible: jaxsens
    transformers, and pairs of a `jaxsens.Layered` and its parameters.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> jaxsens.explain(model, 64, engine=Incremental()).engine.name
    'incremental'
    """


@kind_of(AskedEngine, "difference")
class Difference(AskedEngine):
    """Carries the change through a jaxsens transformer exactly, without subtracting outputs.

    >>> import jaxsens
    >>> model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=8, layers=1), seed=0)
    >>> jaxsens.explain(model, 64, engine=Difference()).engine.name
    'difference'
    """
