"""Programs evaluated in wider numbers, against JAX's own float64, mpmath, and XLA's semantics of indices."""

from __future__ import annotations

import weakref
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from flax import linen, nnx
from jax import lax
from jax.extend.core.primitives import eq_to_p, le_to_p, lt_to_p

from jaxsens.asked.measures import Measure, OfFunction
from jaxsens.base.errors import InputError
from jaxsens.base.precision import numerics
from jaxsens.models.parts.choices import ACTIVATIONS, LAYER_NORMS, OUTPUT_GATES, SCORES
from jaxsens.models.parts.masks import MASKS, SlidingWindow
from jaxsens.models.transformer import layers
from jaxsens.models.transformer.layers import layered_transformer
from jaxsens.sensitivity.subjects.adapters import measurable
from tests.small_models import POSITIONS_TRIED, WEIGHTINGS_TRIED, random_parameters, small
from tests.wide.numbers import FLOAT64, Arithmetic, Precise
from tests.wide.program import Program, traced

BOTH = (FLOAT64, Precise(160))
RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 5))
ODD = np.array(
    [[0.0, -0.0, 1, -1, 2.5], [np.nan, 1, 2, 3, 4], [np.inf, 1, -3.5, np.nan, 0], [-np.inf, 1, 0.5, 3, 3]]
)
PLACES = np.array([0, 3, -1, 7, -9])


def same(function: Any, *args: Any, tolerance: float = 1e-12) -> None:
    """Compares the program of a function, in both kinds of numbers, with JAX in float64."""
    with numerics("float64"):
        program, wanted = traced(function, *args), jax.tree.leaves(jax.jit(function)(*args))
    for arithmetic in BOTH:
        for found, right in zip(jax.tree.leaves(program.evaluate(arithmetic, *args)), wanted, strict=True):
            right = np.asarray(right)
            assert found.shape == right.shape
            assert found.dtype == (arithmetic.held if right.dtype == np.float64 else right.dtype)
            as_traced = found.astype(right.dtype)
            np.testing.assert_allclose(
                as_traced, right, rtol=tolerance, atol=tolerance, err_msg=str(program.jaxpr)
            )


def pick(kinds: Any, k: int, count: int = 3) -> tuple[Any, ...]:
    """`count` members of a family, others for each k."""
    listed = list(kinds.values() if isinstance(kinds, dict) else kinds)
    return tuple(listed[(count * k + i) % len(listed)] for i in range(count))


CASES = max(-(-len(WEIGHTINGS_TRIED) // 3), len(POSITIONS_TRIED))


@pytest.mark.quick(4)
@pytest.mark.parametrize("k", range(CASES))
def test_the_packages_transformers_as_in_jax(k: int) -> None:
    """Together the cases have every weighting, mask, position, normalisation, activation, score, gate and readout."""
    positions = list(POSITIONS_TRIED.values())
    config = small(
        layers=3,
        weighting=pick(WEIGHTINGS_TRIED, k),
        mask=pick([*MASKS, SlidingWindow(3)], k),
        positions=positions[k % len(positions)],
        layer_norm=pick(list(LAYER_NORMS), k, 1)[0],
        activation=pick(list(ACTIVATIONS), k, 1)[0],
        scores=pick(list(SCORES), k // 2, 1)[0],
        output_gate=pick(list(OUTPUT_GATES), k // 3, 1)[0],
        readout=pick(("last", "mean", 1), k, 1)[0],
        logits=pick((None, 3), k, 1)[0],
    )
    parameters, tokens = random_parameters(config), np.arange(6) % 3
    same(lambda parameters, tokens: layers.apply(config, parameters, tokens), parameters, tokens)


@pytest.mark.parametrize("weighting", ["softmax", "leftmost-hard", "rightmost-hard", "average-hard"])
def test_centred_scores_as_in_jax(weighting: str) -> None:
    config = small(centred_scores=True, positions="none", weighting=weighting)
    same(lambda p, t: layers.apply(config, p, t), random_parameters(config), np.arange(6) % 3)


def test_the_cases_have_every_choice() -> None:
    """So that a kind that is added later is not left out above."""
    assert max(len(LAYER_NORMS), len(ACTIVATIONS)) <= CASES
    assert max(2 * len(SCORES), 3 * len(OUTPUT_GATES)) <= CASES
    assert len(MASKS) + 1 <= 3 * CASES


def in_float64(query: Any, key: Any, value: Any, mask: Any = None, **_: Any) -> Any:
    """Attention without Flax's own conversion of scores to float32."""
    scores = jnp.einsum("qhd,khd->hqk", query, key)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), value)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "name", [name for name, kind in Measure.kinds.items() if not issubclass(kind, OfFunction)]
)
def test_the_packages_measures_as_in_jax(name: str) -> None:
    measure = Measure.kinds[name]()
    same(lambda y, changes: measure.values(y, changes), X[0], 0.1 * X[1:])


def test_a_layered_model_as_in_jax_with_parameters_lifted_before() -> None:
    config = small(weighting="temperature-log", mask="future", layer_norm="pre", logits=3)
    model, tokens = measurable((layered_transformer(config), random_parameters(config))), np.arange(6) % 3
    same(model.apply, model.parameters, tokens)
    with numerics("float64"):
        program, wide = traced(model.apply, model.parameters, tokens), Precise(200)
    lifted = jax.tree.map(wide.lift, model.parameters)
    found = program.evaluate(wide, lifted, tokens)
    np.testing.assert_array_equal(found, program.evaluate(wide, model.parameters, tokens))


class NnxModel(nnx.Module):
    """Embedding, attention, layer normalisation and a dense readout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(4, 8, dtype=jnp.float64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=2, in_features=8, decode=False, dtype=jnp.float64, attention_fn=in_float64, rngs=rngs
        )
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(
            0.1, deterministic=True, rngs=rngs
        )  # its state holds a key of random numbers
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        mask = nnx.make_causal_mask(tokens)[0]
        return self.out(nnx.gelu(self.norm(x + self.dropout(self.attention(x, mask=mask)))))[-1]


class LinenModel(linen.Module):
    """The same in Linen, with the exact gelu."""

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        x = linen.Embed(4, 8)(tokens)
        x = linen.LayerNorm()(x + linen.MultiHeadDotProductAttention(2)(x, x))
        return linen.Dense(3)(jax.nn.gelu(x, approximate=False)).mean(0)


class EquinoxModel(eqx.Module):
    """An embedding, attention and a recurrent cell run by a scan."""

    embed: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    cell: eqx.nn.GRUCell

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.embed)(tokens)
        x = self.attention(x, x, x)
        return lax.scan(lambda h, row: (self.cell(row, h), None), jnp.zeros(5, x.dtype), x)[0]


def plain(tokens: Any) -> Any:
    """Every kind of control flow, gather and scatter."""
    table = jnp.sin(jnp.arange(12.0)).reshape(4, 3)
    x = table[tokens].at[tokens % 2].add(0.5)
    x = lax.while_loop(lambda c: jnp.abs(c).sum() < 40, lambda c: 1.5 * c, x)
    x = lax.cond(tokens[0] > 0, lambda a: jnp.log1p(a**2), lambda a: jnp.tanh(a), x)
    total, rows = lax.scan(lambda c, row: (c * 0.5 + row, c @ row), x[0], x)
    return jnp.concatenate([total, lax.fori_loop(0, 3, lambda k, r: r + k, rows), jnp.sort(rows)])


def foreign(kind: str) -> Any:
    """A small model of a framework."""
    key = jax.random.key(0)
    if kind == "nnx":
        return NnxModel(nnx.Rngs(0))
    if kind == "linen":
        module = LinenModel()
        return module, module.init(key, jnp.arange(4))
    if kind == "equinox":
        return EquinoxModel(
            eqx.nn.Embedding(4, 8, key=key),
            eqx.nn.MultiheadAttention(2, 8, key=key),
            eqx.nn.GRUCell(8, 5, key=key),
        )
    return plain


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", ["nnx", "linen", "equinox", "plain"])
def test_models_of_other_frameworks_as_in_jax(kind: str) -> None:
    with numerics("float64"):
        model = measurable(foreign(kind))
        parameters = jax.tree.map(
            lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == jnp.float32 else leaf, model.parameters
        )
    same(model.apply, parameters, np.array([1, 3, 0, 2]))


ELEMENTWISE: dict[str, Any] = {
    "functions": lambda x: [
        f(x) for f in (jnp.exp, jnp.exp2, jnp.expm1, jnp.tanh, jnp.sin, jnp.cos, jnp.arctan)
    ],
    "roots": lambda x: [f(x) for f in (jnp.sqrt, lax.rsqrt, jnp.cbrt, jnp.log, jnp.log1p, lax.erf, lax.erfc)],
    "hyperbolic": lambda x: [f(x) for f in (jnp.sinh, jnp.cosh, jnp.arcsinh, jnp.arccosh, jnp.arctanh)],
    "inverse": lambda x: [
        f(x) for f in (jnp.arcsin, jnp.arccos, lax.logistic, jnp.sign, jnp.abs, jnp.isfinite)
    ],
    "rounding": lambda x: [
        jnp.floor(x),
        jnp.ceil(x),
        jnp.round(x),
        lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    ],
    "powers": lambda x: [x**3, x**-2, jnp.abs(x) ** 1.5, jnp.square(x), lax.rem(x, 0.3), lax.div(x, 0.0)],
    "tiny": lambda x: [jnp.log1p(x * 1e-17), jnp.expm1(x * 1e-17), jnp.log1p(x * 1e-300)],
    "compared": lambda x: [
        x < 1,
        x <= 1,
        x > 1,
        x >= 1,
        x == 1,
        x != 1,
        jnp.maximum(x, 1),
        jnp.minimum(x, 1),
    ],
    "to integers": lambda x: [(1e10 * x).astype(t) for t in (jnp.int32, jnp.uint8, jnp.int64, bool)],
    "ordered": lambda x: [
        lax.clamp(-0.5, x, 0.5),
        *(p.bind(x, x[::-1]) for p in (le_to_p, lt_to_p, eq_to_p)),
    ],
    "reduced": lambda x: [
        x.max(1),
        x.min(0),
        x.argmax(1),
        x.argmin(1),
        x.argmax(),
        x.sum(),
        x.prod(0),
        (x > 0).any(1),
    ],
    "cumulative": lambda x: [jnp.cumsum(x, 0), lax.cummax(x, axis=1), lax.cummin(x, axis=1, reverse=True)],
    "cumulative products": lambda x: [lax.cumprod(x, axis=1), lax.cumlogsumexp(x, axis=1)],
    "sorted": lambda x: [jnp.sort(x, 0), jnp.argsort(x), *lax.top_k(jnp.abs(x), 3)],
    "softmax": lambda x: [jax.nn.softmax(x), jax.nn.logsumexp(x, 1), jnp.median(x, 1)],
    "moved": lambda x: [
        jnp.pad(x, 1),
        lax.pad(x, 9.0, ((1, -1, 1), (-2, 0, 2))),
        jnp.flip(x, 0),
        jnp.tile(x, (2, 3)),
    ],
    "nothing": lambda x: [
        jnp.zeros((0, 3)).sum(0),
        jnp.ones((3, 0)) @ jnp.ones((0, 2)),
        x[:0].max(0, initial=-1),
    ],
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_numbers_infinities_and_nan_as_in_jax(name: str) -> None:
    same(ELEMENTWISE[name], X)
    same(ELEMENTWISE[name], ODD)


def test_accurate_near_zero() -> None:
    """log1p and expm1 keep every digit of small arguments, which log(1 + x) would lose: compared relatively."""
    program, x = traced(lambda x: [jnp.log1p(x), jnp.expm1(x)], np.float32(1e-20)), np.float32(1e-20)
    for arithmetic in BOTH:
        for found in program.evaluate(arithmetic, x):
            assert float(found) == pytest.approx(float(x), rel=1e-15, abs=0)


@pytest.mark.parametrize("mode", ["fill", "clip", None])
def test_indices_out_of_range_as_in_jax(mode: Any) -> None:
    for x in (X, np.arange(20).reshape(4, 5)):
        same(
            lambda x, i: [x.at[i].get(mode=mode), x.at[:, i].get(mode=mode), x.at[i, i].get(mode=mode)],
            x,
            PLACES,
        )
        same(lambda x, i: [x.at[i].add(3, mode=mode), x.at[:, i].add(3, mode=mode)], x, PLACES)
        same(lambda x, i: [x.at[i].max(3, mode=mode), x.at[i].min(3, mode=mode)], x, PLACES)
        same(lambda x, i: [x.at[i].set(7, mode=mode), x.at[i, i].multiply(2, mode=mode)], x, PLACES)


def test_windows_out_of_range_as_in_jax() -> None:
    same(lambda x: lax.dynamic_slice(x, (3, -9), (2, 2)), X)
    same(lambda x: lax.dynamic_update_slice(x, x[:2, :2], (3, 1)), X)
    starts = np.array([0, 4, -2, 9])
    same(lambda x, i: jax.vmap(lambda row, k: lax.dynamic_slice(row, (k,), (2,)))(x, i), X, starts)
    same(lambda x, i: jax.vmap(lambda row, k: lax.dynamic_update_slice(row, row[:2], (k,)))(x, i), X, starts)


def test_batched_indices_as_in_jax() -> None:
    """gather and scatter with axes that the operand and the indices share."""
    places = RNG.integers(0, 5, (4, 2))
    same(lambda x, i: jnp.take_along_axis(x, i, 1), X, places)
    same(lambda x, i: jax.vmap(lambda row, k: row.at[k].add(1.0))(x, i), X, places)


def test_products_of_any_axes_as_in_jax() -> None:
    b, c = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(3, 5, 2, 6))
    same(lambda b, c: lax.dot_general(b, c, (((3,), (1,)), ((0, 1), (2, 0)))), b, c)
    same(lambda b, c: jnp.einsum("abcd,bdae->ce", b, c), b, c)


def test_integers_as_in_jax() -> None:
    x = np.array([-7, 7, -(2**31), 5, 0, 1, -1, 33], np.int32)
    y = np.array([2, -2, -1, 0, 0, 31, 32, -1], np.int32)
    both = (lax.div, lax.rem, lax.add, lax.mul, lax.max, lax.shift_left, lax.shift_right_logical)
    more = (lax.shift_right_arithmetic, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor)
    one = (
        lax.population_count,
        lax.bitwise_not,
        jnp.abs,
        jnp.sign,
        jnp.cumsum,
        jnp.max,
        lambda k: k.astype(jnp.int8),
    )
    for kind in (np.int32, np.uint8):
        same(lambda x, y: [f(x, y) for f in (*both, *more)], x.astype(kind), y.astype(kind))
        same(lambda x: [*(f(x) for f in one), lax.integer_pow(x, 5), *lax.top_k(x, 3)], x.astype(kind))


def test_narrowing_conversions_round() -> None:
    """A quantisation is part of the model; a conversion to an equal or wider dtype rounds nothing."""
    kinds = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn)
    for x in (X, ODD, 1e5 * X, 1e-3 * X):
        same(lambda x: [x.astype(kind).astype(jnp.float64) for kind in kinds], x, tolerance=0)
        same(lambda x: [lax.reduce_precision(x, 5, 3), lax.reduce_precision(x, 11, 7)], x, tolerance=0)
    third = np.float64(1) / 3
    with numerics("float64"):
        program = traced(lambda x: x.astype(jnp.float64) / 3, np.float32(1))
    assert program.evaluate(FLOAT64, np.float32(1)) == third
    held = traced(lambda x: (x / 3).astype(jnp.float32), np.float32(1)).evaluate(Precise(200), np.float32(1))
    assert abs(held - third) > 1e-20  # not rounded to float64, nor to float32
    assert abs(held - third) < 1e-16


def test_float32_program_in_float64_has_float64s_digits() -> None:
    x = X.astype(np.float32)
    program = traced(lambda x: jax.nn.softmax(x @ x.T), x)
    with numerics("float64"):
        wanted = jax.nn.softmax(jnp.asarray(x, float) @ jnp.asarray(x, float).T)
    np.testing.assert_allclose(program.evaluate(FLOAT64, x), wanted, rtol=1e-14)


def test_one_softmax_layer_as_in_mpmath() -> None:
    """All digits of 300 bits, from the formula of one layer with one head written with mpmath's numbers."""
    config = small(layers=1, heads=1, feed_forward=0, positions="none")
    parameters, tokens = random_parameters(config), np.array([0, 2, 1, 1, 0])
    with numerics("float64"):
        program = traced(lambda p, t: layers.apply(config, p, t), parameters, tokens)
    found = program.evaluate(Precise(300), parameters, tokens)
    with mpmath.workprec(400):
        x = mpmath.matrix(parameters.embedding[tokens].tolist())
        layer = parameters.layers[0]
        query, key, value, output = (
            mpmath.matrix(np.asarray(matrix)[0].tolist())
            for matrix in (layer.query, layer.key, layer.value, layer.output)
        )
        scores = x * key * (x[4, :] * query).T / 2  # the root of head_width = 4
        powers = scores.apply(mpmath.exp)
        wanted = x[4, :] + (powers.T * x * value * output) / mpmath.fsum(powers)
        for one, right in zip(found, wanted, strict=True):
            assert abs(mpmath.mpf(str(one)) - right) < mpmath.mpf(2) ** -290


def attended(score: Any, values: Any) -> Any:
    """One row of attention to keys with scores 0 and `score`."""
    return jax.nn.softmax(jnp.stack([jnp.zeros_like(score), score])) @ values


def test_a_change_of_1e_40_is_found_by_two_forward_passes() -> None:
    score, before, after = np.float32(-92), np.array([1.0, 1.0], np.float32), np.array([1.0, 2.0], np.float32)
    program, wide = traced(attended, score, before), Precise(256)

    def change(arithmetic: Arithmetic) -> Any:
        y, new = (program.evaluate(arithmetic, score, values) for values in (before, after))
        norm = traced(lambda y, new: jnp.abs(new - y), np.float32(0), np.float32(0))
        return norm.evaluate(arithmetic, y, new)

    assert float(change(FLOAT64)) == 0
    with mpmath.workprec(256):
        assert float(change(wide)) == pytest.approx(float(1 / (1 + mpmath.exp(92))), rel=1e-15, abs=0)


def test_a_primitive_without_rule_is_named_before_any_work() -> None:
    def calls_back(x: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda a: jax.pure_callback(np.sin, a, a), lambda a: a, x)

    program = traced(calls_back, X.astype(np.float32))
    assert program.unsupported == "pure_callback"
    with pytest.raises(InputError, match="no rule for the primitive pure_callback"):
        program.evaluate(FLOAT64, X)
    assert traced(lambda x: lax.cumsum(x), X[0].astype(np.complex64)).unsupported == "cumsum of complex64"
    assert traced(lambda k: jax.random.normal(k, (3,)), jax.random.key(0)).unsupported == "random_bits"
    assert traced(jnp.sin, np.float32(1)).unsupported is None


def test_what_no_result_depends_on_is_neither_counted_nor_evaluated() -> None:
    def with_dead_code(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return carry + row.sum(), jax.pure_callback(np.exp, row, row)

        total, unread = lax.scan(step, jnp.zeros((), x.dtype), x)
        jnp.sin(unread)
        return total

    program = traced(with_dead_code, X)
    assert program.unsupported is None
    assert program.operations == 4 * (5 + 1)  # of each row, a sum and an addition
    np.testing.assert_allclose(program.evaluate(FLOAT64, X), X.sum(), rtol=1e-14)


def test_what_the_first_arguments_determine_is_evaluated_once_and_they_are_not_held() -> None:
    weights = jnp.asarray(X)
    held = weakref.ref(weights)
    program = traced(lambda w, x: (jnp.stack([w, w]) * x).sum() + w[0, 0], weights, np.float32(1))
    wanted = [program.evaluate(FLOAT64, weights, np.float32(x)) for x in (2, 3)]
    rest = program.given(FLOAT64, weights)
    del weights
    assert held() is None
    assert [rest(np.float32(x)) for x in (2, 3)] == wanted
    with pytest.raises(InputError, match="the program was traced for"):
        rest(X)


def test_other_arguments_than_traced_are_refused() -> None:
    program = traced(lambda x: x.sum(), X)
    with pytest.raises(InputError, match="the program was traced for"):
        program.evaluate(FLOAT64, X[:2])
    with pytest.raises(InputError, match="bits = 32"):
        Precise(32)


def counted(function: Any, *args: Any) -> float:
    """The operations of a function's program."""
    program: Program = traced(function, *args)
    return program.operations


def test_operations_of_products_loops_and_branches() -> None:
    x = np.ones((4, 5), np.float32)
    assert counted(lambda x: x @ x.T, x) == 2 * 4 * 4 * 5
    assert counted(lambda x: jnp.exp(x), x) == 20
    assert counted(lambda x: lax.fori_loop(0, 7, lambda k, c: c * 2, x), x) == 7 * 20
    assert counted(lambda x: lax.cond(x[0, 0] > 0, lambda a: a * a * a, lambda a: -a, x), x) == 1 + 40
    assert counted(lambda x: x[::2].reshape(-1), x) == 0
