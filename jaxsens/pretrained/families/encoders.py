"""Encoders with positions in the scores alone.

ModernBERT (Warner et al. 2024), with gated maps, windows to both sides and two bases of rotary positions; ESM-2 (Lin et
al. 2023), a model of proteins; and the encoders of T5 (Raffel et al. 2020), whose scores depend on distances.
"""

from __future__ import annotations

from typing import Any

from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture
from jaxsens.pretrained.families.learned import kept, plain_architecture
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.rotary import typed_windows
from jaxsens.pretrained.families.rotation import rotary_angles, rotary_by_window


def modernbert(options: Options) -> Architecture:
    """Old folders say which layers see all rows by a number, and the two bases by themselves."""
    options.ignore(
        "classifier_pooling", "deterministic_flash_attn", "sparse_prediction", "position_embedding_type"
    )
    options.ignore("sparse_pred_ignore_index", "layer_norm_eps")
    head_width = options.count("hidden_size") // options.count("num_attention_heads")
    every, reach = options.count("global_attn_every_n_layers", 3), options.count("local_attention") // 2
    windows = typed_windows(options, reach, lambda k: k % every == 0)
    bases = {
        "full_attention": ("global_rope_theta", 160000.0),
        "sliding_attention": ("local_rope_theta", 1e4),
    }
    return plain_architecture(
        options,
        True,
        act="hidden_activation",
        epsilon=options.number("norm_eps", 1e-5),
        norms="before",
        learned_positions=False,
        gated=True,
        windows=windows,
        bias=options.flag("attention_bias", False),
        map_bias=options.flag("mlp_bias", False),
        head_activation=options.choice("classifier_activation", ACTIVATIONS),
        transform_bias=options.flag("classifier_bias", False),
        norm_shift=options.flag("norm_bias", False),
        first_bare=True,
        logit_bias=options.flag("decoder_bias", True),
        **rotary_by_window(options, windows, bases, head_width, both=True),
    )


def esm(options: Options) -> Architecture:
    """With token dropout, embeddings are scaled as in inputs without masks: 1 - 0.15 * 0.8. A mask scales all rows by
    the share of masks, which no map of single rows does: inputs with one are refused."""
    options.ignore("esmfold_config", "vocab_list", "position_embedding_type")
    turned = options.table.get("position_embedding_type")
    if turned not in ("absolute", "rotary"):
        options.refuse("position_embedding_type", '"absolute" or "rotary"; others are not served')
    options.only("hidden_act", ("gelu", None), "the library itself computes gelu")
    options.only("is_folding_model", (False, None), "models that fold proteins are not served")
    dropped = options.flag("token_dropout", False)
    padding = options.count("pad_token_id", 1, least=0)
    longest = options.count("max_position_embeddings", 1026)
    positions: dict[str, Any] = {"position_offset": padding + 1}
    for scaling in ("rope_scaling", "rope_parameters"):  # the library reads rope_theta alone
        options.table.pop(scaling, None)
    if turned == "rotary":
        head_width = options.count("hidden_size") // options.count("num_attention_heads")
        angles, longest = rotary_angles(options, head_width, longest)
        positions = {"learned_positions": False, "rotary": (angles,) * options.layers()}
    else:
        options.ignore("rope_theta")
        longest = kept(options, longest, padding + 1)
    return plain_architecture(
        options,
        True,
        activation="gelu",
        longest=longest,
        epsilon=options.number("layer_norm_eps", 1e-12),
        norms="before",
        embedding_norm=options.flag("emb_layer_norm_before", False),
        embedding_scale=1 - 0.15 * 0.8 if dropped else 1.0,
        unread=options.count("mask_token_id", least=0) if dropped else None,
        **positions,
    )


_T5_MAPS = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}


def t5(options: Options) -> Architecture:
    """The encoder alone; a decoder beside it is not read. Inputs may be of any length."""
    options.ignore(
        "num_decoder_layers", "is_decoder", "dense_act_fn", "is_gated_act", "scale_decoder_outputs"
    )
    options.ignore("tie_word_embeddings")
    heads, layers = options.count("num_attention_heads"), options.layers()
    activation, gated = _T5_MAPS[options.choice("feed_forward_proj", _T5_MAPS)]
    buckets = options.count("relative_attention_num_buckets", 32)
    width = options.count("d_kv", 64)
    return Architecture(
        width=options.count("hidden_size"),
        layers=layers,
        heads=heads,
        head_width=width,
        hidden=options.count("d_ff"),
        symbols=options.count("vocab_size"),
        longest=options.count("n_positions", 2**15),
        norm="rms",
        epsilon=options.number("layer_norm_epsilon", 1e-6),
        activation=activation,
        gated=gated,
        causal=False,
        scales=(1.0,) * layers,
        # Below a quarter of the buckets, whose distances have one each, no logarithm is left for the others.
        score_bias=RelativeBias(
            buckets, options.count("relative_attention_max_distance", 128, least=buckets // 4 + 1)
        ),
        attention_bias=False,
        output_bias=False,
        map_bias=False,
    )
