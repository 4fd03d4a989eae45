"""An experiment: changes that the difference engine carries in bfloat16, and how far they are off.

The unflipped run is prepared in float64 and rounded to float32, as always. Only what a flip changes is computed with
products of bfloat16 operands, summed in float32, as a tensor core makes them (tools/products.py): all of them, or all
but those that scores are made of and the last row's, which take three products each.

`python -m tools.bfloat16_changes` prints a row for each setting, in some ten minutes of two cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.base.programs import LARGEST_SCORE, SOONER, numerics
from jaxsens.core.engines.difference import attention, layer_change, moved, one_key
from jaxsens.core.engines.engine import Engine, FlipBlock
from jaxsens.core.models.transformer.parameters import parameters_from_numpy
from tests.core.flip_sensitivity.conformance import engine_of, sharpened
from tools.products import Case, emulated, run_in

ONE, THREE = "BF16_BF16_F32", "BF16_BF16_F32_X3"
VARIANTS = {"one": (ONE, 2.0**16), "scores in three": (ONE, 2.0**16), "three": (THREE, 2.0**8)}
"""The preset of each variant, and how many roundings of float32 one of its is: the running bound is linear in them."""


def _in_three(
    function: Callable[..., Any], when: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    @wraps(function)
    def run(*given: Any) -> Any:
        with jax.default_matmul_precision(THREE if when(*given) else ONE):
            return function(*given)

    return run


@contextmanager
def scores_in_three() -> Iterator[None]:
    """Products that scores and their changes are made of, and those of the row that is read, become three each."""
    own = moved.TracedLayer
    with ExitStack() as stack:
        for place, name in (
            *((attention, "score_change"), (attention, "scores_of_rows"), (one_key, "score_change")),
            *((moved, "scores_of_rows"), (layer_change, "readout_row"), (own, "scores")),
        ):
            stack.enter_context(patch.object(place, name, _in_three(getattr(place, name))))
        # Values have no places.
        projections = _in_three(
            own.heads_change, lambda _layer, _moved, _matrices, places: places is not None
        )
        stack.enter_context(patch.object(own, "heads_change", projections))
        yield


@cache
def preparing(engine: Engine) -> Any:
    """What the engine prepares."""
    return jax.jit(engine.prepare, compiler_options=SOONER)


@cache
def changing(engine: Engine, variant: str) -> Any:
    """The changes with the bound of their rounding, for all flips at once."""

    def changed(parameters: Any, prepared: Any, block: FlipBlock) -> Any:
        # Changes of large scores are not left to float64.
        with ExitStack() as stack, patch.dict(LARGEST_SCORE, float32=float("inf")):
            if variant == "scores in three":
                stack.enter_context(scores_in_three())
            return engine.changed(parameters, prepared, block)

    return jax.jit(changed, compiler_options=SOONER)


def _narrow(leaf: Any) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32)


def carried(
    engine: Engine, parameters: Any, word: np.ndarray, flips: np.ndarray, variant: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The changes, their bounds in float32's roundings, and the largest scores of layers in the unflipped run."""
    with numerics("float64"):
        tabled = engine.with_tables(parameters_from_numpy(parameters, "float64"), len(word))
        prepared = preparing(engine.shared)(tabled, jnp.asarray(word, jnp.int32))
        sizes = np.asarray(engine.sizes(prepared))
        narrow = jax.tree.map(_narrow, (tabled, prepared))
    with emulated(), numerics("float32"), jax.default_matmul_precision(VARIANTS[variant][0]):
        block = FlipBlock(jnp.asarray(flips[:, :1]), jnp.asarray(flips[:, 1:]))
        changes, bound = changing(engine.shared, variant)(*narrow, block)
    return np.asarray(changes, np.float64), np.asarray(bound, np.float64), sizes


@dataclass(frozen=True)
class Setting:
    """A model's case, the largest score that its queries are scaled to (None: as `weights` say), and whether its
    weights are rounded to bfloat16 before."""

    case: Case
    largest: float | None
    rounded: bool

    def drawn(self, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """As `Case.drawn`."""
        parameters, word, flips = self.case.drawn(seed)
        if self.largest is not None:
            engine = engine_of("difference", self.case.config)
            if engine is None:
                raise LookupError(f"the difference engine does not serve {self.case.config}")
            for _ in range(3):  # the scores of a layer depend on those below it
                sizes = carried(engine, parameters, word, flips, "one")[2]
                layers = tuple(
                    replace(layer, query=np.asarray(layer.query) * (self.largest / size))
                    for layer, size in zip(parameters.layers, sizes, strict=True)
                )
                parameters = sharpened(replace(parameters, layers=layers), 1.0, "float32")
        if self.rounded:
            parameters = jax.tree.map(
                lambda leaf: np.asarray(jnp.asarray(leaf, jnp.bfloat16), np.float64), parameters
            )
        return parameters, word, flips


def settings() -> Iterator[tuple[Setting, range]]:
    """Settings, with their seeds."""
    shapes = [
        (64, 1, "none"),
        (64, 3, "none"),
        (64, 3, "pre"),
        (64, 2, "none"),
        (64, 6, "pre"),
        (64, 6, "none"),
    ]
    shapes += [(256, 3, "none"), (512, 2, "none"), (512, 1, "none")]
    for n, layers, norm in shapes:
        seeds = range(2 if n == 64 else 1)
        flips = 63 if n == 64 else 32
        for kind, weights, largest in (
            *(("softmax", "random", None), ("temperature-log", "random", None), ("softmax", "peaked", None)),
            *(("softmax", "random", 30.0), ("softmax", "random", 300.0)),
        ):
            for rounded in (True, False):
                case = Case("difference", kind, norm, weights, layers, n, flips)
                yield Setting(case, largest, rounded), seeds
    for rounded in (True, False):
        yield (
            Setting(Case("difference", "average-hard", "none", "random", 2, 64, 63), None, rounded),
            range(2),
        )


def errors(setting: Setting, seeds: range, variant: str) -> tuple[np.ndarray, ...]:
    """Of counted flips: relative errors of norms, and bounds in the variant's roundings relative to the norms; and the
    share of flips that the engine declined."""
    relative, bounds, declined = [], [], []
    engine, truth = (
        engine_of(name, setting.case.config.replace(dtype=dtype))
        for name, dtype in (("difference", "float32"), ("vmap", "float64"))
    )
    if engine is None or truth is None:
        raise LookupError(f"no engine serves {setting.case.config}")
    for seed in seeds:
        parameters, word, flips = setting.drawn(seed)
        true = np.linalg.norm(run_in(truth, parameters, word, flips, "float64")[1], axis=1)
        changes, bound, _ = carried(engine, parameters, word, flips, variant)
        own = np.linalg.norm(changes, axis=1)
        counted = (true >= true.max() / 100) & np.isfinite(own)
        declined.append(np.isnan(own))
        relative.append(np.abs(own - true)[counted] / true[counted])
        bounds.append(VARIANTS[variant][1] * bound[counted] / true[counted])
    return np.concatenate(relative), np.concatenate(bounds), np.concatenate(declined)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=np.inf)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    print(
        "| n, layers, norm | attention | weights | products | median | 90 % | worst | within 1 % "
        "| bound, median | bound within 1 % | declined |",
        "| --- " * 11 + "|",
        sep="\n",
        flush=True,
    )
    for setting, seeds in settings():
        for variant in asked.variants:
            if time.monotonic() > end:
                return
            found, bounds, declined = errors(setting, seeds, variant)
            case = setting.case
            kind = f"scores to {setting.largest:g}" if setting.largest else f"{case.kind}, {case.weights}"
            if not len(found):
                continue
            numbers = [*np.quantile(found, (0.5, 0.9, 1)), (found <= 0.01).mean(), np.median(bounds)]
            print(
                f"| {case.n}, {case.layers}, {case.norm} | {kind} | {'bf16' if setting.rounded else 'float32'} "
                f"| {variant} | {numbers[0]:.1e} | {numbers[1]:.1e} | {numbers[2]:.1e} | {numbers[3]:.0%} "
                f"| {numbers[4]:.2g} | {(bounds <= 0.01).mean():.0%} | {declined.mean():.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
