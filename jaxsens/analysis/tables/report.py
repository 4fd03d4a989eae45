"""Attention statistics in the report of a sweep: figures against the input length by layer, fits, table and section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsens.core.base.errors import rule_for
from jaxsens.core.report import page
from jaxsens.core.report.data import SweepData, spreads, text
from jaxsens.core.report.fits import LEVEL, ExponentFit, enumeration, fit_exponent
from jaxsens.core.report.panels import Guide, Line, Panel, line_style

if TYPE_CHECKING:
    import pandas

NAMES = {
    "largest": "largest attention weight",
    "entropy": "entropy of attention (nats)",
    "first": "attention on the first key",
    "flipped": "attention on a flipped key",
}
"""The statistics in words, in the order of their figures."""

HEADINGS = {
    "largest": "Does attention stay on single keys as inputs grow? The largest weight of a row",
    "entropy": "How many keys share the attention of a row? Its entropy",
    "first": "Is the first key a sink? The weight that rows give it",
    "flipped": "How much attention does a flipped key get?",
}

ROWS = {"all": "the rows that see any key", "read": "the row that is read, in every layer,"}


@dataclass(frozen=True)
class AttentionData:
    """The attention statistics of a sweep.

    Attributes:
        table: the table of attention.csv.
        variants: those that have some, in the order of the config.
        rows, heads: which are shown, as in an `[attention]` table.
    """

    table: pandas.DataFrame
    variants: Sequence[str]
    rows: str
    heads: str

    def column(self, statistic: str) -> str:
        """The column of a statistic, for the rows that are shown."""
        return statistic if self.rows == "all" else f"{statistic}_read"

    @cached_property
    def lines(self) -> pandas.DataFrame:
        """A row per point, layer and line: the median over heads, or each head. "line" names a line of a panel."""
        if self.heads == "each":
            names = self.table["variant"] + ", head " + (self.table["head"] + 1).astype(str)
            return self.table.assign(line=names)
        keys = ["variant", "n", "seed", "layer"]
        found = self.table.drop(columns="head").groupby(keys, sort=False).median().reset_index()
        return found.assign(line=found["variant"])

    @cached_property
    def places(self) -> tuple[tuple[str, int], ...]:
        """The lines of every layer, with the layer."""
        pairs = dict.fromkeys(zip(self.lines["line"], self.lines["layer"], strict=True))
        return tuple((str(line), int(layer)) for line, layer in pairs)

    def of(self, line: str, layer: int) -> pandas.DataFrame:
        """The rows of a line of a layer's panel."""
        return self.lines.query("line == @line and layer == @layer")

    def fit(self, line: str, layer: int, statistic: str) -> ExponentFit:
        """The power of n of a statistic."""
        rows = self.of(line, layer)
        columns = (rows["n"], rows[self.column(statistic)].astype(float), rows["seed"])
        return fit_exponent(*columns, line, NAMES[statistic])


def attention_sections(
    data: SweepData, results: Sequence[Mapping[str, Any]], rows: str, heads: str
) -> list[page.Section]:
    """The section of a report on the rows of attention.csv; none without rows."""
    import pandas as pd

    if not results:
        return []
    about = text("attention", rows=rule_for("the report", "rows", rows, ROWS))
    table = pd.DataFrame(results)
    shown = AttentionData(table, [name for name in data.names if name in {*table["variant"]}], rows, heads)
    figures = [attention_figure(shown, statistic) for statistic in NAMES]
    return [page.Section("Attention", [about], figures=figures, tables=[attention_table(shown)])]


def attention_figure(data: AttentionData, statistic: str) -> page.ReportFigure:
    """A statistic against the input length: a panel per layer, a line per variant (or head of it)."""
    lengths, name = sorted({int(n) for n in data.table["n"]}), NAMES[statistic]
    panels, log = [], statistic != "entropy"
    for layer in sorted({layer for _, layer in data.places}):
        lines = []
        for k, line in enumerate(line for line, own in data.places if own == layer):
            label = f"{line}:  {page.fitted_power(data.fit(line, layer, statistic))}" if log else line
            values = spreads(data.of(line, layer).assign(variant=line), line, data.column(statistic))
            lines.append(Line(label, line_style(k), values))
        guides = page.powers(lines, (lengths[0], lengths[-1]), {"1/n": -1})
        if not log:
            guides = (Guide("log n", lengths, [float(np.log(n)) for n in lengths]),)
        panels.append(Panel(f"Layer {layer + 1}", name, lines, lengths, guides, log=log))
    heads = "Each head is a line." if data.heads == "each" else "Lines are medians over the heads of a layer."
    scale = text("attention-log" if log else "attention-entropy")
    about = f"{name.capitalize()} against input length for {enumeration(data.variants)}."
    layout: dict[str, Any] = {"columns": min(3, len(panels)), "width": 4.8, "height": 2.8}
    caption = [f"{name.capitalize()} by layer.", heads, text("spread"), scale]
    return page.panel_figure(f"attention-{statistic}", caption, about, panels, HEADINGS[statistic], **layout)


def attention_table(data: AttentionData) -> page.ReportTable:
    """A row per line and layer: the powers of n, and the values at the longest inputs."""
    longest = max(int(n) for n in data.table["n"])

    def value(statistic: str, place: tuple[str, int]) -> str:
        rows = data.of(*place).query(f"n == {longest}")
        found = np.median(rows[data.column(statistic)].to_numpy(np.float64)) if len(rows) else np.nan
        return page.DASH if np.isnan(found) else f"{found:.3g}"  # NaN if a seed has none there

    def power(statistic: str, place: tuple[str, int]) -> str:
        fit = data.fit(*place, statistic)
        return f"{fit.power} ({fit.note})" if fit.power and fit.note else fit.power or page.DASH

    columns: dict[str, Callable[[tuple[str, int]], str]] = {
        "variant": lambda place: place[0],
        "layer": lambda place: str(place[1] + 1),
    }
    for name in NAMES:
        columns[f"{name}, value"] = partial(value, name)
        if name != "entropy":
            columns[f"{name}, power of n"] = partial(power, name)
    caption = text("table-of-attention", n=longest, level=LEVEL)
    return page.table_of(caption, data.places, columns, numeric=len(columns) - 1)
