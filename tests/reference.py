"""The transformer family and its flip sensitivity once more, in NumPy with explicit loops.

The specification the package is tested against. It is written from the definitions, one query and one key at a time,
shares no code with the package and does not import JAX: it reads only plain attributes of a config and NumPy arrays of
parameters. Positions are counted from 1 as in the papers; arrays, the readout and the flips from 0.

It computes in the type the parameters are converted to, float64 or np.longdouble: two outputs are subtracted here, so
the wider type is what small sensitivities are compared with.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray

SCORE_TERMS = ("Rotary", "PartialRotary", "Alibi", "PartialAlibi", "RelativeBias")
"""The position terms that enter attention scores instead of embeddings."""


def of_layer(value: Any, k: int) -> Any:
    """The value for layer k (from 0) of a config attribute that may be one for all layers or a tuple."""
    return value[k] if isinstance(value, tuple) else value


def times(x: Array, matrix: Array) -> Array:
    """x @ matrix by entries, so that equal vectors always give equal results and ties stay ties."""
    return (x[:, None] * matrix).sum(axis=0)


def dot(a: Array, b: Array) -> Any:
    """a . b by entries."""
    return (a * b).sum()


# Positions


def sinusoid(i: int, width: int, base: float) -> Array:
    """Position i as sines (even columns) and cosines (odd columns) of geometrically falling frequencies."""
    vector = np.zeros(width)
    for column in range(width):
        angle = i / base ** ((column - column % 2) / width)
        vector[column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return vector


def component(name: str, i: int, n: int) -> float:
    """The value of a named component at position i of n."""
    values = {
        "constant": 1.0,
        "inverse": 1 / (i + 1),
        "reciprocal": 1 / i,
        "reverse-reciprocal": 1 / (n - i + 1),
        "reciprocal-length": 1 / n,
        "alternating": (-1.0) ** i,
        "odd": 1.0 if i in range(1, n + 1, 2) else 0.0,
        "first": 1.0 if i == 1 else 0.0,
        "last": 1.0 if i == n else 0.0,
        "fraction": i / n,
        "fraction-square": (i / n) ** 2,
        "fraction-over-length": i / n**2,
        "index": float(i),
        "square": float(i * i),
        "cube": float(i * i * i),
        "length": float(n),
        "log-length": math.log(n),
        "length-index": float(n * i),
        "length-square": float(n * i * i),
    }
    return values[name]


def limb(name: str, place: int, i: int, n: int) -> float:
    """What stands in one place when a whole component is written as a sum of float32 numbers, largest first."""
    values = {"alternating": (-1) ** i, "index": i, "square": i**2, "cube": i**3, "length": n}
    values |= {"constant": 1, "odd": i % 2, "first": int(i == 1), "last": int(i == n)}
    rest = (values | {"length-index": n * i, "length-square": n * i**2})[name]
    for _ in range(place):
        rest -= rounded_to_24_bits(rest)
    return float(rounded_to_24_bits(rest))


def rounded_to_24_bits(value: int) -> int:
    """The nearest whole number with at most 24 significant bits, ties to the even one."""
    step = 2 ** max(0, abs(value).bit_length() - 24)
    below, over = divmod(abs(value), step)
    up = 2 * over > step or (2 * over == step and below % 2 == 1)
    return (below + up) * step * (1 if value >= 0 else -1)


def coordinate(term: Any, i: int, n: int) -> float | None:
    """The value at position i of n of a term that is one coordinate, or None for other terms."""
    if kind(term) == "Component":
        return component(term.name, i, n)
    if kind(term) == "Limb":
        return limb(term.of, term.place, i, n)
    if kind(term) == "FunctionComponent":
        return float(term.function(np.array([float(i)]), n)[0])
    return None


def rotated(vector: Array, i: int, term: Any) -> Array:
    """A query or key at position i, each pair of coordinates, or of a fraction the first ones, turned."""
    width = round(len(vector) * getattr(term, "fraction", 1.0))
    base, turned = term.base, vector.copy()
    for c in range(width // 2):
        angle = i * base ** (-2 * c / width)
        a, b = vector[2 * c], vector[2 * c + 1]
        turned[2 * c] = a * math.cos(angle) - b * math.sin(angle)
        turned[2 * c + 1] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def slope(term: Any, head: int, heads: int) -> float:
    """ALiBi's slope of a head, from 1; of a fraction of the heads, the first ones have slopes."""
    biased = round(heads * getattr(term, "fraction", 1.0))
    return 2.0 ** (-8 * head / biased) if head <= biased else 0.0


def bucket(term: Any, ahead: int) -> int:
    """T5's bucket of a key so many positions ahead of the query (behind it, if negative)."""
    side = term.buckets // 2 if term.bidirectional else term.buckets
    offset = side if term.bidirectional and ahead > 0 else 0
    distance = abs(ahead) if term.bidirectional else max(-ahead, 0)
    exact = side // 2
    if distance < exact:
        return offset + distance
    share = math.log(distance / exact) / math.log(term.max_distance / exact)
    return offset + min(exact + int(share * (side - exact)), side - 1)


def score_terms(config: Any, k: int) -> list[Any]:
    """The position terms that enter the scores of layer k: those of all layers, then its own."""
    own = config.layer_positions[k] if config.layer_positions else ()
    return [term for term in (*config.positions, *own) if kind(term) in SCORE_TERMS]


def kind(value: Any) -> str:
    """The name of a typed config value's class."""
    return type(value).__name__


def embedded(config: Any, parameters: Any, tokens: list[int], dtype: Any) -> list[Array]:
    """y^(0): symbol embedding plus what the position terms add, at every position."""
    n, rows = len(tokens), []
    for i in range(1, n + 1):
        x = np.array(parameters.embedding[tokens[i - 1]], dtype)
        components = 0
        for term in config.positions:
            if kind(term) == "Sinusoidal":
                x = x + sinusoid(i, config.width, term.base)
            elif kind(term) == "Learned":
                x = x + parameters.learned[i - 1]
            elif (value := coordinate(term, i, n)) is not None:
                x = x + value * parameters.components[components]
                components += 1
            elif kind(term) not in SCORE_TERMS:
                raise LookupError(f"the reference knows no position term {term!r}")
        rows.append(x)
    return rows


# Attention


def visible(mask: Any, i: int, j: int) -> bool:
    """Whether the query at i sees the key at j."""
    if kind(mask) == "SlidingWindow":
        return i - mask.width + 1 <= j <= i
    if kind(mask) == "TwoSidedWindow":
        return -mask.reach <= i - j <= mask.reach
    return {"none": True, "future": j <= i, "past": j >= i, "strict-future": j < i, "strict-past": j > i}[
        mask
    ]


def softmax(scores: list[Any]) -> list[Any]:
    """Weights proportional to exp(score)."""
    powers = [np.exp(s - max(scores)) for s in scores]
    return [power / sum(powers) for power in powers]


def entmax(scores: list[Any], alpha: float) -> list[Any]:
    """Weights max((alpha - 1) s - tau, 0)^(1/(alpha - 1)), with tau such that they sum to 1, found by bisection.

    At alpha = 2 it is sparsemax, the Euclidean projection onto the simplex.
    """
    scores, power = [(alpha - 1) * s for s in scores], 1 / (alpha - 1)
    low, high = max(scores) - 1, max(scores)
    for _ in range(200):
        tau = (low + high) / 2
        if sum(max(s - tau, 0.0) ** power for s in scores) >= 1:
            low = tau
        else:
            high = tau
    found = [max(s - low, 0.0) ** power for s in scores]
    return [weight / sum(found) for weight in found]


def adapted(polynomial: tuple[float, ...], least_entropy: float, scores: list[Any]) -> list[Any]:
    """Softmax weights, sharpened by a polynomial of their entropy, which is at least 1."""
    entropy = -sum(p * np.log(p) for p in softmax(scores) if p > 0)
    beta = sum(c * entropy**power for power, c in enumerate(reversed(polynomial)))
    return softmax([s * (max(beta, 1) if entropy > least_entropy else 1) for s in scores])


def inverse_temperature(schedule: Any, x: Any) -> Any:
    """1/tau at the length x, or at an array of lengths."""
    grown = schedule.coefficient * x**schedule.power * np.log(x) ** schedule.log_power
    return np.maximum(schedule.offset + grown, schedule.least)


def weights(weighting: Any, scores: list[Any], i: int, n: int, sink: Any = None) -> list[Any]:
    """The weights of the visible keys, given their scores, for the query at position i of n.

    `sink` is the score of the head's sink, if it is learned.
    """
    if not scores:
        return []
    x = {"length": n, "query": i}[getattr(weighting, "by", "length")]
    if hasattr(weighting, "inverse_temperature"):
        scores = [inverse_temperature(weighting.inverse_temperature, x) * s for s in scores]
    best = [j for j, s in enumerate(scores) if s == max(scores)]
    match kind(weighting):
        case "Softmax":
            return softmax(scores)
        case "SinkSoftmax":
            return softmax([*scores, sink if weighting.learned else weighting.logit])[:-1]
        case "AdaptiveSoftmax":
            return adapted(weighting.polynomial, weighting.least_entropy, scores)
        case "Sigmoid":
            bias = weighting.bias + weighting.log_bias * math.log(x)
            return [(1 + np.tanh((s + bias) / 2)) / 2 for s in scores]
        case "Entmax":
            return entmax(scores, weighting.alpha)
        case "LeftmostHard":
            return [1.0 if j == best[0] else 0.0 for j in range(len(scores))]
        case "RightmostHard":
            return [1.0 if j == best[-1] else 0.0 for j in range(len(scores))]
        case "AverageHard":
            return [1 / len(best) if j in best else 0.0 for j in range(len(scores))]
        case "Sparsemax":
            return entmax(scores, 2.0)
    raise LookupError(f"the reference knows no weighting {weighting!r}")


def attention(config: Any, layer: Any, k: int, z: list[Array]) -> list[Array]:
    """What the attention of layer k adds at every position: the heads' weighted sums of values, mapped to width d."""
    n, heads = len(z), of_layer(config.heads, k)
    terms = score_terms(config, k)
    total = [np.zeros(config.width, row.dtype) for row in z]
    for h in range(heads):
        queries = [times(row, layer.query[h]) for row in z]
        keys = [times(row, layer.key[h]) for row in z]
        values = [times(row, layer.value[h]) for row in z]
        for term in terms:
            if kind(term) in ("Rotary", "PartialRotary"):
                queries = [rotated(query, i, term) for i, query in enumerate(queries, start=1)]
                keys = [rotated(key, j, term) for j, key in enumerate(keys, start=1)]
        for i in range(1, n + 1):
            seen = [j for j in range(1, n + 1) if visible(of_layer(config.mask, k), i, j)]
            scores = []
            for j in seen:
                query, key = queries[i - 1], keys[j - 1]
                if config.scores == "additive":
                    s = dot(layer.additive[h], np.tanh(query + key))
                else:
                    s = dot(query, key) / np.sqrt(query.dtype.type(len(query)))
                for term in terms:
                    if kind(term) in ("Alibi", "PartialAlibi"):
                        s -= slope(term, h + 1, heads) * abs(i - j)
                    if kind(term) == "RelativeBias":
                        s += layer.relative_bias[h][bucket(term, j - i)]
                scores.append(s)
            b = np.zeros(layer.value[h].shape[1], z[0].dtype)
            sink = None if layer.sink is None else layer.sink[h]
            alphas = weights(of_layer(config.weighting, k), scores, i, n, sink)
            for alpha, j in zip(alphas, seen, strict=True):
                b = b + alpha * values[j - 1]
            if config.output_gate != "none":
                b = b * (1 + np.tanh(times(z[i - 1], layer.gate[h]) / 2)) / 2
            total[i - 1] = total[i - 1] + times(b, layer.output[h])
    return total


# Layers


def activation(name: str, x: Any) -> Any:
    """The per-position map's nonlinearity."""
    if name == "relu":
        return np.maximum(x, 0.0)
    if name == "gelu":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "silu":
        return x * (1 + np.tanh(x / 2)) / 2  # x / (1 + exp(-x)), which overflows
    return {"tanh": np.tanh}[name](x)


def layer_norm(config: Any, norm: Any, x: Array) -> Array:
    """The vector shifted and scaled to mean 0 and variance 1 (biased, plus epsilon), then scaled and shifted."""
    mean = sum(x) / len(x)
    variance = sum((x - mean) ** 2) / len(x)
    return (x - mean) / np.sqrt(variance + config.layer_norm_epsilon) * norm.scale + norm.bias


def transformer_layer(config: Any, layer: Any, k: int, x: list[Array], attend: Any) -> list[Array]:
    """Layer k: attention and per-position map, each with its skip connection, with layer norm before, after or not."""
    pre, post = config.layer_norm == "pre", config.layer_norm == "post"
    z = [layer_norm(config, layer.attention_norm, row) if pre else row for row in x]
    c = [row + added for row, added in zip(x, attend(config, layer, k, z), strict=True)]
    if post:
        c = [layer_norm(config, layer.attention_norm, row) for row in c]
    if of_layer(config.feed_forward, k) == 0:
        return c
    result = []
    for row in c:
        inside = layer_norm(config, layer.feed_forward_norm, row) if pre else row
        hidden = times(inside, layer.w1) + layer.b1
        hidden = np.array([activation(config.activation, value) for value in hidden])
        y = row + times(hidden, layer.w2) + layer.b2
        result.append(layer_norm(config, layer.feed_forward_norm, y) if post else y)
    return result


def levels(
    config: Any, parameters: Any, tokens: Any, dtype: Any = np.float64, attend: Any = attention
) -> list[Array]:
    """y^(0) to y^(L) at every position, each of shape (n, width)."""
    x = embedded(config, parameters, [int(token) for token in tokens], dtype)
    kept = [np.array(x)]
    for k in range(config.layers):
        x = transformer_layer(config, parameters.layers[k], k, x, attend)
        kept.append(np.array(x))
    return kept


def activations(config: Any, parameters: Any, tokens: Any, dtype: Any = np.float64) -> Array:
    """y^(L) at every position, shape (n, width)."""
    return levels(config, parameters, tokens, dtype)[-1]


def output(
    config: Any, parameters: Any, tokens: Any, dtype: Any = np.float64, attend: Any = attention
) -> Array:
    """The readout of the activations, mapped to logits where there is a head."""
    y = levels(config, parameters, tokens, dtype, attend)[-1]
    positions = {"last": [len(y) - 1], "mean": range(len(y))}.get(config.readout, [config.readout])
    row = np.zeros(config.width, dtype)
    for position in positions:
        row = row + y[position] / len(positions)
    return row if config.logits is None else times(row, parameters.head) + parameters.head_bias


# Flips


def norm_of(change: Array, norm: str) -> float:
    """The l1, l2 or l-infinity norm of a vector."""
    sizes = [abs(float(value)) for value in change]
    return {"l1": math.fsum(sizes), "l2": math.hypot(*sizes), "linf": max(sizes)}[norm]


def flips(config: Any, tokens: Any) -> list[tuple[int, int]]:
    """Every flip (position from 0, symbol): each position but the readout's, each other symbol of the alphabet.

    An end-of-sequence symbol is neither put in nor taken out.
    """
    n = len(tokens)
    readout = {"last": n - 1, "mean": None}.get(config.readout, config.readout)
    pairs = []
    for position in range(n):
        if position == readout or tokens[position] >= config.alphabet_size:
            continue
        for symbol in range(config.alphabet_size):
            if symbol != tokens[position]:
                pairs.append((position, symbol))
    return pairs


def flip_norms(
    config: Any,
    parameters: Any,
    tokens: Any,
    norm: str = "l2",
    outputs: list[int] | None = None,
    pairs: list[tuple[int, int]] | None = None,
    dtype: Any = np.float64,
) -> dict[tuple[int, int], float]:
    """The norm of the output's change under every flip, or under those of `pairs`, by (position, symbol)."""
    before = output(config, parameters, tokens, dtype)
    norms = {}
    for position, symbol in flips(config, tokens) if pairs is None else pairs:
        flipped = [int(token) for token in tokens]
        flipped[position] = symbol
        change = output(config, parameters, flipped, dtype) - before
        norms[position, symbol] = norm_of(change if outputs is None else change[outputs], norm)
    return norms
