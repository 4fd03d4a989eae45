"""A numerical predicate's truth values as a position component: the embedding that "contains theta" (section 4.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsens.errors import InputError
from jaxsens.logic import Predicate


@dataclass(frozen=True)
class PredicateValues:
    """I[theta_n(i)] as a function of positions and length; with `at_zero`, I[theta_n(0)] at every position.

    Compared by value, so that two models of one formula share their compiled programs.
    """

    predicate: Predicate
    at_zero: bool = False

    def __call__(self, i: np.ndarray, n: int) -> np.ndarray:
        """The values at the positions i (whole numbers from 1 to n), float64."""
        if self.at_zero:
            return np.full(np.shape(i), self._value(0, n))
        return np.array([self._value(int(value), n) for value in i])

    def _value(self, value: int, n: int) -> float:
        try:
            return float(self.predicate.holds(value, n))
        except Exception as error:
            raise InputError(
                f"predicate {self.predicate}: it fails for the value {value} at n = {n}, with {type(error).__name__}: "
                f"{error}; it must hold or not for every value from 0 to n"
            ) from error
