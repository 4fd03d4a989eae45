"""Sharpness, layer-norm blow-up and sensitivity of trained transformers against the length (Hahn and Rofin 2024).

Trains transformers of functions of binary words, three seeds each, at every length. Then it measures

- sharpness: the mean rise of the mean squared error under Gaussian noise of 0.02 on all parameters but the positions;
- blow-up: the product over the layer normalisations of their largest 1/sqrt(variance + epsilon) on a word;
- sensitivity: the squared changes of the output, summed over the flips of a word.

    python examples/sharpness.py results/hahn_rofin2024
    python examples/sharpness.py results/published --functions parity --lengths 4 6 8 10 12 16 --width 128 \\
        --batch 512 --steps 10000 --learning-rate 3e-4

The first command takes some four minutes on one CPU core, the second six minutes on an H200. Both print a table and
write it, with a figure, into the folder. docs/atlas/hahn_rofin2024.md has the results.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from matplotlib.figure import Figure
from scipy.stats import linregress, t

import jaxsens
from jaxsens.core.models.parts.initialisation import generator
from jaxsens.core.models.parts.positions import Learned
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.parameters import needed

FUNCTIONS = {
    "parity": lambda words: (words.sum(axis=-1) % 2).astype("float32"),
    "majority": lambda words: (2 * words.sum(axis=-1) > words.shape[-1]).astype("float32"),
    "first": lambda words: words[..., 0].astype("float32"),
    "mean": lambda words: words.mean(axis=-1, dtype="float32"),
}
SEEDS, WORDS, FLIPPED, NOISE, DRAWS, FITTED = range(3), 512, 64, 0.02, 10, 1e-3
"""Seeds, words measured, words flipped, deviation and draws of the noise, and the largest loss of a fitted model."""

UNDECAYED = {"bias", "b1", "b2", "output_bias", "head_bias", "scale", "sink"}
"""Parameters without weight decay."""

MEASURES = ("sharpness", "blow-up", "sensitivity", "norm")


def loss(
    config: jaxsens.TransformerConfig, parameters: Any, words: Int[Array, "words n"], targets: Array
) -> Array:
    """Returns the mean squared error of the model's one output."""
    outputs = jax.vmap(partial(layers.apply, config, parameters))(words)
    return jnp.mean((outputs[:, 0] - targets) ** 2)


def trained(config: jaxsens.TransformerConfig, function: str, index: int, n: int, options: Any) -> list[Any]:
    """Returns the parameters of each seed after `options.steps` steps of AdamW on uniform words, all in one program."""
    rate = optax.warmup_cosine_decay_schedule(0.0, options.learning_rate, 100, options.steps)
    first: list[Any] = [jaxsens.Transformer(config, seed=seed).parameters for seed in SEEDS]
    decayed = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].name not in UNDECAYED, first[0])
    transform = optax.adamw(rate, weight_decay=0.1, mask=decayed)

    @jax.jit
    @jax.vmap
    def train(parameters: Any, key: Array) -> Any:
        def step(carry: Any, number: Array) -> tuple[Any, None]:
            parameters, state = carry
            words = jax.random.bernoulli(jax.random.fold_in(key, number), shape=(options.batch, n)).astype(
                jnp.int32
            )
            gradient = jax.grad(partial(loss, config))(parameters, words, FUNCTIONS[function](words))
            updates, state = transform.update(gradient, state, parameters)
            return (optax.apply_updates(parameters, updates), state), None

        return jax.lax.scan(step, (parameters, transform.init(parameters)), jnp.arange(options.steps))[0][0]

    keys = jnp.stack([jax.random.fold_in(jax.random.key(seed), index) for seed in SEEDS])
    stacked = train(jax.tree.map(lambda *leaves: jnp.stack(leaves), *first), keys)
    return [jax.tree.map(lambda leaf, k=k: leaf[k], stacked) for k in range(len(SEEDS))]


@partial(jax.jit, static_argnums=0)
def rises(
    config: jaxsens.TransformerConfig, parameters: Any, words: Array, targets: Array, keys: Array
) -> Array:
    """Returns the loss under each draw of the noise. The learned position embeddings get none."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(parameters)

    def one(key: Array) -> Array:
        noisy = [
            leaf
            if any(getattr(part, "name", None) == "learned" for part in path)
            else leaf + NOISE * jax.random.normal(jax.random.fold_in(key, k), leaf.shape, leaf.dtype)
            for k, (path, leaf) in enumerate(leaves)
        ]
        return loss(config, jax.tree_util.tree_unflatten(structure, noisy), words, targets)

    return jax.lax.map(one, keys)


@partial(jax.jit, static_argnums=0)
def blowup(config: jaxsens.TransformerConfig, parameters: Any, words: Array) -> Float[Array, " words"]:
    """Returns the blow-up of each word. In the last layer only the last row reaches the output."""

    def one(word: Array) -> Array:
        traces, _ = layers.trace(config, parameters, word)
        product = jnp.ones(())
        for k, trace in enumerate(traces):
            for rows in (trace.attended, needed(trace.mapped, "mapped")):
                factors = 1 / jnp.sqrt(jnp.var(rows, axis=-1) + config.layer(k).layer_norm_epsilon)
                product *= factors[-1] if k == config.layers - 1 else jnp.max(factors)
        return product

    return jax.lax.map(one, words)


def measured(
    config: jaxsens.TransformerConfig, parameters: Any, function: str, n: int, seed: int
) -> dict[str, float]:
    """Returns the loss and all measures of one model, on words that depend on the length and the seed alone."""
    words = generator(seed, f"sharpness.n={n}").integers(0, 2, (WORDS, n), dtype=np.int32)
    targets = FUNCTIONS[function](words)
    base = float(loss(config, parameters, jnp.asarray(words), jnp.asarray(targets)))
    noisy = rises(config, parameters, words, targets, jax.random.split(jax.random.key(seed), DRAWS))
    model = jaxsens.Transformer(config, parameters=parameters)
    flips = jaxsens.Substitute(positions=range(n))
    changes = jaxsens.flip_sensitivity(model, words[:FLIPPED], flips, progress=False).norms
    moving = [
        np.asarray(leaf, np.float64)
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)
        if not any(getattr(part, "name", None) == "learned" for part in path)
    ]
    return {
        "loss": base,
        "sharpness": float(np.mean(np.asarray(noisy, np.float64))) - base,
        "blow-up": float(blowup(config, parameters, words).mean()),
        "sensitivity": float(np.sum(np.square(changes)) / FLIPPED),
        "norm": float(np.sqrt(sum(np.sum(array**2) for array in moving))),
    }


def table(rows: dict[tuple[str, int], list[dict[str, float]]], functions: list[str]) -> str:
    """Returns means over fitted models, and each function's slope of the sharpness against n with its 95 % interval."""
    lines = [f"| function | n | fitted | {' | '.join(MEASURES)} |", "| --- " * (3 + len(MEASURES)) + "|"]
    for (function, n), models in rows.items():
        fitted = [model for model in models if model["loss"] < FITTED]
        means = (f"{np.mean([model[name] for model in fitted]):.3g}" if fitted else "" for name in MEASURES)
        lines.append(f"| {function} | {n} | {len(fitted)} of {len(models)} | {' | '.join(means)} |")
    lines.append("")
    for function in functions:
        points = [
            (n, model["sharpness"])
            for (name, n), models in rows.items()
            for model in models
            if name == function and model["loss"] < FITTED
        ]
        if len(points) < 3 or len({n for n, _ in points}) < 2:
            lines.append(f"{function}: too few fitted models for a slope")
            continue
        fit: Any = linregress(*np.array(points).T)
        half = float(t.ppf(0.975, len(points) - 2)) * fit.stderr
        interval = f"[{fit.slope - half:.2g}, {fit.slope + half:.2g}]"
        lines.append(f"{function}: slope of the sharpness against n {fit.slope:.2g} {interval}")
    return "\n".join(lines) + "\n"


def figure(rows: dict[tuple[str, int], list[dict[str, float]]], functions: list[str]) -> Figure:
    """Draws a dot for each fitted model and a line through the means."""
    drawn = Figure(figsize=(12, 4), layout="constrained")
    for axes, name in zip(drawn.subplots(1, 3), MEASURES[:3], strict=True):
        for k, function in enumerate(functions):
            found = {
                n: [model[name] for model in models if model["loss"] < FITTED]
                for (of, n), models in rows.items()
                if of == function
            }
            found = {n: values for n, values in found.items() if values}
            axes.plot([*found], [np.mean(values) for values in found.values()], f"C{k}o-", label=function)
            points = [(n, value) for n, values in found.items() for value in values]
            axes.plot([n for n, _ in points], [value for _, value in points], f"C{k}.", alpha=0.4)
        axes.set(yscale="log", xlabel="length n", title=name)
    drawn.axes[0].legend()
    return drawn


def main() -> None:
    """Trains, measures, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder that the table and the figure are written into")
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=[*FUNCTIONS])
    parser.add_argument("--lengths", nargs="+", type=int, default=[4, 6, 8, 10, 12])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=64, help="words a step")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    config = jaxsens.TransformerConfig(
        alphabet_size=2,
        layers=2,
        width=options.width,
        heads=2,
        feed_forward=options.width,
        positions=(Learned(max_length=max(options.lengths)),),
        layer_norm="post",
        end_symbol=False,
        logits=1,
    )
    rows = {}
    for function in options.functions:
        for n in options.lengths:
            index = options.functions.index(function)
            models = zip(trained(config, function, index, n, options), SEEDS, strict=True)
            rows[function, n] = [
                measured(config, parameters, function, n, seed) for parameters, seed in models
            ]
            print(f"{function}, n = {n}: {len(SEEDS)} models trained and measured", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sharpness.md").write_text(table(rows, options.functions), encoding="utf-8")
    figure(rows, options.functions).savefig(options.out / "sharpness.png", dpi=150)
    print(table(rows, options.functions))


if __name__ == "__main__":
    main()
