"""Attention statistics of a sweep's points: the `[attention]` table, and what a point keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict

from jaxsens.analysis.statistics import attention_statistics, mean_of_known
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.strict import STRICT
from jaxsens.core.engines.engine import Cost
from jaxsens.core.engines.vmap import ELEMENTWISE, compiling
from jaxsens.core.models.adapters import Model
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.layers import layer_operations
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.core.sweeps.points import PointMetadata
from jaxsens.core.sweeps.sources import ModelSource
from jaxsens.core.sweeps.tables import PointTable

ROW_STATISTICS = ("largest", "entropy", "first")

ATTENTION_STATISTICS = (*ROW_STATISTICS, "flipped")
"""What is kept of every layer and head, as means over all rows that see a key; with "_read" appended, of the row that
is read. "flipped" is the mean weight on a key that was flipped."""

AttentionValues = dict[str, list[list[float | None]]]
"""Statistics by name, layer and head; None where a layer has fewer heads, or no row sees a key."""


@dataclass(frozen=True)
class AttentionTable(PointTable):
    """The `[attention]` table. Transformers get these statistics; other models have no attention.

    Attributes:
        rows: which rows figures are of: "all", their mean, or "read", the row that is read. The table has both.
        heads: what figures show of a layer's heads: their "median", or "each".
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    columns = (
        *("variant", "n", "seed", "layer", "head"),  # a row for each point, layer and head, which are 0-based
        *ATTENTION_STATISTICS,
        *(f"{name}_read" for name in ATTENTION_STATISTICS),
    )
    rows: Literal["all", "read"] = "all"
    heads: Literal["median", "each"] = "median"

    def check(self, sources: Mapping[str, ModelSource], keys: Mapping[str, Any], problems: Problems) -> None:
        if not any(map(self.applies, sources.values())):
            remedy = "no variant is a transformer, whose attention can be looked into: leave the table out"
            problems.note("attention", remedy)

    def applies(self, source: ModelSource) -> bool:
        return isinstance(source.network, TransformerConfig)

    def of_point(self, model: Any, result: FlipSensitivity) -> AttentionValues:
        """Returns the statistics of a transformer, averaged over its inputs in float64."""
        of_words: list[dict[str, np.ndarray]] = []
        for k, word in enumerate(result.tokens):
            known = attention_statistics(model, word)
            flipped = np.unique(np.asarray(result.positions)[result.inputs == k])
            row = None if known.readout == "mean" else -1 if known.readout == "last" else int(known.readout)
            found = {name: known.mean(name) for name in ROW_STATISTICS}
            found["flipped"] = mean_of_known(known.received[..., flipped])
            for name in ROW_STATISTICS:
                values = getattr(known, name)
                found[f"{name}_read"] = found[name] if row is None else values[..., row].astype(np.float64)
            found["flipped_read"] = mean_of_known(known.read[..., flipped])
            of_words.append(found)
        names = of_words[0].keys()
        means = {name: mean_of_known(np.stack([one[name] for one in of_words], axis=-1)) for name in names}
        return {
            name: [[None if np.isnan(one) else float(one) for one in layer] for layer in values]
            for name, values in means.items()
        }

    def table_rows(self, point: PointMetadata, values: AttentionValues) -> Iterator[dict[str, Any]]:
        of_point = {"variant": point.variant, "n": point.n, "seed": point.seed}
        for layer, heads in enumerate(values["largest"]):
            for head in range(len(heads)):
                found = {name: each[layer][head] for name, each in values.items()}
                if any(value is not None for value in found.values()):
                    yield of_point | {"layer": layer, "head": head} | found

    def sections(self, data: Any, results: Sequence[Mapping[str, Any]]) -> list[Any]:
        from jaxsens.analysis.tables.report import attention_sections

        return attention_sections(data, results, self.rows, self.heads)

    def cost(self, model: Model, n: int) -> Cost:
        """Returns that of hard attention."""
        config = model.config
        if config is None:
            return Cost(0.0, 0.0, 0, ELEMENTWISE, compiling=0.0)
        operations = sum(layer_operations(config, k, n) for k in range(config.layers))
        return Cost(operations, 0.0, 0, ELEMENTWISE, compiling=compiling(config.layers))
