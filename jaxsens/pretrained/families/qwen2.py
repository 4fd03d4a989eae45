"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases of queries, keys and values, and windows in some layers."""

from __future__ import annotations

from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.decoder import decoder_family, rotary_decoder, windows_of_layers
from jaxsens.pretrained.options import Options


def architecture(options: Options) -> Architecture:
    """Returns the architecture."""
    options.only("use_mrope", (False, None), "positions in several dimensions are not served")
    return rotary_decoder(options, windows_of_layers(options), attention_bias=True, output_bias=False)


QWEN2 = decoder_family("qwen2", architecture, "Qwen2ForCausalLM")
