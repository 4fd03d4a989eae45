"""`SweepResult`: a sweep that was measured, as data frames, a plot, a LaTeX table and a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas

from jaxsens.core.base.errors import collecting
from jaxsens.core.base.files import try_writing_to
from jaxsens.core.base.inputs import choice
from jaxsens.core.base.strict import naming_arguments, typed_arguments
from jaxsens.core.report.data import SweepData
from jaxsens.core.report.fits import SUMMARY_COLUMNS, signed
from jaxsens.core.sweeps.job import Failure
from jaxsens.core.sweeps.sweep import row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LEGEND: dict[str, Any] = {
    "loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": 2, "fontsize": "small", "handlelength": 2.5,
    "columnspacing": 1.0,
}  # fmt: skip
"""Below the axes: inside it would hide lines in a figure of one column."""


@dataclass(frozen=True, eq=False)
class SweepResult(SweepData):
    """A sweep: a row for each model, length and seed in `points`, and in `exponents` how statistics scale with n.

    `jaxsens.sweep` returns it, and `jaxsens.load_sweep` reads it from a folder.

    Attributes:
        failures: the points that `jaxsens.sweep` could not measure, each with the reason. A folder does not keep them.
    """

    failures: tuple[Failure, ...] = ()

    @cached_property
    def exponents(self) -> pandas.DataFrame:
        """A row for each `variant` and `statistic`, as in summary.csv, with one column more.

        `exponent` is e of statistic ~ n^e, the mean over seeds of the slope on logarithmic axes; `ci_low` and `ci_high`
        are the ends of its 95 % interval over seeds. `points` and `seeds` count what entered the fit, of `values` in
        all; `zeros`, `bounds` and `unresolved` count what was left out: exact zeros, values that are only bounds, and
        values that the arithmetic does not resolve. `settled` says whether the slopes between successive lengths bear
        the exponent out (False if there is no exponent), and `growth`, in words, what happens as n grows.
        """
        rows = [row_of(fit, SUMMARY_COLUMNS) | {"growth": fit.growth.value} for fit in self.fits]
        return pandas.DataFrame(rows, columns=[*SUMMARY_COLUMNS, "growth"])

    @naming_arguments
    @typed_arguments
    def plot(
        self,
        statistic: str = "mean",
        axes: Any = None,
        variants: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        title: str | None = None,
    ) -> Axes:
        """Draws a statistic against the length, on logarithmic axes: a line for each model, and powers of n in grey.

        Lines are medians over seeds, strokes go from the lowest to the highest seed. A grey strip at the bottom holds
        exact zeros. Fonts and their sizes are those of Matplotlib's settings.

        Args:
            statistic: a statistic of the sweep.
            axes: where to draw; None makes a new figure. The legend stands below: give axes of a figure whose layout
                makes room for it, as `layout="constrained"` does.
            variants: the models to draw, in this order; None for all.
            labels: what the legend calls them, by name. Others keep their names.
            title: above the panel; None for none.

        Returns:
            The axes, for changes of your own and for `axes.figure.savefig`.

        Raises:
            InputError: for a statistic or a model that the sweep has not, and for something else than axes.
        """
        from matplotlib import pyplot
        from matplotlib.axes import Axes

        from jaxsens.core.report.page import sensitivity_panel
        from jaxsens.core.report.panels import draw_panel, panel_legend

        with collecting("plot") as problems:
            choice("statistic", statistic, self.plan.statistics, problems)
            if axes is not None and not isinstance(axes, Axes):
                problems.add("axes", axes, "Matplotlib axes, or None for a new figure")
            for name, value in (("variants", variants), ("labels", labels)):
                for one in value or ():
                    choice(name, one, self.names, problems)
            for name, label in (labels or {}).items():
                if not isinstance(label, str):
                    problems.add(f"labels.{name}", label, "a text")
        chosen, norm = self.names if variants is None else variants, self.plan.measurement.measure.kind
        called = {name: (labels or {}).get(name, name) for name in chosen}
        panel = sensitivity_panel(self.points, called, statistic=statistic, norm=norm)
        if axes is None:
            _, axes = pyplot.subplots(figsize=(5.0, 3.6), layout="constrained")
        draw_panel(axes, panel, title or "")
        axes.spines[["top", "right"]].set_visible(False)
        panel_legend(axes, panel, **_LEGEND)
        return axes

    def to_latex(self) -> str:
        """Returns `exponents` as a table for a paper: a row for each model and statistic, with the interval and whether
        the exponent is settled. The table needs `\\usepackage{booktabs}`."""
        lines = [
            r"\begin{tabular}{llrcl}",
            r"\toprule",
            r"model & statistic & exponent of $n$ & 95\,\% interval & settled \\",
            r"\midrule",
        ]
        for fit in self.fits:
            power = f"${signed(fit.exponent)}$" if fit.points else "---"
            interval = f"${fit.interval()}$" if fit.interval() else "---"
            settled = ("yes" if fit.settled else "no") if fit.points else latex_text(fit.growth.value)
            cells = (latex_text(fit.variant), latex_text(fit.statistic), power, interval, settled)
            lines.append(" & ".join(cells).replace("\N{MINUS SIGN}", "-") + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])

    @naming_arguments
    @typed_arguments
    def report(
        self,
        directory: str | os.PathLike[str],
        *,
        format: Literal["svg", "png", "pdf"] = "svg",
        width: Literal["page", "one", "two"] = "page",
    ) -> Path:
        """Writes report.html, its figures and its tables into a directory, each file atomically.

        The page needs no other file and no network. The report of an unfinished sweep says what is missing.

        Args:
            directory: of the report; it is made if it is not there.
            format: of the files in figures/. Text stays text in SVG, and fonts in PDF are embedded as Type 42.
            width: of the files in figures/: as on the "page", or as wide as "one" column of a paper (3.25 inches) or
                "two" (6.75).

        Returns:
            The path of the page.

        Raises:
            InputError: for a directory that cannot be written to, another format, or another width.
        """
        from jaxsens.core.report.report import write_report

        with collecting("report") as problems:
            try:
                try_writing_to(Path(directory))
            except OSError as error:
                problems.add("directory", directory, f"a directory that can be written to ({error})")
        return write_report(self, directory, format, width)

    def __repr__(self) -> str:
        done = f"{len(self.metadata)} of {len(self.plan.points)} points"
        return "\n".join([f"SweepResult of {done}", *map(str, self.fits)])

    def _repr_html_(self) -> str:
        return self.exponents.to_html(index=False, float_format="%.3g")


def latex_text(text: str) -> str:
    """A text with the characters escaped that LaTeX takes for commands."""
    commands = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(commands.get(one, f"\\{one}" if one in "&%$#_{}" else one) for one in text)
