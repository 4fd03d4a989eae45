"""Which engine measures a model, and why."""

from __future__ import annotations

from jaxsens.errors import EngineRefusal
from jaxsens.sensitivity.adapters import Measurable
from jaxsens.sensitivity.difference import engine as difference
from jaxsens.sensitivity.difference import folded
from jaxsens.sensitivity.difference.engine import DifferenceEngine
from jaxsens.sensitivity.difference.folded import FoldedEngine
from jaxsens.sensitivity.engine import Engine, EngineChoice
from jaxsens.sensitivity.vmap_engine import VmapEngine

ENGINES: tuple[str, ...] = ("vmap", "difference")
"""The engines that can be asked for by name."""


def choose(
    subject: Measurable, name: str, norm: str, outputs: tuple[int, ...] | None, n: int
) -> tuple[Engine, EngineChoice]:
    """The engine `name` ("auto": the one that fits best) for inputs of length n, with the reason.

    Raises:
        EngineRefusal: if the engine asked for cannot serve the model.
    """
    config = subject.config
    refused = "it is no jaxsens transformer" if config is None else difference.refusal(config)
    if name == "difference" and refused is not None:
        raise EngineRefusal(
            f'engine = "difference": it cannot serve this model: {refused}; use engine="vmap"'
        )
    if name == "vmap" or config is None or refused is not None:
        reason = "asked for" if name == "vmap" else f"one forward pass a flip serves every model; {refused}"
        return VmapEngine(norm, outputs, subject.apply), EngineChoice("vmap", reason)
    if name == "auto" and _exact(subject, outputs):
        # Constructed networks are deep and narrow, and what changes is 0 or 1: subtracting loses nothing.
        reason = "a constructed network's output, exactly 0 or 1; it compiles sooner, and depth costs it less"
        return VmapEngine(norm, outputs, subject.apply), EngineChoice("vmap", reason)
    why = "asked for" if name == "difference" else "exact, and fewer operations than a forward pass a flip"
    unfolded = folded.refusal(config) or folded.too_short(n)
    if unfolded is None:
        return FoldedEngine(norm, outputs, config), EngineChoice("difference", f"{why}; two layers, folded")
    return DifferenceEngine(norm, outputs, config), EngineChoice("difference", why)


def _exact(subject: Measurable, outputs: tuple[int, ...] | None) -> bool:
    """Whether the model promises that all that is measured is exactly 0 or 1."""
    return outputs is not None and set(outputs) <= set(subject.exact_outputs)
