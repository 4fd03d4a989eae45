"""Constructed models as a sweep's: formulas that are compiled, and constructions called by their name.

Mathematics gives their weights: the seed of a point changes its inputs and not its model.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from jaxsens.constructions.chiang_cholak import ReferenceTransformer
from jaxsens.constructions.compiled import CompiledTransformer
from jaxsens.constructions.compiler import compile_formula
from jaxsens.constructions.conditions import Read
from jaxsens.constructions.named import construction
from jaxsens.errors import Faults, InputError
from jaxsens.experiments.inputs import Symbols
from jaxsens.experiments.network_source import EVERY, Weights
from jaxsens.logic import parse, symbols
from jaxsens.models.transformer import check_runs
from jaxsens.strict import check_fields, field_names, messages, note_faults

Model = CompiledTransformer | ReferenceTransformer
Dtype = Literal["float32", "float64"]

_DESIGNATED: Mapping[Read, str] = {
    "output": "the coordinate of the result",
    "before-rounding": "what the last rounding reads",
    "everything": EVERY,
}
COMMON = ("condition", "autoregressive", "dtype", "read")
"""The keys that every constructed model has, with the same meaning."""


class Constructed(abc.ABC):
    """What the kinds of constructed models have in common."""

    weights: ClassVar[Weights] = "constructed"
    read: Read

    @cached_property
    def model(self) -> Model:
        """The model. Made at the first use; raises `InputError` with every reason why it cannot be."""
        return self._made()

    @abc.abstractmethod
    def _made(self) -> Model: ...

    @property
    def symbols(self) -> Symbols:
        """The alphabet it reads."""
        return Symbols(self.model.config.alphabet_size, self.model.config.end_of_sequence)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its symbols 0, 1, 2 ...; these numbers where it gives none."""
        return getattr(self.model, "alphabet", tuple(map(str, range(self.model.config.alphabet_size))))

    @property
    def bounded(self) -> bool:
        """Whether its position embeddings stay bounded as n grows."""
        return self.model.config.bounded

    @property
    def designated(self) -> str:
        """In words, which coordinates of the output are measured where the sweep does not say."""
        return _DESIGNATED[self.read]

    @property
    def output_size(self) -> int:
        """How many coordinates its output has."""
        return self.model.config.logits or self.model.config.width

    @property
    def exact_length(self) -> int | None:
        """The longest input that it is exact for in its dtype; None where that is not known."""
        return self.model.exact_length

    def check_length(self, n: int, faults: Faults) -> None:
        """Notes why it cannot read inputs of length n, if it cannot."""
        check_runs(self.model.config, n, faults)

    def build(self, seed: int) -> Model:
        """The model, the same for every seed."""
        return self.model


@dataclass(frozen=True)
class FormulaModel(Constructed):
    """A formula compiled under a condition.

    Attributes:
        formula: its text, as `jaxsens.logic` prints it.
        alphabet: the names of the symbols 0, 1, 2 ...
        condition: see `jaxsens.compile_formula`, as for the rest.
        autoregressive: the future-masked construction, which does not depend on n.
        dtype: of parameters and arithmetic.
        read: which coordinates of the output are measured where the sweep does not say.
    """

    formula: str
    alphabet: tuple[str, ...]
    condition: str = "temperature"
    autoregressive: bool = False
    dtype: Dtype = "float64"
    read: Read = "output"

    def _made(self) -> Model:
        return compile_formula(
            self.formula,
            self.alphabet,
            self.condition,  # pyright: ignore[reportArgumentType] - checked there
            autoregressive=self.autoregressive,
            dtype=self.dtype,
            read=self.read,
        )

    def expanded(self) -> dict[str, Any]:
        """Everything that determines the model, as JSON values."""
        return {"type": "FormulaModel", **dataclasses.asdict(self), "alphabet": list(self.alphabet)}


@dataclass(frozen=True)
class ConstructionModel(Constructed):
    """A construction called by its name.

    Attributes:
        construction: its name, see `jaxsens.construction`, as for the rest.
        condition: None for the construction's own.
        autoregressive, dtype, read: as in `FormulaModel`.
        options: what the construction has beside these, sorted by name.
    """

    construction: str
    condition: str | None = None
    autoregressive: bool = False
    dtype: Dtype = "float64"
    read: Read = "output"
    options: tuple[tuple[str, Any], ...] = ()

    def _made(self) -> Model:
        return construction(
            self.construction,
            self.condition,  # pyright: ignore[reportArgumentType] - checked there
            autoregressive=self.autoregressive,
            dtype=self.dtype,
            read=self.read,
            **dict(self.options),
        )

    def expanded(self) -> dict[str, Any]:
        """Everything that determines the model, as JSON values; with the condition that it has if none was given."""
        promise = getattr(self.model, "promise", None)
        return {
            "type": "ConstructionModel",
            **dataclasses.asdict(self),
            "condition": self.condition if promise is None else promise.condition,
            "options": {k: list(value) if isinstance(value, tuple) else value for k, value in self.options},
        }


def read_formula(table: Mapping[str, Any], path: str, faults: Faults) -> FormulaModel | None:
    """The compiled formula that a `[model]` table describes, or None after noting every fault below `path`."""
    noted = Faults(path)
    given = dict(table)
    alphabet = given.get("alphabet", [])
    if isinstance(alphabet, str | list):
        given |= {"alphabet": tuple(alphabet)} if "alphabet" in given else {}
    else:
        remedy = "a string, each character a symbol, or a list of the symbols' names"
        noted.add(f"{path}.alphabet", alphabet, remedy)
        given["alphabet"] = ()
    given = _checked(FormulaModel, given, field_names(FormulaModel), path, noted)
    if not isinstance(alphabet, str | list):
        del given["alphabet"]
    # The compiler says what is wrong with the rest even where there is no formula or no alphabet to go with it.
    text, used = _canonical(given.get("formula", "true"))
    source = FormulaModel(**{"alphabet": tuple(sorted({"0", "1"} | used)), **given, "formula": text})
    _build(source, path, noted)
    faults.extend(noted)
    return None if noted else source


def read_construction(table: Mapping[str, Any], path: str, faults: Faults) -> ConstructionModel | None:
    """The construction that a `[model]` table names, or None after noting every fault below `path`."""
    noted = Faults(path)
    own = ("construction", *COMMON)
    given = _checked(ConstructionModel, {key: table[key] for key in own if key in table}, own, path, noted)
    options: list[tuple[str, Any]] = []
    for name in sorted(table.keys() - {*own}):
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if any(isinstance(part, dict | list) for part in (value if isinstance(value, tuple) else (value,))):
            noted.messages.append(f"{path}.{name}: no option of a construction is a table or a list of lists")
        else:
            options.append((name, value))
    source = None
    if "construction" in given:
        source = ConstructionModel(**given, options=tuple(options))
        _build(source, path, noted)
    faults.extend(noted)
    return None if noted else source


def _canonical(text: str) -> tuple[str, frozenset[str]]:
    """A formula's text as `jaxsens.logic` prints it, and its symbols. A text that cannot be read stays as it is: the
    compiler explains it."""
    try:
        formula = parse(text)
    except InputError:
        return text, frozenset()
    return str(formula), frozenset(symbols(formula))


def _checked(
    kind: type, table: Mapping[str, Any], keys: tuple[str, ...], path: str, faults: Faults
) -> dict[str, Any]:
    """The keys of a table that are known and of the right type; the others are noted."""
    try:
        check_fields(kind, table)
    except ValidationError as error:
        note_faults(error, path, faults, {"": keys})
        refused = {str(detail["loc"][0]) for detail in error.errors(include_url=False)}
        return {key: value for key, value in table.items() if key not in refused}
    return dict(table)


def _build(source: FormulaModel | ConstructionModel, path: str, faults: Faults) -> None:
    """Notes why the model cannot be made, if it cannot."""
    try:
        _ = source.model
    except InputError as error:
        found = messages(error)
        if isinstance(source, ConstructionModel):
            found = [f"construction{text[4:]}" if text.startswith("name = ") else text for text in found]
        faults.messages += [f"{path}.{message}" for message in found]
