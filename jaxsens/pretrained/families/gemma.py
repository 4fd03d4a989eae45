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
from jaxsens.pretrained.families.rotary import llama_like, typed_windows
from jaxsens.pretrained.families.rotation import rotary_by_window


def _gemma_like(options: Options, windows: tuple[int | None, ...] = (), **own: Any) -> Architecture:
    if own.get("causal", True):
        seen = "rows that see later ones are not served in this family"
        options.only("use_bidirectional_attention", (False, None), seen)
    own = {"activation": "hidden_activation", "scale_offset": 1.0, **own}
    a = llama_like(options, windows, bias=options.flag("attention_bias"), **own)
    return dataclasses.replace(a, embedding_scale=math.sqrt(a.width))


def gemma(options: Options) -> Architecture:
    """`hidden_act` of old folders says gelu where the tanh form is meant, which is what the library computes."""
    if options.table.get("hidden_act") == "gelu":
        options.table["hidden_act"] = "gelu_pytorch_tanh"
    return _gemma_like(options, activation="hidden_act")


def _scaled(options: Options, windows: tuple[int | None, ...], **own: Any) -> Architecture:
    """Gemma 2 and 3: norms before and after each map, a scale of scores, and a cap of logits."""
    a, scale = (
        _gemma_like(options, windows, norms="both", **own),
        options.number("query_pre_attn_scalar") ** -0.5,
    )
    cap = options.number("final_logit_softcapping", None)
    return dataclasses.replace(a, scales=(scale,) * a.layers, logit_cap=cap)


def gemma2(options: Options) -> Architecture:
    """A window in every other layer, and caps of scores and logits."""
    windows = typed_windows(options, options.count("sliding_window", None), lambda k: k % 2 == 1)
    return _scaled(options, windows, score_cap=options.number("attn_logit_softcapping", None))


_UNREAD = "attn_logit_softcapping image_size image_token_id layer_norm_eps mm_tokens_per_image patch_size vision_config"


def gemma3_text(options: Options) -> Architecture:
    """The library does not read the cap of scores. Where rows see later ones, a window is half as wide to each side."""
    options.ignore(*_UNREAD.split())
    causal = not options.flag("use_bidirectional_attention", False)
    width, every = options.count("sliding_window", None), options.count("sliding_window_pattern", 6)
    if width is not None and not causal:
        width //= 2
    windows = typed_windows(options, width, lambda k: (k + 1) % every == 0)
    bases = {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
    turned = rotary_by_window(options, windows, bases, options.count("head_dim"))
    return _scaled(options, windows, head_norms="heads", causal=causal, **turned)


def gemma3(options: Options) -> Architecture:
    """The text model within one that reads images too."""
    for name in ("use_bidirectional_attention", "final_logit_softcapping"):
        options.only(name, (False, None), "the library's class with images does not read it; remove it")
    return gemma3_text(options)
