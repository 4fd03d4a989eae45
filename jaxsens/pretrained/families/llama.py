"""Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024)."""

from __future__ import annotations

from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.decoder import decoder_family, rotary_decoder
from jaxsens.pretrained.options import Options


def architecture(options: Options) -> Architecture:
    """Returns the architecture. `pretraining_tp` splits matrix products, which changes their rounding only."""
    options.ignore("pretraining_tp")
    bias = options.flag("attention_bias", False)
    return rotary_decoder(
        options,
        (None,) * options.layers(),
        attention_bias=bias,
        output_bias=bias,
        map_bias=options.flag("mlp_bias", False),
        all_heads_have_keys=True,
    )


LLAMA = decoder_family("llama", architecture, "LlamaForCausalLM")
