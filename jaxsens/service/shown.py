"""What is drawn and said of a result that is in the store."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxsens.asked.value import Answer
from jaxsens.sensitivity.pictures.picture import fragment
from jaxsens.sensitivity.results.result import FlipSensitivity
from jaxsens.service.worker.question import Question


def as_svg(result: FlipSensitivity) -> bytes:
    """Returns the text with its tokens coloured by sensitivity."""
    return _written(result, "svg")


def as_page(result: FlipSensitivity) -> bytes:
    """Returns the page that `FlipSensitivity.to_html` writes."""
    return _written(result, "html")


def as_fragment(result: FlipSensitivity) -> bytes:
    """Returns the same as a part of a page."""
    return fragment(result.view()).encode()


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
    parts = [repr(question.tokens), *(f"{name}={_call(one)}" for name, one in _objects(question).items())]
    if question.readout != "auto":
        parts.append(f"readout={question.readout!r}")
    if place := question.placement.given():
        inside = ", ".join(f"{name}={value}" for name, value in place.items())
        parts.append(f"placement=jaxsens.Placement({inside})")
    listed = "".join(f"    {part},\n" for part in ("model", *parts))
    return f"{made}result = jaxsens.flip_sensitivity(\n{listed})\nprint(result)\n"


def _objects(question: Question) -> dict[str, Answer]:
    given = {"flips": question.flips, "measure": question.measure, "engine": question.engine}
    default = {"measure": "l2", "engine": "auto"}
    return {
        name: one
        for name, one in given.items()
        if one is not None and one.table() != {"kind": default.get(name)}
    }


def _call(one: Answer) -> str:
    return f"jaxsens.{one!r}"


def _plain(column: np.ndarray) -> list[Any]:
    if np.issubdtype(column.dtype, np.floating):
        return [float(one) if np.isfinite(one) else None for one in column]
    return column.tolist()


def _written(result: FlipSensitivity, ending: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"picture.{ending}"
        (result.to_svg if ending == "svg" else result.to_html)(path)
        return path.read_bytes()
