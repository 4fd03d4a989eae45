"""RoBERTa (Liu et al. 2019): BERT with other positions and another head."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families import bert
from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.options import Options
from jaxsens.pretrained.tensors import Tensor, masked_language_head


def architecture(options: Options) -> Architecture:
    """Returns BERT's architecture. Positions are counted from pad_token_id + 1, and the head's activation is fixed."""
    padding = options.count("pad_token_id", 1, least=0)
    return dataclasses.replace(bert.architecture(options, padding + 1), head_activation="gelu")


def head(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors of the masked-language head."""
    biases = ("lm_head.decoder.bias", "lm_head.bias")
    return masked_language_head(a.width, a.symbols, "lm_head.dense", "lm_head.layer_norm", biases)


ROBERTA = Family(
    name="roberta",
    prefix="roberta.",
    architecture=architecture,
    tensors=bert.tensors,
    head=head,
    head_matrix=("lm_head.decoder.weight",),
    buffers=(r"(roberta\.)?embeddings\.(position|token_type)_ids$",),
    heads=(*bert.POOLER, r"lm_head\.", r"classifier\.", r"qa_outputs\."),
    language_model="RobertaForMaskedLM",
)
