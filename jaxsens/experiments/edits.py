"""What flips do in a sweep besides replacing a symbol: `[measure] edit`."""

from __future__ import annotations

from typing import Literal, get_args

from jaxsens.errors import no_rule
from jaxsens.sensitivity.candidates import Deletion, Insertion, Repetition, deletion, insertion, repetition

EditName = Literal["replace", "delete", "insert", "repeat"]
"""The names of `[measure] edit`."""

Edited = Deletion | Insertion | Repetition | None
"""What `flip_sensitivity` takes as `candidates` for them."""


def candidates_of(edit: EditName, times: int) -> Edited:
    """What `flip_sensitivity` takes for an edit. `times` is the number of copies that a repetition adds."""
    match edit:
        case "replace":
            return None
        case "delete":
            return deletion()
        case "insert":
            return insertion()
        case "repeat":
            return repetition(times)
        case _:
            raise no_rule("sweep", "edit", edit, get_args(EditName))
