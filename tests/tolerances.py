"""How far two ways to the same number may be apart, each tolerance with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """How far two ways to the same number may be apart: |a - b| <= absolute + relative |b|."""

    relative: float
    absolute: float
    reason: str


REFERENCE = Tolerance(
    1e-10, 1e-12, "same formulas in another order of summation, float64, n up to some dozens"
)
FORWARD = Tolerance(1e-12, 1e-12, "one forward pass in float64 beside plain loops")


SUBTRACTED = {
    "float64": Tolerance(1e-9, 1e-14, "two outputs, each rounded some dozen times, are subtracted"),
    "float32": Tolerance(1e-4, 1e-5, "two outputs, each rounded some dozen times, are subtracted"),
}
"""Of engines that run the model on the flipped input, by dtype: the absolute part is in units of y, the largest
activation of any layer, times the factor by which scores were sharpened."""

CARRIED = {
    "float64": Tolerance(1e-9, 1e-17, "the change is carried; the reference has rounding of 1e-19 y"),
    "float32": Tolerance(1e-4, 1e-17, "the change is carried; the reference has rounding of 1e-19 y"),
}
"""Of engines that carry the change from layer to layer, by dtype: relative to the change, however small it is."""

CANCELLING = {
    "float64": Tolerance(1e-9, 1e-15, "terms of the change that are of order y may cancel"),
    "float32": Tolerance(1e-4, 1e-6, "terms of the change that are of order y may cancel"),
}
"""As `CARRIED`, for models nobody has looked at: a flipped symbol may take over the attention of one just like it."""

CHOSEN = {
    "float64": Tolerance(1e-9, 1e-14, "a hard choice that moves subtracts two values, which may be equal"),
    "float32": Tolerance(1e-4, 1e-5, "a hard choice that moves subtracts two values, which may be equal"),
}
"""As `CARRIED`, for models with a hard layer."""
