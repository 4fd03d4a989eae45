"""Every constructed transformer by its name: `jaxsens.construction`, and the conditions in which each one exists;
and formulas and constructions as models of a sweep: `formula` and `construction` in a `[model]` table.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from jaxsens.core.base.errors import InputError, Problem, Problems
from jaxsens.core.base.programs import DTYPES
from jaxsens.core.base.strict import field_names, later, read_fields
from jaxsens.core.models.transformer.config import Dtype
from jaxsens.core.models.transformer.module import plain
from jaxsens.core.sweeps.sources import EVERY, ModelSource, SourceKind
from jaxsens.formal.constructions import chiang_cholak
from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.formal.constructions.compiler import CompiledTransformer, compile_formula
from jaxsens.formal.constructions.conditions import (
    CONDITIONS,
    Condition,
    ConditionName,
    Read,
    check_choices,
    refuse,
)
from jaxsens.formal.constructions.programs import dyck, length_independent_parity
from jaxsens.formal.logic import LIBRARY, parse, symbols

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

    >>> construction("parity", "temperature").accepts("0100")
    True
    """
    if not isinstance(name, str) or name not in names():
        remedy = f"one of {', '.join(names())}; or compile_formula(text)"
        raise InputError.of("name", name, remedy, subject="construction")
    problems = Problems(f'construction "{name}"')
    known = _OPTIONS.get(name, ())
    for option, value in options.items():
        if option not in known:
            remedy = f"its options are {', '.join(known)}" if known else "it has no options"
            problems.add(option, value, remedy)
    kept = {option: value for option, value in options.items() if option in known}
    common: dict[str, Any] = {"autoregressive": autoregressive, "dtype": dtype, "read": read}
    chosen = "temperature" if condition is None else condition
    try:
        if name in REFERENCES:
            model = REFERENCES[name](**_usable(condition, problems, **common), **kept)
        elif name == LENGTH_INDEPENDENT:
            model = length_independent_parity("unbounded" if condition is None else condition, **common)
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
        remedy = "it is not future-masked, and its embedding i/N knows N"
        problems.add("autoregressive", autoregressive, remedy)
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


COMMON = ("condition", "autoregressive", "dtype", "read", "reweighted")
"""The keys that every constructed model has, with the same meaning."""

_READ: Mapping[Read, str] = {
    "output": "the coordinate of the result",
    "before-rounding": "what the last rounding reads",
    "everything": EVERY,
}


@dataclass(frozen=True)
class _Constructed:
    """The keys that formulas and constructions share.

    Attributes:
        autoregressive: the future-masked construction, which does not depend on n.
        dtype: of parameters and arithmetic.
        read: which coordinates of the output are measured if the sweep does not say.
        reweighted: another weighting of the finished network, such as "softmax" for temperature 1; None for its own.
    """

    _: dataclasses.KW_ONLY
    autoregressive: bool = False
    dtype: Dtype = "float64"
    read: Read = "output"
    reweighted: str | None = later(None)

    def source(
        self, make: Callable[..., Any], condition: str | None, problems: Problems, /, **options: Any
    ) -> ModelSource | None:
        """The source of what `make` makes, or None after noting every reason why it cannot be made.

        `options` are whatever keys a table has, so they may have the names of the other arguments.
        """
        common = {"autoregressive": self.autoregressive, "dtype": self.dtype, "read": self.read}
        try:
            model: CompiledTransformer | ReferenceTransformer = make(condition, **common, **options)
            if self.reweighted is not None:
                if isinstance(model, ReferenceTransformer):
                    remedy = "only compiled networks have another"
                    raise InputError(Problem(("weighting",), self.reweighted, remedy))
                model = model.with_weighting(self.reweighted)
        except InputError as error:
            keys = {"weighting": "reweighted", "name": "construction"}
            problems.include(one.renamed(keys) for one in error.problems)
            return None
        return ModelSource(
            weights="constructed",
            network=model.config,
            expanded=plain(self),
            build=lambda n, seed: model,
            given_names=getattr(model, "alphabet", ()),
            designated=_READ[self.read],
            exact_length=model.exact_length,
        )


@dataclass(frozen=True)
class FormulaModel(_Constructed):
    """The table of a formula compiled under a condition.

    Attributes:
        formula: its text, as `jaxsens.formal.logic` prints it.
        alphabet: the names of the symbols 0, 1, 2 ...
        condition: see `jaxsens.compile_formula`, as for the rest.
    """

    formula: str
    alphabet: tuple[str, ...]
    condition: str = "temperature"


@dataclass(frozen=True)
class ConstructionModel(_Constructed):
    """The table of a construction called by its name.

    Attributes:
        construction: its name, see `jaxsens.construction`, as for the rest.
        condition: None for the construction's own.
    """

    construction: str
    condition: str | None = None


def _read_formula(table: Mapping[str, Any], problems: Problems, folder: Path) -> ModelSource | None:
    alphabet, given = table.get("alphabet", []), dict(table)
    if isinstance(alphabet, str):
        given["alphabet"] = list(alphabet)
    elif not isinstance(alphabet, list):
        remedy = "a string, each character a symbol, or a list of the symbols' names"
        problems.add("alphabet", alphabet, remedy)
        given["alphabet"] = []
    sound = read_fields(FormulaModel, given, (), problems)
    # The compiler says what is wrong with the rest even where there is no formula, or no alphabet to go with it.
    text, used = sound.get("formula", "true"), ()
    with suppress(InputError):  # A text that cannot be read stays as it is: the compiler explains it.
        formula = parse(text)
        text, used = str(formula), symbols(formula)
    if "alphabet" not in sound or not isinstance(alphabet, str | list):
        sound["alphabet"] = tuple(sorted({"0", "1", *used}))
    own = FormulaModel(**{**sound, "formula": text})
    make = partial(compile_formula, own.formula, own.alphabet)
    return own.source(make, own.condition, problems)


def _read_construction(table: Mapping[str, Any], problems: Problems, folder: Path) -> ModelSource | None:
    named = {key: value for key, value in table.items() if key in ("construction", *COMMON)}
    sound = read_fields(ConstructionModel, named, (), problems)
    options: dict[str, Any] = {}
    for name in sorted(table.keys() - named.keys()):
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if any(isinstance(part, dict | list) for part in (value if isinstance(value, tuple) else (value,))):
            problems.note((name,), "no option of a construction is a table or a list of lists")
        else:
            options[name] = value
    if "construction" not in sound:
        return None
    own = ConstructionModel(**sound)
    source = own.source(partial(construction, own.construction), own.condition, problems, **options)
    if source is None:
        return None
    # The condition is the one that the model has, also where none was given.
    promise = getattr(source.example, "promise", None)
    condition = own.condition if promise is None else promise.condition
    expanded = {**source.expanded, "condition": condition, "options": plain(options)}
    return dataclasses.replace(source, expanded=expanded)


FORMULA = SourceKind(_read_formula, field_names(FormulaModel))
CONSTRUCTION = SourceKind(_read_construction, ("construction", *COMMON), apart=True)
