"""Typesets formulas as MathML while the site is built: pages show them without scripts and without a network."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.util import logging

_TAG = re.compile(r"\s*\\tag\{(.*?)\}")
"""The name of the function that computes a formula, at the right of it."""

_CONVERTER = LatexToMathML(fancy_error=False)


def mathml(node: nodes.Element, displayed: bool) -> str:
    """The MathML of a formula; what cannot be read is a warning with its place, and is shown as it was written."""
    formula = _TAG.sub("", node.astext()).strip()
    try:
        return _CONVERTER.convert_with_local_state(formula, displaystyle=displayed)
    except LatexError as error:
        logging.getLogger(__name__).warning(
            "formula %s: %s", formula, error, location=node
        )
        return f"<code>{html.escape(formula)}</code>"


def visit_inline(self: Any, node: nodes.Element) -> None:
    """Writes a formula in a line."""
    self.body.append(mathml(node, displayed=False))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.Element) -> None:
    """Writes a formula that stands alone."""
    tag = _TAG.search(node.astext())
    name = f'<code class="tag">{html.escape(tag[1])}</code>' if tag else ""
    self.body.append(
        f'<div class="formula"><div>{mathml(node, displayed=True)}</div>{name}</div>\n'
    )
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
