"""A report as a list of sections, and as one self-contained HTML page with its figures as files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from jaxsens.analysis.figures import ReportFigure
from jaxsens.analysis.panels import png_bytes, svg_bytes
from jaxsens.analysis.tables import ReportTable
from jaxsens.files import write_bytes, write_text
from jaxsens.stopping import check


@dataclass(frozen=True)
class Section:
    """A part of the report under one heading. Whatever is empty is left out."""

    heading: str
    paragraphs: Sequence[str] = ()
    bullets: Sequence[str] = ()
    figures: Sequence[ReportFigure] = ()
    tables: Sequence[ReportTable] = ()
    code: str = ""


@dataclass(frozen=True)
class Report:
    """The content of a page.

    Attributes:
        title: of the page.
        claim: what the experiment is to show; may be empty.
        introduction: its paragraphs.
        warning: what is incomplete; empty if nothing is missing.
        sections: in order.
    """

    title: str
    claim: str
    introduction: Sequence[str]
    warning: str
    sections: Sequence[Section]

    @property
    def figures(self) -> tuple[ReportFigure, ...]:
        """All figures, in order."""
        return tuple(figure for section in self.sections for figure in section.figures)


def write_page(report: Report, folder: Path) -> Path:
    """Writes figures/*.svg, figures/*.png and report.html into a folder, each atomically; returns the page's path."""
    drawings = {}
    for figure in report.figures:
        check()
        drawings[figure.name] = svg_bytes(figure.figure)
        write_bytes(folder / "figures" / f"{figure.name}.svg", drawings[figure.name])
        write_bytes(folder / "figures" / f"{figure.name}.png", png_bytes(figure.figure))
    page = folder / "report.html"
    write_text(page, render(report, drawings))
    return page


def render(report: Report, drawings: Mapping[str, bytes]) -> str:
    """The report as one HTML page that needs no other file, no network and no script.

    drawings: the SVG of each of the report's figures, by the figure's name.
    """
    # Each figure is an image of its own rather than SVG within the page, so that their ids cannot clash.
    sources = {
        name: "data:image/svg+xml;base64," + base64.b64encode(drawing).decode("ascii")
        for name, drawing in drawings.items()
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxsens.analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(report=report, sources=sources)
