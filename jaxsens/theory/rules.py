"""What theory reads of a model's parts: one rule for each kind, and a refusal by name of every other kind.

Lemma 5, certified bounds and `restrict` share these rules. The checker of restrictions does not: it has its own.

Norms and Lipschitz constants are in the l2 norm, each enlarged by a margin for rounding. Bounds are natural
logarithms wherever their products may overflow: log 0 is -inf, and -inf plus anything is -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, no_rule, rule_for
from jaxsens.core.base.registry import read
from jaxsens.core.flips.flips import Flips, Substitute
from jaxsens.core.models.parts.masks import AnyMask, SlidingWindow, kind_of_mask
from jaxsens.core.models.parts.positions import AddedTerm, CoordinateTerm, Learned, ScoreTerm
from jaxsens.core.models.parts.score_positions import Alibi, PartialAlibi, PartialRotary, RelativeBias, Rotary
from jaxsens.core.models.parts.weighting import SOFTMAXES, SinkSoftmax, Softmax, Weighting
from jaxsens.core.models.transformer import parameters as parameter_trees
from jaxsens.core.models.transformer.config import LayerConfig, TransformerConfig
from jaxsens.core.models.transformer.module import Transformer, instead_of
from jaxsens.core.models.transformer.parameters import (
    LayerParameters,
    NormParameters,
    TransformerParameters,
    needed,
)

ACTIVATIONS = ("relu", "tanh", "gelu", "silu")
SCORES = ("dot-product", "additive")
LAYER_NORMS = ("none", "pre", "post")
POSITION_TERMS = (AddedTerm, CoordinateTerm, Learned, ScoreTerm)

_VISIBLE: Mapping[str, Callable[[Int[np.ndarray, " n"]], tuple[Any, Any]]] = {
    "none": lambda j: (0, len(j)),
    "future": lambda j: (0, j + 1),
    "past": lambda j: (j, len(j)),
    "strict-future": lambda j: (0, j),
    "strict-past": lambda j: (j + 1, len(j)),
}
"""Of every mask with a name: from the 0-based row positions to the first visible key and the one after the last."""

MASKS = (*_VISIBLE, SlidingWindow)
_THEORY = "theory"
"""Who refuses a part that `known_config` would have refused in its consumer's name."""

ROTATIONS = (Rotary, PartialRotary)
PENALTIES = (Alibi, PartialAlibi)


class ScoreTerms(NamedTuple):
    """The position embeddings that enter a layer's scores: what turns, what penalises distances, what is learned."""

    turns: Rotary | PartialRotary | None
    penalises: Alibi | PartialAlibi | None
    bias: RelativeBias | None

    @property
    def adds(self) -> bool:
        """Whether something is added to the scores that depends on the positions."""
        return self.penalises is not None or self.bias is not None


def known_config(model: object, problems: Problems, wanted: str) -> TransformerConfig | None:
    """The config of a transformer whose parts theory has rules for; None, with a note of the error, for no transformer.

    Weightings are for each consumer to check.

    Raises:
        InputError: naming a part of a kind that has no rule.
    """
    if not isinstance(model, Transformer):
        problems.add("model", type(model).__name__, instead_of(model, wanted))
        return None
    consumer, config = problems.subject, model.config
    for term in config.position_terms:
        if not isinstance(term, POSITION_TERMS):
            raise no_rule(consumer, "position term", term, POSITION_TERMS)
    for k in range(config.layers):
        layer = config.layer(k)
        for family, kind, known in (
            ("mask", kind_of_mask(layer.mask), MASKS),
            ("score", layer.scores, SCORES),
            ("layer normalisation", layer.layer_norm, LAYER_NORMS),
            ("activation", layer.activation, ACTIVATIONS),
            ("output gate", layer.output_gate, ("none",)),
        ):
            if kind not in known:
                raise no_rule(consumer, family, kind, known)
        score_terms(layer, consumer)
    return config


def softmax_config(
    model: object,
    problems: Problems,
    why: Callable[[Weighting], str],
    known: tuple[type[Weighting], ...] = (Softmax,),
) -> TransformerConfig | None:
    """The config of a transformer of softmax layers; None, with a note of the error, for any other model.

    Args:
        problems: takes the errors.
        why, known: why another weighting cannot be served; the weightings that can be.

    Raises:
        InputError: for a transformer with a part that theory has no rule for.
    """
    config = known_config(model, problems, "a jaxsens Transformer: the bound is made from its parameters")
    if config is None:
        return None
    for k in range(config.layers):
        weighting = config.layer(k).weighting
        if not isinstance(weighting, known):
            remedy = f"softmax, at any temperature: {why(weighting)}"
            problems.add(f"weighting of layer {k}", weighting, remedy)
    return config


def output_size(config: TransformerConfig) -> int:
    """How many numbers the model puts out for one input."""
    return config.width if config.logits is None else config.logits


def measured_outputs(model: Any, norm: Any, size: int | None, problems: Problems) -> tuple[int, ...] | None:
    """The coordinates of the output that a norm is of: those it names, or those the model designates; None for all.

    Args:
        model: a jaxsens transformer.
        norm: a `jaxsens.core.measures.Norm`; None after an earlier error.
        size: how many coordinates there are; None if unknown.
        problems: collects the errors.
    """
    coordinates = None if norm is None else norm.coordinates(getattr(model, "outputs", None))
    own = Problems()
    found = inputs.outputs(coordinates, size, own)
    problems.include(own, "measure")
    return found


def visible_keys(mask: AnyMask, n: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Of every row: the first key that it sees, and the one after the last. Every mask shows a run of keys."""
    row = np.arange(n)
    match mask:
        case SlidingWindow():
            start, stop = np.maximum(row - mask.width + 1, 0), row + 1
        case str():
            start, stop = rule_for(_THEORY, "mask", mask, _VISIBLE)(row)
        case _:
            raise no_rule(_THEORY, "mask", mask, MASKS)
    return np.broadcast_to(start, n), np.broadcast_to(stop, n)


def visible(
    mask: AnyMask, n: int, queries: Int[np.ndarray, " rows"], keys: Int[np.ndarray, " keys"]
) -> Bool[np.ndarray, "rows keys"]:
    """Which keys each query sees, both by position."""
    start, stop = visible_keys(mask, n)
    return (start[queries][:, None] <= keys) & (keys < stop[queries][:, None])


def score_terms(layer: LayerConfig, consumer: str = _THEORY) -> ScoreTerms:
    """The position embeddings that enter a layer's scores; a config has at most one of each family."""
    turns, penalises, bias = None, None, None
    for term in layer.position_scores:
        match term:
            case Rotary() | PartialRotary():
                turns = term
            case Alibi() | PartialAlibi():
                penalises = term
            case RelativeBias():
                bias = term
            case _:
                raise no_rule(consumer, "position term", term, (*ROTATIONS, *PENALTIES, RelativeBias))
    return ScoreTerms(turns, penalises, bias)


def added_scores(
    layer: LayerConfig,
    parameters: LayerParameters,
    h: int,
    queries: Int[np.ndarray, " rows"],
    keys: Int[np.ndarray, " keys"],
    dtype: str,
) -> Float[np.ndarray, "rows keys"]:
    """What positions add to head h's scores, by 0-based position: the model's own numbers, in float64."""
    terms, ahead = score_terms(layer), keys - queries[:, None]
    total = np.zeros(ahead.shape)
    if terms.penalises is not None:
        total = total - rounded(terms.penalises.slopes(layer.heads), dtype)[h] * np.abs(ahead)
    if terms.bias is not None:
        table = np.asarray(needed(parameters.relative_bias, "relative_bias"), np.float64)[h]
        total = total + table[terms.bias.bucket(ahead)]
    return total


def largest_added(layer: LayerConfig, parameters: LayerParameters, n: int) -> Float[np.ndarray, " heads"]:
    """A bound on the size of what positions add to a score of each head, at length n."""
    terms, total = score_terms(layer), np.zeros(layer.heads)
    if terms.penalises is not None:
        total = total + terms.penalises.slopes(layer.heads) * n
    if terms.bias is not None:
        total = total + np.abs(np.asarray(needed(parameters.relative_bias, "relative_bias"))).max(axis=1)
    return total


def rounded(values: Float[np.ndarray, "*shape"], dtype: str) -> Float[np.ndarray, "*shape"]:
    """Constants as the forward pass has them, made in float64 and rounded once to the model's dtype; float64."""
    return values.astype(dtype).astype(np.float64)


def position_parts(
    config: TransformerConfig, parameters: TransformerParameters, n: int
) -> list[Float[np.ndarray, "n width"]]:
    """What each position embedding adds to the symbols' at length n: the model's own numbers, in float64."""
    parts = parameter_trees.position_parts(config, parameter_trees.positions_in("float64", parameters), n)
    return [np.asarray(part, np.float64) for part in parts]


def inverse_temperatures(layer: LayerConfig, n: int, dtype: str) -> Float[np.ndarray, " n"]:
    """1/tau of every query row of a softmax layer: the model's own rounded numbers, in float64."""
    weighting = layer.weighting
    if not isinstance(weighting, Softmax | SinkSoftmax):
        raise no_rule(_THEORY, "weighting", weighting, SOFTMAXES)
    lengths = np.full(n, n) if weighting.by == "length" else np.arange(1, n + 1)
    return rounded(np.asarray(weighting.inverse_temperature(lengths)), dtype)


def norm_where(there: bool, norm: NormParameters | None) -> NormParameters | None:
    """The parameters of a layer normalisation at a place that has one; None where there is none.

    Raises:
        TypeError: if it is there and has no parameters: a bound that left it out would be too small.
    """
    return needed(norm, "layer normalisation") if there else None


OUTWARD = 1e-10
"""The relative margin by which every norm is enlarged. Singular values and sums of some thousand squares are accurate
to about 1e-12 of the largest in float64."""

ACTIVATION_LIPSCHITZ: dict[str, float] = {"relu": 1.0, "tanh": 1.0, "gelu": 1.129, "silu": 1.0999}
"""The largest |derivative|: 1.128993 at x = 1.4185 for GELU's tanh form, 1.099839 at x = 2.3994 for SiLU. Second
derivatives are below 1, so a grid of step 1e-5 finds these to 1e-10. Lemma 5 also needs f(0) = 0 and |f(x)| <= |x|,
which hold for all four."""


def activation_lipschitz(name: str) -> float:
    """The Lipschitz constant of an activation; an `InputError` for one that has no constant here."""
    return rule_for("lemma5", "activation", name, ACTIVATION_LIPSCHITZ)


def log(x: np.ndarray | float) -> np.ndarray:
    """The natural logarithm, -inf at 0, without a warning."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(x, np.float64))


def exp(x: float) -> float:
    """e^x, inf where it overflows, without a warning."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.exp(np.float64(x)))


def times(*logs: np.ndarray | float) -> np.ndarray:
    """log of a product from the factors' logarithms. 0 times infinity is 0: an absent term cannot be enlarged."""
    arrays = np.broadcast_arrays(*logs)
    nothing = np.any([np.isneginf(a) for a in arrays], axis=0)
    return np.sum([np.where(nothing, -np.inf, a) for a in arrays], axis=0)


def plus(*logs: np.ndarray | float) -> np.ndarray:
    """log of a sum from the terms' logarithms."""
    return reduce(np.logaddexp, [np.asarray(log, np.float64) for log in logs])


def operator_norm(matrix: Float[np.ndarray, "m k"] | Float[np.ndarray, " d"]) -> float:
    """The largest singular value, or the l2 norm of a vector, computed in float64 and enlarged by `OUTWARD`."""
    m = np.asarray(matrix, np.float64)
    return float(np.linalg.norm(m, 2)) * (1 + OUTWARD) if m.size else 0.0


def log_layer_norm(epsilon: float, norm: NormParameters | None, log_input: float) -> tuple[float, float]:
    """log of how far layer normalisation can stretch a difference, and of a bound on |LN(x)| for |x| <= e^log_input.

    The first is max |scale| / sqrt(epsilon), inf for epsilon = 0. With c = x - mean and s = sqrt(|c|^2/d + epsilon) the
    Jacobian of c/s is (1/s)(1 - c c^T / (d s^2)) times the projection x -> c. The bracket's eigenvalues are 1 and
    epsilon/s^2, so the norm is 1/s at most, and s is least, sqrt(epsilon), where all entries of x are equal: attained.

    The second is max |scale| min(sqrt(d), F / sqrt(epsilon)) + |bias| with F = e^log_input, because |c|/s is at most
    sqrt(d), and at most |c| / sqrt(epsilon). Without parameters x stays as it is.
    """
    if norm is None:
        return 0.0, log_input
    scale, bias = np.asarray(norm.scale, np.float64), np.asarray(norm.bias)
    log_scale, log_steepest = log(np.abs(scale).max() * (1 + OUTWARD)), -0.5 * float(log(epsilon))
    size = min(0.5 * math.log(len(scale)), float(times(log_input, log_steepest)))
    log_bound = plus(times(log_scale, size), log(operator_norm(bias)))
    return float(times(log_scale, log_steepest)), float(log_bound)


def largest_embedding(config: TransformerConfig, parameters: TransformerParameters, n: int) -> float:
    """max |y_j^(0)| over all positions j and all symbols of the vocabulary. O(n vocabulary width)."""
    rows = sum(position_parts(config, parameters, n), np.zeros((n, config.width)))
    symbols = np.asarray(parameters.embedding, np.float64)
    size, own = np.sum(rows**2, axis=1), np.sum(symbols**2, axis=1)
    largest, block = 0.0, max(1, 2**22 // n)
    for start in range(0, len(symbols), block):
        part = slice(start, start + block)
        squares = size[:, None] + own[part] + 2 * rows @ symbols[part].T
        # The three terms may cancel. What rounding leaves of them is far below OUTWARD times their sizes.
        squares = np.maximum(squares, 0) + OUTWARD * (size[:, None] + own[part])
        largest = max(largest, float(squares.max()))
    return math.sqrt(largest) * (1 + OUTWARD)


def log_output_gain(
    parameters: TransformerParameters, width: int, norm: str, outputs: tuple[int, ...] | None = None
) -> float:
    """log of the largest |Delta output|_norm per l2 change 1 of the activation read out.

    With a head W (width, logits): |W|_2 in l2; the largest column norm in linf; in l1 the smaller of the sum of the
    column norms and sqrt(logits) |W|_2. Without a head: 1, 1, sqrt(width). Chosen `outputs` restrict W to their
    columns, and logits and width to their number.
    """
    if parameters.head is None:
        most = width if outputs is None else len(outputs)
        gains = {"l2": 0.0, "linf": 0.0, "l1": 0.5 * math.log(most)}
        return rule_for("lemma5", "norm", norm, gains)
    head = np.asarray(parameters.head, np.float64)
    head = head if outputs is None else head[:, list(outputs)]
    columns = np.linalg.norm(head, axis=0) * (1 + OUTWARD)
    whole = operator_norm(head)
    gains = {"l2": whole, "linf": columns.max(), "l1": min(columns.sum(), math.sqrt(head.shape[1]) * whole)}
    return float(log(rule_for("lemma5", "norm", norm, gains)))


def alphabet_of(
    flips: Any,
    own: int | None,
    vocabulary: int | None,
    problems: Problems,
    *,
    least: int = 2,
    reserved: Sequence[int] = (),
) -> Int[np.ndarray, " symbols"]:
    """Returns the symbols that words are made of, where all words of a length are looked at; empty after an error.

    Args:
        flips: a `Substitute` of an alphabet or ids and nothing else, or what stands for one; None for the alphabet.
        own: the size of the model's alphabet, or None if unknown.
        vocabulary: the number of symbols that the model reads, or None if unknown.
        problems: collects the errors.
        least: how many ids there must be.
        reserved: the symbols of the alphabet that words hold only by name.
    """
    flips = Substitute() if flips is None else read(Flips, flips, problems)
    if flips is None:
        return np.zeros(0, int)
    plain = isinstance(flips, Substitute) and flips.by_position is None
    if not plain or flips.settings().keys() - {"symbols"}:
        problems.add("flips", flips, "symbols alone, such as flips=2: all positions of a word are flipped")
        return np.zeros(0, int)
    if not isinstance(flips.symbols, tuple):
        candidates = inputs.alphabet(cast(int | None, flips.symbols), own, problems)
        return candidates[~np.isin(candidates, np.asarray(reserved, int))]
    symbols = np.array(flips.symbols)
    inputs.check_ids("flips: symbols", symbols, vocabulary, problems)
    if len(symbols) < least:
        problems.add("flips", flips, "at least two symbols: one symbol makes only one word")
    return symbols


def fixed_symbols(value: Any, n: int, vocabulary: int | None, problems: Problems) -> dict[int, int]:
    """Returns the positions fixed to one symbol in all inputs: 0-based position to symbol, sorted by position."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(map(inputs.is_count, (*value, *value.values()))):
        problems.add("fixed", value, "a mapping of 0-based positions to symbol ids, such as {0: 1}")
        return {}
    sound = {}
    for position, symbol in sorted(value.items()):
        if n and position >= n:
            problems.add("fixed", {position: symbol}, f"positions from 0 to {n - 1}")
        elif symbol >= (inputs.LARGEST_ID + 1 if vocabulary is None else vocabulary):
            largest = inputs.LARGEST_ID if vocabulary is None else vocabulary - 1
            problems.add("fixed", {position: symbol}, f"the model reads ids 0 to {largest}")
        else:
            sound[int(position)] = int(symbol)
    return sound
