"""What is drawn and said of a result that is in the store."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxsens.core.results.pictures.picture import page
from jaxsens.core.results.result import FlipSensitivity
from jaxsens.service.worker.question import Question


def as_svg(result: FlipSensitivity) -> bytes:
    """Returns the text with its tokens coloured by sensitivity."""
    return _written(result.to_svg, "picture.svg")


def as_page(result: FlipSensitivity) -> bytes:
    """Returns the page that `FlipSensitivity.to_html` writes."""
    return _written(result.to_html, "picture.html")


def as_fragment(result: FlipSensitivity) -> bytes:
    """Returns the same as a part of a page."""
    return page(result.view()).encode()


def as_json(result: FlipSensitivity) -> bytes:
    """Returns the columns of a result: what is not finite is null."""
    table = result.to_pandas()
    columns = {name: _plain(table[name].to_numpy()) for name in table.columns}
    told = {
        "tokens": result.tokens.tolist(),
        "readout": result.readout,
        "dtype": result.dtype,
        "flips": columns,
    }
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def as_call(question: Question, models: Mapping[str, str]) -> str:
    """Returns the Python program that measures the same without the service."""
    given = models[question.model]
    if Path(given).is_dir():
        output = f", output={question.reads!r}" if question.reads != "hidden" else ""
        made = f"import jaxsens\n\nmodel = jaxsens.load_pretrained({given!r}{output})\n"
    else:
        module, _, name = given.partition(":")
        made = f"import jaxsens\nfrom {module} import {name.partition('.')[0]}\n\nmodel = {name}()\n"
    parts = [repr(question.tokens)]
    for name in ("flips", "measure", "engine"):
        value, default = getattr(question, name), {"measure": {"kind": "l2"}, "engine": {"kind": "auto"}}
        if value is not None and value.table() != default.get(name):
            parts.append(f"{name}=jaxsens.{value!r}")
    if question.readout != "auto":
        parts.append(f"readout={question.readout!r}")
    if place := question.placement.given():
        inside = ", ".join(f"{name}={value}" for name, value in place.items())
        parts.append(f"placement=jaxsens.Placement({inside})")
    listed = "".join(f"    {part},\n" for part in ("model", *parts))
    return f"{made}result = jaxsens.flip_sensitivity(\n{listed})\nprint(result)\n"


def _plain(column: np.ndarray) -> list[Any]:
    if np.issubdtype(column.dtype, np.floating):
        return [float(one) if np.isfinite(one) else None for one in column]
    return column.tolist()


def _written(write: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()
