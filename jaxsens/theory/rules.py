"""What theory reads of a model's parts: one rule for each kind, and a refusal by name of every other kind.

Lemma 5, certified bounds and `restrict` share these rules. The checker of restrictions does not: it has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxsens.errors import Problems, no_rule, rule_for
from jaxsens.models.config import LayerConfig, TransformerConfig
from jaxsens.models.given import instead_of
from jaxsens.models.parameters import NormParameters, TransformerParameters, needed
from jaxsens.models.positions import AddedTerm, Alibi, CoordinateTerm, Learned, Rotary, ScoreTerm
from jaxsens.models.transformer import Transformer
from jaxsens.models.weighting import SOFTMAXES, SinkSoftmax, Softmax, Weighting

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
"""Of every mask: from the 0-based row positions to the first visible key and the one after the last."""


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
            ("mask", layer.mask, tuple(_VISIBLE)),
            ("score", layer.scores, SCORES),
            ("layer normalisation", layer.layer_norm, LAYER_NORMS),
            ("activation", layer.activation, ACTIVATIONS),
        ):
            if kind not in known:
                raise no_rule(consumer, family, kind, known)
        score_terms(consumer, layer)
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


def visible_keys(consumer: str, mask: str, n: int) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Of every row: the first key that it sees, and the one after the last. Every mask shows a run of keys."""
    start, stop = rule_for(consumer, "mask", mask, _VISIBLE)(np.arange(n))
    return np.broadcast_to(start, n), np.broadcast_to(stop, n)


def visible(
    consumer: str, mask: str, n: int, queries: Int[np.ndarray, " rows"], keys: Int[np.ndarray, " keys"]
) -> Bool[np.ndarray, "rows keys"]:
    """Which keys each query sees, both by position."""
    start, stop = visible_keys(consumer, mask, n)
    return (start[queries][:, None] <= keys) & (keys < stop[queries][:, None])


def score_terms(consumer: str, layer: LayerConfig) -> tuple[Rotary | None, Alibi | None]:
    """The position embeddings that enter a layer's scores: the one that turns, the one that penalises."""
    rotary, alibi = None, None
    for term in layer.position_scores:
        match term:
            case Rotary():
                rotary = term
            case Alibi():
                alibi = term
            case _:
                raise no_rule(consumer, "position term", term, (Rotary, Alibi))
    return rotary, alibi


def rounded(values: Float[np.ndarray, "*shape"], dtype: str) -> Float[np.ndarray, "*shape"]:
    """Constants as the forward pass has them, made in float64 and rounded once to the model's dtype; float64."""
    return values.astype(dtype).astype(np.float64)


def position_parts(
    consumer: str, config: TransformerConfig, parameters: TransformerParameters, n: int
) -> list[Float[np.ndarray, "n width"]]:
    """What each position embedding adds to the symbols' at length n: the model's own numbers, in float64."""
    parts, row = [], 0
    for term in config.position_terms:
        if isinstance(term, AddedTerm):
            parts.append(rounded(term.values(n, config.width), config.dtype))
        elif isinstance(term, Learned):
            parts.append(np.asarray(needed(parameters.learned, "learned"), np.float64)[:n])
        elif isinstance(term, CoordinateTerm):
            vector = np.asarray(needed(parameters.components, "components"), np.float64)[row]
            parts.append(rounded(term.values(n), config.dtype)[:, None] * vector)
            row += 1
        elif not isinstance(term, ScoreTerm):  # which enters the scores instead, see `score_terms`
            raise no_rule(consumer, "position term", term, POSITION_TERMS)
    return parts


def inverse_temperatures(consumer: str, layer: LayerConfig, n: int, dtype: str) -> Float[np.ndarray, " n"]:
    """1/tau of every query row of a softmax layer: the model's own rounded numbers, in float64."""
    weighting = layer.weighting
    if not isinstance(weighting, Softmax | SinkSoftmax):
        raise no_rule(consumer, "weighting", weighting, SOFTMAXES)
    lengths = np.full(n, n) if weighting.by == "length" else np.arange(1, n + 1)
    return rounded(np.asarray(weighting.inverse_temperature(lengths)), dtype)


def norm_where(there: bool, norm: NormParameters | None) -> NormParameters | None:
    """The parameters of a layer normalisation at a place that has one; None where there is none.

    Raises:
        TypeError: if it is there and has no parameters: a bound that left it out would be too small.
    """
    return needed(norm, "layer normalisation") if there else None
