"""`python -m benchmarks.short_inputs`: short inputs beside ten lines by hand, a jit of vmap over the flips of a word.

Both take turns in one process, with products of the same precision, and the least of their times counts.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

import jaxsens

WIDTH, HEADS, HIDDEN = 64, 4, 256


@dataclass(frozen=True)
class Options:
    """Times a jaxsens transformer, a plain function and a published model beside ten lines by hand.

    Attributes:
        layers: Depths of the models.
        folder: A folder of a published model that reads one row, with a symbol for masks; its depth is its own.
        lengths: Lengths n, each with the number of words of one call: n words.
        one: The length at which single words are measured too.
        turns: Calls of each; ten times as many of single words.
    """

    layers: Annotated[tuple[int, ...], tyro.conf.arg(metavar="L ...")] = (2, 6)
    folder: Path | None = None
    lengths: Annotated[tuple[tuple[int, int], ...], tyro.conf.arg(metavar="N WORDS ...")] = (
        (8, 200),
        (32, 200),
        (128, 20),
    )
    one: int = 32
    turns: int = 6


def plain(layers: int, n: int) -> tuple[Callable[[Any, Any], Any], Any]:
    """Returns a transformer as a user writes it, and its parameters."""
    keys = iter(jax.random.split(jax.random.key(0), 2 + 4 * layers))

    def make(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape) / shape[0] ** 0.5

    shapes = (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)
    parameters = make(2, WIDTH), make(n, WIDTH), [[make(*one) for one in shapes] for _ in range(layers)]

    def apply(parameters: Any, tokens: Any) -> Any:
        symbols, positions, own = parameters
        rows = symbols[tokens] + positions
        for inner, out, up, down in own:
            parts = jnp.split(rows @ inner, 3, -1)
            q, k, v = (part.reshape(n, HEADS, -1).swapaxes(0, 1) for part in parts)
            weights = jax.nn.softmax(q @ k.swapaxes(1, 2) / (WIDTH // HEADS) ** 0.5)
            rows = rows + (weights @ v).swapaxes(0, 1).reshape(n, WIDTH) @ out
            rows = rows + jax.nn.relu(rows @ up) @ down
        return rows[-1]

    return apply, parameters


def by_hand(apply: Callable[[Any, Any], Any], mask: int | None) -> Callable[[Any, Any], Any]:
    """Returns the ten lines: the change of the output under every flip of each word, to the mask or between 0 and 1."""

    def of_word(parameters: Any, word: Any) -> Any:
        y = apply(parameters, word)

        def change(i: Any) -> Any:
            return jnp.linalg.norm(
                apply(parameters, word.at[i].set(1 - word[i] if mask is None else mask)) - y
            )

        return jax.vmap(change)(jnp.arange(len(word) - 1))

    return jax.jit(lambda parameters, words: jax.lax.map(lambda word: of_word(parameters, word), words))


def times(kind: str | Path, layers: int, n: int, count: int, turns: int) -> tuple[float, float]:
    """Returns the least milliseconds of a word, by hand and by `flip_sensitivity`."""
    words, mask, flips = np.random.default_rng(0).integers(0, 2, (count, n)), None, 2
    if isinstance(kind, Path):
        model: Any = jaxsens.load_pretrained(kind)
        mask, parameters = model.mask, model.parameters
        flips = {i: [mask] for i in range(n - 1)}
        words = np.random.default_rng(0).integers(1000, 20000, (count, n))

        def apply(parameters: Any, tokens: Any) -> Any:
            return model.layered(parameters, tokens)
    elif kind == "function":
        model = plain(layers, n)
        apply, parameters = model
    else:
        config = jaxsens.TransformerConfig(2, width=WIDTH, heads=HEADS, layers=layers, feed_forward=HIDDEN)
        model = jaxsens.Transformer(config, seed=0)
        graph, parameters = nnx.split(model)

        def apply(parameters: Any, tokens: Any) -> Any:
            return nnx.merge(graph, parameters)(tokens)

    hand, tokens = by_hand(apply, mask), words if count > 1 else words[0]
    calls = (
        lambda: jax.block_until_ready(hand(parameters, jnp.asarray(words))),
        lambda: jaxsens.flip_sensitivity(model, tokens, flips, progress=False),
    )
    found: list[list[float]] = [[], []]
    for _ in range(2 + turns):
        for call, took in zip(calls, found, strict=True):
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
    return 1000 * min(found[0][2:]) / count, 1000 * min(found[1][2:]) / count


def main() -> None:
    """Prints a line for each model, depth and length."""
    options = tyro.cli(Options)
    warnings.simplefilter("ignore", jaxsens.PrecisionWarning)
    models: list[tuple[str | Path, int]] = [
        (kind, k) for kind in ("jaxsens", "function") for k in options.layers
    ]
    if options.folder is not None:
        models.append((options.folder, jaxsens.load_pretrained(options.folder).architecture.layers))
    with jax.default_matmul_precision("highest"):
        for kind, layers in models:
            name = kind.name if isinstance(kind, Path) else kind
            for n, count in (*options.lengths, (options.one, 1)):
                hand, ours = times(kind, layers, n, count, options.turns * (10 if count == 1 else 1))
                said = f"{hand / ours:.2f} times as fast" if count > 1 else f"{ours - hand:.1f} ms more"
                print(
                    f"{name}, L = {layers}, n = {n}, {count} words: {hand:.2f} ms by hand, {ours:.2f}: {said}"
                )


if __name__ == "__main__":
    main()
