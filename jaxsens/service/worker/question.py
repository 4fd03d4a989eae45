"""What a request asks: a model by its name, an input, and the objects of `flip_sensitivity`, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.registry import read
from jaxsens.core.base.strict import checked_by, read_fields
from jaxsens.core.engines.options import AskedEngine, Auto
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import L2, Measure
from jaxsens.core.sweeps.placement_table import PlacementTable

OUTPUTS = ("hidden", "logits", "labels")

MOST_BYTES = 2**20
"""The bytes of the longest body that is read."""

MOST_INPUTS = 1024
"""The inputs of one question."""


def _tokens(name: str, tokens: Any, problems: Problems) -> Any:
    """Returns the input; what its ids may be, the model says."""
    wanted = "a text, ids, or a list of ids of one length; ask of other texts and lengths one by one"
    if (isinstance(tokens, str) and tokens) or _are_ids(tokens):
        return tokens
    several = isinstance(tokens, list) and bool(tokens) and all(map(_are_ids, tokens))
    if not several or len({*map(len, tokens)}) > 1:
        problems.add("tokens", tokens, wanted)
    elif len(tokens) > MOST_INPUTS:
        problems.add("tokens", f"{len(tokens)} inputs", f"at most {MOST_INPUTS} in one question")
    return tokens


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_id, value))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _readout(name: str, value: object, problems: Problems) -> Any:
    if value is None or value in ("auto", "last", "mean") or (_is_id(value) and int(str(value)) >= 0):
        return value
    problems.add("readout", value, '"auto", "last", "mean", null, or a 0-based position')
    return value


def _object(base: Any) -> Any:
    """Returns the check of a field that holds an object of `flip_sensitivity`."""

    def check(name: str, value: Any, problems: Problems) -> Any:
        return read(base, value, problems, file=True)

    return checked_by(check)


@dataclass(frozen=True)
class Question:
    """A measurement that is asked for. See `jaxsens.flip_sensitivity` for what the fields mean.

    Attributes:
        model: the name of a served model.
        tokens: a text, ids, or a list of ids of one length. A text is a question of its own.
        flips: what is flipped; None for the model's default.
        measure: what is measured of the change in the output.
        engine: how.
        placement: batches and memory.
        readout: where the model reads its output; "auto" for its own place.
        output: of a published model what is read, "hidden", "logits" or "labels"; None for hidden states, or for the
            logits of a log-probability.
    """

    model: Any
    tokens: Annotated[Any, checked_by(_tokens)]
    flips: Annotated[Flips | None, _object(Flips)] = None
    measure: Annotated[Measure, _object(Measure)] = dataclasses.field(default_factory=L2)
    engine: Annotated[AskedEngine, _object(AskedEngine)] = dataclasses.field(default_factory=Auto)
    placement: PlacementTable = dataclasses.field(default_factory=PlacementTable)
    readout: Annotated[int | str | None, checked_by(_readout)] = "auto"
    output: Literal["hidden", "logits", "labels"] | None = None

    @property
    def reads(self) -> str:
        """The output that is read of a published model."""
        return self.output or self.measure.published_output

    def table(self) -> dict[str, Any]:
        """Returns the question as JSON values, without what is left at its default."""
        objects = {"flips": self.flips, "measure": self.measure, "engine": self.engine}
        rest = {"readout": self.readout, "output": self.output}
        defaults = {"readout": "auto", "output": None}
        return {
            "model": self.model,
            "tokens": self.tokens,
            **{name: one.table() for name, one in objects.items() if one is not None},
            **({"placement": place} if (place := self.placement.given()) else {}),
            **{name: value for name, value in rest.items() if value != defaults[name]},
        }

    def shape(self) -> str:
        """Returns what it shares with questions that differ only in their inputs, as a text."""
        table = {name: value for name, value in self.table().items() if name != "tokens"}
        return json.dumps(table, sort_keys=True)


def read_question(body: object, models: Collection[str]) -> Question:
    """Returns the question that a body asks.

    Args:
        body: of a request, as `read_json` returns it.
        models: the names of the served models.

    Raises:
        InputError: listing every error, in the words of `flip_sensitivity`.
    """
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


def read_json(raw: bytes, subject: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        InputError: which begins with `subject`, if it is not JSON in UTF-8, has numbers that JSON has not, or is too
            deep.
    """

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is no number of JSON")

    try:
        found = json.loads(raw.decode("utf-8"), parse_constant=refuse)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise InputError.note("body", f"not JSON in UTF-8 ({why})", subject=subject) from error
    return found
