"""What theory reads of a model's parts: one rule for each kind, and a refusal by name of every other kind.

Lemma 5, certified bounds and `restrict` share these rules. The checker of restrictions does not: it has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, no_rule, rule_for
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
        model: as the user gave it.
        problems: takes the errors.
        why: why another weighting cannot be served.
        known: the weightings that can be.

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
