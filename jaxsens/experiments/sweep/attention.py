"""Attention statistics of a sweep's points: the `[attention]` table, and what a point keeps of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from pydantic import ConfigDict

from jaxsens.base.strict import STRICT
from jaxsens.experiments.sweep.sources import ModelSource
from jaxsens.models.transformer.config import TransformerConfig
from jaxsens.sensitivity.rows.attention_statistics import attention_statistics, mean_of_known

ROW_STATISTICS = ("largest", "entropy", "first")

ATTENTION_STATISTICS = (*ROW_STATISTICS, "flipped")
"""What is kept of every layer and head, as means over all rows that see a key; with "_read" appended, of the row that
is read. "flipped" is the mean weight on a key that was flipped."""

ATTENTION_COLUMNS = (
    *("variant", "n", "seed", "layer", "head"),
    *ATTENTION_STATISTICS,
    *(f"{name}_read" for name in ATTENTION_STATISTICS),
)
"""The columns of attention.csv: a row for each point, layer and head, which are 0-based."""

AttentionValues = dict[str, list[list[float | None]]]
"""Statistics by name, layer and head; None where a layer has fewer heads, or no row sees a key."""


@dataclass(frozen=True)
class AttentionTable:
    """The `[attention]` table. Transformers get these statistics; other models have no attention.

    Attributes:
        rows: which rows figures are of: "all", their mean, or "read", the row that is read. The table has both.
        heads: what figures show of a layer's heads: their "median", or "each".
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    rows: Literal["all", "read"] = "all"
    heads: Literal["median", "each"] = "median"


def has_attention(source: ModelSource) -> bool:
    """Whether the attention of a sweep's model is visible."""
    return isinstance(source.network, TransformerConfig)


def attention_of(
    model: Any, tokens: Int[np.ndarray, "inputs n"], inputs: Int[np.ndarray, " flips"], positions: Any
) -> AttentionValues:
    """Returns the statistics of a model, averaged over its inputs in float64.

    Args:
        model: a transformer.
        tokens: the inputs.
        inputs: the input of each flip.
        positions: the position of each flip.
    """
    found: dict[str, list[np.ndarray]] = {}
    for k, word in enumerate(tokens):
        flipped = np.unique(np.asarray(positions)[inputs == k])
        for name, values in _of_word(model, word, flipped).items():
            found.setdefault(name, []).append(values)
    return {name: _plain(mean_of_known(np.stack(each, axis=-1))) for name, each in found.items()}


def _of_word(
    model: Any, word: Int[np.ndarray, " n"], flipped: Int[np.ndarray, " k"]
) -> dict[str, np.ndarray]:
    """Returns the statistics of one input, each (layers, heads)."""
    known = attention_statistics(model, word)
    row = None if known.readout == "mean" else -1 if known.readout == "last" else int(known.readout)
    found = {name: known.mean(name) for name in ROW_STATISTICS}
    found["flipped"] = mean_of_known(known.received[..., flipped])
    for name in ROW_STATISTICS:
        values = getattr(known, name)
        found[f"{name}_read"] = found[name] if row is None else values[..., row].astype(np.float64)
    found["flipped_read"] = mean_of_known(known.read[..., flipped])
    return found


def _plain(values: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(one) else float(one) for one in layer] for layer in values]
