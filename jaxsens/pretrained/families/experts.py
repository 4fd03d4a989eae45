"""Decoders with Llama's names whose per-row maps are chosen by a router among several.

Mixtral (Jiang et al. 2024), Qwen3's mixtures (Yang et al. 2025) and OLMoE (Muennighoff et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxsens.pretrained.families.architecture import Architecture, Experts
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.rotary import llama_like, sliding, typed_windows


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
