"""Products of fewer digits, as accelerators make them, emulated on CPU; and what engines that subtract keep in them.

`python -m tools.products` prints how far each preset is off on plain matrices, and a table of models: the truth is
`vmap` in float64. It takes half an hour of a core; `--flips 16 --lengths 32` takes a minute. XLA compiles the programs
in half of the time with `XLA_FLAGS="--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"`.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import dot_general_p
from jax.lax import DotAlgorithmPreset, Precision
from jaxtyping import Array, Float, Int

from jaxsens import TransformerConfig
from jaxsens.core.base import programs
from jaxsens.core.base.programs import RESOLVED, SOONER, numerics
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.engines.vmap import HALF_UNIT
from jaxsens.core.models.transformer.parameters import initialise, parameters_from_numpy
from jaxsens.core.results.rounding import DRAWS, FACTOR
from tests.core.flip_sensitivity.conformance import engine_of, sharpened

PARTS = {
    "BF16_BF16_F32": (7, 1),
    "TF32_TF32_F32": (10, 1),
    "BF16_BF16_F32_X3": (7, 2),
    "TF32_TF32_F32_X3": (10, 2),
    "BF16_BF16_F32_X6": (7, 3),
}
"""Of each preset, the bits of a part's mantissa without the leading one, and the number k of parts of an operand: a
product is the sum of those of parts i and j, counted from 0, with i + j < k."""

PLAIN = "highest"
PRESETS = (*PARTS, PLAIN)
SHORT = dict(zip(PRESETS, ("bf16", "tf32", "bf16x3", "tf32x3", "bf16x6", "float32"), strict=True))
EPS = dict(zip(PRESETS, (2.0**-7, 2.0**-10, 2.0**-15, 2.0**-21, 2.0**-23, 2.0**-23), strict=True))
"""Twice the largest error of a product of two numbers, relative to it and divided by that of both: as float32's eps."""


@contextmanager
def emulated(preset: str | None = None) -> Iterator[None]:
    """Makes products of float32 arrays that are traced here round as an accelerator's do in the preset in force.

    That is the one of `jax.default_matmul_precision`, or of the product itself, for which XLA's CPU backend takes plain
    float32, or refuses TF32. Float64 has no presets. Parts of operands are rounded to nearest; their products are
    summed in float32, where an accelerator may keep fewer digits.

    Args:
        preset: what `numerics` sets, so that jaxsens itself computes in it. It keeps programs, in whose keys there is
            no preset: use one in a process.
    """
    plain = dot_general_p.bind

    def bind(lhs: Any, rhs: Any, *, precision: Any, **options: Any) -> Array:
        if not isinstance(precision, DotAlgorithmPreset):
            return plain(lhs, rhs, precision=precision, **options)
        times = partial(plain, precision=(Precision.HIGHEST, Precision.HIGHEST), **options)
        if precision.name not in PARTS or not lhs.dtype == rhs.dtype == jnp.float32:
            return times(lhs, rhs)
        bits, k = PARTS[precision.name]
        left, right = _parts(lhs, bits, k), _parts(rhs, bits, k)
        pairs = sorted(((i, j) for i in range(k) for j in range(k - i)), key=sum, reverse=True)
        return reduce(jnp.add, [times(left[i], right[j]) for i, j in pairs])  # the smallest first

    with ExitStack() as stack:
        stack.enter_context(patch.object(dot_general_p, "bind", bind))
        if preset is not None:
            stack.enter_context(patch.object(programs, "MATMUL_PRECISION", preset))
        yield


def _parts(x: Float[Array, "*shape"], bits: int, count: int) -> list[Float[Array, "*shape"]]:
    parts = []
    for _ in range(count):
        # XLA drops a cast to bfloat16 and back.
        parts.append(jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=bits))
        x = x - parts[-1]
    return parts


def matrix_errors(terms: int) -> dict[str, float]:
    """The largest error of a sum of so many products, relative to the root of the sum of their squares."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((256, terms), (terms, 256)))
    wide = a.astype(np.float64), b.astype(np.float64)
    exact, size = wide[0] @ wide[1], np.sqrt(wide[0] ** 2 @ wide[1] ** 2)
    errors = {}
    for preset in PRESETS:
        with emulated(), numerics("float32"), jax.default_matmul_precision(preset):
            errors[SHORT[preset]] = float(np.max(np.abs(np.asarray(jnp.asarray(a) @ b) - exact) / size))
    return errors


@dataclass(frozen=True)
class Case:
    """A float32 model of width 64 with four heads, an engine, and a number of flips.

    `kind` is a weighting, or "gpt" (causal, pre-norm, gelu) or "one logit"; of "peaked" weights, queries are 8 times
    those drawn.
    """

    engine: str
    kind: str
    norm: str
    weights: str
    layers: int
    n: int
    flips: int

    @property
    def config(self) -> TransformerConfig:
        """Its config."""
        options: dict[str, Any] = {"layer_norm": self.norm}
        match self.kind:
            case "gpt":
                options |= {"mask": "future", "activation": "gelu"}
            case "one logit":
                options |= {"logits": 1}
            case kind:
                options |= {"weighting": kind}
        sizes = {"alphabet_size": 8, "width": 64, "heads": 4, "layers": self.layers, "feed_forward": 256}
        return TransformerConfig(**{**sizes, "dtype": "float32", **options})

    def drawn(self, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """Parameters in float64 with float32's digits, a word, and the positions and symbols of flips."""
        rng = np.random.default_rng(seed)
        word = np.append(rng.integers(0, 8, self.n - 1), 8).astype(np.int32)
        places = np.sort(rng.choice(self.n - 1, min(self.flips, self.n - 1), replace=False))
        symbols = (word[places] + rng.integers(1, 8, len(places))) % 8
        factor = 8.0 if self.weights == "peaked" else 1.0
        parameters = sharpened(initialise(self.config, seed), factor, "float32")
        return parameters, word, np.stack([places, symbols], axis=1).astype(np.int32)


def cases(flips: int) -> Iterator[tuple[Case, range]]:
    """One axis changed at a time, the deepest at n = 512, and models like GPT-2, each with its seeds."""
    shapes = [
        ("vmap", 128, 2, "none"),
        ("vmap", 32, 2, "none"),
        ("vmap", 128, 6, "none"),
        ("vmap", 128, 2, "pre"),
    ]
    shapes += [("vmap", 128, 1, "none"), ("incremental", 128, 6, "none")]
    shapes += [("vmap", 512, 2, "none"), ("vmap", 512, 6, "none"), ("vmap", 512, 6, "pre")]
    kinds = ("softmax", "temperature-log", "temperature-linear")
    for (engine, n, layers, norm), kind, weights in product(shapes, kinds, ("random", "peaked")):
        own, seeds = (min(flips, 12), range(1)) if n == 512 else (flips, range(2))
        yield Case(engine, kind, norm, weights, layers, n, own), seeds
    for (engine, n, layers), weights in product(
        (("vmap", 128, 6), ("vmap", 512, 12), ("incremental", 128, 6)), ("random", "peaked")
    ):
        own, seeds = (min(flips, 12), range(1)) if n == 512 else (flips, range(2))
        yield Case(engine, "gpt", "pre", weights, layers, n, own), seeds
    yield Case("vmap", "one logit", "none", "random", 2, 128, flips), range(12)
    yield Case("vmap", "average-hard", "none", "random", 2, 128, flips), range(1)


@cache
def _program(engine: Engine) -> Any:
    """The output, the changes, of as few flips at a time as a CPU's cache holds, and the largest scores."""

    def run(parameters: Any, word: Array, flips: Int[Array, "flips 2"]) -> tuple[Array, Array, Array]:
        prepared = engine.prepare(parameters, word)

        def one(flip: Array) -> Array:
            return engine.changes(parameters, prepared, FlipBlock(flip[None, :1], flip[None, 1:]))[0]

        changes = jax.lax.map(one, flips, batch_size=max(1, 256 // len(word)))
        return engine.output(parameters, prepared), changes, engine.sizes(prepared)

    return jax.jit(run, compiler_options=SOONER)


@cache
def _forward(engine: Engine) -> Any:
    return jax.jit(lambda p, word: engine.output(p, engine.prepare(p, word)), compiler_options=SOONER)


def run_in(
    engine: Engine, parameters: Any, word: np.ndarray, flips: np.ndarray, dtype: str, preset: str = PLAIN
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `_program` gives of an engine in a dtype and preset."""
    with emulated(), numerics(dtype), jax.default_matmul_precision(preset):
        tabled = engine.with_tables(parameters_from_numpy(parameters, dtype), len(word))
        found = _program(engine.shared)(tabled, jnp.asarray(word), jnp.asarray(flips))
        output, changes, sizes = (np.asarray(part, np.float64) for part in found)
        return output, changes, sizes


def output_of(engine: Engine, parameters: Any, word: np.ndarray) -> np.ndarray:
    """The output of an engine in float64."""
    with numerics("float64"):
        tabled = engine.with_tables(parameters_from_numpy(parameters, "float64"), len(word))
        return np.asarray(_forward(engine.shared)(tabled, jnp.asarray(word)))


Row = tuple[Case, str, float, np.ndarray]


def rounding(found: np.ndarray, exact: np.ndarray, moved: list[np.ndarray]) -> float:
    """The rule of `results/rounding.py`: a bound of a change's rounding from that of one output."""
    off = np.max([np.abs(found - exact), *(np.abs(one - exact) for one in moved)], axis=0)
    sizes = np.abs(found)
    least = off.max() * np.maximum(sizes / sizes.max(), 2**-10)
    return FACTOR * float(np.linalg.norm(np.maximum(off, least)))


def measured(case: Case, seed: int) -> Iterator[Row]:
    """Of each preset, the largest score of the unflipped run, and numbers: the median and worst relative error of the
    changes of at least 1 % of the largest; then, by the rounding seen in the output alone, and with that of moved
    parameters, the share of flips that are resolved, and the largest error of these, in resolutions and in changes."""
    parameters, word, flips = case.drawn(seed)
    engine, truth = (
        engine_of(name, case.config.replace(dtype=dtype))
        for name, dtype in ((case.engine, "float32"), ("vmap", "float64"))
    )
    if engine is None or truth is None:
        raise LookupError(f"{case.engine} does not serve {case.config}")
    exact, true, sizes = run_in(truth, parameters, word, flips, "float64")
    norms, rng = np.linalg.norm(true, axis=1), np.random.default_rng(seed)
    counted = norms >= norms.max() / 100
    for preset in PRESETS:
        output, changes, _ = run_in(engine, parameters, word, flips, "float32", preset)
        own = np.linalg.norm(changes, axis=1)
        error, moved, cells = np.abs(own - norms), [], []
        relative = error / np.where(norms > 0, norms, 1)
        for _ in range(DRAWS):
            signs = jax.tree.map(lambda leaf: rng.choice([-1, 1], leaf.shape), parameters)
            by = jax.tree.map(lambda leaf, sign: leaf * (1 + EPS[preset] * sign), parameters, signs)  # noqa: B023
            moved.append(output_of(truth, by, word))
        for also in ([], moved):
            bound = rounding(output, exact, also) + HALF_UNIT * EPS[preset] * own
            known = bound <= RESOLVED * own
            worst = [np.max(one[known], initial=0) for one in (error / bound, relative)]
            cells += [known.mean(), *worst]
        numbers = np.array([np.median(relative[counted]), relative[counted].max(), *cells])
        yield case, preset, float(sizes.max()), numbers


SPENT = {
    "TPU": dict(zip(PRESETS, (1 / 6, np.nan, 1 / 2, np.nan, 1.0, 1.0), strict=True)),
    "GPU": dict(zip(PRESETS, (1 / 13, 1 / 6, 1 / 2.5, 1 / 1.7, 1 / 1.2, 1.0), strict=True)),
}
"""Time of a product as a share of float32's: passes of a TPU, of which float32 takes six, and estimates for a GPU."""

SIZES = (64.0, 256.0, np.inf)


def table(rows: list[Row]) -> str:
    """For largest scores up to each of `SIZES`, numbers of outputs and presets: over their models the median and the
    largest of errors, the mean share resolved, and the time of a ladder that measures the others again in float32."""
    lines = [
        "| score, outputs | models | preset | median | worst | known | e/r | worst | moved | e/r | worst | TPU | GPU |",
        "| --- " * 13 + "|",
    ]
    groups: dict[tuple[float, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row[2]):
        largest, config = min(size for size in SIZES if row[2] <= size), row[0].config
        groups.setdefault((largest, config.logits or config.width), []).append(row)
    for (largest, outputs), group in groups.items():
        for preset in PRESETS:
            own = np.array([numbers for _, p, _, numbers in group if p == preset])
            most, shares = own.max(axis=0), own.mean(axis=0)
            cells = [f"{np.median(own[:, 0]):.0e}", f"{most[1]:.0e}"]
            for k in (2, 5):
                cells += [f"{shares[k]:.0%}", f"{most[k + 1]:.2g}", f"{most[k + 2]:.0e}"]
            cells += [f"{share[preset] + 1 - shares[2]:.2f}" for share in SPENT.values()]
            lines.append(
                " | ".join((f"| {largest:g}, {outputs}", str(len(own)), SHORT[preset], *cells)) + " |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints the errors of matrices, and the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="*", default=[32, 128, 512])
    parser.add_argument("--kept", type=Path, help="a file of rows: those in it are not measured again")
    asked = parser.parse_args()
    for terms in (1, 256):
        errors = {name: f"2^{np.log2(error):.1f}" for name, error in matrix_errors(terms).items()}
        print(f"sums of {terms}:", errors)
    rows: list[Row] = pickle.loads(asked.kept.read_bytes()) if asked.kept and asked.kept.exists() else []
    known = {row[0] for row in rows}
    for case, seeds in cases(asked.flips):
        if case in known or case.n not in asked.lengths:
            continue
        rows += [row for seed in seeds for row in measured(case, seed)]
        print(case, file=sys.stderr, flush=True)
        if asked.kept:
            asked.kept.write_bytes(pickle.dumps(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
