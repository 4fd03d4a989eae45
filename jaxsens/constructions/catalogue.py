"""What constructions there are, and in which conditions each exists."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jaxsens.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.constructions.compiled import CompiledTransformer
from jaxsens.constructions.conditions import CONDITIONS, Condition, refuse
from jaxsens.constructions.named import DYCK, REFERENCES, construction, names
from jaxsens.errors import Faults, InputError
from jaxsens.logic import LIBRARY

EVERY_CONDITION: tuple[Condition, ...] = tuple(
    Condition(name, autoregressive)  # pyright: ignore[reportArgumentType] - the keys are these names
    for name, autoregressive in itertools.product(CONDITIONS, (False, True))
)

_DESCRIPTIONS = {
    DYCK: "DYCK-k: balanced brackets of k kinds, by the S-RASP program of Yang et al. (2024)",
    "chiang-cholak-parity": "PARITY of Chiang and Cholak (2022): exact at every length",
    "chiang-cholak-first": "FIRST of Chiang and Cholak (2022): exact at every length",
}

_NOTES = {DYCK: "kinds=k chooses how many kinds, 2 by default"} | dict.fromkeys(
    REFERENCES, "reads bits and, last, the symbol 2, as its method prepare(word) makes them"
)


@dataclass(frozen=True)
class Entry:
    """A construction's name, what it computes, and what to beware of ("" if nothing)."""

    name: str
    description: str
    note: str

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that it exists in; none for Chiang and Cholak's, which have options in their place."""
        return tuple(each for each in EVERY_CONDITION if not self.refused(each))

    def refused(self, condition: Condition) -> tuple[str, ...]:
        """Why there is no such network in a condition; empty if there is. No network is made of a formula for that."""
        if self.name in LIBRARY:
            faults = Faults(self.name)
            refuse(LIBRARY[self.name].formula, condition, faults)
            return tuple(faults.messages)
        try:
            construction(self.name, condition.name, autoregressive=condition.autoregressive)
        except InputError as refusal:
            return (str(refusal),)
        return ()

    def build(self, condition: Condition) -> CompiledTransformer:
        """The network in a condition, in float64. Raises InputError where there is none."""
        made = construction(self.name, condition.name, autoregressive=condition.autoregressive)
        if isinstance(made, ReferenceTransformer):
            raise TypeError(f"{self.name} has no conditions")
        return made


def catalogue() -> tuple[Entry, ...]:
    """Every construction, in the order of `names`."""
    return tuple(
        Entry(name, LIBRARY[name].description, LIBRARY[name].note)
        if name in LIBRARY
        else Entry(name, _DESCRIPTIONS[name], _NOTES[name])
        for name in names()
    )
