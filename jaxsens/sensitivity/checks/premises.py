"""What a result says of its model besides changes: what it is called, and the size of its output without a flip."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsens.sensitivity.engines.engine import Engine


def premises(
    model: Any, output: Float[np.ndarray, " outputs"], engine: Engine, inputs: int
) -> tuple[str | None, tuple[float | None, ...] | None]:
    """Returns the fields `model` and `scales` of a run; `output` is that of the first input without a flip."""
    scale = engine.measure.scale(output if engine.outputs is None else output[list(engine.outputs)])
    return _name(model), None if scale is None else (scale, *[None] * (inputs - 1))


def _name(model: Any) -> str | None:
    """Returns the name that a model has; that of a function, or of the model's class; None for a lambda."""
    if isinstance(model, tuple) and model:
        return _name(model[0])
    own = getattr(model, "name", None) or getattr(model, "__name__", None)
    if isinstance(own, str):
        return None if own == "<lambda>" else own
    return type(model).__name__
