"""What is drawn and said of a result that is in the store."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from jaxsens.core.results.pictures.picture import page
from jaxsens.core.results.pictures.text_picture import picture_bytes
from jaxsens.core.results.result import FlipSensitivity

_TITLE = "Sensitivity by token"


def as_svg(result: FlipSensitivity) -> bytes:
    """Returns the text with its tokens coloured by sensitivity."""
    return picture_bytes(result.view(), None, _TITLE, "svg")


def as_page(result: FlipSensitivity) -> bytes:
    """Returns the page that `FlipSensitivity.to_html` writes."""
    return page(result.view(), title=_TITLE).encode()


def as_fragment(result: FlipSensitivity) -> bytes:
    """Returns the same as a part of a page."""
    return page(result.view()).encode()


def as_json(result: FlipSensitivity) -> bytes:
    """Returns the columns of a result: what is not finite is null."""
    table = result.to_pandas()
    columns = {name: _plain(table[name].to_numpy()) for name in table.columns}
    told = {
        "tokens": result.tokens.tolist(),
        "pieces": result.pieces,
        "readout": result.readout,
        "dtype": result.dtype,
        "flips": columns,
    }
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _plain(column: np.ndarray) -> list[Any]:
    if np.issubdtype(column.dtype, np.floating):
        return [float(one) if np.isfinite(one) else None for one in column]
    return column.tolist()
