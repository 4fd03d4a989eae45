"""How far engines are off under windows, and with positions that affect scores: warm and cold, in both dtypes.

`python -m tools.cold_positions [SEEDS]` prints a table of docs/measured/attention-variants.md: for each
kind, dtype and engine the worst relative error of a norm over flips above 1 % of the largest, beside passes in
np.longdouble. "Cold" multiplies all weights by 30.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens import TransformerConfig
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.engine import FlipBlock
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.first_order.engine import FirstOrderEngine
from tests import wide_reference
from tests.core.flip_sensitivity.conformance import engine_of, measured
from tests.small_models import random_parameters, small
from tools.cold import COUNTED, KNOWN

KINDS: dict[str, dict[str, Any]] = {
    "sliding window": {"mask": SlidingWindow(4)},
    "window and none in turn": {"mask": (SlidingWindow(3), "none")},
    "rotary and none in turn": {"layer_positions": ("rotary", "none")},
    "partial rotary": {"positions": "partial-rotary"},
    "partial ALiBi": {"positions": "partial-alibi"},
    "relative bias": {"positions": RelativeBias(8, 6)},
}
FACTORS = {"warm": 1.0, "cold": 30.0}
ENGINES = ("vmap", "difference", "incremental")
ONE_LAYER = "first-order, one layer"
N = 12


def of_one_layer(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the first layer alone."""
    first = {name: value[0] for name, value in options.items() if isinstance(value, tuple)}
    if "layer_positions" in first:
        first["layer_positions"] = (first["layer_positions"],)
    return {**options, "layers": 1, **first}


def norms(name: str, config: TransformerConfig, parameters: Any, word: Any, flips: Any) -> np.ndarray:
    """The norm of each flip by an engine; of the first-order engine the estimates themselves."""
    if name != ONE_LAYER:
        engine = engine_of(name, config)
        if engine is None:
            raise LookupError(f"{name} does not serve {config}")
        return measured(engine, parameters, word, flips, config.dtype)
    with numerics(config.dtype), jax.disable_jit():
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf, config.dtype), parameters)
        engine = FirstOrderEngine(L2(), None, layered_transformer(config), config.readout)
        pair = given, jnp.eye(config.width, dtype=config.dtype)
        block = FlipBlock(*jnp.asarray(flips).T[:, :, None])
        changes = engine.changes(pair, engine.prepare(pair, jnp.asarray(word)), block)
        return np.linalg.norm(np.asarray(changes, np.float64), axis=1)


def error(name: str, options: dict[str, Any], dtype: str, factor: float, seed: int) -> float | None:
    """The worst relative error of an engine on one model and word; None if nothing is known to compare with."""
    config = small(**(of_one_layer(options) if name == ONE_LAYER else options), dtype=dtype)
    rng = np.random.default_rng(seed)
    word = [*rng.integers(0, 3, N - 1).tolist(), 3]
    flips = [(i, (word[i] + 1) % 3) for i in range(N - 1)]
    exact = config.replace(dtype="float64")
    drawn = random_parameters(exact, seed, N)
    parameters = jax.tree.map(lambda leaf: (leaf * factor).astype(dtype).astype(np.float64), drawn)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = wide_reference.flip_norms(exact, parameters, tuple(word), flips, 0.0)
    size = float(np.abs(wide_reference.output(exact, parameters, tuple(word))).max())
    known = np.isfinite(truth) & (truth >= KNOWN * size)
    if not known.any():
        return None
    counted = known & (truth > COUNTED * truth[known].max())
    found = norms(name, config, parameters, tuple(word), flips)
    return float(np.nan_to_num(np.abs(found[counted] / truth[counted] - 1), nan=np.inf).max())


def cell(name: str, kind: str, dtype: str, factor: float, seeds: range) -> str:
    """The worst error over the seeds."""
    found = [error(name, KINDS[kind], dtype, factor, seed) for seed in seeds]
    known = [one for one in found if one is not None]
    return f"{max(known):.0e}" if known else "-"


def table(seeds: range) -> Iterator[str]:
    """The lines of a table of worst errors by kind, dtype, warm or cold, and engine."""
    names = (*ENGINES, ONE_LAYER)
    yield f"| | dtype | weights | {' | '.join(names)} |"
    yield "| --- " * (3 + len(names)) + "|"
    for kind, dtype, (weights, factor) in itertools.product(KINDS, ("float32", "float64"), FACTORS.items()):
        cells = [cell(name, kind, dtype, factor, seeds) for name in names]
        yield f"| {kind} | {dtype} | {weights} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in table(range(int(sys.argv[1]) if len(sys.argv) > 1 else 6)):
        print(line, flush=True)
