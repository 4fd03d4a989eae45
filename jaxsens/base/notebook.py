"""What notebooks show of a result: a heading, a table of names and values, and a sentence on how to read it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def facts(heading: str, rows: Mapping[str, object], note: str = "") -> str:
    """Returns HTML, with every text escaped. Numbers have four digits; colours are those of the notebook."""
    cells = "".join(
        f'<tr><th style="text-align:left;font-weight:normal">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(_shown(value))}</td></tr>'
        for name, value in rows.items()
    )
    told = f"<p>{escape(note)}</p>" if note else ""
    return f"<div><p><strong>{escape(heading)}</strong></p><table><tbody>{cells}</tbody></table>{told}</div>"


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
