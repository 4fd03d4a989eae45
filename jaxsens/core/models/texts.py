"""Texts as inputs of models that encode them."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.core.models.transformer.layered import LayeredModel


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


def pieces_of(
    model: Any, given: Any, words: Int[np.ndarray, "batch n"]
) -> tuple[tuple[str, ...], ...] | None:
    """Returns what stands for each symbol in the texts that were given, or in what the model decodes of ids; None for a
    model that encodes no text."""
    pieces = getattr(model, "pieces", None) if isinstance(model, LayeredModel) else None
    if pieces is None:
        return None
    rows = [given] if isinstance(given, str) else given if isinstance(given[0], str) else words.tolist()
    return tuple(tuple(pieces(row)) for row in rows)
