"""Uniform-tieless transformers (Yang et al., arXiv 2412.09925, Definitions 4 and 5): which models are, and by how much.

An average-hard transformer is uniform-tieless if each head either gives every visible key the same score on every
input, or has one largest score in every row. There are finitely many inputs of a length n, so there is a least gap
between the largest score and the next, gamma(n) > 0 (Lemma 24). This module measures it, and the other numbers that
Theorem 26 needs, by running the model on all inputs of length n, or on given ones if there are too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems, Written
from jaxsens.core.base.programs import compiled, numerics
from jaxsens.core.models.parts.weighting import AverageHard
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer, check_runs, check_tokens
from jaxsens.core.models.transformer.parameters import TransformerParameters
from jaxsens.core.models.transformer.trace import scores_of_rows

MAX_INPUTS = 2**16
"""Most inputs of a length that are all tried."""

PRODUCTS_IN_MEMORY = 2**23
"""Most products q_ic k_jc that one batch of inputs makes at once."""

ROUNDING_UNITS = 32
"""Assumed rounding error of scores, in units of rounding relative to the sum of their |products|."""


@dataclass(frozen=True)
class UniformTieless:
    """What is measured of a uniform-tieless model on inputs of one length. The arrays are not compared.

    Attributes:
        n: The length.
        inputs: The number of inputs that were run.
        exhaustive: Whether these are all inputs: every word over the alphabet and, if the model has an end-of-sequence
            symbol, every word that ends with it.
        uniform: For each layer and head, whether its scores are 0 because its queries or its keys are 0.
        gaps: For each layer and head, the least difference between a row's largest score and the next, minus what
            rounding may have added; infinite for uniform heads, and if no row sees two keys.
        magnitudes: The largest |entry| of x^(0), ..., x^(L) in each coordinate.
        spreads: For each layer, head and coordinate, the largest distance between values v_j W_O of one input.
    """

    n: int
    inputs: int
    exhaustive: bool
    uniform: tuple[tuple[bool, ...], ...]
    gaps: tuple[tuple[float, ...], ...]
    magnitudes: Float[np.ndarray, "layers+1 width"] = field(compare=False)
    spreads: tuple[Float[np.ndarray, "heads width"], ...] = field(compare=False)

    @property
    def gap(self) -> float:
        """gamma(n), the least of all gaps; infinite if there is nothing to choose."""
        return min((gap for layer in self.gaps for gap in layer), default=np.inf)


def measure(model: Transformer, n: int, words: ArrayLike | None = None) -> UniformTieless:
    """Runs `model` on all inputs of length n, or on `words` (k, n), and measures gaps and magnitudes.

    O(inputs L n (n + d) H head_width). With `words` the result holds for these inputs only.

    Raises:
        InputError: If Theorem 26 is not about this model, with all reasons at once; if a head that is not uniform
            ties, with head, position (from 0) and word; if numbers overflow; or if there are more than `MAX_INPUTS`
            inputs and no `words`.
    """
    problems = Problems("a uniform-tieless transformer")
    check_measurable(model, n, words, problems)
    problems.raise_if_any()
    n = int(n)
    tried = all_inputs(model.config, n) if words is None else np.asarray(words)
    uniform = uniform_heads(model.parameters)
    with numerics(model.config.dtype):
        runs = [_run(model.config, model.parameters, batch) for batch in batches(model.config, tried)]
    found, *extremes = zip(*runs, strict=True)
    of_words = [np.concatenate(parts)[: len(tried)] for parts in zip(*found, strict=True)]
    gaps = [np.where(np.array(one)[:, None], np.inf, gap) for one, gap in zip(uniform, of_words, strict=True)]
    spreads, magnitudes = (
        jax.tree.map(lambda *parts: np.max(parts, axis=0).astype(np.float64), *parts) for parts in extremes
    )
    if not np.isfinite(magnitudes).all():
        k = int(np.argmin(np.isfinite(magnitudes).all(axis=1)))
        problems.add("model", f"x^({k}) is not finite", "parameters with which activations stay finite")
        problems.raise_if_any()
    certain = tuple(_certain(model, tried, gaps, magnitudes, problems))
    problems.raise_if_any()
    return UniformTieless(n, len(tried), words is None, uniform, certain, magnitudes, tuple(spreads))


def check_measurable(model: Transformer, n: int, words: ArrayLike | None, problems: Problems) -> None:
    """Notes everything against the arguments of `measure` that can be seen without running the model."""
    known = isinstance(model, Transformer)
    if not known:
        problems.add("model", type(model).__name__, "a jaxsens.Transformer")
    else:
        _check_config(model.config, problems)
    n = inputs.length(n, problems)
    if known and n:
        check_runs(model.config, n, problems)
        if words is not None:
            _check_words(model.config, n, words, problems)


def uniform_heads(parameters: TransformerParameters) -> tuple[tuple[bool, ...], ...]:
    """For each layer and head, whether W_Q = 0 or W_K = 0, so that all scores are 0 on every input."""

    def zero(matrices: Array) -> np.ndarray:
        return np.all(np.asarray(matrices) == 0, axis=(1, 2))

    return tuple(tuple((zero(layer.query) | zero(layer.key)).tolist()) for layer in parameters.layers)


def all_inputs(config: TransformerConfig, n: int) -> Int[np.ndarray, "inputs n"]:
    """Every word of length n over the alphabet, in order, followed by those that end with the end symbol instead.

    Raises:
        InputError: If there are more than `MAX_INPUTS`.
    """
    symbols, end = config.alphabet_size, config.end_of_sequence
    total = symbols**n + (0 if end is None else symbols ** (n - 1))
    if total > MAX_INPUTS:
        raise InputError.of(
            "n",
            n,
            f"there are {total} inputs of this length, and at most {MAX_INPUTS} are all tried; give `words`",
        )

    def over_alphabet(length: int) -> np.ndarray:
        place = symbols ** np.arange(length - 1, -1, -1)
        return np.arange(symbols**length)[:, None] // place % symbols

    found = over_alphabet(n)
    if end is None:
        return found
    ended = np.pad(over_alphabet(n - 1), ((0, 0), (0, 1)), constant_values=end)
    return np.concatenate([found, ended])


def batches(config: TransformerConfig, words: Int[np.ndarray, "k n"]) -> Iterator[Int[np.ndarray, "m n"]]:
    """The words in batches of equal size within `PRODUCTS_IN_MEMORY`. The last is filled up with its first word."""
    n = words.shape[1]
    shapes = [config.layer(k) for k in range(config.layers)]
    widest = max([config.width, *(layer.heads * layer.head_width for layer in shapes)])
    size = min(len(words), max(1, PRODUCTS_IN_MEMORY // (n**2 * widest)))
    for start in range(0, len(words), size):
        batch = words[start : start + size]
        yield np.concatenate([batch, np.repeat(batch[:1], size - len(batch), axis=0)])


def _check_config(config: TransformerConfig, problems: Problems) -> None:
    for k in range(config.layers):
        layer, name = config.layer(k), f"layer {k}"
        for part, sound, remedy in (
            ("weighting", isinstance(layer.weighting, AverageHard), '"average-hard"'),
            ("scores", layer.scores == "dot-product", '"dot-product", for Lemma 32 bounds bilinear scores'),
            ("layer_norm", layer.layer_norm == "none", '"none"'),
            ("output_gate", layer.output_gate == "none", '"none"'),
            ("activation", layer.activation == "relu" or not layer.feed_forward, '"relu", for Lemma 30'),
        ):
            if not sound:
                problems.add((name, part), getattr(layer, part), remedy)
        for term in layer.position_scores:
            problems.add((name, "positions"), term, "embeddings that are added to the symbols' only")


def _check_words(config: TransformerConfig, n: int, words: ArrayLike, problems: Problems) -> None:
    try:
        found = np.asarray(words)
    except ValueError:
        problems.add("words", words, f"rows of one length, an array of shape (words, {n})")
        return
    if found.ndim != 2 or found.shape[1] != n or not len(found):
        problems.add("words", Written(f"an array of shape {found.shape}"), f"give one of shape (words, {n})")
        return
    try:
        check_tokens(config, found)
    except InputError as error:
        problems.include(error.problems, "words")


@compiled(static=1)
def _run(
    config: TransformerConfig, parameters: TransformerParameters, words: Any
) -> tuple[list[Array], list[Array], Array]:
    """For each layer gaps (words, heads, n) and the largest spreads (heads, width); magnitudes (layers + 1, width)."""

    def one(tokens: Array) -> tuple[list[Array], list[Array], Array]:
        kept, y = layers.trace(config, parameters, tokens)
        gaps, spreads = [], []
        for k, values in enumerate(kept):
            gaps.append(_gaps(config, parameters, k, values.queries, values.keys))
            moved = jnp.einsum("hjc,hcd->hjd", values.values, parameters.layers[k].output)
            spreads.append(jnp.max(moved, axis=1) - jnp.min(moved, axis=1))
        return gaps, spreads, jnp.max(jnp.abs(jnp.stack([*(values.x for values in kept), y])), axis=1)

    gaps, *extremes = jax.vmap(one)(words)
    return gaps, *jax.tree.map(lambda of_words: jnp.max(of_words, axis=0), extremes)


def _gaps(
    config: TransformerConfig, parameters: TransformerParameters, k: int, queries: Array, keys: Array
) -> Float[Array, "heads n"]:
    """Each row's largest score minus the next, 0 if it occurs twice; infinite for rows that see at most one key."""
    layer, n = config.layer(k), queries.shape[1]
    if n == 1:
        return jnp.full((layer.heads, 1), jnp.inf, queries.dtype)
    s, seen = scores_of_rows(layer, parameters.layers[k], queries, keys, jnp.arange(n))
    best = jax.lax.top_k(jnp.where(seen, s, -jnp.inf), 2)[0]
    return jnp.where(jnp.sum(seen, axis=-1) > 1, best[..., 0] - best[..., 1], jnp.inf)


def _certain(
    model: Transformer,
    words: Int[np.ndarray, "k n"],
    gaps: list[Float[np.ndarray, "k heads n"]],
    magnitudes: Float[np.ndarray, "layers+1 width"],
    problems: Problems,
) -> Iterator[tuple[float, ...]]:
    """Each layer's least gaps minus what rounding may have added. Notes every head with a tie, or what may be one."""
    dtype = model.config.dtype
    for k, (parameters, of_layer) in enumerate(zip(model.parameters.layers, gaps, strict=True)):
        queries = magnitudes[k] @ np.abs(np.asarray(parameters.query, np.float64))
        keys = magnitudes[k] @ np.abs(np.asarray(parameters.key, np.float64))
        with np.errstate(over="ignore", invalid="ignore"):
            products = (queries * keys).sum(axis=1) / np.sqrt(queries.shape[1])
        allowances = ROUNDING_UNITS * float(np.finfo(dtype).eps) * products
        least = of_layer.min(axis=(0, 2))
        for h in np.flatnonzero(~(least > allowances)):
            rows = of_layer[:, h]
            word, position = np.unravel_index(np.argmin(rows), rows.shape)
            found = f"gap {least[h]:.3g} at position {position} of {words[word].tolist()}"
            remedy = "parameters with which scores stay finite"
            if least[h] == 0:
                remedy = (
                    "one largest score a row (position embeddings can break ties), or a uniform head, W_Q = 0"
                )
            elif np.isfinite(least[h]) and np.isfinite(allowances[h]):
                remedy = f"a gap above {allowances[h]:.3g}, what rounding in {dtype} may make of a tie"
            problems.add(f"layer {k}, head {h}", found, remedy)
        yield tuple((least - allowances).tolist())
