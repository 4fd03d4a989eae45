"""The families that are served, by their `model_type`."""

from __future__ import annotations

from jaxsens.pretrained.families.bert import BERT
from jaxsens.pretrained.families.distilbert import DISTILBERT
from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.families.gpt2 import GPT2
from jaxsens.pretrained.families.llama import LLAMA
from jaxsens.pretrained.families.mistral import MISTRAL
from jaxsens.pretrained.families.qwen2 import QWEN2
from jaxsens.pretrained.families.qwen3 import QWEN3
from jaxsens.pretrained.families.roberta import ROBERTA

FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, ROBERTA, DISTILBERT, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)
}
"""The families by the `model_type` of config.json."""
