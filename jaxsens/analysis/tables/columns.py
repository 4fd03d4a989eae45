"""The attention statistics of a sweep, their columns in attention.csv, and which of them figures show."""

from __future__ import annotations

from typing import Protocol

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


class Shown(Protocol):
    """The options of an `[attention]` table that figures go by."""

    @property
    def rows(self) -> str:
        """Which rows figures are of: "all", their mean, or "read"."""
        ...

    @property
    def heads(self) -> str:
        """What figures show of a layer's heads: their "median", or "each"."""
        ...
