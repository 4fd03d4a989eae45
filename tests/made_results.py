"""Results made by hand, column by column, for tests of what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsens import FlipSensitivity, Substitute
from jaxsens.core.base.errors import Problems
from jaxsens.core.base.registry import read
from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.measures import Measure
from jaxsens.core.results.measured import Provenance, RequestRecord


def made(
    values: Any,
    *,
    measure: Any = "l2",
    engine: str = "vmap",
    readout: Any = None,
    outputs: tuple[int, ...] | None = None,
    inputs: Any = None,
    positions: Any = None,
    symbols: Any = None,
    alphabet: Sequence[int] = (0, 1),
    tokens: Any = None,
    populations: Sequence[int] | None = None,
    requested: Sequence[int] | None = None,
    resolution: Any = 0.0,
    dtype: str = "float64",
    versions: dict[str, str] | None = None,
    **fields: Any,
) -> FlipSensitivity:
    """A result with these values: of one input with a flip a position, if nothing else is said.

    Of each input `populations` flips exist, drawn or not, and `requested` were asked for; by default those here.
    """
    values, problems = np.asarray(values), Problems("made")
    inputs = np.zeros(len(values), int) if inputs is None else np.asarray(inputs)
    tokens = np.zeros((1, len(values)), np.int32) if tokens is None else np.asarray(tokens)
    each = np.bincount(inputs, minlength=len(tokens))
    columns = (
        np.reshape(np.arange(len(values)) if positions is None else positions, (-1, 1)),
        np.reshape(np.ones(len(values), int) if symbols is None else symbols, (-1, 1)),
        each if populations is None else np.asarray(populations),
    )
    asked = RequestRecord(
        flips=Substitute(),
        measure=read(Measure, measure, problems),
        engine=read(AskedEngine, engine, problems),
        readout=readout,
        outputs=outputs,
        model="a model",
        weights="its weights",
        counts=tuple(each.tolist()) if requested is None else tuple(requested),
    )
    problems.raise_if_any()
    return FlipSensitivity(
        values=values,
        resolution=np.full(len(values), resolution, values.dtype),
        flips=FlipTable(inputs, *columns, tuple(alphabet)),
        tokens=tokens,
        asked=asked,
        engine=EngineChoice(engine, "asked for"),
        run=Provenance(dtype, versions or {}),
        **fields,
    )
