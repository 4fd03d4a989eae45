"""Models drawn over every choice that sharpens attention or enlarges activations, and how far engines are off.

The truth is a forward pass in np.longdouble (tests/wide_reference.py). A cold softmax, whose scores are large, is the
regime in which a rounded score is felt: by eps |s| of a weight. What is asked of the difference engine is that it is
never worse than the specification: over the flips above 1 % of the largest true norm, its worst relative error is at
most the larger of 4 times that of `vmap` and `FLOOR`.

`python -m tools.cold` prints the worst cells by weighting and dtype; numbers are how many models and which
lengths, names are weightings instead of those of the papers.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxsens import TransformerConfig
from jaxsens.core.engines.difference import engine as difference
from jaxsens.core.engines.difference.engine import DifferenceEngine
from jaxsens.core.engines.difference.folded import FoldedEngine
from jaxsens.core.engines.difference.folded import refusal as not_folded
from jaxsens.core.engines.engine import Engine
from jaxsens.core.measures import L2
from jaxsens.core.models.parts.weighting import WEIGHTINGS
from jaxsens.core.models.transformer.parameters import initialise
from tests import wide_reference
from tests.core.flip_sensitivity.conformance import engine_of, measured
from tests.small_models import random_parameters, small

FLOOR = {"float32": 1e-5, "float64": 1e-12}
TIMES_VMAP = 4
KNOWN = 1e-15
"""Changes below this share of the output are rounding of np.longdouble's 1e-19 to more than 0.1 % or so."""
COUNTED = 0.01
"""Flips below this share of the largest true norm are not counted: errors relative to them are large by themselves."""

SOFT = (
    "softmax",
    *(f"temperature-{name}" for name in ("log", "sqrt", "linear", "linearithmic", "quadratic", "cubic")),
)
HARD = ("leftmost-hard", "rightmost-hard", "average-hard")
NEWER = ("softmax-off-by-one", "sigmoid", "sigmoid-log")


@dataclass(frozen=True)
class Model:
    """A config in float64, parameters not yet rounded, a word and flips of it."""

    config: TransformerConfig
    parameters: Any
    word: tuple[int, ...]
    flips: tuple[tuple[int, int], ...]
    factor: float


@dataclass(frozen=True)
class Errors:
    """Worst relative errors of one model in one dtype.

    Attributes:
        difference, vmap: of either engine; infinite where a flip has no finite norm.
        elsewhere: the share of flips that the engine declined in the model's dtype.
        left_out: flips whose hard attention hangs on less than the dtype resolves.
    """

    difference: float
    vmap: float
    elsewhere: float
    left_out: int

    def allowed(self, dtype: str) -> float:
        """What the difference engine's error may be."""
        return max(TIMES_VMAP * self.vmap, FLOOR[dtype])


def drawn(seed: int, n: int = 12, weightings: tuple[str, ...] = SOFT + HARD, **fixed: Any) -> Model:
    """A model drawn from every weighting, score, mask, normalisation, activation, depth and factor of weights."""
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    layers = one(1, 2, 2, 3)
    factor = one(1.0, 5.0, 30.0)
    weighting = one(*weightings)
    chosen = {
        "layers": layers,
        "weighting": weighting,
        "mask": one("none", "future", "past", "strict-future", "strict-past"),
        "layer_norm": one("none", "none", "pre", "post"),
        "activation": one("relu", "gelu", "silu", "tanh"),
        "scores": "dot-product" if weighting in HARD else one("dot-product", "dot-product", "additive"),
        "positions": one("sinusoidal", "none", "alibi", "rotary"),
        "readout": one("last", "last", "mean"),
    }
    config = small(**{**chosen, **fixed})
    plain = initialise(config, seed) if rng.random() < 0.5 else random_parameters(config, seed, n)
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) * factor, plain)
    word = rng.integers(0, config.alphabet_size, n)
    places = np.sort(rng.choice(n, min(n, 8), replace=False))
    steps = rng.integers(1, config.alphabet_size, len(places))
    flips = tuple(
        (int(p), int((word[p] + by) % config.alphabet_size)) for p, by in zip(places, steps, strict=True)
    )
    return Model(config, parameters, tuple(word.tolist()), flips, factor)


def errors_of(model: Model, dtype: str) -> Errors | None:
    """The errors of both engines on a model in a dtype; None where nothing is left to compare."""
    config, flips = model.config.replace(dtype=dtype), list(model.flips)
    rounded = jax.tree.map(lambda leaf: leaf.astype(dtype).astype(np.float64), model.parameters)
    eps = float(np.finfo(dtype).eps)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = wide_reference.flip_norms(model.config, rounded, model.word, flips, 64 * eps)
    size = float(np.abs(wide_reference.output(model.config, rounded, model.word)).max())
    known = np.isfinite(truth) & ~(truth < KNOWN * size)
    if not known.any() or not truth[known].max() > 0:
        return None
    counted = known & (truth > COUNTED * truth[known].max())
    engine, vmap = _engine(config, len(model.word)), engine_of("vmap", config)
    assert vmap is not None

    def worst(found: np.ndarray) -> float:
        return float(np.nan_to_num(np.abs(found[counted] / truth[counted] - 1), nan=np.inf).max())

    specified = worst(measured(vmap, rounded, model.word, flips, dtype)[0])
    if not np.isfinite(specified):
        return None  # The dtype cannot hold what the model computes: measuring refuses it.
    found, declined = measured(engine, rounded, model.word, flips, dtype)
    return Errors(worst(found), specified, declined, int((~known).sum()))


def _engine(config: TransformerConfig, n: int) -> Engine:
    refused = difference.refusal(config)
    if refused is not None:
        raise LookupError(refused)
    folds = not_folded(config) is None and n >= 64
    return (FoldedEngine if folds else DifferenceEngine)(L2(), None, config)


def _named(weighting: Any) -> str:
    return next(name for name, value in WEIGHTINGS.items() if value == weighting)


def table(seeds: range, lengths: tuple[int, ...], weightings: tuple[str, ...]) -> str:
    """The worst cell of each weighting and dtype, and how many models were beyond what is allowed."""
    cells: dict[tuple[str, str], list[tuple[Errors, float]]] = defaultdict(list)
    for seed in seeds:
        for n in lengths:
            model = drawn(seed, n, weightings)
            for dtype in FLOOR:
                errors = errors_of(model, dtype)
                if errors is not None:
                    cells[_named(model.config.weighting), dtype].append(
                        (errors, errors.difference / errors.allowed(dtype))
                    )
                    if errors.difference > errors.allowed(dtype):
                        print("beyond:", seed, n, dtype, model.factor, errors, model.config, file=sys.stderr)
    lines = [
        "| weighting | dtype | models | difference: worst | vmap: worst | medians | flips elsewhere | beyond |",
        "| --- " * 8 + "|",
    ]
    for (weighting, dtype), found in sorted(cells.items()):
        both = np.array([(errors.difference, errors.vmap, errors.elsewhere) for errors, _ in found])
        worst, middle = both.max(axis=0), np.median(both, axis=0)
        beyond = sum(share > 1 for _, share in found)
        lines.append(
            f"| {weighting} | {dtype} | {len(found)} | {worst[0]:.1e} | {worst[1]:.1e} "
            f"| {middle[0]:.0e}, {middle[1]:.0e} | {both[:, 2].mean():.0%} | {beyond} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()] or [100]
    names = tuple(word for word in sys.argv[1:] if not word.isdigit())
    print(table(range(numbers[0]), tuple(numbers[1:]) or (12,), names or SOFT + HARD))
