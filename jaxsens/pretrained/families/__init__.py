"""The families of published models: each maps its options and its tensors' names onto `Architecture`."""

from __future__ import annotations

from jaxsens.pretrained.families import encoders, experts, gemma, learned, neox, rotary
from jaxsens.pretrained.families.family import Family

FAMILIES: dict[str, Family] = {
    one.name: one
    for module in (learned, encoders, neox, rotary, gemma, experts)
    for one in vars(module).values()
    if isinstance(one, Family)
}
"""The families that are served, by the `model_type` of config.json."""
