"""Flips are measured with the cheapest matrix products of a platform that resolve them. Products are emulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import PLATFORMS, RESOLVED, UNITS
from tests.pretrained.folders import write_folder
from tools.products import emulated

THREE = "TF32_TF32_F32_X3"


@pytest.fixture
def platform(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """A platform on which cheap products save more than a program takes to compile, whatever is measured."""
    fast = replace(PLATFORMS["cpu"], compiling=1e-9, products=(THREE,))
    monkeypatch.setitem(PLATFORMS, "cpu", fast)
    with emulated():
        yield monkeypatch


def measured(model, n, flips=None, engine="incremental"):
    word = np.random.default_rng(n).integers(0, 2, n) + (10 if flips else 0)
    return jaxsens.flip_sensitivity(model, word, flips, engine=engine, progress=False)


def checked(result, exact):
    """Asserts that every flip is within what is stated of it, and those that are resolved within 1 %."""
    off = np.abs(result.values - exact.values)
    assert np.all(off <= result.resolution + exact.resolution)
    assert np.all(off[result.resolved] <= RESOLVED * exact.values[result.resolved])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_products_of_tf32_keep_what_they_promise_of_short_inputs(layers, platform):
    config = jaxsens.TransformerConfig(2, width=32, layers=layers, feed_forward=64)
    model = jaxsens.Transformer(config, seed=layers)
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.parameters)
    exact = jaxsens.Transformer(config.replace(dtype="float64"), parameters=parameters)
    result = measured(model, 48)
    assert result.engine.reason == f"asked for; begun with products in {THREE}, which take less time"
    assert (
        1e-5 < np.median(result.resolution / result.values) <= RESOLVED
    )  # that of float32 alone is a quarter of it
    checked(result, measured(exact, 48))


def test_a_long_input_of_soft_attention_begins_in_float32_for_its_changes_are_of_order_1_over_n(platform):
    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=16, layers=2), seed=0)
    assert "begun with" not in measured(model, 400).engine.reason


def test_what_the_products_do_not_resolve_is_measured_again_in_float32(tmp_path, platform):
    write_folder(tmp_path, "llama")
    model, flips = jaxsens.load_pretrained(tmp_path), jaxsens.Substitute((3, 7))
    platform.setitem(UNITS, THREE, 2.0**-15)  # as if they kept fewer digits
    result = measured(model, 8, flips)
    assert " of 14 flips by products in float32" in result.engine.reason
    assert result.unresolved == 0
    checked(result, measured(jaxsens.load_pretrained(tmp_path, dtype="float64"), 8, flips))


def test_a_search_whose_changes_nobody_measures_again_has_precise_products(tmp_path, platform):
    write_folder(tmp_path, "llama")
    model = jaxsens.load_pretrained(tmp_path)
    found = jaxsens.theory.worst_input(model, 6, (3, 7), search=jaxsens.theory.Search(restarts=1))
    assert found.engine.name == "incremental"
    assert "begun with" not in found.engine.reason


def test_the_specification_has_precise_products(platform):
    model = jaxsens.Transformer(jaxsens.TransformerConfig(2, width=16, layers=2), seed=0)
    assert "begun with" not in measured(model, 12, engine="vmap").engine.reason


@pytest.mark.parametrize("name", ["BF16_BF16_F32", "TF32_TF32_F32", "BF16_BF16_F32_X3"])
def test_products_that_resolve_too_little_are_refused_by_name(name):
    with pytest.raises(jaxsens.InputError, match=f"no rule for the matrix product {name}; it knows"):
        replace(PLATFORMS["gpu"], products=(name,))
