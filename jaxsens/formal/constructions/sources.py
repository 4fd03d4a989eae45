"""Formulas and constructions as models of a sweep: `formula` and `construction` in a `[model]` table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError, Problem, Problems
from jaxsens.core.base.strict import field_names, later, read_fields
from jaxsens.core.models.config_tables import plain
from jaxsens.core.models.transformer.config import Dtype
from jaxsens.core.sweeps.sources import EVERY, ModelSource, SourceKind
from jaxsens.formal.constructions.catalogue import construction
from jaxsens.formal.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.formal.constructions.compiled import CompiledTransformer
from jaxsens.formal.constructions.compiler import compile_formula
from jaxsens.formal.constructions.conditions import Read
from jaxsens.formal.logic import parse, symbols

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
        self,
        make: Callable[..., Any],
        condition: str | None,
        problems: Problems,
        /,
        **options: Any,
    ) -> ModelSource | None:
        """The source of what `make` makes, or None after noting every reason why it cannot be made.

        `options` are whatever keys a table has, so they may have the names of the other arguments.
        """
        common = {"autoregressive": self.autoregressive, "dtype": self.dtype, "read": self.read}
        try:
            model: CompiledTransformer | ReferenceTransformer = make(condition, **common, **options)
            if self.reweighted is not None and isinstance(model, CompiledTransformer):
                model = model.with_weighting(self.reweighted)
            elif self.reweighted is not None:
                raise InputError(
                    Problem(("weighting",), self.reweighted, "only compiled networks have another")
                )
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
