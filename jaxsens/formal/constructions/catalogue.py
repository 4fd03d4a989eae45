"""Every constructed transformer by its name: `jaxsens.construction`, and the conditions in which each one exists."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal, cast

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.programs import DTYPES
from jaxsens.formal.constructions import chiang_cholak, length_independent
from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.formal.constructions.compiled import CompiledTransformer
from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.conditions import (
    CONDITIONS,
    Condition,
    ConditionName,
    Read,
    check_choices,
    refuse,
)
from jaxsens.formal.constructions.dyck import dyck
from jaxsens.formal.logic import LIBRARY

DYCK = "dyck"
LENGTH_INDEPENDENT = "length-independent-parity"
REFERENCES = {"chiang-cholak-parity": chiang_cholak.parity, "chiang-cholak-first": chiang_cholak.first}
"""The exact transformers of Chiang and Cholak (2022), which have options instead of conditions."""

EVERY_CONDITION: tuple[Condition, ...] = tuple(
    Condition(cast("ConditionName", name), autoregressive)
    for name, autoregressive in itertools.product(CONDITIONS, (False, True))
)

_OPTIONS: dict[str, tuple[str, ...]] = {
    DYCK: ("kinds",),
    **dict.fromkeys(REFERENCES, ("layer_norm", "layer_norm_epsilon", "log_length", "sharpness")),
}


def names() -> tuple[str, ...]:
    """The names that `construction` knows: the formulas of `jaxsens.formal.logic`, dyck, the PARITY whose positions
    do not depend on n, and Chiang and Cholak's."""
    return (*LIBRARY, DYCK, LENGTH_INDEPENDENT, *REFERENCES)


def construction(
    name: str,
    /,
    condition: ConditionName | None = None,
    *,
    autoregressive: bool = False,
    dtype: Literal["float32", "float64"] = "float64",
    read: Read = "output",
    **options: Any,
) -> CompiledTransformer | ReferenceTransformer:
    """The constructed transformer of a name: a formula of the library, DYCK-k, or one of Chiang and Cholak's.

    Args:
        name: One of `jaxsens.formal.constructions.catalogue.names()`, such as "parity", "majority", "dyck-1", "dyck",
            "chiang-cholak-parity".
        condition: What makes attention sharp, as for `compile_formula`; "temperature" by default, and "unbounded" for
            "length-independent-parity", which has no other. Chiang and Cholak's have no conditions: their attention is
            softmax over bounded scores, and `log_length` scales it.
        autoregressive, dtype, read: As for `compile_formula`.
        options: For "dyck", `kinds` of brackets (2). For Chiang and Cholak's, `layer_norm`, `layer_norm_epsilon`,
            `log_length` and `sharpness`.

    Raises:
        InputError: For an unknown name, with the known ones; otherwise with every reason why there is no such
            construction in this condition.
    """
    if not isinstance(name, str) or name not in names():
        raise InputError.of(
            "name", name, f"one of {', '.join(names())}; or compile_formula(text)", subject="construction"
        )
    problems = Problems(f'construction "{name}"')
    known = _OPTIONS.get(name, ())
    for option, value in options.items():
        if option not in known:
            problems.add(
                option, value, f"its options are {', '.join(known)}" if known else "it has no options"
            )
    kept = {option: value for option, value in options.items() if option in known}
    common: dict[str, Any] = {"autoregressive": autoregressive, "dtype": dtype, "read": read}
    chosen = "temperature" if condition is None else condition
    try:
        if name in REFERENCES:
            model = REFERENCES[name](**_usable(condition, problems, **common), **kept)
        elif name == LENGTH_INDEPENDENT:
            model = length_independent.parity("unbounded" if condition is None else condition, **common)
        elif name == DYCK:
            model = dyck(**kept, condition=chosen, **common)
        else:
            model = compile_formula(LIBRARY[name].formula, LIBRARY[name].alphabet, chosen, **common)
    except InputError as error:
        if problems:
            problems.include(error.problems)
            problems.raise_if_any()
        raise
    problems.raise_if_any()
    return model


def _usable(condition: Any, problems: Problems, autoregressive: Any, dtype: Any, read: Any) -> dict[str, Any]:
    """The common arguments as Chiang and Cholak's take them. Notes which of them they do not have.

    An argument that cannot be used is replaced, so that errors in the remaining ones are found too.
    """
    if condition is not None:
        problems.add("condition", condition, "leave it out: it has the options log_length and layer_norm")
    if autoregressive:
        problems.add(
            "autoregressive", autoregressive, "it is not future-masked, and its embedding i/N knows N"
        )
    if read == "before-rounding":
        problems.add("read", read, '"output" or "everything": its logit is not rounded')
        read = "output"
    check_choices("temperature", False, dtype, read, problems)
    return {
        "read": "everything" if read == "everything" else "output",
        "dtype": dtype if dtype in DTYPES else "float64",
    }


@dataclass(frozen=True)
class Entry:
    """A construction's name, what it computes, and what to watch for ("" if nothing)."""

    name: str
    description: str
    note: str

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions in which it exists; none for Chiang and Cholak's, which have options instead."""
        return tuple(each for each in EVERY_CONDITION if not self.refused(each))

    def refused(self, condition: Condition) -> tuple[str, ...]:
        """The reasons why there is no such network in a condition; empty if there is one. Does not build formulas."""
        if self.name in LIBRARY:
            problems = Problems(self.name)
            refuse(LIBRARY[self.name].formula, condition, problems)
            return tuple(map(str, problems))
        try:
            construction(self.name, condition.name, autoregressive=condition.autoregressive)
        except InputError as refusal:
            return (str(refusal),)
        return ()

    def build(self, condition: Condition) -> CompiledTransformer:
        """The network in a condition, in float64.

        Raises:
            InputError: If there is none.
        """
        made = construction(self.name, condition.name, autoregressive=condition.autoregressive)
        if isinstance(made, ReferenceTransformer):
            raise TypeError(f"{self.name} has no conditions")
        return made


def catalogue() -> tuple[Entry, ...]:
    """Every construction, in the order of `names`."""
    reads = "reads bits and, last, the symbol 2, as its method prepare(word) makes them"
    return (
        *(Entry(name, entry.description, entry.note) for name, entry in LIBRARY.items()),
        Entry(
            DYCK,
            "DYCK-k: balanced brackets of k kinds, by the S-RASP program of Yang et al. (2026)",
            "kinds=k chooses how many kinds, 2 by default",
        ),
        Entry(
            LENGTH_INDEPENDENT,
            "PARITY in three layers at temperature 1, in which nothing depends on n, not even position embeddings",
            "without the mask only the last row decides",
        ),
        Entry("chiang-cholak-parity", "PARITY of Chiang and Cholak (2022): exact at every length", reads),
        Entry("chiang-cholak-first", "FIRST of Chiang and Cholak (2022): exact at every length", reads),
    )
