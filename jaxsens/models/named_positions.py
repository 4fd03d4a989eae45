"""The position embeddings that configs can name or describe."""

from __future__ import annotations

from jaxsens.models.positions import COMPONENTS, Component, Learned, Limb, PositionTerm, Sinusoidal
from jaxsens.models.score_positions import Alibi, PartialAlibi, PartialRotary, RelativeBias, Rotary

POSITION_TYPES: tuple[type[PositionTerm], ...] = (
    Component,
    Limb,
    Sinusoidal,
    Learned,
    Rotary,
    PartialRotary,
    Alibi,
    PartialAlibi,
    RelativeBias,
)
"""The terms that a config file can describe; a `TransformerConfig` takes `FunctionComponent`s too."""

POSITION_NAMES: dict[str, PositionTerm] = {
    "sinusoidal": Sinusoidal(),
    "learned": Learned(),
    "rotary": Rotary(),
    "partial-rotary": PartialRotary(),
    "alibi": Alibi(),
    "partial-alibi": PartialAlibi(),
    "relative-bias": RelativeBias(),
    **{name: Component(name) for name in COMPONENTS},
}
"""The named position embeddings; "none" is the empty tuple of terms."""
