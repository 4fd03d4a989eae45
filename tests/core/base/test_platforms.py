"""What is chosen by the platform that a program is compiled for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import jaxsens
from jaxsens.core.base.programs import PLATFORMS, compiled_for, compiling_for, platform_of
from jaxsens.core.models.transformer.layers import apply
from tests.refusals import refused


def test_a_platform_without_a_row_is_refused_by_name():
    assert "metal" in refused("", PLATFORMS.__getitem__, "metal")


def test_a_mesh_has_the_row_of_its_devices():
    assert platform_of(Mesh(np.array(jax.devices("cpu")[:1]), ("flips",))) is PLATFORMS["cpu"]


def test_a_program_is_traced_for_the_platform_it_is_for_and_not_for_the_one_at_hand():
    """On a CPU long attention goes by head, in blocks; a GPU takes all rows at once. JAX keeps both apart."""
    config = jaxsens.TransformerConfig(alphabet_size=2, width=8, heads=2, layers=1, readout="mean")
    parameters = jaxsens.Transformer(config).parameters
    tokens = jax.ShapeDtypeStruct((512,), jnp.int32)

    def loops() -> int:
        traced = jax.jit(apply, static_argnums=0).trace(config, parameters, tokens)
        return str(traced.jaxpr).count("scan[")

    assert compiled_for() is PLATFORMS["cpu"]
    before = loops()
    with compiling_for("gpu"):
        assert compiled_for() is PLATFORMS["gpu"]
        assert loops() < before
    assert (compiled_for(), loops()) == (PLATFORMS["cpu"], before)
