"""Certified bound, Lemma 5 and the worst input found, of trained and constructed models.

`python -m tools.ratios [--lengths 64 256] [--budget 100] [--models trained constructed]` prints the rows of
docs/measured/bounds.md. Random models are in configs/bounds.toml.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import jaxsens
from jaxsens.theory import certified_bound, lemma5

PARITY = {"name": "parity", "end_probability": 0.5}
PARITY_DATA = {
    "lengths": [4, 64],
    "batch": 32,
    "curriculum": [{"step": 0, "longest": 16}, {"step": 2000, "longest": 64}],
}
TRAINED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], int]] = {
    # name: language, model, curriculum and lengths, steps
    "flip-flop, depth 2, 2 heads": (
        {"name": "flip-flop"},
        {"width": 32, "heads": 2, "layers": 2, "feed_forward": 64, "positions": "sinusoidal"},
        {"lengths": [2, 32], "batch": 32},
        800,
    ),
    "PARITY, depth 2, 2 heads": (
        PARITY,
        {"width": 32, "heads": 2, "layers": 2, "feed_forward": 128, "positions": ["inverse", "alternating"]},
        PARITY_DATA,
        3000,
    ),
    "PARITY, depth 3, 2 heads": (
        PARITY,
        {"width": 32, "heads": 2, "layers": 3, "feed_forward": 64, "positions": ["inverse", "alternating"]},
        PARITY_DATA,
        3000,
    ),
}
CONSTRUCTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chiang-cholak-parity", {}),
    ("chiang-cholak-first", {}),
    ("exists", {}),
    ("majority", {"condition": "temperature-bounded"}),
    ("majority", {"condition": "bounded-softmax"}),
    ("parity", {"condition": "temperature"}),
    ("parity", {"condition": "bounded-softmax"}),
    ("first", {}),
)


def models(kinds: list[str]) -> Iterator[tuple[str, Any]]:
    """The models, trained here if they are of those."""
    if "trained" in kinds:
        for name, (language, model, data, steps) in TRAINED.items():
            table = {
                "language": language,
                "model": {"kind": "transformer", **model},
                "data": data,
                "optimiser": {"steps": steps, "learning_rate": 2e-3, "warmup": 100},
                "evaluation": {"every": steps, "lengths": [8, 32], "words": 128},
            }
            config = jaxsens.training.TrainConfig.from_table(table, name)
            with tempfile.TemporaryDirectory() as folder:
                yield name, jaxsens.training.train(config, f"{folder}/model").model
    if "constructed" in kinds:
        for name, options in CONSTRUCTED:
            yield (
                f"{name}{''.join(f', {x}' for x in options.values())}",
                jaxsens.construction(name, **options),
            )


def sharp_words(n: int, fixed: dict[int, int]) -> np.ndarray:
    """Words with as many ones as decide a formula that counts: none, one, about half, all but one, all."""
    counts = (0, 1, n // 2 - 1, n // 2, n // 2 + 1, n - 2, n - 1)
    words = np.array([np.arange(n) < k for k in counts], np.int32)
    words = np.concatenate([words, words[:, ::-1]])
    words[:, list(fixed)] = list(fixed.values())
    return words


def main() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument(
        "--models", nargs="*", default=["trained", "constructed"], choices=["trained", "constructed"]
    )
    asked = parser.parse_args()
    print(
        "| model | n | worst found | certified | ratio | Lemma 5 | seconds, certified |\n|---|---|---|---|---|---|---|"
    )
    for name, model in models(asked.models):
        for n in asked.lengths:
            config = model.config
            fixed = {n - 1: config.alphabet_size} if config.vocabulary_size > config.alphabet_size else {}
            start = time.perf_counter()
            bound = certified_bound(model, n, fixed=fixed)
            seconds = time.perf_counter() - start
            lemma = lemma5(model, n)
            search = jaxsens.theory.Search(
                fixed=fixed, start=sharp_words(n, fixed), restarts=4, budget=asked.budget
            )
            worst = jaxsens.theory.worst_input(model, n, search=search).value
            ratio = bound.value / worst if worst else float("nan")
            assert worst <= bound.value * (1 + 1e-5) + 1e-6, (name, n)
            numbers = f"{worst:.3g} | {bound.value:.3g} | {ratio:.3g} | {lemma.bound:.3g} | {seconds:.2g}"
            print(f"| {name} | {n} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
