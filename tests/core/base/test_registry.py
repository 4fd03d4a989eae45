"""What packages bring, what is chosen by the platform, and tables in Markdown."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import pytest

import jaxsens
from jaxsens.core.base import registry
from jaxsens.core.base.errors import InputError
from jaxsens.core.base.programs import PLATFORMS, compiled_for, compiling_for
from jaxsens.core.models.transformer.layers import apply


def test_an_engine_of_another_package_is_known_by_its_name_and_imported_when_used(tmp_path, installed):
    (tmp_path / "brought.py").write_text("ENGINE = 'an engine'\n")
    installed(tmp_path, "theirs", "theirs = brought:ENGINE")
    assert "theirs" in registry.entries("engines")
    assert "brought" not in sys.modules
    assert registry.load("engines", "theirs") == "an engine"


def test_two_packages_of_one_name_are_refused_with_both(tmp_path, installed):
    installed(tmp_path / "a", "first-package", "theirs = a:ENGINE")
    installed(tmp_path / "b", "second-package", "theirs = b:ENGINE")
    with pytest.raises(InputError, match=r":ENGINE and .:ENGINE"):
        registry.entries("engines")


def test_a_package_of_jaxsens_that_is_not_there_is_left_out(tmp_path, installed):
    installed(tmp_path, "short", "absent = jaxsens.absent_package.engine:Engine")
    assert "absent" not in registry.entries("engines")


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
