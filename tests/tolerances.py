"""How far two ways to the same number may be apart, each tolerance with its reason."""

from __future__ import annotations

from typing import NamedTuple


class Tolerance(NamedTuple):
    """How far two ways to the same number may be apart: |a - b| <= absolute + relative |b|."""

    relative: float
    absolute: float


FORWARD = Tolerance(1e-12, 1e-12)
"""Of one forward pass in float64 beside plain loops."""

SUBTRACTED = {"float64": Tolerance(1e-9, 1e-14), "float32": Tolerance(1e-4, 1e-5)}
"""Of engines that run the model on the flipped input, by dtype: two outputs, each rounded some dozen times, are
subtracted. The absolute part is in units of y, the largest activation of any layer, times the factor by which scores
were sharpened."""

CARRIED = {"float64": Tolerance(1e-9, 1e-17), "float32": Tolerance(1e-4, 1e-17)}
"""Of engines that carry the change from layer to layer, by dtype: relative to the change, however small it is. The
reference has rounding of 1e-19 y."""

CANCELLING = {"float64": Tolerance(1e-9, 1e-15), "float32": Tolerance(1e-4, 1e-6)}
"""As `CARRIED`, for models nobody has looked at: a flipped symbol may take over the attention of one just like it, and
terms of the change that are of order y cancel."""

CHOSEN = {"float64": Tolerance(1e-9, 1e-14), "float32": Tolerance(1e-4, 1e-5)}
"""As `CARRIED`, for models with a hard layer: a choice that moves subtracts two values, which may be equal."""
