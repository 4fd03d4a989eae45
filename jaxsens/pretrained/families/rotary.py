"""Families with Llama's names of options and tensors: rotary positions, grouped heads and, mostly, gated maps.

Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024); Mistral (Jiang et al. 2023), with a sliding window in
every layer; Qwen2 and Qwen2.5 (Yang et al. 2024), with biases of queries, keys and values, and windows in some layers;
Qwen3 (Yang et al. 2025), with normalised queries and keys; Phi-3 (Abdin et al. 2024), with maps that are stored as one;
OLMo (Groeneveld et al. 2024), with norms without parameters, and OLMo 2, with norms inside the residual; SmolLM3, with
layers without positions; Granite, with factors; Cohere's Command R, with parallel maps; StableLM, StarCoder2 and
Nemotron, with layer normalisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture
from jaxsens.pretrained.families.family import Family, in_halves, in_thirds
from jaxsens.pretrained.families.options import REQUIRED, Options
from jaxsens.pretrained.families.rotation import rotary_angles


def llama_like(
    options: Options,
    windows: tuple[int | None, ...],
    head_width: int | None = None,
    all_heads_have_keys: bool = False,
    part: float | None = None,
    interleaved: bool = False,
    epsilon: tuple[str, float] = ("rms_norm_eps", 1e-6),
    activation: tuple[str, str] = ("hidden_act", "silu"),
    **own: Any,
) -> Architecture:
    """The architecture of a decoder, with the family's `own` choices.

    Without head_dim a head is `head_width` wide; None is hidden_size / heads. With `all_heads_have_keys`,
    num_key_value_heads may be absent, for as many as query heads. `part` and `interleaved` are those of
    `rotary_angles`; `epsilon` and `activation` are the names and defaults of these options.
    """
    width, heads = options.count("hidden_size"), options.count("num_attention_heads")
    own_width = options.count("head_dim", head_width or max(width // heads, 1))
    if not options.given("head_dim") and head_width is None and width % heads:
        options.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}, or give head_dim")
    null = "num_key_value_heads" in options.table
    key_heads = options.count("num_key_value_heads", heads if null or all_heads_have_keys else REQUIRED)
    if heads % key_heads:
        options.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    layers = len(windows)
    if "rotary" not in own:
        longest = options.count("max_position_embeddings")
        rotary, longest = rotary_angles(options, own_width, longest, part, interleaved)
        own |= {"rotary": (rotary,) * layers, "longest": longest}
    chosen: dict[str, Any] = {
        "norm": "rms",
        "gated": True,
        "causal": True,
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
        epsilon=options.number(*epsilon),
        activation=options.choice(activation[0], ACTIVATIONS, activation[1]),
        windows=windows,
        tied=options.flag("tie_word_embeddings", bool(own.pop("tied", False))),
        **{**chosen, **own},
    )


def _qwen_windows(options: Options) -> tuple[int | None, ...]:
    """The width of each layer's sliding window, as Qwen's options say."""
    layers, first = options.layers(), options.count("max_window_layers", 28, least=0)
    width = options.count("sliding_window", 4096)
    sliding = options.flag("use_sliding_window", False) and options.given("sliding_window")
    if not options.given("layer_types"):
        return tuple(width if sliding and k >= first else None for k in range(layers))
    found = options.entries("layer_types", {"full_attention": None, "sliding_attention": width}, layers)
    if any(found) and not sliding:
        options.refuse("layer_types", "sliding_attention needs use_sliding_window = true and sliding_window")
    return tuple(found)


def _llama(options: Options) -> Architecture:
    """`pretraining_tp` splits matrix products, which changes their rounding only."""
    options.ignore("pretraining_tp")
    bias, map_bias = options.flag("attention_bias", False), options.flag("mlp_bias", False)
    return llama_like(
        options,
        (None,) * options.layers(),
        all_heads_have_keys=True,
        attention_bias=bias,
        output_bias=bias,
        map_bias=map_bias,
    )


def _mistral(options: Options) -> Architecture:
    """A window that is absent is 4096 wide, and null is none."""
    window = options.count("sliding_window", None if "sliding_window" in options.table else 4096)
    windows = (window,) * options.layers()
    return llama_like(options, windows, attention_bias=False, output_bias=False)


def _qwen2(options: Options) -> Architecture:
    options.only("use_mrope", (False, None), "positions in several dimensions are not served")
    return llama_like(options, _qwen_windows(options), attention_bias=True, output_bias=False)


def _qwen3(options: Options) -> Architecture:
    bias, windows = options.flag("attention_bias", False), _qwen_windows(options)
    return llama_like(
        options, windows, attention_bias=bias, output_bias=bias, head_norms="heads", head_width=128
    )


def _phi3(options: Options) -> Architecture:
    """The lengths of training may stand beside the table of rotary options, which then needs them."""
    trained = options.count("original_max_position_embeddings", 4096)
    for name in ("rope_scaling", "rope_parameters"):
        table = options.table.get(name)
        if isinstance(table, dict) and table.get("rope_type", table.get("type")) in ("longrope", "su"):
            options.table[name] = {"original_max_position_embeddings": trained, **table}
    options.ignore("embd_pdrop", "resid_pdrop")
    windows = (options.count("sliding_window", None),) * options.layers()
    return llama_like(
        options,
        windows,
        all_heads_have_keys=True,
        part=1.0,
        epsilon=("rms_norm_eps", 1e-5),
        attention_bias=False,
        output_bias=False,
    )


def _olmo(options: Options) -> Architecture:
    """Norms have no parameters."""
    bias = options.flag("attention_bias", False)
    return llama_like(
        options,
        (None,) * options.layers(),
        all_heads_have_keys=True,
        epsilon=("layer_norm_eps", 1e-5),
        norm="layer",
        norm_scale=False,
        norm_shift=False,
        clip=options.number("clip_qkv", None),
        attention_bias=bias,
        output_bias=bias,
    )


def _olmo2(options: Options) -> Architecture:
    bias, windows = options.flag("attention_bias", False), (None,) * options.layers()
    own: dict[str, Any] = {"norms": "inside", "head_norms": "whole", "epsilon": ("rms_norm_eps", 1e-5)}
    return llama_like(
        options, windows, all_heads_have_keys=True, attention_bias=bias, output_bias=bias, **own
    )


def _smollm3(options: Options) -> Architecture:
    """Every fourth layer, or those that no_rope_layers gives a 0, is without positions."""
    bias, map_bias = options.flag("attention_bias", False), options.flag("mlp_bias", False)
    windows, interval = _qwen_windows(options), options.count("no_rope_layer_interval", 4)
    a = llama_like(options, windows, attention_bias=bias, output_bias=bias, map_bias=map_bias, tied=True)
    turning = options.value("no_rope_layers", [int((k + 1) % interval != 0) for k in range(a.layers)])
    if not isinstance(turning, list) or len(turning) != a.layers or any(one not in (0, 1) for one in turning):
        options.refuse("no_rope_layers", f"a list of num_hidden_layers = {a.layers} numbers, 0 or 1")
        return a
    rotary = tuple(angles if one else None for angles, one in zip(a.rotary, turning, strict=True))
    return dataclasses.replace(a, rotary=rotary)


def _granite(options: Options) -> Architecture:
    a = _llama(options)
    return dataclasses.replace(
        a,
        embedding_scale=options.number("embedding_multiplier", 1.0),
        branch_scale=options.number("residual_multiplier", 1.0),
        scales=(options.number("attention_multiplier", 1.0),) * a.layers,
        logit_scale=1 / options.number("logits_scaling", 1.0),
    )


def _cohere(options: Options) -> Architecture:
    bias = options.flag("attention_bias", False)
    return llama_like(
        options,
        (None,) * options.layers(),
        all_heads_have_keys=True,
        interleaved=True,
        epsilon=("layer_norm_eps", 1e-5),
        norm="layer",
        norm_shift=False,
        parallel=True,
        shared_norm=True,
        head_norms="heads" if options.flag("use_qk_norm", False) else "none",
        attention_bias=bias,
        output_bias=bias,
        logit_scale=options.number("logit_scale", 0.0625),
        tied=True,
    )


def _stablelm(options: Options) -> Architecture:
    parallel = options.flag("use_parallel_residual", False)
    return llama_like(
        options,
        (None,) * options.layers(),
        all_heads_have_keys=True,
        part=0.25,
        epsilon=("layer_norm_eps", 1e-5),
        norm="layer",
        parallel=parallel,
        shared_norm=parallel,
        head_norms="heads" if options.flag("qk_layernorm", False) else "none",
        attention_bias=options.flag("use_qkv_bias", False),
        output_bias=False,
    )


def _starcoder2(options: Options) -> Architecture:
    options.ignore("residual_dropout", "embedding_dropout")
    bias = options.flag("use_bias", True)
    return llama_like(
        options,
        (options.count("sliding_window", None),) * options.layers(),
        epsilon=("norm_epsilon", 1e-5),
        activation=("hidden_act", "gelu_pytorch_tanh"),
        norm="layer",
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        map_bias=bias,
        tied=True,
    )


def _nemotron(options: Options) -> Architecture:
    """Stored scales are what is added to 1."""
    bias, map_bias = options.flag("attention_bias", False), options.flag("mlp_bias", False)
    return llama_like(
        options,
        (None,) * options.layers(),
        all_heads_have_keys=True,
        part=0.5,
        epsilon=("norm_eps", 1e-5),
        activation=("hidden_act", "relu2"),
        norm="layer",
        scale_offset=1.0,
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        map_bias=map_bias,
    )


_ATTENTION = {part: f"self_attn.{part[0]}_proj" for part in ("query", "key", "value", "output")}
_HEAD_NORMS = {f"{part}_norm": f"self_attn.{part[0]}_norm" for part in ("query", "key")}
_GATED = {part: f"mlp.{part}_proj" for part in ("gate", "up", "down")}
_NORMS = {"attention_norm": "input_layernorm", "map_norm": "post_attention_layernorm"}


def llama_family(
    name: str,
    architecture: Callable[[Options], Architecture],
    language_model: str,
    parts: Mapping[str, str] | None = None,
    **own: Any,
) -> Family:
    """A family whose tensors have Llama's names, but for some `parts`."""
    return Family(
        name=name,
        prefix="model.",
        architecture=architecture,
        outer={"embedding": "embed_tokens", "final_norm": "norm"},
        layer="layers.{}",
        parts={**_NORMS, **_ATTENTION, **_HEAD_NORMS, **_GATED, **(parts or {})},
        head_matrix=("lm_head.weight",),
        buffers=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$",),
        heads=(r"lm_head\.", r"score\.", r"classifier\.", r"qa_outputs\."),
        language_model=language_model,
        **own,
    )


LLAMA = llama_family("llama", _llama, "LlamaForCausalLM")
MISTRAL = llama_family("mistral", _mistral, "MistralForCausalLM")
QWEN2 = llama_family("qwen2", _qwen2, "Qwen2ForCausalLM")
QWEN3 = llama_family("qwen3", _qwen3, "Qwen3ForCausalLM")
PHI3 = llama_family(
    "phi3",
    _phi3,
    "Phi3ForCausalLM",
    {
        **dict.fromkeys(("query", "key", "value"), "self_attn.qkv_proj"),
        **dict.fromkeys(("gate", "up"), "mlp.gate_up_proj"),
    },
    fused=(in_thirds, in_halves),
)
OLMO = llama_family("olmo", _olmo, "OlmoForCausalLM")
OLMO2 = llama_family(
    "olmo2",
    _olmo2,
    "Olmo2ForCausalLM",
    {"attention_norm": "post_attention_layernorm", "map_norm": "post_feedforward_layernorm"},
)
SMOLLM3 = llama_family("smollm3", _smollm3, "SmolLM3ForCausalLM")
GRANITE = llama_family("granite", _granite, "GraniteForCausalLM")
COHERE = llama_family("cohere", _cohere, "CohereForCausalLM", norm_by_head=True)
STABLELM = llama_family(
    "stablelm",
    _stablelm,
    "StableLmForCausalLM",
    {f"{part}_norm": f"self_attn.{part[0]}_layernorm.norms.{{}}" for part in ("query", "key")},
)
STARCODER2 = llama_family(
    "starcoder2", _starcoder2, "Starcoder2ForCausalLM", {"up": "mlp.c_fc", "down": "mlp.c_proj"}
)
NEMOTRON = llama_family("nemotron", _nemotron, "NemotronForCausalLM")
