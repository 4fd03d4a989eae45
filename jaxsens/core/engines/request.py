"""What is asked of a measurement, and the one place that decides whether a model and its inputs have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.registry import read
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.flips.selection import Selection, default_flips, select
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model

Valid = tuple[Model, Selection, Measure, AskedEngine]


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

    def validated(self, model: Model, words: Int[np.ndarray, "batch n"], problems: Problems) -> Valid:
        """Returns model, flips, measure and engine as they are measured, after adding all mistakes.

        The inputs are checked, and (0, 0) if they cannot be used.
        """
        before, objects, selection = len(problems), self.read(problems), None
        flips, measure = default_flips(model) if self.flips is None else objects.flips, objects.measure
        model = model.reading(self.readout, words.shape[1], problems)
        if flips is not None:
            selection = select(flips, model, words, problems)
        if len(problems) == before:
            try:
                measure = measure.resolved(model.output_of)
            except InputError as error:
                problems.include(error.problems)
        valid: Any = model, selection, measure, objects.engine  # None only after a mistake, which is raised
        return valid
