"""Decoders with Llama's names whose per-row maps are chosen by a router among several.

Mixtral (Jiang et al. 2024), Qwen3's mixtures (Yang et al. 2025) and OLMoE (Muennighoff et al. 2024).
"""

from __future__ import annotations

import dataclasses

from jaxsens.pretrained.families.architecture import Architecture, Experts
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.rotary import llama_family, llama_like


def _experts(
    options: Options, number: str, hidden: str, renormalised: bool, layers: tuple[int, ...]
) -> Experts:
    many, chosen = options.count(number), options.count("num_experts_per_tok")
    if chosen > many:
        options.refuse("num_experts_per_tok", f"at most {number} = {many}: a row chooses among them")
    options.ignore("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
    return Experts(many, min(chosen, many), renormalised, layers, options.count(hidden))


def _mixtral(options: Options) -> Architecture:
    windows = (options.count("sliding_window", None),) * options.layers()
    layers = tuple(range(len(windows)))
    a = llama_like(options, windows, epsilon=("rms_norm_eps", 1e-5), attention_bias=False, output_bias=False)
    return dataclasses.replace(
        a, experts=_experts(options, "num_local_experts", "intermediate_size", True, layers)
    )


def _qwen3_moe(options: Options) -> Architecture:
    """Layers in mlp_only_layers, and all but every decoder_sparse_step-th, have one map."""
    options.ignore("max_window_layers")
    layers, step = options.layers(), options.count("decoder_sparse_step", 1)
    plain = options.value("mlp_only_layers", [])
    if not isinstance(plain, list) or any(type(k) is not int for k in plain):
        options.refuse("mlp_only_layers", "a list of numbers of layers")
        plain = []
    chosen = tuple(k for k in range(layers) if k not in plain and (k + 1) % step == 0)
    width = options.count("sliding_window", None)
    windows = (width if options.flag("use_sliding_window", False) else None,) * layers
    bias = options.flag("attention_bias", False)
    a = llama_like(
        options, windows, attention_bias=bias, output_bias=bias, head_norms="heads", all_heads_have_keys=True
    )
    name = "num_local_experts" if options.given("num_local_experts") else "num_experts"
    renormalised = options.flag("norm_topk_prob", False)
    return dataclasses.replace(
        a, experts=_experts(options, name, "moe_intermediate_size", renormalised, chosen)
    )


def _olmoe(options: Options) -> Architecture:
    bias, layers = options.flag("attention_bias", False), options.layers()
    a = llama_like(
        options,
        (None,) * layers,
        all_heads_have_keys=True,
        epsilon=("rms_norm_eps", 1e-5),
        head_norms="whole",
        clip=options.number("clip_qkv", None),
        attention_bias=bias,
        output_bias=bias,
    )
    renormalised = options.flag("norm_topk_prob", False)
    return dataclasses.replace(
        a,
        experts=_experts(options, "num_experts", "intermediate_size", renormalised, tuple(range(layers))),
    )


_EXPERT = {part: f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}

MIXTRAL = llama_family(
    "mixtral",
    _mixtral,
    "MixtralForCausalLM",
    {"router": "block_sparse_moe.gate"},
    expert={part: f"block_sparse_moe.experts.{{}}.w{k}" for part, k in (("gate", 1), ("up", 3), ("down", 2))},
)
QWEN3_MOE = llama_family(
    "qwen3_moe", _qwen3_moe, "Qwen3MoeForCausalLM", {"router": "mlp.gate"}, expert=_EXPERT
)
OLMOE = llama_family("olmoe", _olmoe, "OlmoeForCausalLM", {"router": "mlp.gate"}, expert=_EXPERT)
