"""The difference rules over their whole domain, against exact changes in decimal arithmetic.

What is allowed is what the module promises: the error that inputs a rounding away would make, in first order.
And what is called resolved is right to 1 %.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxsens
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.difference import rules
from jaxsens.core.models.transformer.parameters import NormParameters
from jaxsens.core.results import rounding
from tests.lanes import examples
from tests.small_models import small
from tools.cancelling import ENGINES, FUNCTIONS, NEAR, OF_OUTPUT, measured, of_function, of_output

ROUNDINGS = 8
"""The c of what `rules` promises: in 16,000 random pairs the worst seen was 2.6, of layer normalisation 1.1."""

DTYPES = ("float32", "float64")
DIGITS = 50
EXACT = decimal.Context(prec=DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
ROOT = EXACT.sqrt(Decimal(8) / Decimal("3.14159265358979323846264338327950288419716939937510582097494"))
CUBIC = Decimal("0.044715")


def sigmoid(x: Decimal) -> Decimal:
    # Beyond 10^4 it is 0 or 1 to more digits than any dtype has, and its exponential would take long.
    power = (-min(abs(x), Decimal(10) ** 4)).exp()
    return (power if x < 0 else 1) / (1 + power)


def gelu_gate(x: Decimal) -> Decimal:
    return sigmoid(ROOT * (x + CUBIC * x**3))


ACTIVATIONS: dict[str, Callable[[Decimal], Decimal]] = {
    "relu": lambda x: max(x, Decimal(0)),
    "tanh": lambda x: 2 * sigmoid(2 * x) - 1,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * gelu_gate(x),
}
DERIVATIVES: dict[str, Callable[[Decimal], Decimal]] = {
    "relu": lambda x: Decimal(int(x > 0)),
    "tanh": lambda x: 4 * sigmoid(2 * x) * sigmoid(-2 * x),
    "silu": lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
    "gelu": lambda x: gelu_gate(x) * (1 + x * ROOT * (1 + 3 * CUBIC * x * x) * gelu_gate(-x)),
}


def exact_change(name: str, h: float, dh: float, error: float) -> tuple[Decimal, Decimal]:
    """The change, and by how much it moves when h and dh move by their own size: its slope, at most, where h + dh may
    be if both are off by an error."""
    x, dx = Decimal(h), Decimal(dh)
    # f(x + dx) - f(x) loses as many digits as dx is smaller than x. tanh also loses those by which both are close to 1.
    lost = x.adjusted() - dx.adjusted() if x and dx else 0
    if name == "tanh":
        nearest = min(abs(x), abs(x + dx))
        lost = max(lost, -dx.adjusted()) + (int(nearest) if nearest < 400 else 0)
    context = EXACT.copy()
    context.prec = DIGITS + max(0, lost)
    with decimal.localcontext(context):
        x, dx = +x, +dx
        off = Decimal(error) * (abs(x) + abs(dx))
        before, *after = (DERIVATIVES[name](here) for here in (x, x + dx, x + dx - off, x + dx + off))
        after = max(after, key=abs)  # next to a minimum the slope alone says too little
        change = ACTIVATIONS[name](x + dx) - ACTIVATIONS[name](x)
        return change, abs(change) + abs(dx * after) + abs(x * (after - before))


def related(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[float, float]]:
    """A value and its change: of any two sizes, the change a fraction of the value, or next to its negative."""
    near = st.integers(-8, 8).map(lambda k: -1 + k * 2.0**-23) | st.integers(-8, 8).map(
        lambda k: -1 + k * 2.0**-52
    )
    ratios = near | st.integers(0, 60).flatmap(lambda k: st.sampled_from([2.0**-k, -(2.0**-k)]))
    return st.tuples(numbers, numbers) | st.tuples(numbers, ratios).map(
        lambda pair: (pair[0], pair[0] * pair[1])
    )


def sized(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    """Numbers of the size pre-activations have, and of any size."""
    anything = st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=False)
    return st.floats(-30, 30, width=width, allow_subnormal=False) | anything


PAIRS = {
    dtype: st.lists(related(sized(64 if dtype == "float64" else 32)), min_size=1, max_size=16)
    for dtype in DTYPES
}


@partial(jax.jit, static_argnums=0)
def changes(name: str, h: Any, dh: Any) -> Any:
    return rules.activation_change(small(activation=name).layer(0), h, dh)


def check_activation(name: str, dtype: str, pairs: Sequence[tuple[float, float]]) -> None:
    # Padded to one shape, so that one program serves.
    h, dh = np.zeros((2, 16), dtype)
    top = np.finfo(dtype).max
    h[: len(pairs)], dh[: len(pairs)] = np.clip(np.array(pairs), -top, top).astype(dtype).T
    with numerics(dtype):
        found = np.asarray(changes(name, h, dh))
    limits = np.finfo(dtype)
    for here, step, value in zip(h, dh, found, strict=True):
        change, moves = exact_change(name, float(here), float(step), ROUNDINGS * float(limits.eps))
        if abs(change) > Decimal(float(limits.max)):
            continue
        # Below the smallest normal number there are no digits; a gate that small is multiplied by the pre-activation.
        floor = 4 * Decimal(float(limits.tiny)) * (1 + abs(Decimal(float(here))))
        allowed = ROUNDINGS * Decimal(float(limits.eps)) * moves + floor
        assert np.isfinite(value), (here, step, change)
        assert abs(Decimal(float(value)) - change) <= allowed, (here, step, value, float(change))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_activation_changes_keep_the_digits_that_their_inputs_have(name, dtype, data):
    check_activation(name, dtype, data.draw(PAIRS[dtype]))


@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_changes_on_a_grid_of_sizes(name, dtype):
    top = 37 if dtype == "float32" else 307
    sizes = [10.0**k for k in (-top, -12, -3, 0, 1, 1.5, 12.7, 19.5, top)]
    pairs = [(h, r * dh) for a in sizes for h in (a, -a) for dh in sizes for r in (1, -1)]
    for start in range(0, len(pairs), 16):
        check_activation(name, dtype, pairs[start : start + 16])


@pytest.mark.parametrize(
    ("dtype", "h", "dh"), [("float32", 4096.0, -4066.0), ("float64", 140462355.0, -140462221.0446596)]
)
def test_tanh_keeps_its_digits_when_it_returns_from_far_beyond_saturation(dtype, h, dh):
    check_activation("tanh", dtype, [(h, dh), (-h, -dh)])


def norm(values: Iterable[Decimal]) -> Decimal:
    return sum((value * value for value in values), Decimal(0)).sqrt()


def normalised(row: list[Decimal], epsilon: Decimal) -> tuple[list[Decimal], Decimal]:
    """A row minus its mean, and the root of its variance plus epsilon."""
    mean = sum(row, Decimal(0)) / len(row)
    centred = [value - mean for value in row]
    return centred, (norm(centred) ** 2 / len(row) + epsilon).sqrt()


def jacobian(row: list[Decimal], epsilon: Decimal) -> list[Decimal]:
    """The entries of layer normalisation's derivative."""
    centred, root = normalised(row, epsilon)
    n = Decimal(len(row))
    pairs = [(i, j) for i in range(len(row)) for j in range(len(row))]
    return [(int(i == j) - 1 / n - centred[i] * centred[j] / (n * root * root)) / root for i, j in pairs]


def exact_norm_change(
    x: Any, dx: Any, epsilon: float, least: float
) -> tuple[list[Decimal], Decimal, Decimal] | None:
    """The change of a layer-normalised row, by how much its norm moves with x and dx, and how steep it is.

    None where a variance plus epsilon is below `least`: there is no normalised row in the dtype.
    """
    context = EXACT.copy()
    # What is left of two normalised rows along each other is epsilon over their squares.
    context.prec = DIGITS + 4 * max(abs(Decimal(float(v)).adjusted()) for v in (*x, *dx, 1e-15) if v)
    with decimal.localcontext(context):
        extra = Decimal(epsilon)
        old, step = [+Decimal(float(v)) for v in x], [+Decimal(float(v)) for v in dx]
        new = [a + b for a, b in zip(old, step, strict=True)]
        (before, root), (after, new_root) = normalised(old, extra), normalised(new, extra)
        if min(root, new_root) ** 2 < Decimal(least):
            return None
        change = [a / new_root - b / root for a, b in zip(after, before, strict=True)]
        slope, new_slope = jacobian(old, extra), jacobian(new, extra)
        turn = norm(a - b for a, b in zip(new_slope, slope, strict=True))
        return change, norm(change) + turn * norm(old) + norm(new_slope) * norm(step), norm(new_slope)


@partial(jax.jit, static_argnums=0)
def norm_changes(epsilon: float, x: Any, dx: Any) -> Any:
    layer = small(layer_norm="pre", layer_norm_epsilon=epsilon).layer(0)
    own = NormParameters(scale=jnp.ones(x.shape[-1], x.dtype), bias=jnp.ones(x.shape[-1], x.dtype))
    return rules.layer_norm_change(layer, own, x, dx)


def check_layer_norm(dtype: str, epsilon: float, x: Any, dx: Any) -> None:
    x, dx = np.asarray(x, dtype), np.asarray(dx, dtype)
    limits = np.finfo(dtype)
    exact = exact_norm_change(x, dx, epsilon, float(limits.tiny / limits.eps))
    if exact is None:
        return
    with numerics(dtype):
        found = np.asarray(norm_changes(epsilon, x, dx))
    change, moves, slope = exact
    if epsilon == 0 and (len(x) == 2 or moves * Decimal(float(limits.eps)) > 1):
        return  # the normalised row is a step: of two entries it is their order, and a constant row has none
    assert np.all(np.isfinite(found))
    error = norm(Decimal(float(a)) - b for a, b in zip(found, change, strict=True))
    # Below the normal range every number may be taken for 0: a result, a mean, an entry of dx. The slope enlarges them.
    floor = 4 * Decimal(float(limits.tiny)) * (1 + slope + norm([Decimal(float(v)) for v in (*x, *dx)]))
    assert error <= ROUNDINGS * Decimal(float(limits.eps)) * moves + floor, (x, dx, found, change)


@st.composite
def rows(draw: Any, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A row and its change: along the centred row, nearly along it, or any; of sizes whose squares are finite."""
    n = draw(st.sampled_from([1, 2, 3, 8]))
    top = 15 if dtype == "float32" else 140
    entries = st.lists(st.floats(-1, 1, width=32, allow_subnormal=False), min_size=n, max_size=n)
    exponents = st.integers(-3, 3) | st.integers(-top, top)
    x = np.array(draw(entries)) * 10.0 ** draw(exponents) + draw(st.sampled_from([0, 0, 1, 1e3]))
    along = draw(
        st.sampled_from([0, 2.0**-20, 2.0**-3, -0.5, -1, -1 + 2.0**-10, -1 - 2.0**-10, -2, 3, 1e3, 1e-9])
    )
    across = np.array(draw(entries)) * 10.0 ** draw(exponents) * draw(st.sampled_from([0, 0, 1]))
    return x, along * x + across


@pytest.mark.quick(3)
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12, 0.0])
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=examples(100))
@given(data=st.data())
def test_changes_of_layer_normalisation_keep_the_digits_that_their_inputs_have(dtype, epsilon, data):
    check_layer_norm(dtype, epsilon, *data.draw(rows(dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("along", [1e-6, 0.25, 7.0, 1e4, -0.25, -1 + 1e-3, -1 - 1e-3, -3.0])
def test_a_change_along_a_centred_row_of_two_is_known_to_rounding(dtype, along):
    check_layer_norm(dtype, 1e-5, [1.0, 3.0], [0.0, 2 * along])
    check_layer_norm(dtype, 1e-5, [300.0, -500.0], [300 * along, -500 * along])


def test_layer_normalisation_where_the_squares_of_a_row_underflow():
    for dtype, size in (("float32", 1e-21), ("float64", 1e-170)):
        check_layer_norm(dtype, 1e-5, [size, -size, size, 0], [2 * size, 1, size, 0])
        check_layer_norm(dtype, 1e-5, [size, -size], [2 * size, 3 * size])


QUICK = ("variance", "log-sum-exp of equal terms", "hinge")
QUICK_OF_OUTPUT = ("narrow ramp beside",)


def some(names, quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.long) for name in names]


@pytest.mark.quick(2, 25)
@pytest.mark.parametrize("name", some(FUNCTIONS, QUICK))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_change_of_a_plain_function_is_called_resolved_and_off(name, dtype):
    found = [of_function(name, dtype, kind) for kind in ("constant", "random")]
    assert [one.wrong for one in found] == [0, 0], found


@pytest.mark.quick(0, 18)
@pytest.mark.parametrize("name", some(OF_OUTPUT, QUICK_OF_OUTPUT))
@pytest.mark.parametrize("engine", some(ENGINES, ["difference"]))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.long)])
def test_no_change_of_a_function_of_the_output_is_called_resolved_and_off(name, dtype, engine):
    found = [of_output(name, dtype, kind, engine) for kind in ("constant", "random")]
    assert [one.wrong for one in found] == [0, 0], found


def test_where_many_flips_take_long_a_sample_tells_their_rounding(monkeypatch):
    def variance(p, x):
        v = jnp.asarray(p)[x]
        return jnp.mean(v * v) - jnp.mean(v) ** 2

    monkeypatch.setattr(rounding, "CHEAP", 0.0)
    found = measured((variance, np.asarray(NEAR[:2], np.float32)), np.zeros(8, int), flips=2)
    assert not found.resolved.any()
    assert np.all(np.abs(found.values - 1.094e-5) < found.resolution)


def test_a_sum_that_nothing_cancels_in_stays_resolved():
    for dtype in (np.float32, np.float64):
        numbers = np.asarray([0.1, 0.2, 0.7], dtype)
        found = measured((lambda p, x: jnp.asarray(p)[x].mean(), numbers), np.arange(60) % 3, flips=3)
        assert isinstance(found, jaxsens.FlipSensitivity)
        assert found.resolved.all()
        assert np.max(found.resolution) < 20 * np.finfo(dtype).eps
