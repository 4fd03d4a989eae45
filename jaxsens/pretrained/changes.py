"""Changes of a published model: what it would be with other attention weights, another mask, or other positions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import collecting
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.weighting import WEIGHTINGS, Weighting, learns_sink
from jaxsens.core.models.transformer.parameters import Stack
from jaxsens.pretrained.families.architecture import Architecture
from jaxsens.pretrained.families.rotation import RotaryAngles
from jaxsens.pretrained.model import PretrainedModel


@dataclass(frozen=True)
class ModelChanges:
    """What is changed of a published model; None leaves what it has. Weights stay as they are.

    Attributes:
        weighting: the attention weights of all layers, a name of `WEIGHTINGS` or a `Weighting`. "temperature-log"
            multiplies scores by log n; `Softmax(Schedule(coefficient=1 / log(m), log_power=1))` by log n / log m, which
            leaves inputs of length m as they are.
        window: the width of a sliding window in every layer; how far each side reaches, in an encoder.
        mask: "future" or "none".
        stretch: positions are divided by it: rotary angles, or rows of learned positions with lines between. The model
            reads inputs this much longer.
        layers: the first layers alone, with the final normalisation and the head.
    """

    weighting: str | Weighting | None = None
    window: int | None = None
    mask: Literal["future", "none"] | None = None
    stretch: float | None = None
    layers: int | None = None

    def of(self, model: PretrainedModel) -> PretrainedModel:
        """Returns the changed model. O(parameters) memory if layers are left out.

        Raises:
            InputError: naming every change that the model does not have.
        """
        a, layered = model.architecture, model.layered
        with collecting("changes") as problems:
            inputs.optional_count("window", self.window, problems)
            count = inputs.optional_count("layers", self.layers, problems)
            if count is not None and count > a.layers:
                problems.add("layers", self.layers, f"at most {a.layers}")
            if self.mask not in (None, "future", "none"):
                problems.add("mask", self.mask, '"future" or "none"')
            if isinstance(self.weighting, str) and self.weighting not in WEIGHTINGS:
                problems.add("weighting", self.weighting, f"one of {', '.join(WEIGHTINGS)}")
            if isinstance(self.weighting, Weighting) and learns_sink(self.weighting):
                problems.add("weighting", self.weighting, "a fixed logit: the model has no score of a sink")
            if self.stretch is not None:
                if not isinstance(self.stretch, int | float) or not 0 < self.stretch < np.inf:
                    problems.add("stretch", self.stretch, "a number above 0")
                if not a.learned_positions and not any(a.rotary):
                    remedy = f"{model.family} has neither rotary nor learned positions; leave it out"
                    problems.add("stretch", self.stretch, remedy)
        changed, parameters = self._architecture(a), model.parameters
        if self.layers is not None:
            kept = [parameters["layers"][k] for k in range(self.layers)]
            parameters = {**parameters, "layers": Stack.of(kept)}
        if self.stretch is not None and a.learned_positions:
            with numerics(model.dtype):
                table = _stretched(np.asarray(parameters["positions"]), changed.longest)
                parameters = {**parameters, "positions": jnp.asarray(table)}
        weighting = WEIGHTINGS[self.weighting] if isinstance(self.weighting, str) else self.weighting
        own = dataclasses.replace(
            layered,
            architecture=changed,
            pooling=layered.readout,  # a mask does not move what is read
            weighting=weighting or layered.weighting,
        )
        return dataclasses.replace(model, layered=own, parameters=parameters)

    def _architecture(self, a: Architecture) -> Architecture:
        count, new = self.layers or a.layers, dict[str, Any]()
        if self.stretch is not None:
            new["longest"] = max(1, int(a.longest * self.stretch))
            turned = (angles and dataclasses.replace(angles, stretch=self.stretch) for angles in a.rotary)
            new["rotary"] = tuple[RotaryAngles | None, ...](turned)
        if self.mask is not None:
            new["causal"] = self.mask == "future"
        if self.window is not None:
            new["windows"] = (self.window,) * a.layers
        a = dataclasses.replace(a, **new)
        experts = a.experts and dataclasses.replace(
            a.experts, layers=tuple(k for k in a.experts.layers if k < count)
        )
        cut = {name: getattr(a, name)[:count] for name in ("windows", "scales", "rotary")}
        return dataclasses.replace(a, layers=count, experts=experts, **cut)


def _stretched(table: np.ndarray, rows: int) -> np.ndarray:
    """Returns a table of positions as long as asked, with lines between its rows; beyond the last, the last."""
    places = np.minimum(np.arange(rows) * (len(table) / rows), len(table) - 1)
    before = np.floor(places).astype(int)
    after, share = np.minimum(before + 1, len(table) - 1), (places - before)[:, None]
    return ((1 - share) * table[before] + share * table[after]).astype(table.dtype)
