"""A published model on a text: what `jaxsens measure --pretrained` measures and says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxsens.errors import InputError, collecting
from jaxsens.experiments.single import at_most_of, estimate_facts, place_and_symbol, unresolved_facts
from jaxsens.pretrained.load import load_pretrained
from jaxsens.pretrained.log_probability import LogProbability
from jaxsens.pretrained.model import PretrainedModel
from jaxsens.sensitivity.at_most import told
from jaxsens.sensitivity.candidates import masking, neighbours
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.sensitivity.pieces import in_context
from jaxsens.sensitivity.result import FlipSensitivity


@dataclass(frozen=True, eq=False)
class TextMeasurement:
    """A text, the model that read it, and the result.

    Attributes:
        model: the model.
        text: the text.
        result: its flips.
        about: what was measured of the output, in words; empty for a norm.
    """

    model: PretrainedModel
    text: str
    result: FlipSensitivity
    about: str

    @property
    def title(self) -> str:
        """A page's title."""
        return f"Sensitivity by token: {self.model.name} ({self.model.family})"

    @property
    def signed(self) -> bool:
        """Whether signed changes were measured."""
        return self.result.changes is not None

    def facts(self) -> dict[str, str]:
        """Returns what is said of the measurement, by name."""
        result, view = self.result, self.result.view()
        place = view.position_read(0)
        token = "" if place is None else f", {view.name(int(result.tokens[0, place]))!r}"
        read = "the mean over positions" if place is None else f"position {place}{token}"
        a = self.model.architecture
        sizes = "size of change" if self.signed else result.norm
        part = "" if result.exhaustive else f" of {result.population}"
        output = {"hidden": "hidden rows", "logits": "logits"}[self.model.layered.output]
        return {
            "model": f"{self.model.family}, {a.layers} layers, width {a.width}; {output} in {result.dtype}",
            "tokens": f"{result.n}",
            "read at": read,
            "measured": self.about or f"{view.measure}, {view.unit}",
            "flips": f"{len(result)}{part}",
            "engine": f"{result.engine.name}: {result.engine.reason}",
            f"mean {sizes}": told(result.mean, result.at_most("mean"), 6),
            f"largest {sizes}": told(result.max, result.at_most("max"), 6),
            **unresolved_facts(result.unresolved),
            **{name.replace("_", " "): fact for name, fact in (estimate_facts(result) or {}).items()},
        }

    def top(self, count: int) -> list[dict[str, Any]]:
        """Returns the largest flips, the largest first and the first of equals first, each with its context."""
        result, view = self.result, self.result.view()
        names = [view.name(int(symbol)) for symbol in result.tokens[0]]
        found, resolved = [], result.resolved
        for k in np.argsort(-result.norms, kind="stable")[:count]:
            position, symbol = place_and_symbol(result, int(k))
            places, inserted = np.atleast_1d(position).tolist(), np.atleast_1d(symbol).tolist()
            texts = [in_context(names, place) for place in places]
            found.append(
                {
                    "position": position,
                    "symbol": symbol,
                    "before": texts[0][0],
                    "token": " ".join(token for _, token, _ in texts),
                    "after": texts[-1][2],
                    "replacement": " ".join(map(view.name, inserted)),
                    "value": float(result.values[k]),
                    "exact": bool(result.exact[k]),
                    **(
                        {}
                        if resolved[k]
                        else {"at_most": float(result.norms[k] + result.known_resolution[k])}
                    ),
                }
            )
        return found

    def summary(self, top: int) -> dict[str, Any]:
        """Returns what is said of the measurement as JSON values."""
        result = self.result
        return {
            "n": result.n,
            "flips": len(result),
            "population": result.population,
            "norm": result.norm,
            "readout": result.readout,
            "engine": {"name": result.engine.name, "reason": result.engine.reason},
            "dtype": result.dtype,
            "mean": result.mean,
            "max": result.max,
            "unresolved": result.unresolved,
            "at_most": at_most_of(result),
            "estimate": estimate_facts(result),
            "top": self.top(top),
            "text": self.text,
            "tokens": [int(symbol) for symbol in result.tokens[0]],
            "pieces": self.model.tokens(result.tokens[0].tolist()),
            "model": {"folder": str(self.model.folder), "family": self.model.family},
            "versions": result.versions,
        }


def measure_text(
    folder: Path,
    text: str,
    *,
    output: Literal["hidden", "logits"] | str | None,
    dtype: str,
    readout: str | None,
    log_probability: str | None,
    arguments: Mapping[str, Any],
) -> TextMeasurement:
    """Loads a published model and measures it on a text.

    Args:
        folder: the model's.
        text: the text.
        output: "hidden" or "logits"; None for hidden, or the logits if `log_probability` needs them.
        dtype: "float32" or "float64".
        readout: "cls", "last", "mean" or the digits of a position; None for the model's own.
        log_probability: the token whose log-probability is measured: a text, or "id:" and its number; None for a norm.
        arguments: further ones of `flip_sensitivity`; `candidates` are 8 neighbours by default.

    Raises:
        InputError: naming each unusable argument.
    """
    output = output or ("hidden" if log_probability is None else "logits")
    model = load_pretrained(folder, output=output, dtype=dtype)  # pyright: ignore[reportArgumentType]
    ids = model.encode(text)
    wanted: dict[str, Any] = {"readout": _readout(readout)} if readout is not None else {}
    about = ""
    if log_probability is not None:
        token = token_of(model, log_probability)
        wanted["scalar"] = LogProbability(token)
        about = f"the change of the log-probability of {model.tokens([token])[0]!r}, in nats"
        arguments = {key: value for key, value in arguments.items() if key != "norm"}
    arguments = {"candidates": neighbours(8), **arguments}
    if arguments["candidates"] == masking() and model.mask is None:
        raise InputError(
            "measure: --candidates = 'mask': the model's tokenizer has no mask; give its number, neighbours or delete"
        )
    result = flip_sensitivity(model, ids, **wanted, **arguments)
    return TextMeasurement(model, text, result, about)


def _readout(value: str) -> int | str:
    return 0 if value == "cls" else value if value in ("last", "mean") else int(value)


def token_of(model: PretrainedModel, text: str) -> int:
    """Returns the id of a token that is given as a text, or as "id:" and its number.

    Raises:
        InputError: if the text is not one token, or the model has no such id.
    """
    symbols = model.architecture.symbols
    with collecting("measure") as problems:
        if text.startswith("id:"):
            number = text.removeprefix("id:")
            if number.isascii() and number.isdigit() and int(number) < symbols:
                return int(number)
            problems.add("--log-probability", text, f"id: and a number from 0 to {symbols - 1}")
        else:
            ids = model.encode(text, special=False) if text else []
            if len(ids) == 1:
                return ids[0]
            pieces = ", ".join(map(repr, model.tokens(ids)))
            remedy = f"one token; these are {len(ids)}: {pieces}" if ids else "a token; this is no text"
            problems.add(
                "--log-probability", text, f"{remedy}. A token within a text often begins with a space"
            )
    raise RuntimeError("a token is missing without an error")
