"""Models with wider parameters: an estimate is computed in float32 at least, and verified in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.programs import numerics
from jaxsens.core.checks.check import traced_model
from jaxsens.core.models.adapters import Model, TransformerApply


def with_parameters_in(model: Model, n: int, dtype: Any) -> Model:
    """Returns the model with floating-point parameters narrower than `dtype`, float32 or float64, in it; or unchanged
    if it has none, or does not run on them."""
    dtype = np.dtype(dtype)

    def narrow(leaf: Any) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.finfo(leaf.dtype).bits < 8 * dtype.itemsize

    if not any(map(narrow, jax.tree.leaves(model.parameters))):
        return model
    parameters = jax.tree.map(
        lambda leaf: np.asarray(leaf).astype(dtype) if narrow(leaf) else leaf, model.parameters
    )
    if model.config is not None:
        config = model.config.replace(dtype=dtype.name)
        return replace(model, config=config, parameters=parameters, apply=TransformerApply(config))
    wide = replace(model, parameters=parameters)
    try:
        with numerics(wide.dtype):
            traced_model(wide, n)
    except Exception:  # noqa: BLE001 - the model is the user's: whatever it raises, it runs as it is
        return model
    return wide
