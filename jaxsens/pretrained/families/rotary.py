"""Families with rotary positions, RMS normalisation, grouped heads and gated maps.

Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024); Mistral (Jiang et al. 2023), with a sliding window in
every layer; Qwen2 and Qwen2.5 (Yang et al. 2024), with biases of queries, keys and values, and windows in some layers;
and Qwen3 (Yang et al. 2025), with normalised queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture
from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.families.options import REQUIRED, Options
from jaxsens.pretrained.families.rotation import rotary_angles


def _architecture(
    options: Options,
    windows: tuple[int | None, ...],
    head_width: int | None = None,
    all_heads_have_keys: bool = False,
    **own: Any,
) -> Architecture:
    """The architecture of a decoder, with the family's `own` biases and norms.

    Without head_dim a head is `head_width` wide; None is hidden_size / heads. With `all_heads_have_keys`,
    num_key_value_heads may be absent, for as many as query heads.
    """
    width, heads = options.count("hidden_size"), options.count("num_attention_heads")
    own_width = options.count("head_dim", head_width or max(width // heads, 1))
    if not options.given("head_dim") and head_width is None and width % heads:
        options.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}, or give head_dim")
    null = "num_key_value_heads" in options.table
    key_heads = options.count("num_key_value_heads", heads if null or all_heads_have_keys else REQUIRED)
    if heads % key_heads:
        options.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    rotary, longest = rotary_angles(options, own_width, options.count("max_position_embeddings"))
    layers = len(windows)
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_width=own_width,
        hidden=options.count("intermediate_size"),
        symbols=options.count("vocab_size"),
        longest=longest,
        norm="rms",
        epsilon=options.number("rms_norm_eps", 1e-6),
        norms="before",
        activation=options.choice("hidden_act", ACTIVATIONS, "silu"),
        gated=True,
        causal=True,
        windows=windows,
        scales=(None,) * layers,
        rotary=(rotary,) * layers,
        tied=options.flag("tie_word_embeddings", False),
        **{"map_bias": False, **own},
    )


def _qwen_windows(options: Options) -> tuple[int | None, ...]:
    """The width of each layer's sliding window, as Qwen's options say."""
    layers, first = options.layers(), options.count("max_window_layers", 28, least=0)
    width = options.count("sliding_window", 4096)
    sliding = options.flag("use_sliding_window", False) and options.given("sliding_window")
    kinds = options.value("layer_types", None)
    if kinds is None:
        return tuple(width if sliding and k >= first else None for k in range(layers))
    known = {"full_attention": None, "sliding_attention": width}
    if not isinstance(kinds, list) or any(not isinstance(one, str) or one not in known for one in kinds):
        options.refuse("layer_types", f"a list of {' and '.join(known)}; others are not served")
    elif len(kinds) != layers:
        options.refuse("layer_types", f"a list of num_hidden_layers = {layers} entries")
    elif "sliding_attention" in kinds and not sliding:
        options.refuse("layer_types", "sliding_attention needs use_sliding_window = true and sliding_window")
    else:
        return tuple(known[one] for one in kinds)
    return (None,) * layers


def _llama(options: Options) -> Architecture:
    """`pretraining_tp` splits matrix products, which changes their rounding only."""
    options.ignore("pretraining_tp")
    bias, map_bias = options.flag("attention_bias", False), options.flag("mlp_bias", False)
    windows, own = (None,) * options.layers(), {"output_bias": bias, "map_bias": map_bias}
    return _architecture(options, windows, all_heads_have_keys=True, attention_bias=bias, **own)


def _mistral(options: Options) -> Architecture:
    """A window that is absent is 4096 wide, and null is none."""
    window = options.count("sliding_window", None if "sliding_window" in options.table else 4096)
    windows = (window,) * options.layers()
    return _architecture(options, windows, attention_bias=False, output_bias=False)


def _qwen2(options: Options) -> Architecture:
    options.only("use_mrope", (False, None), "positions in several dimensions are not served")
    return _architecture(options, _qwen_windows(options), attention_bias=True, output_bias=False)


def _qwen3(options: Options) -> Architecture:
    bias, windows = options.flag("attention_bias", False), _qwen_windows(options)
    return _architecture(
        options, windows, attention_bias=bias, output_bias=bias, head_norms="heads", head_width=128
    )


def _family(name: str, architecture: Callable[[Options], Architecture], language_model: str) -> Family:
    """A family whose tensors have Llama's names."""
    return Family(
        name=name,
        prefix="model.",
        architecture=architecture,
        outer={"embedding": "embed_tokens", "final_norm": "norm"},
        layer="layers.{}",
        parts={
            "attention_norm": "input_layernorm",
            **{part: f"self_attn.{part[0]}_proj" for part in ("query", "key", "value", "output")},
            **{f"{part}_norm": f"self_attn.{part[0]}_norm" for part in ("query", "key")},
            "map_norm": "post_attention_layernorm",
            **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        },
        head_matrix=("lm_head.weight",),
        buffers=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$",),
        heads=(r"lm_head\.", r"score\.", r"classifier\.", r"qa_outputs\."),
        language_model=language_model,
    )


LLAMA = _family("llama", _llama, "LlamaForCausalLM")
MISTRAL = _family("mistral", _mistral, "MistralForCausalLM")
QWEN2 = _family("qwen2", _qwen2, "Qwen2ForCausalLM")
QWEN3 = _family("qwen3", _qwen3, "Qwen3ForCausalLM")
