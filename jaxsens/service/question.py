"""What a request asks: a model by its name, an input, and the objects of `flip_sensitivity`, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.registry import Option, read
from jaxsens.core.base.strict import checked_by, read_fields
from jaxsens.core.engines.options import MANY_CALLS, AskedEngine, Auto
from jaxsens.core.engines.request import Request
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import L2, Measure
from jaxsens.core.sweeps.inputs import PlacementTable

MOST_INPUTS = 1024
"""The inputs of one question."""

_Id = Annotated[int, Field(gt=-(2**31), lt=2**31)]
_Readout = Literal["auto", "last", "mean"] | Annotated[int, Field(ge=0, lt=2**31)] | None
_READOUTS = '"auto", "last", "mean", null, or a 0-based position'
_Ids = Annotated[list[_Id], Field(min_length=1, fail_fast=True)]
_INPUTS = (
    f"a text, ids, or at most {MOST_INPUTS} inputs of one length; ask of other texts and lengths one by one"
)
_Inputs = Annotated[list[_Ids], Field(min_length=1, max_length=MOST_INPUTS, fail_fast=True)]


def _typed(kind: Any, wanted: str) -> Any:
    """Returns the check of a field by its type, with one remedy for every mistake."""
    adapter = TypeAdapter(kind, config=ConfigDict(strict=True))

    def check(name: str, value: Any, problems: Problems) -> Any:
        try:
            adapter.validate_python(value)
        except ValidationError:
            problems.add(name, value, wanted)
        return value

    return dataclasses.replace(checked_by(check), json_schema_input_type=kind)


def _object(base: Any) -> Any:
    """Returns the check of a field that holds an object of `flip_sensitivity`."""
    return checked_by(lambda name, value, problems: read(base, value, problems, file=True))


@dataclass(frozen=True)
class Question:
    """A measurement that is asked for.

    Attributes:
        model: the name of a served model.
        tokens: a text, ids, or a list of ids of one length. A text is a question of its own.
        flips, measure, engine, placement, readout: as for `jaxsens.flip_sensitivity`.
        output: of a published model what is read, "hidden", "logits" or "labels"; None for hidden states, or for the
            logits of a log-probability.
    """

    model: Any
    tokens: Annotated[Any, _typed(Annotated[str, Field(min_length=1)] | _Ids | _Inputs, _INPUTS)]
    flips: Annotated[Flips | None, _object(Flips)] = None
    measure: Annotated[Measure, _object(Measure)] = dataclasses.field(default_factory=L2)
    engine: Annotated[AskedEngine, _object(AskedEngine)] = dataclasses.field(default_factory=Auto)
    placement: PlacementTable = dataclasses.field(default_factory=PlacementTable)
    readout: Annotated[int | str | None, _typed(_Readout, _READOUTS)] = "auto"
    output: Literal["hidden", "logits", "labels"] | None = None

    @property
    def reads(self) -> str:
        """The output that is read of a published model."""
        return self.output or self.measure.published_output

    @property
    def request(self) -> Request:
        """The arguments of `flip_sensitivity`: one of many calls that share their programs."""
        return Request(self.flips, self.measure, self.engine.shared_by(MANY_CALLS), self.readout)

    def table(self) -> dict[str, Any]:
        """Returns the question as JSON values, without what is left at its default."""
        table = {name: one.table() if isinstance(one, Option) else one for name, one in vars(self).items()}
        table["placement"] = self.placement.given()
        usual = {"flips": None, "placement": {}, "readout": "auto", "output": None}
        return {name: value for name, value in table.items() if name not in usual or value != usual[name]}

    def shape(self) -> str:
        """Returns what it shares with questions that differ only in their inputs, as a text."""
        return json.dumps({**self.table(), "tokens": None}, sort_keys=True)


def read_question(body: object, models: Collection[str]) -> Question:
    """Returns the question that a body, as `read_json` returns it, asks of the served models. Raises InputError,
    listing every error, in the words of `flip_sensitivity`."""
    with collecting("flip_sensitivity") as problems:
        if not isinstance(body, dict):
            problems.add("body", body, 'a JSON object such as {"model": "name", "tokens": "a text"}')
            body = {}
        # Null stands for a default, but for the readout of a model that has no rows.
        given = {key: value for key, value in body.items() if value is not None or key == "readout"}
        fields = read_fields(Question, {"model": None, "tokens": None, **given}, (), problems)
        if not isinstance(name := given.get("model"), str) or name not in models:
            problems.add("model", name, f"one of the models that are served: {', '.join(sorted(models))}")
    return Question(**fields)


def read_json(raw: bytes) -> Any:
    """Returns the value of a JSON text. Raises InputError if it is not JSON in UTF-8, has numbers that JSON has not, or
    is too deep."""
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InputError.note("body", f"not JSON in UTF-8 ({error})", subject="flip_sensitivity") from error
