"""The setting that jaxsens computes in: its own whatever JAX is set to outside, and only where it was asked for."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import jaxsens
from jaxsens.core.base.programs import MATMUL_PRECISION, numerics
from jaxsens.core.measures.formulas import where_finite

ROOT = Path(__file__).resolve().parents[3]
SETTINGS: Any = jax.config  # its attributes are made at run time


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_dtype_alone_says_whether_there_are_64_bit_types(dtype, outside):
    with jax.enable_x64(outside), jax.default_matmul_precision("bfloat16"):
        with numerics(dtype):
            assert jnp.zeros(1).dtype == dtype
            assert SETTINGS.jax_default_matmul_precision == MATMUL_PRECISION
        assert SETTINGS.jax_enable_x64 == outside
        assert SETTINGS.jax_default_matmul_precision == "bfloat16"


def test_a_float32_model_is_the_same_and_measures_the_same_where_jax_is_set_to_64_bit_types():
    config = jaxsens.TransformerConfig(alphabet_size=2, width=8, heads=2, layers=2, feed_forward=16)

    def measured():
        model = jaxsens.Transformer(config, seed=3)
        return jaxsens.flip_sensitivity(model, [0, 1, 1, 0, 1]).norms

    plain = measured()
    with jax.enable_x64(True):
        assert measured().dtype == plain.dtype
        np.testing.assert_array_equal(measured(), plain)


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["softmax", "leftmost-hard", "LSTM", "Convolution"])
def test_every_model_computes_as_ever_where_jax_forbids_to_promote_ranks_and_dtypes(kind):
    recurrent = {
        "LSTM": (jaxsens.training.LSTM, jaxsens.training.LSTMConfig),
        "Convolution": (jaxsens.training.Convolution, jaxsens.training.ConvolutionConfig),
    }

    def measured():
        if kind in recurrent:
            network, config = recurrent[kind]
            model = network(config(2, width=4, dtype="float64"))
        else:
            model = jaxsens.Transformer(
                jaxsens.TransformerConfig(2, 4, 1, 1, feed_forward=4, weighting=kind, dtype="float64")
            )
        return np.asarray(model(np.array([0, 1, 1]))), jaxsens.flip_sensitivity(model, [0, 1, 1]).norms

    plain = measured()
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"), jax.disable_jit():
        for mine, its in zip(measured(), plain, strict=True):
            np.testing.assert_array_equal(mine, its)
        assert SETTINGS.jax_numpy_rank_promotion == "raise"
        assert SETTINGS.jax_numpy_dtype_promotion == "strict"
        assert SETTINGS.jax_disable_jit


def test_a_function_keeps_the_64_bit_types_that_its_owner_has_set():
    table = np.array([[1.0, 0.0], [1.0, 1e-12]])

    def model(tokens):
        return jnp.asarray(table)[tokens].sum(axis=0)

    with jax.enable_x64(True):
        result = jaxsens.flip_sensitivity(model, [0, 1, 0], flips=2)
    assert result.norms.dtype == np.float64
    np.testing.assert_allclose(result.norms, 1e-12, rtol=1e-3)


def test_no_generator_holds_a_setting_while_its_caller_computes():
    held = [
        f"{path.relative_to(ROOT)}, line {inner.lineno}: yields within {ast.unparse(item.context_expr)}"
        for path in sorted((ROOT / "jaxsens").rglob("*.py"))
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(statement, ast.With)
        for item in statement.items
        if any(name in ast.unparse(item.context_expr) for name in ("numerics(", "errstate(", "enable_x64("))
        for inner in ast.walk(statement)
        if isinstance(inner, (ast.Yield, ast.YieldFrom))
    ]
    assert held == []


@pytest.mark.long
@pytest.mark.skipif(os.environ.get("JAXSENS_TYPES") != "checked", reason="JAXSENS_TYPES is not 'checked'")
def test_a_wrong_shape_is_refused_where_types_are_checked():
    rows = jnp.zeros((3, 2))
    assert where_finite(rows, jnp.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(jaxtyping.TypeCheckError, match="numbers"):
        where_finite(rows, jnp.ones(2))
