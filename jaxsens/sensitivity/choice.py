"""Which engine measures a model, and why."""

from __future__ import annotations

from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.engine import Engine, EngineChoice
from jaxsens.sensitivity.vmap_engine import VmapEngine

ENGINES: tuple[str, ...] = ("vmap",)
"""The engines that can be asked for by name."""


def choose(
    subject: Measurable, name: str, norm: str, outputs: tuple[int, ...] | None
) -> tuple[Engine, EngineChoice]:
    """The engine `name` ("auto": the one that fits best) for a model, with the reason."""
    reason = "asked for" if name == "vmap" else "one forward pass a flip serves every model"
    return VmapEngine(norm, outputs, subject.apply), EngineChoice("vmap", reason)
