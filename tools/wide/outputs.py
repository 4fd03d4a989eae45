"""The program of a model's output, to be evaluated in wider numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.vmap import output_vector
from jaxsens.core.models.adapters import Model, TransformerApply, in_float64
from tools.wide.program import Program, traced


def output_program(model: Model, n: int) -> Program | None:
    """The program for inputs of length n; None where a primitive has no rule.

    It is that of the float64 form of a jaxsens transformer, whose positions and temperatures are formulas.
    """
    apply, dtype = model.apply, model.dtype
    if isinstance(apply, TransformerApply):
        apply, dtype = in_float64(apply) or apply, "float64"

    def shaped(leaf: Any) -> Any:
        own = jnp.result_type(leaf)
        wide = jnp.dtype(dtype) if own in (jnp.float32, jnp.float64) else own
        return jax.ShapeDtypeStruct(np.shape(leaf), wide)

    with numerics(dtype):
        parameters, tokens = jax.tree.map(shaped, model.parameters), jax.ShapeDtypeStruct((n,), np.int32)
        program = traced(lambda parameters, word: output_vector(apply, parameters, word), parameters, tokens)
    return None if program.unsupported is not None else program
