"""Results made by hand, for tests of what is said of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxsens.core.engines.engine import EngineChoice
from jaxsens.core.engines.options import Auto
from jaxsens.core.flips.flip_table import FlipTable
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.measures import L2
from jaxsens.core.results.measured import Provenance, RequestRecord
from jaxsens.core.results.result import FlipSensitivity


def request(**changed: Any) -> RequestRecord:
    """What a measurement of all flips was asked."""
    fields: dict[str, Any] = {
        "flips": Substitute(),
        "measure": L2(),
        "engine": Auto(),
        "readout": None,
        "outputs": None,
        "model": "a model",
        "weights": "its weights",
        "counts": (),
    }
    return RequestRecord(**{**fields, **changed})


def made_result(values: Any, **changed: Any) -> FlipSensitivity:
    """A result of flips to the symbol 1, one at each position of one input, unless fields say otherwise."""
    values = np.asarray(values)
    count = len(values)
    flips = FlipTable(
        np.zeros(count, int), np.arange(count)[:, None], np.ones((count, 1), int), np.array([count]), (0, 1)
    )
    fields: dict[str, Any] = {
        "values": values,
        "resolution": np.zeros(count),
        "flips": flips,
        "tokens": np.zeros((1, count + 1), np.int32),
        "asked": request(counts=(count,)),
        "engine": EngineChoice("vmap", "asked for"),
        "run": Provenance("float32", {}),
    }
    return FlipSensitivity(**{**fields, **changed})


def of_measure(result: FlipSensitivity, measure: Any) -> FlipSensitivity:
    """The same values as those of another measure."""
    return dataclasses.replace(result, asked=dataclasses.replace(result.asked, measure=measure))
