"""Where flips are measured, as a config and a command line say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxsens.core.base.strict import OptionalPositive, config

if TYPE_CHECKING:
    from jaxsens.core.placement.placement import Placement


@config
class PlacementTable:
    """The `[placement]` table. It changes no number beyond rounding, and no key.

    Args:
        batch_size: flips per batch on each device; None for a fast size that fits the budget.
        memory_budget: bytes on each device for the model, what flips share, their table, and temporary memory; None for
            what the first two take and 2 GiB more on CPU, 8 GiB more on a GPU, 12 GiB more on a TPU.
    """

    batch_size: OptionalPositive = None
    memory_budget: OptionalPositive = None

    def given(self) -> dict[str, int]:
        """Returns what differs from the defaults."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def placement(self) -> Placement:
        """Returns the placement on all devices of this process."""
        from jaxsens.core.placement.placement import Placement

        return Placement(batch_size=self.batch_size, memory_budget=self.memory_budget)
