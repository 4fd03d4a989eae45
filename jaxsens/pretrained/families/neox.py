"""Decoders with layer normalisation whose attention and per-row map may read the same row, and BLOOM.

GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023) and Phi (Li et al. 2023), which turn a part of each head;
GPT-J (Wang and Komatsuzaki 2021), which turns pairs side by side; Falcon (Almazrouei et al. 2023), with rotary
positions or ALiBi; and BLOOM (Le Scao et al. 2022), with ALiBi and normalised embeddings, one map after the other.
"""

from __future__ import annotations

import math
from typing import Any

from jaxsens.pretrained.families.architecture import Architecture, PositionSlopes
from jaxsens.pretrained.families.learned import plain_architecture
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.rotation import RotaryAngles, rotary_angles


def _decoder(options: Options, epsilon: str, **own: Any) -> Architecture:
    """A decoder without learned positions; `epsilon` is the name of that option."""
    own = {"epsilon": options.number(epsilon), "learned_positions": False, **own}
    return plain_architecture(options, False, **own)


def _turned(options: Options, part: float | None) -> dict[str, Any]:
    """The choices of a family with rotary positions."""
    width = options.count("hidden_size") // options.count("num_attention_heads")
    rotary, longest = rotary_angles(options, width, options.count("max_position_embeddings"), part)
    return {"rotary": (rotary,) * options.layers(), "longest": longest}


def gpt_neox(options: Options) -> Architecture:
    """Old folders call the options of rotary positions rotary_pct and rotary_emb_base, and no other name is read."""
    part = options.number("rotary_pct", 0.25)
    options.table |= {"rope_theta": options.number("rotary_emb_base", 10000.0), "partial_rotary_factor": None}
    return _decoder(
        options,
        "layer_norm_eps",
        bias=options.flag("attention_bias"),
        parallel=options.flag("use_parallel_residual"),
        **_turned(options, part),
    )


def gptj(options: Options) -> Architecture:
    """The width that is turned is an option, and the base of its angles is not."""
    head_width = options.count("hidden_size") // options.count("num_attention_heads")
    turned = options.count("rotary_dim", most=max(1, head_width))
    if turned % 2:
        options.refuse("rotary_dim", "an even number: turned coordinates make pairs")
    rotary = RotaryAngles(10000.0, turned, interleaved=True)
    return _decoder(
        options,
        "layer_norm_epsilon",
        hidden="n_inner",
        act="activation_function",
        bias=False,
        parallel=True,
        shared_norm=True,
        rotary=(rotary,) * options.layers(),
    )


def phi(options: Options) -> Architecture:
    """Half of a head is turned unless an option says otherwise."""
    heads = options.count("num_attention_heads")
    return _decoder(
        options,
        "layer_norm_eps",
        key_heads=options.count("num_key_value_heads", heads),
        head_norms="heads" if options.flag("qk_layernorm", False) else "none",
        parallel=True,
        shared_norm=True,
        **_turned(options, 0.5),
    )


def slopes(heads: int) -> tuple[float, ...]:
    """Returns ALiBi's slopes as published models have them: for H heads of which 2^k is the largest power of two, those
    of 2^k heads, then every second one of 2^(k+1)."""
    power = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    return (*first, *(2.0 ** (-4.0 * h / power) for h in range(1, 2 * (heads - power), 2)))


def falcon(options: Options) -> Architecture:
    """Grouped keys and two normalisations in the new decoder; in the old one a single head of keys, or one each."""
    heads, new = options.count("num_attention_heads"), options.flag("new_decoder_architecture", False)
    single, parallel = options.flag("multi_query", False), options.flag("parallel_attn", False)
    key_heads = options.count("num_kv_heads", heads)
    both = options.count("num_ln_in_parallel_attn", 2 if new else 1) == 2 and new
    bias, width = options.flag("bias", False), options.count("hidden_size") // heads
    if options.flag("alibi", False):
        longest = options.count("max_position_embeddings")
        alibi = PositionSlopes(slopes(heads), width**-0.5, bfloat16=True)
        positions: dict[str, Any] = {"score_bias": alibi, "longest": longest}
        options.ignore("rope_theta", "rope_parameters", "rope_scaling")
    else:
        positions = _turned(options, None)
    return _decoder(
        options,
        "layer_norm_epsilon",
        hidden="ffn_hidden_size",
        act="activation",
        key_heads=key_heads if new else 1 if single else heads,
        parallel=parallel or new,
        shared_norm=(parallel or new) and not both,
        bias=bias,
        map_bias=bias,
        **positions,
    )


def bloom(options: Options) -> Architecture:
    """Inputs may be of any length; `seq_length` is that of training. `n_embed` counts before hidden_size."""
    options.ignore("pretraining_tp", "slow_but_exact", "hidden_size")
    after = "normalised rows in the residual are not served"
    options.only("apply_residual_connection_post_layernorm", (False, None), after)
    if options.given("n_embed"):
        options.names["hidden_size"] = "n_embed"
    return _decoder(
        options,
        "layer_norm_epsilon",
        hidden="",
        activation="gelu_bloom",
        embedding_norm=True,
        score_bias=PositionSlopes(slopes(options.count("num_attention_heads"))),
        longest=options.count("seq_length", 2048),
    )
