"""Inverse temperatures 1/tau(n) as named functions of the input length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.strict import later
from jaxsens.core.models.parts.choices import Part


@dataclass(frozen=True)
class Schedule(Part):
    """The inverse temperature 1/tau(n) = max(least, offset + coefficient * n^power * (log n)^log_power).

    Scores are multiplied by it before the softmax. The logarithm is natural; at n = 1 a positive `log_power` gives 0,
    that is, uniform weights over the only key. `least` is at least 0, so that a negative `offset` cannot turn the
    order of the keys around.
    """

    coefficient: float = 1.0
    power: float = 0.0
    log_power: float = 0.0
    offset: float = later(0.0)
    least: float = later(0.0)

    def __post_init__(self) -> None:
        with collecting("Schedule") as problems:
            for name in ("coefficient", "power", "log_power", "offset", "least"):
                value = getattr(self, name)
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    problems.add(name, value, "a finite number")
            for name in ("coefficient", "least", "log_power"):
                why = "log n is 0 at n = 1" if name == "log_power" else "a temperature is not negative"
                if not problems and getattr(self, name) < 0:
                    problems.add(name, getattr(self, name), f"at least 0: {why}")

    def __call__(self, n: np.ndarray | int) -> np.ndarray:
        """Returns 1/tau at the length(s) n >= 1, float64, with the shape of n."""
        length = np.asarray(n, dtype=np.float64)
        grown = self.coefficient * length**self.power * np.log(length) ** self.log_power
        return np.maximum(self.offset + grown, self.least)

    @property
    def bounded(self) -> bool:
        """Whether 1/tau(n) stays bounded as n grows, as Hahn's Lemma 5 requires."""
        return self.power < 0 or (self.power == 0 and self.log_power <= 0)

    def __str__(self) -> str:
        factors = [] if self.coefficient == 1 else [f"{self.coefficient:g}"]
        if self.power:
            factors.append("n" if self.power == 1 else f"n^{self.power:g}")
        if self.log_power:
            factors.append("log n" if self.log_power == 1 else f"(log n)^{self.log_power:g}")
        formula = " ".join(factors) or "1"
        if self.offset:
            formula = f"{self.offset:g} + {formula}"
        return f"max({self.least:g}, {formula})" if self.least or self.offset < 0 else formula


@Schedule.register  # it stands wherever a formula does, but is not described by files
@dataclass(frozen=True, eq=False)
class TabledSchedule:
    """An inverse temperature that is an argument of a program instead of a formula: one of its tables.

    Attributes:
        number: which one.
        values: 1/tau at the input's length, or of each query, once it is known; a program may be traced with it.
    """

    number: int
    values: Any = field(default=None, repr=False)

    def __call__(self, n: np.ndarray | int) -> Any:
        """Returns the values, whatever the lengths: those of the program's inputs."""
        del n
        if self.values is None:
            raise TypeError(f"table {self.number} of inverse temperatures has no values yet")
        return self.values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TabledSchedule):
            return NotImplemented
        return self.number == other.number and self.values is other.values

    def __hash__(self) -> int:
        return hash(self.number)


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(),
    "log": Schedule(log_power=1.0),
    "sqrt": Schedule(power=0.5),
    "linear": Schedule(power=1.0),
    "linearithmic": Schedule(power=1.0, log_power=1.0),
    "quadratic": Schedule(power=2.0),
    "cubic": Schedule(power=3.0),
    "one-plus-log": Schedule(log_power=1.0, offset=1.0),
    "log-from-one": Schedule(log_power=1.0, least=1.0),
    "root-log": Schedule(coefficient=math.sqrt(2.0), log_power=0.5),
}
"""The named schedules: 1/tau(n) = 1, log n, sqrt n, n, n log n, n^2, n^3, 1 + log n, max(1, log n), sqrt(2 log n)."""
