"""Mistral (Jiang et al. 2023): Llama with a sliding window in every layer."""

from __future__ import annotations

from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.decoder import decoder_family, rotary_decoder
from jaxsens.pretrained.options import Options


def architecture(options: Options) -> Architecture:
    """Returns the architecture. A window that is absent is 4096 wide, and null is none."""
    absent = None if "sliding_window" in options.table else 4096
    window = options.count("sliding_window", absent)
    windows = (window,) * options.layers()
    return rotary_decoder(options, windows, attention_bias=False, output_bias=False)


MISTRAL = decoder_family("mistral", architecture, "MistralForCausalLM")
