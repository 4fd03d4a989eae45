"""What a result says of its model besides changes: what it is called, and the size of its output without a flip."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxsens.inputs import NORMS
from jaxsens.sensitivity.engine import Engine, as_vector, value_of
from jaxsens.sensitivity.norms import ORDERS


def premises(
    model: Any, output: Float[np.ndarray, " outputs"], engine: Engine, inputs: int
) -> dict[str, Any]:
    """Returns the fields `model` and `scales` of a result; `output` is that of the first input without a flip."""
    scale = _scale(engine, output)
    return {"model": _name(model), "scales": None if scale is None else (scale, *[None] * (inputs - 1))}


def _name(model: Any) -> str | None:
    """Returns the name that a model has; that of a function, or of the model's class; None for a lambda."""
    if isinstance(model, tuple) and model:
        return _name(model[0])
    own = getattr(model, "name", None) or getattr(model, "__name__", None)
    if isinstance(own, str):
        return None if own == "<lambda>" else own
    return type(model).__name__


def _scale(engine: Engine, output: Float[np.ndarray, " outputs"]) -> float | None:
    """Returns the size of an output in the norm that is measured, or f of it; None for other measures."""
    if engine.scalar is not None:
        return float(value_of(engine.scalar, as_vector(jnp.asarray(output))))
    if engine.change is not None or engine.norm not in NORMS:
        return None
    chosen = output if engine.outputs is None else output[list(engine.outputs)]
    return float(np.linalg.norm(np.asarray(chosen, np.float64), ORDERS[engine.norm]))
