"""A published model on a text: what `jaxsens measure --pretrained` measures and says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxsens.asked.measures import LogProbability
from jaxsens.experiments.single.single import at_most_of, estimate_facts, place_and_symbol, unresolved_facts
from jaxsens.pretrained.load import load_pretrained
from jaxsens.pretrained.model import PretrainedModel
from jaxsens.sensitivity.flip_sensitivity import flip_sensitivity
from jaxsens.sensitivity.pictures.pieces import in_context
from jaxsens.sensitivity.results.at_most import told
from jaxsens.sensitivity.results.result import FlipSensitivity


@dataclass(frozen=True, eq=False)
class TextMeasurement:
    """A text, the model that read it, and the result.

    Attributes:
        model: the model.
        text: the text.
        result: its flips.
    """

    model: PretrainedModel
    text: str
    result: FlipSensitivity

    @property
    def title(self) -> str:
        """A page's title."""
        return f"Sensitivity by token: {self.model.name} ({self.model.family})"

    @property
    def signed(self) -> bool:
        """Whether signed changes were measured."""
        return self.result.measure.signed

    @property
    def about(self) -> str:
        """What was measured of the output, in words."""
        measure = self.result.measure
        if isinstance(measure, LogProbability) and isinstance(measure.token, int):
            return f"the change of the log-probability of {self.model.tokens([measure.token])[0]!r}, in nats"
        return f"{measure.symbol}, {measure.unit}"

    def facts(self) -> dict[str, str]:
        """Returns what is said of the measurement, by name."""
        result, view = self.result, self.result.view()
        place = view.position_read(0)
        token = "" if place is None else f", {view.name(int(result.tokens[0, place]))!r}"
        read = "the mean over positions" if place is None else f"position {place}{token}"
        a = self.model.architecture
        sizes = "size of change" if self.signed else result.measure.kind
        part = "" if result.exhaustive else f" of {result.population}"
        output = {"hidden": "hidden rows", "logits": "logits"}[self.model.layered.output]
        return {
            "model": f"{self.model.family}, {a.layers} layers, width {a.width}; {output} in {result.dtype}",
            "tokens": f"{result.n}",
            "read at": read,
            "measured": self.about,
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
                    **({} if resolved[k] else {"at_most": float(result.norms[k] + result.resolution[k])}),
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
            "measure": result.measure.table(),
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
            "versions": result.run.versions,
        }


def measure_text(
    folder: Path,
    text: str,
    *,
    output: Literal["hidden", "logits"] | str | None,
    dtype: str,
    readout: str | None,
    arguments: Mapping[str, Any],
) -> TextMeasurement:
    """Loads a published model and measures it on a text.

    Args:
        folder: the model's.
        text: the text.
        output: "hidden" or "logits"; None for hidden, or the logits if a log-probability is measured.
        dtype: "float32" or "float64".
        readout: "cls", "last", "mean" or the digits of a position; None for the model's own.
        arguments: further ones of `flip_sensitivity`.

    Raises:
        InputError: naming each unusable argument.
    """
    output = output or ("logits" if isinstance(arguments.get("measure"), LogProbability) else "hidden")
    model = load_pretrained(folder, output=output, dtype=dtype)  # pyright: ignore[reportArgumentType]
    wanted: dict[str, Any] = {"readout": _readout(readout)} if readout is not None else {}
    return TextMeasurement(model, text, flip_sensitivity(model, model.encode(text), **wanted, **arguments))


def _readout(value: str) -> int | str:
    return 0 if value == "cls" else value if value in ("last", "mean") else int(value)
