"""Gemma (Mesnard et al. 2024), Gemma 2 (Rivière et al. 2024) and the text models of Gemma 3 (Kamath et al. 2025).

Norms scale by 1 + w, and embeddings by the root of the width. Gemma 2 normalises before and after each map, caps scores
and logits, and has a window in every other layer; Gemma 3 normalises queries and keys, and turns them by another base
in layers with a window.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jaxsens.pretrained.families.architecture import Architecture
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.rotary import llama_family, llama_like
from jaxsens.pretrained.families.rotation import angles_of_table


def _gemma_like(options: Options, windows: tuple[int | None, ...], **own: Any) -> Architecture:
    both = "rows that see later ones are not served"
    options.only("use_bidirectional_attention", (False, None), both)
    name = "hidden_activation" if options.given("hidden_activation") else "hidden_act"
    options.ignore("hidden_activation", "hidden_act")
    bias = options.flag("attention_bias", False)
    a = llama_like(
        options,
        windows,
        head_width=256,
        all_heads_have_keys=True,
        activation=(name, "gelu_pytorch_tanh"),
        attention_bias=bias,
        output_bias=bias,
        scale_offset=1.0,
        tied=True,
        **own,
    )
    return dataclasses.replace(a, embedding_scale=math.sqrt(a.width))


def _gemma(options: Options) -> Architecture:
    """`hidden_act` of old folders says gelu where the tanh form is meant, which is what the library computes."""
    if options.table.get("hidden_act") == "gelu" and not options.given("hidden_activation"):
        options.table["hidden_activation"] = "gelu_pytorch_tanh"
    return _gemma_like(options, (None,) * options.layers())


def _windows(options: Options, full_every: int) -> tuple[int | None, ...]:
    """The window of each layer: by layer_types, or in all but every so many."""
    layers, width = options.layers(), options.count("sliding_window", 4096)
    every = options.count("sliding_window_pattern", options.value("_sliding_window_pattern", full_every))
    kinds = options.entries("layer_types", {"full_attention": None, "sliding_attention": width}, layers)
    return tuple(kinds or (None if (k + 1) % every == 0 else width for k in range(layers)))


def _capped(options: Options, a: Architecture, cap: float | None, logit_cap: float | None) -> Architecture:
    return dataclasses.replace(
        a,
        scales=(options.number("query_pre_attn_scalar", 256.0) ** -0.5,) * a.layers,
        score_cap=_cap(options, "attn_logit_softcapping", cap),
        logit_cap=_cap(options, "final_logit_softcapping", logit_cap),
    )


def _cap(options: Options, name: str, default: float | None) -> float | None:
    """A cap; null is none."""
    return options.number(name, None if name in options.table else default)


def _gemma2(options: Options) -> Architecture:
    options.ignore("cache_implementation")
    return _capped(options, _gemma_like(options, _windows(options, 2), norms="both"), 50.0, 30.0)


def _gemma3(options: Options) -> Architecture:
    """Old folders have one table of options for layers without a window, and the base of the others beside it."""
    options.ignore("cache_implementation")
    windows = _windows(options, 6)
    width, longest = options.count("head_dim", 256), options.count("max_position_embeddings")
    new, own_base = options.value("rope_parameters", {}), options.number("rope_local_base_freq", 10000.0)
    base, old = options.number("rope_theta", 1000000.0), options.value("rope_scaling", {})
    by_kind = isinstance(new, dict) and "full_attention" in new
    everywhere = new.get("full_attention") if by_kind else new or old
    near = new.get("sliding_attention", {}) if by_kind else {}
    full, longest_full = angles_of_table(options, "rope_parameters", everywhere, base, width, longest)
    sliding, _ = angles_of_table(options, "rope_parameters", near, own_base, width, longest)
    rotary = tuple(full if window is None else sliding for window in windows)
    a = _gemma_like(
        options, windows, norms="both", head_norms="heads", rotary=rotary, longest=max(longest, longest_full)
    )
    return _capped(options, a, None, None)


_BOTH = {
    "attention_after": "post_attention_layernorm",
    "map_norm": "pre_feedforward_layernorm",
    "map_after": "post_feedforward_layernorm",
}

GEMMA = llama_family("gemma", _gemma, "GemmaForCausalLM")
GEMMA2 = llama_family("gemma2", _gemma2, "Gemma2ForCausalLM", _BOTH)
GEMMA3 = llama_family("gemma3_text", _gemma3, "Gemma3ForCausalLM", _BOTH)
