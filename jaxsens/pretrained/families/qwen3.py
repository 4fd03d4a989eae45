"""Qwen3 (Yang et al. 2025): Llama with normalised queries and keys, and windows in some layers."""

from __future__ import annotations

from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.decoder import decoder_family, rotary_decoder, windows_of_layers
from jaxsens.pretrained.options import Options


def architecture(options: Options) -> Architecture:
    """Returns the architecture."""
    bias = options.flag("attention_bias", False)
    return rotary_decoder(
        options,
        windows_of_layers(options),
        attention_bias=bias,
        output_bias=bias,
        head_norms=True,
        head_width=128,
    )


QWEN3 = decoder_family("qwen3", architecture, "Qwen3ForCausalLM")
