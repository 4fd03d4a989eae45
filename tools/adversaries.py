"""Words that try to exceed the certified bound: does any, and how near do they come?

`python -m tools.adversaries [--trials 10000] [--n 24]` holds one choice of a model (depth, mask, positions,
temperature, normalisation, ...) and draws the rest, for each choice of each axis. It breeds words whose flips come near
the bound of their position, and prints the largest change / bound of each choice. It exits with 1 if one is above 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsens.core.models.transformer.layered import readout_row
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.theory.certified.bound import certified_bound
from tests.theory.certified_truth import MASKS, POSITIONS, ROUNDING, TEMPERATURES, drawn, sizes

GENERATION = 250
"""Words that are bred from the best ones at a time."""

PARENTS = 40
MODELS = 2
"""How many models share the trials of a choice."""

AXES: dict[str, tuple[Any, ...]] = {
    "mask": MASKS,
    "positions": POSITIONS,
    "weighting": TEMPERATURES,
    "layer_norm": ("none", "pre", "post"),
    "activation": ("relu", "gelu", "silu", "tanh"),
    "scores": ("dot-product", "additive"),
    "readout": ("last", 0, 1, "mean"),
    "heads": (1, 2),
}


def first_words(n: int, symbols: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Words of every density of the first symbol, periodic ones, and constant ones but for one symbol."""
    words = [
        np.where(rng.random(n) < rng.random(), symbols[0], rng.choice(symbols, n)) for _ in range(GENERATION)
    ]
    words[: len(symbols)] = [np.full(n, symbol) for symbol in symbols]
    words[len(symbols) : len(symbols) + 8] = [symbols[np.arange(n) // p % len(symbols)] for p in range(1, 9)]
    return np.array(words)


def bred(parents: np.ndarray, symbols: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The next words: two parents' parts from a place on, or one parent's, and some symbols changed."""
    n = parents.shape[1]
    a, b = parents[rng.integers(len(parents), size=(2, GENERATION))]
    place = rng.integers(2 * n, size=(GENERATION, 1))
    children = np.where(np.arange(n) < place, a, b)
    changed = rng.random(children.shape) < rng.choice([1, 2, 4], size=(GENERATION, 1)) / n
    return np.where(changed, rng.choice(symbols, children.shape), children)


def nearest(
    model: Transformer,
    n: int,
    bound: np.ndarray,
    norm: str,
    hold: Callable[[np.ndarray], None],
    trials: int,
    seed: int,
) -> float:
    """The largest change / bound that `trials` words and all their flips reach.

    `hold` sets the symbols of a batch of words that may not vary. A flip's new symbol is drawn where there are several.
    """
    rng, symbols = np.random.default_rng(seed), np.arange(model.config.alphabet_size)
    flipped = np.flatnonzero(~np.isnan(bound))
    relative, absolute = ROUNDING
    floor = bound[flipped] * (1 + relative) + 1e-300
    words, kept, scores = first_words(n, symbols, rng), np.zeros((0, n), int), np.zeros(0)
    for _ in range(-(-trials // GENERATION)):
        hold(words)
        others = np.repeat(words[:, None], len(flipped), axis=1)
        at = np.arange(len(flipped)), flipped
        shift = rng.integers(1, max(len(symbols), 2), size=(len(words), len(flipped)))
        others[:, *at] = symbols[(others[:, *at] + shift) % len(symbols)]
        every = np.concatenate([words[:, None], others], axis=1).reshape(-1, n)
        outputs = np.asarray(model(every), np.float64).reshape(len(words), 1 + len(flipped), -1)
        size = sizes(outputs[:, 1:] - outputs[:, :1], norm)
        fitness = (np.maximum(size - absolute, 0.0) / floor).max(axis=1)
        kept, scores = np.concatenate([kept, words]), np.concatenate([scores, fitness])
        best = np.argsort(-scores)[:PARENTS]
        kept, scores = kept[best], scores[best]
        words = bred(kept, symbols, rng)
    return float(scores[0])


def tried(seed: int, layers: int, n: int, trials: int, **fixed: Any) -> float:
    """The largest change / bound of a drawn model."""
    model, options = drawn(seed, layers, **fixed)
    certified = certified_bound(model, n, **options)
    r = readout_row(model.config.readout, n)

    def hold(words: np.ndarray) -> None:
        for position, symbol in (options.get("fixed") or {}).items():
            words[:, position] = symbol
        held = options.get("readout_symbols")
        if r is not None and held is not None:
            words[:, r] = np.array(held)[words[:, r] % len(held)]

    return nearest(model, n, certified.by_position, certified.norm, hold, trials, seed)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--n", type=int, default=24)
    parser.add_argument("--axes", nargs="*", default=list(AXES), choices=list(AXES))
    asked = parser.parse_args()
    worst = 0.0
    print("| held | depth 1 | depth 2 | depth 3 | seconds |\n|---|---|---|---|---|")
    for axis in asked.axes:
        for k, value in enumerate(AXES[axis]):
            start, row = time.perf_counter(), []
            for layers in (1, 2, 3):
                each = -(-asked.trials // MODELS)
                seeds = (1000 * k + 10 * layers + one for one in range(MODELS))
                row.append(max(tried(seed, layers, asked.n, each, **{axis: value}) for seed in seeds))
            worst = max(worst, *row)
            numbers = " | ".join(f"{x:.3g}" for x in row)
            print(f"| {axis} = {value} | {numbers} | {time.perf_counter() - start:.0f} |", flush=True)
    print(f"largest change / bound: {worst:.4g}")
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
