"""Points: what is measured at one (variant, n, seed), and the key under which its numbers are found again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from jaxsens.experiments.sources import ModelSource
from jaxsens.experiments.words import Inputs
from jaxsens.inputs import is_count
from jaxsens.sensitivity.choice import ENGINES
from jaxsens.strict import STRICT

FORMAT = 1
"""Raised when the meaning of an expanded config, or of the numbers behind it, changes."""


def _known_engine(name: str) -> str:
    if name not in ("auto", *ENGINES):
        raise ValueError(f"should be one of auto, {', '.join(ENGINES)}")
    return name


def _outputs(value: object) -> object:
    """A list of coordinates sorted, each once."""
    if value in ("designated", "all"):
        return value
    if not isinstance(value, list) or not value or not all(is_count(one) for one in value):
        raise ValueError('should be "designated", "all" or a list of coordinates, from 0 on')
    return tuple(sorted(set(value)))


Engine = Annotated[str, AfterValidator(_known_engine)]
Outputs = Annotated[Literal["designated", "all"] | tuple[int, ...], BeforeValidator(_outputs)]


@dataclass(frozen=True)
class Measurement:
    """The `[measure]` table: how flips are measured.

    Attributes:
        engine: as `flip_sensitivity` takes it.
        norm: of the change of the output.
        sample: measure so many flips a point, drawn by the point's seed; all of them if not given.
        batch_size: flips at a time. Like the budget it changes no number beyond rounding, and no key.
        memory_budget: bytes of temporary memory, where no batch_size is given.
        outputs: the coordinates of the output that enter the norm: those that the model designates (all of them in
            networks with random weights), all, or a list, from 0 on.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    engine: Engine = "auto"
    norm: Literal["l2", "l1", "linf"] = "l2"
    sample: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    memory_budget: Annotated[int, Field(ge=1)] | None = None
    outputs: Outputs = "designated"


@dataclass(frozen=True)
class Point:
    """One (variant, n, seed) of a sweep."""

    variant: str
    n: int
    seed: int
    source: ModelSource
    inputs: Inputs
    measure: Measurement

    def tokens(self) -> Int[np.ndarray, "inputs n"]:
        """The inputs: the same for every variant."""
        return self.inputs.tokens(self.source.symbols, self.n, self.seed)

    @cached_property
    def expanded(self) -> dict[str, Any]:
        """Everything that determines the numbers, defaults written out, and nothing else.

        `outputs` came later: it stands there only where it is given, so that older points keep their keys.
        """
        chosen = self.measure.outputs
        outputs = {} if chosen == "designated" else {"outputs": chosen if chosen == "all" else [*chosen]}
        return {
            "format": FORMAT,
            "model": self.source.expanded(),
            "n": self.n,
            "seed": self.seed,
            "inputs": self.inputs.expanded(self.source.symbols, self.n),
            "measure": {
                "engine": self.measure.engine,
                "norm": self.measure.norm,
                "sample": self.measure.sample,
                **outputs,
            },
        }

    @cached_property
    def key(self) -> str:
        """SHA-256 of the expanded config as canonical JSON."""
        return hashlib.sha256(canonical(self.expanded).encode()).hexdigest()

    def path(self, directory: Path) -> Path:
        """Where a sweep directory keeps the point: folders as Hive and pandas read them."""
        folder = directory / "points" / f"variant={self.variant}" / f"n={self.n}"
        return folder / f"seed={self.seed}-{self.key[:12]}.parquet"

    def __str__(self) -> str:
        return f"{self.variant} n={self.n} seed={self.seed}"


def canonical(value: Any) -> str:
    """JSON with sorted keys and no blanks: the same text for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
