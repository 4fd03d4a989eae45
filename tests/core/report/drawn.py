"""What a drawn figure shows, for tests: its texts, where they stand, and its axes."""

from __future__ import annotations

from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def axes_titled(figure: Figure, title: str) -> Axes:
    """The axes with this title, be it a title or an annotation above."""
    for axes in figure.axes:
        if any(text.get_text() == title for text in axes.findobj(Text)):
            return axes
    raise AssertionError(f"no axes titled {title!r}")


def y_labels(axes: Axes) -> dict[str, float]:
    """The labels of the vertical axis that are in sight, with their values."""
    low, high = axes.get_ylim()
    marks = zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    return {
        label.get_text(): float(value) for label, value in marks if low <= value <= high and label.get_text()
    }


def clashes(figure: Figure) -> list[str]:
    """Texts that overlap one another or stick out of the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and _is_drawn(text, figure):
            boxes.append((text.get_text(), text.get_window_extent(renderer)))
    found = [
        f"{name!r} sticks out"
        for name, box in boxes
        if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox.x1 or box.y1 > figure.bbox.y1
    ]
    for (name, box), (other_name, other) in combinations(boxes, 2):
        width = min(box.x1, other.x1) - max(box.x0, other.x0)
        height = min(box.y1, other.y1) - max(box.y0, other.y0)
        if width > 1 and height > 1:
            found.append(f"{name!r} overlaps {other_name!r}")
    return found


def _is_drawn(text: Text, figure: Figure) -> bool:
    """Whether the text is of axes that are shown, and no tick label beyond their limits."""
    for axes in figure.axes:  # a tick's label does not always know its axes
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if text in (tick.label1, tick.label2):
                    return axes.get_visible() and low <= tick.get_loc() <= high
    return text.axes is None or text.axes.get_visible()
