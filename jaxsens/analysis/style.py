"""How figures look: colours, markers and dashes that stay apart in black and white, and the files they become."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour-blind readers, without its yellow (too light on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")
DASHES = ((), (6, 2), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1.5), (7, 2, 1.5, 2, 1.5, 2), (10, 3), (4, 2, 1, 2))
GREY = "#767676"

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "jaxsens",  # else the ids inside an SVG are random
    "svg.fonttype": "path",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class LineStyle:
    """How one line is drawn. The three parts each tell lines apart on their own."""

    colour: str
    marker: str
    dashes: tuple[float, ...]


def variant_styles(variants: Sequence[str]) -> dict[str, LineStyle]:
    """One style a variant, by its place in `variants`: give the same order to every figure of a report."""
    return {
        variant: LineStyle(COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)], DASHES[k % len(DASHES)])
        for k, variant in enumerate(dict.fromkeys(variants))
    }


@contextmanager
def figure_settings() -> Iterator[None]:
    """Matplotlib's own defaults with this package's settings for the length of a block, whatever the user's are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in _SETTINGS.items():
            matplotlib.rcParams[name] = value
        yield


def add_heading(figure: Figure, text: str) -> None:
    """A heading at the upper left, on as many lines as the figure's width makes it take."""
    characters_an_inch = 7.3  # of bold text at 14 points
    lines = textwrap.wrap(text, int(characters_an_inch * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), x=0.01, horizontalalignment="left", fontsize=14, fontweight="bold")


def png_bytes(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a PNG file."""
    content = io.BytesIO()
    with figure_settings():
        figure.savefig(content, format="png", dpi=dpi)
    return content.getvalue()


def svg_bytes(figure: Figure) -> bytes:
    """The figure as an SVG file, the same bytes for the same figure: no date, no random ids."""
    content = io.BytesIO()
    with figure_settings():
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
