"""What first-order estimates would cost, as the run that is asked for or instead of another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from jaxsens.base.errors import EngineRefusal
from jaxsens.base.precision import numerics
from jaxsens.sensitivity.engines.engine import EngineChoice, EngineCost
from jaxsens.sensitivity.engines.first_order.engine import FirstOrderEngine, PreparedEstimate
from jaxsens.sensitivity.engines.first_order.options import FirstOrder
from jaxsens.sensitivity.estimates.estimate import (
    NAME,
    abstract_estimate,
    combination_count,
    estimate_cost,
    first_order_engine,
    output_size,
    table_bytes,
)
from jaxsens.sensitivity.explain import PlannedRun
from jaxsens.sensitivity.placement.program import Quantity


@dataclass(frozen=True)
class PlannedEstimate(PlannedRun):
    """A run that estimates.

    Attributes:
        combined: how many combinations of the outputs are estimated; None for all outputs.
    """

    engine: FirstOrderEngine
    combined: int | None = None
    quantity: ClassVar[Quantity] = "chosen_changes"

    @classmethod
    def of(cls, asked: FirstOrder, run: PlannedRun) -> PlannedEstimate:
        """Returns the run of what is asked for."""
        engine, size = first_order_engine(run.subject, asked, run.measure), output_size(run.subject, run.n)
        outputs = len(engine.outputs or range(size))
        combined = combination_count(asked, engine, size)
        of = f"{combined} combinations of " if asked.combined(run.measure, outputs) else ""
        why = f"an estimate of {of}{outputs} output{'s' if outputs > 1 else ''}"
        return cls.instead_of(run, engine, EngineChoice(NAME, why), combined)

    @classmethod
    def instead_of(
        cls, run: PlannedRun, engine: FirstOrderEngine, choice: EngineChoice, combined: int | None = None
    ) -> PlannedEstimate:
        """Returns an estimate of the flips of a run."""
        own = {field.name: getattr(run, field.name) for field in fields(PlannedRun)}
        return cls(**{**own, "engine": engine, "choice": choice, "combined": combined})

    @cached_property
    def parameters(self) -> Any:
        return self._estimate[1]

    @cached_property
    def cost(self) -> EngineCost:
        return self._estimate[0]

    @cached_property
    def prepared(self) -> PreparedEstimate:
        return abstract_estimate(self.engine, self.parameters, self.n)

    @property
    def memory(self) -> int:
        return super().memory + (0 if self.engine.of_norm else table_bytes(self.flips, self._outputs))

    @property
    def _outputs(self) -> int:
        if self.combined is not None:
            return self.combined
        return len(self.engine.outputs or range(output_size(self.subject, self.n)))

    @cached_property
    def _estimate(self) -> tuple[EngineCost, Any]:
        """The cost of an estimate of all outputs, or of a scalar, and the parameters of a block."""
        return self.of_count(self._outputs)

    def of_count(self, count: int) -> tuple[EngineCost, Any]:
        """Returns the cost of an estimate of so many combinations, and the parameters of a block."""
        size = output_size(self.subject, self.n)
        with numerics(self.subject.dtype):
            given = self.subject.parameters, self.n, size, count, self.platform.memory, self.platform
            return estimate_cost(self.engine, *given)


def estimated_instead(run: PlannedRun) -> str | None:
    """Returns what the first-order engine would cost and give up, or None if it cannot serve the model."""
    try:
        engine = first_order_engine(run.subject, FirstOrder(), run.measure)
        estimate = PlannedEstimate.instead_of(run, engine, EngineChoice(NAME, ""))
        estimate.prepared  # noqa: B018 - refuses a model without a derivative
    except EngineRefusal:
        return None
    scalar, _ = estimate.of_count(1)
    rate = estimate.operations / estimate.seconds * scalar.efficiency / estimate.cost.efficiency
    of_scalar = (scalar.prepare + run.flips * scalar.per_flip) / rate
    return (
        f'engine="{NAME}" would take about {estimate.seconds:.2g} s for all outputs, {of_scalar:.2g} s for a scalar, '
        "besides the verified flips; the other flips would be estimates, whose error it measures on a sample"
    )
