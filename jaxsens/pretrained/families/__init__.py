"""The families of published models: each maps its options and its tensors' names onto `Architecture`."""

from __future__ import annotations

from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.families.learned import BERT, DISTILBERT, GPT2, ROBERTA
from jaxsens.pretrained.families.rotary import LLAMA, MISTRAL, QWEN2, QWEN3

FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, ROBERTA, DISTILBERT, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)
}
"""The families that are served, by the `model_type` of config.json."""
