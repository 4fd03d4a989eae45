"""Functions that cancel, jump, bend and underflow, each beside its twin in mpmath: is what is called resolved right?

`python -m tools.cancelling` prints a table by engine, dtype and word. It exits with 1 if a value
is called resolved and is off by over 1 %.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

import jaxsens
from jaxsens.core.base.programs import SMALLEST
from jaxsens.core.measures import Function
from jaxsens.core.models.adapters import as_model
from tools.wide.numbers import Precise
from tools.wide.outputs import output_program

M, N = mpmath, 8
M.mp.dps = 1500

NEAR = (30.0, 30.01, 30.02)
EQUAL = (0.5, 0.50001, 0.75)
LARGE = (3e8, 3e8 + 64, 1.0)
SMALL = (1e-7, 3e-7, 2e-3)
TINY = (1e-10, 2e-10, 1e-3)


def mean(v):
    return sum(v) / len(v)


def welford(v):
    def step(carry, x):
        k, m, s = carry
        k = k + 1
        d = x - m
        m = m + d / k
        return (k, m, s + d * (x - m)), None

    zero = jnp.zeros((), v.dtype)
    return jax.lax.scan(step, (zero, zero, zero), v)[0][2] / N


def exactly_welford(v):
    m = mean(v)
    return sum((x - m) ** 2 for x in v) / N


def horner(x):
    total = x * 0
    for c in (1, -7, 21, -35, 35, -21, 7, -1):
        total = total * x + c
    return total


def logsumexp(v):
    top = max(v)
    return top + M.log(sum(M.exp(x - top) for x in v))


FUNCTIONS: dict[str, tuple[tuple[float, ...], Callable[..., Any], Callable[..., Any]]] = {
    "variance": (
        NEAR,
        lambda v: jnp.mean(v * v) - jnp.mean(v) ** 2,
        lambda v: mean([x * x for x in v]) - mean(v) ** 2,
    ),
    "variance of large numbers": (
        LARGE,
        lambda v: jnp.mean(v * v) - jnp.mean(v) ** 2,
        lambda v: mean([x * x for x in v]) - mean(v) ** 2,
    ),
    "variance in two passes": (NEAR, jnp.var, lambda v: mean([(x - mean(v)) ** 2 for x in v])),
    "running variance": (NEAR, welford, exactly_welford),
    "standard deviation": (NEAR, jnp.std, lambda v: M.sqrt(mean([(x - mean(v)) ** 2 for x in v]))),
    "covariance": (
        NEAR,
        lambda v: jnp.mean(v * jnp.arange(N)) - jnp.mean(v) * 3.5,
        lambda v: mean([x * k for k, x in enumerate(v)]) - mean(v) * 3.5,
    ),
    "hidden by a constant": (EQUAL, lambda v: (jnp.sum(v) + 1e6) - 1e6, lambda v: sum(v)),
    "far below a constant": (TINY, lambda v: jnp.sum(v) + 1.0, lambda v: sum(v)),
    "telescope": (LARGE, lambda v: jnp.sum(v[1:] - v[:-1]), lambda v: v[-1] - v[0]),
    "alternating sum": (
        LARGE,
        lambda v: jnp.sum(v[::2]) - jnp.sum(v[1::2]),
        lambda v: sum(v[::2]) - sum(v[1::2]),
    ),
    "alternating product": (
        LARGE,
        lambda v: v @ jnp.asarray([1.0, -1.0] * 4, v.dtype),
        lambda v: sum(v[::2]) - sum(v[1::2]),
    ),
    "cumulative": (LARGE, lambda v: jnp.cumsum(v - jnp.mean(v))[-1], lambda v: M.mpf(0)),
    "log-sum-exp of equal terms": (
        EQUAL,
        lambda v: jax.nn.logsumexp(v) - jnp.max(v),
        lambda v: logsumexp(v) - max(v),
    ),
    "log-sum-exp beside itself": (
        NEAR,
        lambda v: jax.nn.logsumexp(v) - jnp.log(jnp.sum(jnp.exp(v))) + v[0] * 1e-6,
        lambda v: v[0] * C(1e-6),
    ),
    "log-probability of one": (
        (0.0, 20.0, 20.01),
        lambda v: jax.nn.log_softmax(v.at[0].add(40.0))[0],
        lambda v: v[0] + 40 - logsumexp([v[0] + 40, *v[1:]]),
    ),
    "softmax of equals": (
        EQUAL,
        lambda v: jax.nn.softmax(v)[0] - jax.nn.softmax(v)[1],
        lambda v: (M.exp(v[0]) - M.exp(v[1])) / sum(M.exp(x) for x in v),
    ),
    "product": (TINY, jnp.prod, lambda v: M.fprod(v)),
    "product by hand": (TINY, lambda v: v[0] * v[1] * v[2] * v[3] * v[4], lambda v: M.fprod(v[:5])),
    "product made large": (
        TINY,
        lambda v: (v[0] * v[1] * v[2] * v[3] * v[4]) * 1e38,
        lambda v: M.fprod(v[:5]) * C(1e38),
    ),
    "ratio of products": (
        TINY,
        lambda v: jnp.prod(v[:2] * 1e-5) / jnp.prod(v[2:4] * 1e-5),
        lambda v: v[0] * v[1] / (v[2] * v[3]),
    ),
    "dot of tiny": (
        TINY,
        lambda v: (v * 1e-30) @ (v * 1e-10),
        lambda v: sum(x * C(1e-30) * x * C(1e-10) for x in v),
    ),
    "exponential": (
        (3.0, 3.5, 1.0),
        lambda v: jnp.exp(-jnp.sum(v * v) * 1.5),
        lambda v: M.exp(-sum(x * x for x in v) * 1.5),
    ),
    "hinge": (EQUAL, lambda v: jnp.maximum(0.0, jnp.sum(v) - 4.0), lambda v: max(M.mpf(0), sum(v) - 4)),
    "hinge at a third": (
        (1 / 3, 0.33333334, 0.5),
        lambda v: jnp.maximum(0.0, jnp.sum(v) * 3 - 8.0),
        lambda v: max(M.mpf(0), sum(v) * 3 - 8),
    ),
    "absolute value": (NEAR, lambda v: jnp.abs(jnp.mean(v) - 30.00125), lambda v: abs(mean(v) - C(30.00125))),
    "absolute value beside": (
        NEAR,
        lambda v: 1e4 + jnp.abs(jnp.mean(v) - 30.00125),
        lambda v: abs(mean(v) - C(30.00125)),
    ),
    "clip": (
        EQUAL,
        lambda v: jnp.clip(jnp.sum(v), 4.0, 4.00002),
        lambda v: min(max(sum(v), M.mpf(4)), C(4.00002)),
    ),
    "relu beside": (
        EQUAL,
        lambda v: 1e5 + jax.nn.relu(jnp.sum(v) - 4.00001),
        lambda v: max(M.mpf(0), sum(v) - C(4.00001)),
    ),
    "floor": ((0.1, 0.2, 0.7), lambda v: jnp.floor(jnp.sum(v) * 10.0), lambda v: M.floor(sum(v) * 10)),
    "step": (
        (0.1, 0.100001, 0.7),
        lambda v: jnp.where(jnp.sum(v) > 0.8, 1.0, 0.0),
        lambda v: M.mpf(sum(v) > C(0.8)),
    ),
    "median": (
        NEAR,
        lambda v: jnp.median(v) - jnp.mean(v),
        lambda v: (sorted(v)[3] + sorted(v)[4]) / 2 - mean(v),
    ),
    "largest less the second": (
        NEAR,
        lambda v: jnp.sort(v)[-1] - jnp.sort(v)[-2] + 1e3,
        lambda v: sorted(v)[-1] - sorted(v)[-2],
    ),
    "root less one": (SMALL, lambda v: jnp.sqrt(1 + jnp.sum(v)) - 1, lambda v: M.sqrt(1 + sum(v)) - 1),
    "one less a cosine": (SMALL, lambda v: 1 - jnp.cos(jnp.sum(v)), lambda v: 2 * M.sin(sum(v) / 2) ** 2),
    "exponential less one": (SMALL, lambda v: jnp.exp(jnp.sum(v)) - 1, lambda v: M.expm1(sum(v))),
    "logarithm of nearly one": (SMALL, lambda v: jnp.log(1 + jnp.sum(v)), lambda v: M.log1p(sum(v))),
    "one less tanh": ((1.0, 1.5, 0.1), lambda v: 1 - jnp.tanh(jnp.sum(v)), lambda v: 1 - M.tanh(sum(v))),
    "smaller root": (
        (50.0, 51.0, 2.0),
        lambda v: jnp.sum(v) - jnp.sqrt(jnp.sum(v) ** 2 - 1),
        lambda v: sum(v) - M.sqrt(sum(v) ** 2 - 1),
    ),
    "reciprocals": (
        (1e3, 1001.0, 3.0),
        lambda v: 1 / jnp.sum(v) - 1 / (jnp.sum(v) + 1),
        lambda v: 1 / sum(v) - 1 / (sum(v) + 1),
    ),
    "determinant": (NEAR, lambda v: v[0] * v[3] - v[1] * v[2], lambda v: v[0] * v[3] - v[1] * v[2]),
    "seventh power": ((0.125, 0.1251, 0.2), lambda v: horner(jnp.sum(v)), lambda v: (sum(v) - 1) ** 7),
    "amplified": (SMALL, lambda v: ((1 + jnp.sum(v)) - 1) * 1e7, lambda v: sum(v) * 1e7),
    "another in one symbol": (
        LARGE,
        lambda v: jnp.mean(v * v * 1e-8) - jnp.mean(v * 1e-4) ** 2,
        lambda v: mean([x * x * C(1e-8) for x in v]) - mean([x * C(1e-4) for x in v]) ** 2,
    ),
    "whole numbers of floats": (
        (0.1, 0.2, 0.7),
        lambda v: jnp.round(jnp.sum(v) * 10).astype(int),
        lambda v: M.nint(sum(v) * 10),
    ),
    "two outputs": (
        NEAR,
        lambda v: jnp.stack([jnp.mean(v * v) - jnp.mean(v) ** 2, v[0] - v[1]]),
        lambda v: [mean([x * x for x in v]) - mean(v) ** 2, v[0] - v[1]],
    ),
}
"""The numbers of three symbols; the function of a word's numbers; and its twin, without what is constant."""

OF_OUTPUT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "variance": (
        lambda y: jnp.mean(y * y) - jnp.mean(y) ** 2,
        lambda y: mean([x * x for x in y]) - mean(y) ** 2,
    ),
    "kink": (lambda y: jnp.abs(y[0] - 0.3), lambda y: abs(y[0] - C(0.3))),
    "kink beside": (lambda y: 1e4 + jnp.abs(y[0] - y[1]), lambda y: abs(y[0] - y[1])),
    "hinge beside": (lambda y: 1e4 + jnp.maximum(y[0], y[1]), lambda y: max(y[0], y[1])),
    "clip beside": (lambda y: 1e5 + jnp.clip(y[0], 0.0, 0.1), lambda y: min(max(y[0], M.mpf(0)), C(0.1))),
    "narrow ramp beside": (
        lambda y: 1e5 + 1e-3 * jnp.clip((y[0] - y[1]) * 1e3, 0.0, 1.0),
        lambda y: C(1e-3) * min(max((y[0] - y[1]) * 1000, M.mpf(0)), M.mpf(1)),
    ),
    "two kinks": (
        lambda y: 1e5 + jnp.abs(y[0] - y[2]) + jnp.abs(y[0] - y[3]),
        lambda y: abs(y[0] - y[2]) + abs(y[0] - y[3]),
    ),
    "largest less the second": (
        lambda y: jnp.sort(y)[-1] - jnp.sort(y)[-2],
        lambda y: sorted(y)[-1] - sorted(y)[-2],
    ),
    "step": (lambda y: jnp.where(y[0] > y[1], 1.0, 0.0), lambda y: M.mpf(y[0] > y[1])),
    "log-probability": (lambda y: jax.nn.log_softmax(y)[1], lambda y: y[1] - logsumexp(y)),
    "log-probability of one": (
        lambda y: jax.nn.log_softmax(y.at[0].add(30.0))[0],
        lambda y: y[0] + 30 - logsumexp([y[0] + 30, *y[1:]]),
    ),
    "norm less one": (
        lambda y: jnp.sqrt(1 + 1e-6 * y @ y) - 1,
        lambda y: M.sqrt(1 + C(1e-6) * sum(x * x for x in y)) - 1,
    ),
}
"""Functions of an output, and their twins."""

_dtype: list[Any] = [np.float64]


def C(number: float) -> Any:
    return M.mpf(float(_dtype[0](number)))


@dataclass
class Count:
    """Values; those resolved; off by over 1 % and resolved; unresolved though right to 1 %."""

    values: int = 0
    resolved: int = 0
    wrong: int = 0
    needless: int = 0

    def add(self, found: jaxsens.FlipSensitivity, true: np.ndarray) -> None:
        off = np.abs(found.values - true)
        right = off <= np.maximum(0.0101 * np.abs(true), SMALLEST)
        self.values += len(true)
        self.resolved += int(found.resolved.sum())
        self.wrong += int((found.resolved & ~right).sum())
        self.needless += int((~found.resolved & right).sum())

    def __str__(self) -> str:
        unresolved = self.values - self.resolved
        return f"{self.values:7d} {self.resolved:9d} {unresolved:11d} {self.wrong:7d} {self.needless:9d}"


def words(kind: str) -> list[np.ndarray]:
    if kind == "constant":
        return [np.full(N, symbol) for symbol in range(3)]
    return list(np.random.default_rng(0).integers(0, 3, (3, N)))


def flipped(found: jaxsens.FlipSensitivity, word: np.ndarray) -> Iterator[np.ndarray]:
    for position, symbol in zip(found.positions, found.symbols, strict=True):
        other = word.copy()
        other[position] = symbol
        yield other


def measured(model: Any, word: np.ndarray, **options: Any) -> jaxsens.FlipSensitivity:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jaxsens.flip_sensitivity(model, word, progress=False, **options)


def of_function(name: str, dtype: str, kind: str) -> Count:
    """The values of one function on all words of a kind, by vmap."""
    (numbers, f, twin), count = FUNCTIONS[name], Count()
    numbers, _dtype[0] = np.asarray(numbers, dtype), np.dtype(dtype).type

    def model(p: Any, x: Any) -> Any:
        return f(jnp.asarray(p)[x])

    def exact(word: np.ndarray) -> list[Any]:
        value = twin([M.mpf(float(numbers[s])) for s in word])
        return value if isinstance(value, list) else [value]

    for word in words(kind):
        found, before = measured((model, numbers), word, flips=3), exact(word)
        true = [M.norm([a - b for a, b in zip(exact(w), before, strict=True)]) for w in flipped(found, word)]
        count.add(found, np.array([float(t) for t in true]))
    return count


def transformer(dtype: Any, seed: int) -> jaxsens.Transformer:
    config = jaxsens.TransformerConfig(3, width=8, heads=2, layers=2, feed_forward=8, dtype=dtype)
    return jaxsens.Transformer(config, seed=seed)


def of_output(name: str, dtype: Any, kind: str, engine: Any) -> Count:
    """The changes of one function of a transformer's output on all words of a kind, by an engine."""
    (f, twin), count, _dtype[0] = OF_OUTPUT[name], Count(), np.dtype(dtype).type
    for seed, own in enumerate(words(kind)):
        model, word = transformer(dtype, seed), np.append(own, 3)
        subject, wide = as_model(model), Precise(400)
        program = output_program(subject, len(word))
        assert program is not None

        def exact(one: np.ndarray, subject=subject, program=program, wide=wide) -> Any:
            output = program.evaluate(wide, subject.parameters, one)
            return twin([M.mpf(str(x)) for x in output])

        found, before = measured(model, word, measure=Function(f), engine=engine), exact(word)
        count.add(found, np.array([float(exact(w) - before) for w in flipped(found, word)]))
    return count


ENGINES = ("vmap", "incremental", "difference")


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", action="store_true", help="a line for each function")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    asked, wrong = parser.parse_args(), 0
    print(f"{'':44s} values  resolved  unresolved   wrong  needless")
    for dtype in asked.dtypes:
        for kind in ("constant", "random"):
            total = Count()
            for name in FUNCTIONS:
                found = of_function(name, dtype, kind)
                if asked.each or found.wrong:
                    print(f"  {name:42s} {found}", flush=True)
                total = Count(
                    *(a + b for a, b in zip(vars(total).values(), vars(found).values(), strict=True))
                )
            print(f"{f'plain functions, vmap, {dtype}, {kind}':44s}{total}", flush=True)
            wrong += total.wrong
            for engine in ENGINES:
                total = Count()
                for name in OF_OUTPUT:
                    found = of_output(name, dtype, kind, engine)
                    if asked.each or found.wrong:
                        print(f"  {name:42s} {found}", flush=True)
                    total = Count(
                        *(a + b for a, b in zip(vars(total).values(), vars(found).values(), strict=True))
                    )
                print(f"{f'Function, {engine}, {dtype}, {kind}':44s}{total}", flush=True)
                wrong += total.wrong
    print(f"{wrong} values are off by over 1 % and called resolved")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
