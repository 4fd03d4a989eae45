"""What is asked of a measurement, and the one place that decides whether it can be had of a model and its inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import read
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.flips.selection import Selection, default_flips, select
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model


class ValidRequest(NamedTuple):
    """A request without a mistake.

    Attributes:
        model: the model, with the readout that was asked for.
        selection: the flips of the inputs.
        measure: what is measured, with the number of an output for its name.
        engine: the options of the engine.
    """

    model: Model
    selection: Selection
    measure: Measure
    engine: AskedEngine


@dataclass(frozen=True)
class Request:
    """Arguments of `flip_sensitivity` as they are given: objects, or names, tables and shorthands for them."""

    flips: Any = None
    measure: Any = "l2"
    engine: Any = "auto"
    readout: Any = "auto"

    def read(self, problems: Problems) -> Request:
        """Returns the request with objects alone, and None for those that cannot be read. Flips may not be given."""
        flips = None if self.flips is None else read(Flips, self.flips, problems)
        measure, engine = read(Measure, self.measure, problems), read(AskedEngine, self.engine, problems)
        return replace(self, flips=flips, measure=measure, engine=engine)

    def validated(self, model: Model, words: Int[np.ndarray, "batch n"], problems: Problems) -> ValidRequest:
        """Returns what is measured of a model on inputs, and adds all mistakes, in which case it is not to be used.

        The inputs are checked; they are (0, 0) if they cannot be used.
        """
        before, asked = len(problems), self.read(problems)
        flips: Any = default_flips(model) if self.flips is None else asked.flips
        selection: Any = None
        if inputs.readout(self.readout, model.readout, words.shape[1], problems):
            model = model.reading(self.readout)
        if flips is not None:
            selection = select(flips, model, words, problems)
        if len(problems) == before:
            try:
                asked = replace(asked, measure=asked.measure.resolved(model.output_of))
            except InputError as error:
                problems.include(error.problems)
        return ValidRequest(model, selection, asked.measure, asked.engine)
