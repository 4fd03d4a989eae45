"""What does not go together with flips that change the length of inputs: `[measure] edit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxsens.errors import Problems
from jaxsens.experiments.bounds import Bounds
from jaxsens.experiments.points import Measurement
from jaxsens.sensitivity.adapters import measurable
from jaxsens.sensitivity.candidates import Wanted, select


def check_edit(measure: Measurement | None, bounds: Bounds | None, problems: Problems) -> None:
    """Notes what does not go together with the edit."""
    if measure is None:
        return
    if measure.times is not None and measure.edit != "repeat":
        problems.add("measure.times", measure.times, 'only for edit = "repeat": leave it out')
    if measure.edit == "replace":
        return
    if measure.estimates:
        remedy = (
            "estimates are of replaced symbols only: give no exact_up_to, and another engine than first-order"
        )
        problems.add("measure.edit", measure.edit, remedy)
    if bounds is not None:
        remedy = "[bounds] are those of replaced symbols: leave the table out"
        problems.add("measure.edit", measure.edit, remedy)


def check_edited(
    where: str, build: Callable[[], Any], measure: Measurement | None, problems: Problems
) -> None:
    """Notes a model whose output cannot be compared with that of an edited input."""
    if measure is None or measure.edit == "replace":
        return
    own, nothing = Problems(""), np.zeros((0, 0), np.int32)
    select(Wanted(candidates=measure.candidates), measurable(build()), nothing, own)
    problems.extend(own, prefix=f"measure.edit: {where}: ")
