"""Average-hard attention replaced by softmax at a low temperature, with a promise (Yang et al. 2026, Theorem 26): of
uniform-tieless transformers, and by how much they are.

An average-hard transformer is uniform-tieless (Definitions 4 and 5) if each head either gives every visible key the
same score on every input, or has one largest score in every row. There are finitely many inputs of a length n, so there
is a least gap between the largest score and the next, gamma(n) > 0 (Lemma 24). `measure` finds it, and the other
numbers that Theorem 26 needs, by running the model on all inputs of length n, or on given ones if there are too many.

The temperature must be so low that softmax's error stays small as it grows from layer to layer: Lemmas 25 and 28 to 34
and Theorem 26 of Yang et al. (arXiv 2412.09925), for layers with residual connections, biases and several heads.

The theorem bounds the error by the worst layer, head and coordinate. `error_bound` is the same proof without its
maxima: it follows the error layer by layer and coordinate by coordinate, so that no temperature of the theorem is
warmer. It gains in three places. It has each head's own gap and magnitudes. It uses Lemma 33 with the gap that is left,
gamma - 2 delta, where the theorem gives away half of it. And coordinates that nothing writes to, such as position
embeddings up to n^2, are exact and stay out of the product of error and magnitude in Lemma 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from jaxsens.core.base.strict import naming_arguments
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import AverageHard, Softmax
from jaxsens.core.models.transformer import layers
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer, check_runs, check_tokens
from jaxsens.core.models.transformer.parameters import LayerParameters, TransformerParameters
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


FLOATING_POINT = 1024
"""Least epsilon, in units of rounding of the largest activation. Arithmetic would break a smaller promise."""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-300, 1e20
"""Where the search for a temperature ends: a colder one is refused."""


@dataclass(frozen=True)
class SoftenedPromise:
    """What `soften` promises, and from what it follows.

    At every position, every activation y^(L) of the softened model and its output are within `epsilon` of the hard
    model's: on all inputs of length `measured.n` if `measured.exhaustive`, and otherwise on the inputs that were given.

    Attributes:
        epsilon: The largest difference of an entry.
        tau: The temperature of every layer.
        measured: The hard model's gaps and magnitudes, and on which inputs.
    """

    epsilon: float
    tau: float
    measured: UniformTieless

    @property
    def theorem(self) -> str:
        """Where the promise comes from."""
        return "Yang et al., arXiv 2412.09925, Theorem 26"


class SoftenedTransformer(Transformer):
    """A transformer with the hard model's parameters and softmax at temperature `promise.tau` in every layer.

    It is an ordinary `Transformer` and reads inputs of any length, but `promise` is about inputs of length
    `promise.measured.n`. `outputs` are the coordinates that the hard model designates for measurement; None if it
    designates none.
    """

    def __init__(self, hard: Transformer, promise: SoftenedPromise) -> None:
        weighting = Softmax(Schedule(coefficient=1 / promise.tau))
        super().__init__(hard.config.replace(weighting=weighting), parameters=hard.parameters)
        self.promise = promise
        self.outputs: tuple[int, ...] | None = getattr(hard, "outputs", None)


@naming_arguments
def soften(
    model: Transformer, n: int, epsilon: float, *, words: ArrayLike | None = None
) -> SoftenedTransformer:
    """A softmax transformer within `epsilon` of a uniform-tieless average-hard one on inputs of length n.

    The temperature follows from the gap between the largest score and the next, the magnitudes of activations and
    parameters, and the depth. Gap and magnitudes are measured on all inputs of length n, or on `words`.

    Args:
        model: Average-hard in every layer. Each head either has W_Q = 0 or W_K = 0, or one largest score per row.
        n: The length of the inputs.
        epsilon: The largest difference allowed in any entry of any activation and output.
        words: (k, n) inputs to measure, and to make the promise for, if there are too many of length n to try all.

    Raises:
        InputError: With every reason against the arguments: a model that Theorem 26 is not about, or is not
            uniform-tieless on these inputs (`measure`); `n`; an `epsilon` below what the arithmetic resolves.

    >>> from jaxsens.formal.constructions.compiler import compile_formula
    >>> hard = compile_formula("!Q_c S Q_a", "abc", condition="average-hard")
    >>> soften(hard, n=3, epsilon=1e-3).promise.measured.inputs
    27
    """
    problems = Problems("soften")
    epsilon = inputs.number("epsilon", epsilon, problems, above=0, below=math.inf)
    check_measurable(model, n, words, problems)
    problems.raise_if_any()
    measured = measure(model, n, words)
    tau = warmest_temperature(model.parameters, measured, epsilon)
    promise = SoftenedPromise(epsilon, tau, measured)
    limits = np.finfo(model.config.dtype)
    resolved = FLOATING_POINT * float(limits.eps) * max(1.0, float(measured.magnitudes.max()))
    if epsilon < resolved:
        remedy = f"at least {resolved:.3g}, what {limits.dtype} resolves of activations so large"
        problems.add("epsilon", epsilon, remedy)
    if not (promise.tau > 0 and 1 / promise.tau < float(limits.max)):
        problems.add("tau", promise.tau, f"a larger gap: 1/tau exceeds the largest number of {limits.dtype}")
    problems.raise_if_any()
    return SoftenedTransformer(model, promise)


def largest_difference(soft: Transformer, hard: Transformer, words: ArrayLike | None = None) -> float:
    """The largest |difference| of an entry of y^(L), at any position, or of the output, over `words` (k, n).

    Without `words`, over all inputs of the length that `soft` makes its promise for. Compare it with
    `soft.promise.epsilon`. NaN if any number is NaN.

    Raises:
        InputError: If there are no words, and `soft` has no promise to take a length from.
    """
    if words is not None:
        tried = np.atleast_2d(np.asarray(words))
        check_tokens(hard.config, tried)
    elif isinstance(soft, SoftenedTransformer):
        tried = all_inputs(hard.config, soft.promise.measured.n)
    else:
        raise InputError.of("words", None, "give words, or a model that `soften` made")
    largest = 0.0
    for batch in batches(hard.config, tried):
        pairs = [(soft.activations(batch), hard.activations(batch))]
        if hard.config.logits is not None:
            pairs.append((soft(batch), hard(batch)))
        for a, b in pairs:
            found = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()
            largest = float(np.maximum(largest, found))
    return largest


def error_bound(
    layers: Sequence[LayerParameters], measured: UniformTieless, inverse_temperature: float
) -> Float[np.ndarray, " width"]:
    """How far y^(L) of the softmax transformer may be from the average-hard one's, in each coordinate.

    Let e be the error of a layer's input and X its magnitude, both vectors over the coordinates. In each head, scores
    move by delta = e |N| X + X |N| e + e |N| e (Lemma 32), and weights move in the 1-norm by h = 2 y / (1 + y), where
    y = (n - 1) exp(-(gap - 2 delta) / tau) (Lemma 33, without its first inequality). The head's output moves by
    e |W_V W_O|, as weights sum to at most 1, and by h / 2 times the spread of the values, as both rows of weights have
    the same sum (Lemma 34, which uses a spread of at most 2 X |W_V W_O|). The residual connection adds e, and the
    per-position map turns an error c into c + c |W1| |W2| (Lemma 30). Rounding is not counted.
    """
    e = np.zeros(measured.magnitudes.shape[1])
    for k, layer in enumerate(layers):
        x = measured.magnitudes[k]
        four = layer.query, layer.key, layer.value, layer.output
        query, key, value, output = (np.asarray(matrix, np.float64) for matrix in four)
        score = np.abs(query @ np.swapaxes(key, 1, 2)) / math.sqrt(query.shape[2])
        delta = np.einsum("hab,a,b->h", score, e, x + e) + np.einsum("hab,a,b->h", score, x, e)
        gaps = np.array(measured.gaps[k])
        chosen = np.isfinite(gaps) & (measured.n > 1)
        off = np.zeros(len(gaps))
        log_y = math.log(max(measured.n - 1, 1)) - (gaps[chosen] - 2 * delta[chosen]) * inverse_temperature
        off[chosen] = 2 * np.exp(-np.logaddexp(0, -log_y))
        e = e + np.einsum("a,had->d", e, np.abs(value @ output)) + off / 2 @ measured.spreads[k]
        if layer.w1 is not None and layer.w2 is not None:
            e = e + e @ _absolute(layer.w1) @ _absolute(layer.w2)
    return e


def warmest_temperature(parameters: TransformerParameters, measured: UniformTieless, epsilon: float) -> float:
    """Nearly the warmest temperature at which `error_bound` is at most epsilon; 1 if there is nothing to choose, and
    0 if there is none.

    The error of the logits, if there are any, is bounded too. Found by doubling and halving, to 1 in 1000.
    """
    head = None if parameters.head is None else _absolute(parameters.head)

    def kept(tau: float) -> bool:
        error = error_bound(parameters.layers, measured, 1 / tau)
        largest = max(float(error.max()), 0.0 if head is None else float((error @ head).max()))
        return largest <= epsilon * (1 - 1e-9)

    if math.isinf(measured.gap):
        return 1.0
    low = measured.gap
    while low > LEAST_TEMPERATURE and not kept(low):
        low /= 2
    high = 2 * low
    while high < MOST_TEMPERATURE and kept(high):
        low, high = high, 2 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low if kept(low) else 0.0


def _absolute(matrix: ArrayLike) -> np.ndarray:
    return np.abs(np.asarray(matrix, np.float64))
