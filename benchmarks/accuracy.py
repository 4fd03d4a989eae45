"""How accurate first-order estimates are: every normalisation, depth and length, compared with a gradient and AtP*.

Each cell is the median over seeds. A seed draws a model (d = 64, 4 heads, d_ff = 256, float32) and an input, estimates
all outputs under a random sample of flips, and compares the norms with those measured exactly in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from scipy import stats

from benchmarks.linear_rivals import LinearRows, gradient_changes
from benchmarks.options import FEED_FORWARD, HEADS, WIDTH
from jaxsens import Transformer, TransformerConfig
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.programs import numerics
from jaxsens.core.engines.engine import FlipBlock
from jaxsens.core.flips.flip_table import Candidates, FlipTable
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import Model, as_model
from jaxsens.core.placement.placement import Placement
from jaxsens.first_order.engine import FirstOrderEngine, PreparedEstimate
from jaxsens.first_order.estimate import Blocks, first_order_engine
from jaxsens.first_order.first_order import FirstOrder

METHODS = ("first order", "AtP*", "gradient")

RIVALS_UP_TO = 1024
"""The longest inputs on which the other two are tried: the gradient holds arrays of n x n."""


@dataclass(frozen=True)
class Options:
    """Prints the accuracy of first-order estimates.

    Attributes:
        lengths: Lengths n of the input.
        layers: Depths L.
        norms: Placements of layer normalisation: pre, post, none.
        seeds: Models, each with an input of its own.
        flips: Flips compared, for each model.
        largest: Cells with n * n * L above this are left out.
    """

    lengths: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (128, 512, 1024, 2048, 4096)
    layers: Annotated[tuple[int, ...], tyro.conf.arg(metavar="L ...")] = (2, 4, 8)
    norms: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NORM ...")] = ("pre", "post", "none")
    seeds: int = 5
    flips: int = 24
    largest: int = 4 * 4096**2


def compared(config: TransformerConfig, n: int, seed: int, count: int) -> dict[str, tuple[float, float]]:
    """Returns each method's median error and rank correlation; and how much weight a row's best key gets, twice."""
    model = Transformer(config, seed=seed)
    word = np.append(np.random.default_rng([n, seed]).integers(0, 2, n - 1), 2).astype(np.int32)
    which = np.where(np.arange(n) < n - 1, 0, -1)
    flips = Candidates.of(word[None], [[0, 1]], which[None]).table(count, seed)
    subject = as_model(model)
    with numerics("float32"):
        engine = first_order_engine(subject, FirstOrder(), L2())
        devices = Placement()
        blocks = Blocks(engine, subject, n, FirstOrder(), devices.budget())
        exact, *_ = blocks.verified(word[None], flips, np.arange(len(flips)), devices)
        changes, peaked = _changes(engine, subject, jnp.asarray(word), flips, n <= RIVALS_UP_TO)
    found = {}
    for method, change in changes.items():
        norms = np.linalg.norm(np.asarray(change, np.float64), axis=1)
        rank = float(stats.spearmanr(norms, exact).statistic)  # pyright: ignore[reportAttributeAccessIssue]
        found[method] = float(np.median(np.abs(norms - exact) / exact)), rank
    return found | {"best key": (peaked, peaked)}


def _changes(
    engine: FirstOrderEngine, model: Model, word: jax.Array, flips: FlipTable, rivals: bool
) -> tuple[dict[str, Any], float]:
    parameters = jax.tree.map(jnp.asarray, model.parameters)
    pair = parameters, jnp.eye(WIDTH)
    where = FlipBlock(jnp.asarray(flips.positions), jnp.asarray(flips.symbols))
    prepared = _prepare(engine, pair, word)
    found = {"first order": _estimate(engine, pair, prepared, where)}
    if rivals:
        linear = LinearRows(L2(), None, engine.layered, engine.readout)
        found["AtP*"] = _estimate(linear, pair, prepared, where)
        found["gradient"] = _gradient(engine.layered, parameters, engine.readout, word, *where)
    return found, largest_weight(prepared)


_prepare = jax.jit(lambda engine, *given: engine.prepare(*given), static_argnums=0)
_estimate = jax.jit(lambda engine, *given: engine.changes(*given), static_argnums=0)
_gradient = jax.jit(gradient_changes, static_argnums=(0, 2))


def largest_weight(prepared: PreparedEstimate) -> float:
    """Returns the weight of a row's best key, averaged over rows and heads, in the layer where that is largest."""
    groups = prepared.run.groups
    shares = [jnp.mean(-jnp.expm1(kept.others_normaliser - kept.normaliser), (1, 2)) for kept in groups]
    return max(float(jnp.max(each)) for each in shares)


HEAD = """| norm | L | n | best key's weight | error | rank | AtP*: error | rank | gradient: error | rank |
| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |"""


def rows(options: Options, norm: str, layers: int) -> list[tuple[int, list[float]]]:
    """Prints a line for each length; returns the lengths and the errors of each seed."""
    errors = []
    for n in sorted(n for n in options.lengths if n * n * layers <= options.largest):
        config = TransformerConfig(
            alphabet_size=2,
            width=WIDTH,
            heads=HEADS,
            feed_forward=FEED_FORWARD,
            layers=layers,
            layer_norm=norm,  # pyright: ignore[reportArgumentType]
        )
        found = [compared(config, n, seed, options.flips) for seed in range(options.seeds)]
        cells = [f"{np.median([one['best key'][0] for one in found]):.2g}"]
        for method in METHODS:
            if method in found[0]:
                cells += [
                    f"{np.median([one[method][0] for one in found]):.2g}",
                    f"{np.median([one[method][1] for one in found]):.3f}",
                ]
            else:
                cells += ["", ""]
        print(f"| {norm} | {layers} | {n} | {' | '.join(cells)} |", flush=True)
        errors.append((n, [one["first order"][0] for one in found]))
    return errors


def slope(errors: Sequence[tuple[int, list[float]]]) -> tuple[float, float]:
    """Returns the slope of log error against log n over all seeds, and half its 95 % interval (Student's t)."""
    x = np.log([n for n, found in errors for _ in found])
    y = np.log([max(error, 1e-12) for _, found in errors for error in found])
    fit = stats.linregress(x, y)
    return float(fit.slope), float(fit.stderr * stats.t.ppf(0.975, len(x) - 2))  # pyright: ignore[reportAttributeAccessIssue]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, and the slopes of the errors; 0, or 2 for options that cannot be used."""
    options = tyro.cli(Options, args=arguments, prog="benchmark_accuracy.py")
    problems = Problems("benchmark_accuracy")
    if set(options.norms) - {"pre", "post", "none"}:
        problems.add("--norms", options.norms, "some of pre, post, none")
    if min(options.lengths) < 2 * options.flips or options.flips < 3:
        problems.add("--flips", options.flips, "at least 3, and at most half of the shortest length")
    try:
        problems.raise_if_any()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(HEAD)
    slopes = []
    for norm in options.norms:
        for layers in options.layers:
            errors = rows(options, norm, layers)
            if len(errors) > 1:
                middle, half = slope(errors)
                slopes.append(f"{norm}, L = {layers}: the error falls as n^{middle:.2f} ± {half:.2f}")
    print("\n" + "\n".join(slopes))
    return 0
