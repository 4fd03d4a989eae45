"""The paragraphs and captions of reports: `templates/texts.md` holds each below a heading that names it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jaxsens.core.base.errors import rule_for


def text(name: str, **values: object) -> str:
    """Returns the text of this name on one line, with `values` in the places that braces mark."""
    return rule_for("the report", "text", name, _texts()).format(**values)


@cache
def _texts() -> dict[str, str]:
    page = files("jaxsens.core.report").joinpath("templates", "texts.md").read_text("utf-8")
    parts = (part.partition("\n") for part in page.split("\n## ")[1:])
    return {name: " ".join(body.split()) for name, _, body in parts}
