"""What the configs of all networks have: the symbols that they read, and how fields that several have are checked."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, Self

from jaxsens.core.base import inputs
from jaxsens.core.base.strict import checked_by
from jaxsens.core.models.parts import initialisation
from jaxsens.core.models.parts.initialisation import Initialisation

Dtype = Literal["float32", "float64"]
"""The dtype of parameters and all arithmetic."""

ReadoutPlace = Annotated[int | Literal["last", "mean"], checked_by(inputs.config_readout)]
"""Where a network reads its output: "last", a 0-based position, or "mean" over positions."""

Drawn = Annotated[str | Initialisation, checked_by(initialisation.checked)]
"""How random weights are distributed."""


class NetworkConfig:
    """Base class of the configs of networks. Each is a frozen dataclass with these fields and its own.

    Attributes:
        kind: the kind of network, as a `[model]` table and the entry points `jaxsens.model_kinds` name it.
        lasting: tells `base.programs` that one object is used for many programs.
    """

    kind: ClassVar[str] = ""
    lasting: ClassVar[bool] = True

    alphabet_size: int
    width: int
    logits: int | None
    end_symbol: bool
    dtype: Dtype
    readout: int | Literal["last", "mean"]

    @property
    def end_of_sequence(self) -> int | None:
        """The end-of-sequence symbol's id, `alphabet_size`, or None if the alphabet has none."""
        return self.alphabet_size if self.end_symbol else None

    @property
    def vocabulary_size(self) -> int:
        """Rows of the embedding: the alphabet and the end-of-sequence symbol."""
        return self.alphabet_size + int(self.end_symbol)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, and validates it."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]
