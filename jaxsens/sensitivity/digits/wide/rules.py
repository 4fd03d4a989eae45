"""What a rule for a primitive gets, and the helpers that rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxsens.sensitivity.digits.wide.numbers import Arithmetic, Array, Function


@dataclass(frozen=True)
class Equation:
    """One equation of a program.

    Attributes:
        arithmetic: the numbers in which floating-point values are held.
        params: the primitive's parameters.
        operands: the traced shapes and dtypes of the operands.
        results: those of the results.
        run: evaluates a jaxpr, closed or without constants, on values.
    """

    arithmetic: Arithmetic
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    run: Callable[[Any, Sequence[Array]], list[Array]]

    @property
    def floating(self) -> bool:
        """Whether the first operand holds floating-point values."""
        return is_float(self.operands[0].dtype)

    def function(self, name: str) -> Function:
        """Returns the arithmetic's elementwise function of that name."""
        return self.arithmetic.functions[name]


Rule = Callable[..., Any]
"""Returns the result, or the list of results, of (step, *operands)."""


def is_float(dtype: Any) -> bool:
    """Returns whether the dtype is a real floating-point one, bfloat16 and float8 included."""
    return bool(jnp.issubdtype(dtype, np.floating))
