"""Families with Llama's names of options and tensors: rotary positions, grouped heads and, mostly, gated maps.

Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024); Mistral (Jiang et al. 2023), with a sliding window in
every layer; Qwen2 and Qwen2.5 (Yang et al. 2024), with biases of queries, keys and values, and windows in some layers;
Qwen3 (Yang et al. 2025), with normalised queries and keys; Phi-3 (Abdin et al. 2024), with maps that are stored as one;
OLMo (Groeneveld et al. 2024), with norms without parameters, and OLMo 2, with norms inside the residual; SmolLM3, with
layers without positions; Granite, with factors; Cohere's Command R, with parallel maps; StableLM, StarCoder2 and
Nemotron, with layer normalisation.

Gemma (Mesnard et al. 2024), whose norms scale by 1 + w, and embeddings by the root of the width; Gemma 2 (Rivière et
al. 2024), which also normalises after each map and caps scores and logits; and the text models of Gemma 3 (Kamath et
al. 2025), which normalise queries and keys, and turn them by another base in layers with a window.

Mixtral (Jiang et al. 2024), Qwen2's and Qwen3's mixtures (Yang et al. 2025) and OLMoE (Muennighoff et al. 2024), whose
per-row maps are chosen by a router among several.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture, Experts
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.rotation import rotary_angles, rotary_by_window


def llama_like(
    options: Options,
    windows: tuple[int | None, ...] = (),
    part: float | None = None,
    interleaved: bool = False,
    epsilon: str = "rms_norm_eps",
    activation: str = "hidden_act",
    bias: bool = False,
    **own: Any,
) -> Architecture:
    """The architecture of a decoder, with the family's `own` choices. `bias` is that of all maps of attention.

    Without head_dim a head is hidden_size / heads wide; without num_key_value_heads there are as many as query heads.
    `part` and `interleaved` are those of `rotary_angles`; `epsilon` and `activation` are the names of these options; an
    epsilon without a name is 1e-5.
    """
    width, heads = options.count("hidden_size"), options.count("num_attention_heads")
    own_width = options.count("head_dim", max(width // heads, 1))
    if not options.given("head_dim") and width % heads:
        options.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}, or give head_dim")
    key_heads = options.count("num_key_value_heads", heads)
    if heads % key_heads:
        options.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    layers = options.layers()
    if "rotary" not in own:
        longest = options.count("max_position_embeddings")
        rotary, longest = rotary_angles(options, own_width, longest, part, interleaved)
        own |= {"rotary": (rotary,) * layers, "longest": longest}
    chosen: dict[str, Any] = {
        "norm": "rms",
        "gated": True,
        "causal": True,
        "attention_bias": bias,
        "output_bias": bias,
        "map_bias": False,
        "hidden": options.count("intermediate_size"),
    }
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_width=own_width,
        symbols=options.count("vocab_size"),
        epsilon=options.number(epsilon) if epsilon else 1e-5,
        activation=options.choice(activation, ACTIVATIONS),
        windows=windows or (None,) * layers,
        tied=options.flag("tie_word_embeddings"),
        **{**chosen, **own},
    )


def _qwen_windows(options: Options) -> tuple[int | None, ...]:
    """The width of each layer's sliding window, as Qwen's options say: from max_window_layers on."""
    first = options.count("max_window_layers", least=0)
    width, sliding = options.count("sliding_window", None), options.flag("use_sliding_window")
    return typed_windows(options, width if sliding else None, lambda k: k < first)


def typed_windows(options: Options, width: int | None, full: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The width of each layer's sliding window: by layer_types, or `width` in the layers that `full` does not name."""
    layers = options.layers()
    if not options.given("layer_types"):
        return tuple(None if full(k) else width for k in range(layers))
    kinds = options.entries("layer_types", {"full_attention": 0, "sliding_attention": 1}, layers)
    if any(kinds) and width is None:
        remedy = "sliding_attention needs sliding_window (and use_sliding_window = true)"
        options.refuse("layer_types", remedy)
    return tuple(width if kind else None for kind in kinds)


def sliding(options: Options) -> tuple[int | None, ...]:
    """A window of one width in every layer, or in none."""
    return (options.count("sliding_window", None),) * options.layers()


def llama(options: Options) -> Architecture:
    """`pretraining_tp` splits matrix products, which changes their rounding only."""
    options.ignore("pretraining_tp")
    return llama_like(options, **_biases(options))


def _biases(options: Options) -> dict[str, Any]:
    return {"bias": options.flag("attention_bias", False), "map_bias": options.flag("mlp_bias", False)}


def mistral(options: Options) -> Architecture:
    """A window in every layer."""
    return llama_like(options, sliding(options))


def qwen2(options: Options) -> Architecture:
    """Queries, keys and values have biases."""
    return llama_like(options, _qwen_windows(options), attention_bias=True)


def qwen3(options: Options) -> Architecture:
    """Queries and keys are normalised."""
    bias, windows = options.flag("attention_bias", False), _qwen_windows(options)
    return llama_like(options, windows, bias=bias, head_norms="heads")


def phi3(options: Options) -> Architecture:
    """The lengths of training may stand beside the table of rotary options, which then needs them."""
    trained = options.count("original_max_position_embeddings")
    long = {"rope_type": "longrope", "original_max_position_embeddings": trained}
    scaled = ("longrope", "su", "yarn")
    for name in ("rope_scaling", "rope_parameters"):
        table = options.table.get(name)
        if isinstance(table, dict) and table.get("rope_type", table.get("type")) in scaled:
            options.table[name] = table | long
    return llama_like(options, sliding(options), part=1.0)


def olmo(options: Options) -> Architecture:
    """Norms have no parameters."""
    own: dict[str, Any] = {"norm": "layer", "norm_scale": False, "norm_shift": False, "epsilon": ""}
    bias, clip = options.flag("attention_bias", False), options.number("clip_qkv", None)
    return llama_like(options, bias=bias, clip=clip, **own)


_OLMO2: dict[str, Any] = {"norms": "inside", "head_norms": "whole"}


def olmo2(options: Options) -> Architecture:
    """Norms are inside the residual."""
    return llama_like(options, bias=options.flag("attention_bias", False), **_OLMO2)


def olmo3(options: Options) -> Architecture:
    """Windows in all but every fourth layer, with unscaled angles there, whose base rope_theta does not say."""
    width, bias = options.count("sliding_window", None), options.flag("attention_bias")
    windows = typed_windows(options, width, lambda k: (k + 1) % 4 == 0)
    even = max(1, options.count("hidden_size") // options.count("num_attention_heads"))
    bases = {"full_attention": ("rope_theta", 500000.0), "sliding_attention": ("", 500000.0)}
    turned = rotary_by_window(options, windows, bases, options.count("head_dim", even))
    return llama_like(options, windows, bias=bias, **turned, **_OLMO2)


def smollm3(options: Options) -> Architecture:
    """Every fourth layer, or those with a 0 in no_rope_layers, is without positions, with a window if there is one."""
    interval, layers = options.count("no_rope_layer_interval"), options.layers()
    turning = options.value("no_rope_layers", [int((k + 1) % interval != 0) for k in range(layers)])
    if not isinstance(turning, list) or len(turning) != layers or any(one not in (0, 1) for one in turning):
        options.refuse("no_rope_layers", f"a list of num_hidden_layers = {layers} numbers, 0 or 1")
        turning = [1] * layers
    width, sliding = options.count("sliding_window", None), options.flag("use_sliding_window")
    if not options.given("layer_types") and not sliding:
        width = None
    windows = typed_windows(options, width, lambda k: turning[k] == 1)
    return _turned_in(llama_like(options, windows, **_biases(options)), turning)


def _turned_in(a: Architecture, layers: Iterable[object]) -> Architecture:
    """The architecture with rotary positions in some layers only."""
    turned = zip(a.rotary, layers, strict=True)
    return dataclasses.replace(a, rotary=tuple(angles if has else None for angles, has in turned))


def granite(options: Options) -> Architecture:
    """Llama with four factors."""
    a = llama(options)
    return dataclasses.replace(
        a,
        embedding_scale=options.number("embedding_multiplier", 1.0),
        branch_scale=options.number("residual_multiplier", 1.0),
        scales=(options.number("attention_multiplier", 1.0),) * a.layers,
        logit_scale=1 / options.number("logits_scaling", 1.0),
    )


def cohere(options: Options, windows: tuple[int | None, ...] = ()) -> Architecture:
    """Parallel maps, and pairs of coordinates side by side."""
    own: dict[str, Any] = {"norm": "layer", "norm_shift": False, "parallel": True, "shared_norm": True}
    return llama_like(
        options,
        windows,
        interleaved=True,
        epsilon="layer_norm_eps",
        head_norms="heads" if options.flag("use_qk_norm", False) else "none",
        bias=options.flag("attention_bias", False),
        logit_scale=options.number("logit_scale"),
        **own,
    )


def cohere2(options: Options) -> Architecture:
    """Windows in all but every fourth layer, and positions in these alone."""
    every, width = options.count("sliding_window_pattern", 4), options.count("sliding_window", None)
    windows = typed_windows(options, width, lambda k: (k + 1) % every == 0)
    return _turned_in(cohere(options, windows), windows)


def stablelm(options: Options) -> Architecture:
    """A quarter of a head is turned."""
    parallel = options.flag("use_parallel_residual", False)
    return llama_like(
        options,
        part=0.25,
        epsilon="layer_norm_eps",
        norm="layer",
        parallel=parallel,
        shared_norm=parallel,
        head_norms="heads" if options.flag("qk_layernorm", False) else "none",
        attention_bias=options.flag("use_qkv_bias", False),
    )


def starcoder2(options: Options) -> Architecture:
    """A window in every layer, and a map without a gate."""
    own: dict[str, Any] = {"norm": "layer", "gated": False, "epsilon": "norm_epsilon"}
    bias = options.flag("use_bias", True)
    return llama_like(options, sliding(options), bias=bias, map_bias=bias, **own)


def nemotron(options: Options) -> Architecture:
    """Stored scales are what is added to 1."""
    own: dict[str, Any] = {"norm": "layer", "scale_offset": 1.0, "gated": False, "epsilon": "norm_eps"}
    return llama_like(options, part=0.5, **_biases(options), **own)


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
    a = _gemma_like(options, windows, norms="both", **own)
    scale = options.number("query_pre_attn_scalar") ** -0.5
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


def _experts(
    options: Options, number: str, hidden: str, renormalised: bool, layers: Iterable[int], shared: int = 0
) -> Experts:
    many, chosen = options.count(number), options.count("num_experts_per_tok")
    if chosen > many:
        options.refuse("num_experts_per_tok", f"at most {number} = {many}: a row chooses among them")
    return Experts(many, min(chosen, many), renormalised, tuple(layers), options.count(hidden), shared)


def mixtral(options: Options) -> Architecture:
    """Experts in every layer."""
    experts = _experts(options, "num_local_experts", "intermediate_size", True, range(options.layers()))
    return llama_like(options, sliding(options), experts=experts)


def _sparse_layers(options: Options) -> tuple[int, ...]:
    """All layers but those in mlp_only_layers, or every decoder_sparse_step-th of them."""
    layers, step = options.layers(), options.count("decoder_sparse_step")
    plain = options.value("mlp_only_layers", [])
    if not isinstance(plain, list) or any(type(k) is not int for k in plain):
        options.refuse("mlp_only_layers", "a list of numbers of layers")
        plain = []
    return tuple(k for k in range(layers) if k not in plain and (k + 1) % step == 0)


def qwen3_moe(options: Options) -> Architecture:
    """Experts in some layers, and normalised queries and keys."""
    options.ignore("max_window_layers")
    width, layers = options.count("sliding_window", None), _sparse_layers(options)
    windows = (width if options.flag("use_sliding_window") else None,) * options.layers()
    bias, renormalised = options.flag("attention_bias"), options.flag("norm_topk_prob")
    experts = _experts(options, "num_local_experts", "moe_intermediate_size", renormalised, layers)
    return llama_like(options, windows, bias=bias, head_norms="heads", experts=experts)


def qwen2_moe(options: Options) -> Architecture:
    """Windows in every other layer up to max_window_layers; an expert that all rows share beside the chosen ones."""
    last = options.count("max_window_layers", least=0)
    sliding = options.flag("use_sliding_window")
    least = int(sliding is True)  # the library writes 0 without windows
    width = options.count("sliding_window", None, least=least)
    windows = typed_windows(options, width if sliding else None, lambda k: k % 2 == 1 or k >= last)
    layers, renormalised = _sparse_layers(options), options.flag("norm_topk_prob")
    shared = options.count("shared_expert_intermediate_size")
    experts = _experts(options, "num_experts", "moe_intermediate_size", renormalised, layers, shared)
    return llama_like(options, windows, attention_bias=options.flag("qkv_bias"), experts=experts)


def olmoe(options: Options) -> Architecture:
    """Experts in every layer, and normalised queries and keys."""
    bias, clip = options.flag("attention_bias", False), options.number("clip_qkv", None)
    renormalised, layers = options.flag("norm_topk_prob", False), range(options.layers())
    experts = _experts(options, "num_experts", "intermediate_size", renormalised, layers)
    return llama_like(options, head_norms="whole", clip=clip, bias=bias, experts=experts)
