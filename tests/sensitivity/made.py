"""Results made by hand, for tests of what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxsens.asked.engines import AskedEngine
from jaxsens.asked.flips import Substitute
from jaxsens.asked.measures import Measure
from jaxsens.asked.request import Request
from jaxsens.errors import Problems
from jaxsens.asked.value import read
from jaxsens.sensitivity.engine import EngineChoice
from jaxsens.sensitivity.flip_table import FlipTable
from jaxsens.sensitivity.result import FlipSensitivity, Run


def read_object(base: Any, value: Any) -> Any:
    """The object that a value stands for."""
    problems = Problems("made")
    found = read(base, value, problems)
    problems.raise_if_any()
    return found


def made(
    values: Any,
    *,
    measure: Any = "l2",
    engine: str = "vmap",
    readout: Any = None,
    inputs: Any = None,
    positions: Any = None,
    symbols: Any = None,
    alphabet: Sequence[int] = (0, 1),
    tokens: Any = None,
    populations: Sequence[int] | None = None,
    requested: int | None = None,
    resolution: Any = 0.0,
    dtype: str = "float64",
    **fields: Any,
) -> FlipSensitivity:
    """A result with these values: of one input with a flip a position, if nothing else is said.

    Args:
        values: of the flips.
        populations: the number of flips of each input, drawn or not; by default those that are there.
        requested: the number of flips that were asked for, of a result of one input.
        others: as in results.
    """
    values = np.asarray(values)
    count = len(values)
    inputs = np.zeros(count, int) if inputs is None else np.asarray(inputs)
    tokens = np.zeros((1, count), np.int32) if tokens is None else np.asarray(tokens)
    each = np.bincount(inputs, minlength=len(tokens))
    table = FlipTable(
        inputs,
        np.arange(count) if positions is None else np.asarray(positions),
        np.ones(count, int) if symbols is None else np.asarray(symbols),
        each if populations is None else np.asarray(populations),
        tuple(alphabet),
    )
    asked = Request(
        flips=Substitute(2),
        measure=read_object(Measure, measure),
        engine=read_object(AskedEngine, engine),
        readout=readout,
        outputs=None,
        model="model",
        weights="weights",
        program=None,
        counts=tuple(each.tolist()) if requested is None else (requested,),
    )
    return FlipSensitivity(
        values,
        np.broadcast_to(np.asarray(resolution, float), values.shape).copy(),
        table,
        tokens,
        asked,
        EngineChoice(engine, "asked for"),
        Run(dtype, {}),
        **fields,
    )
