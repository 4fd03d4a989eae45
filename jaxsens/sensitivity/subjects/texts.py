"""Texts as inputs of models that encode them."""

from __future__ import annotations

from typing import Any

from jaxsens.asked.measures import LogProbability, Measure
from jaxsens.base.errors import InputError
from jaxsens.models.transformer.layered import LayeredModel


def encoded(model: Any, tokens: Any) -> Any:
    """Returns the ids of a text, or of each text of a list, if the model encodes texts; anything else unchanged."""
    encode = getattr(model, "encode", None) if isinstance(model, LayeredModel) else None
    if encode is None:
        return tokens
    if isinstance(tokens, str):
        return encode(tokens)
    if isinstance(tokens, list | tuple) and tokens and all(isinstance(one, str) for one in tokens):
        return [encode(one) for one in tokens]
    return tokens


def with_token(model: Any, measure: Measure) -> Measure:
    """Returns the measure with the number and the name of its token, or of its label."""
    if not isinstance(measure, LogProbability):
        return measure
    output_of = getattr(model, "output_of", None) if isinstance(model, LayeredModel) else None
    if output_of is not None:
        return LogProbability(*output_of(measure.token))
    if isinstance(measure.token, str):
        raise InputError(
            f"flip_sensitivity: measure = {measure!r}: this model encodes no text; give the token's id"
        )
    return measure
