"""Families with layer normalisation, of one shared architecture; and T5.

With learned positions: BERT (Devlin et al. 2019), an encoder with layer normalisation after each residual; RoBERTa (Liu
et al. 2019) and XLM-RoBERTa (Conneau et al. 2020), with other positions and another head; DistilBERT (Sanh et al.
2019), without token types; ELECTRA (Clark et al. 2020) and ALBERT (Lan et al. 2020), with embeddings narrower than
rows, ALBERT with the same parameters in all layers; MPNet (Song et al. 2020), whose scores depend on distances; DeBERTa
v2 and v3 (He et al. 2021, 2023), where queries and keys meet distances; and the decoders GPT-2 (Radford et al. 2019),
GPT-Neo (Black et al. 2021), with a window in every other layer, and OPT (Zhang et al. 2022).

Encoders with positions in the scores alone: ModernBERT (Warner et al. 2024), with gated maps, windows to both sides and
two bases of rotary positions; ESM-2 (Lin et al. 2023), a model of proteins; and the encoders of T5 (Raffel et al.
2020), whose scores depend on distances.

Decoders whose attention and per-row map may read the same row: GPT-NeoX and Pythia (Black et al. 2022; Biderman et al.
2023) and Phi (Li et al. 2023), which turn a part of each head; GPT-J (Wang and Komatsuzaki 2021), which turns pairs
side by side; Falcon (Almazrouei et al. 2023), with rotary positions or ALiBi; and BLOOM (Le Scao et al. 2022), with
ALiBi and normalised embeddings, one map after the other.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture, Disentangled, PositionSlopes
from jaxsens.pretrained.families.options import REQUIRED, Options
from jaxsens.pretrained.families.rotary import typed_windows
from jaxsens.pretrained.families.rotation import RotaryAngles, rotary_angles, rotary_by_window


def kept(options: Options, longest: int, left_out: int) -> int:
    """Returns the length of the longest input, of which some first positions are left out."""
    if longest <= left_out:
        options.refuse("max_position_embeddings", f"more than the {left_out} that are left out")
    return max(1, longest - left_out)


def plain_architecture(
    options: Options,
    encodes: bool,
    bias: bool = True,
    hidden: str = "intermediate_size",
    act: str = "hidden_act",
    **own: Any,
) -> Architecture:
    """Returns the architecture with layer normalisation, before each map in a decoder and after each residual in an
    encoder, with a head of keys for each of queries and learned positions, but for the family's `own` choices. `bias`
    is that of all maps of attention; `hidden` and `act` are the names of these options."""
    width, heads = options.count("hidden_size"), options.count("num_attention_heads")
    if width % heads:
        options.refuse("hidden_size", f"a multiple of {options.named('num_attention_heads')} = {heads}")
    activation = own["activation"] if "activation" in own else options.choice(act, ACTIVATIONS)
    if "longest" not in own:
        own["longest"] = options.count("max_position_embeddings")
    chosen: dict[str, Any] = {
        "norms": "after" if encodes else "before",
        "learned_positions": True,
        "attention_bias": bias,
        "output_bias": bias,
        "embedding_norm": encodes,
        "tied": options.flag("tie_word_embeddings"),
        "head_activation": activation if encodes else None,
    }
    return Architecture(
        width=width,
        layers=options.layers(),
        heads=heads,
        head_width=max(1, width // heads),
        hidden=options.count(hidden, REQUIRED if encodes else 4 * width),
        symbols=options.count("vocab_size"),
        causal=not encodes,
        **{"activation": activation, **chosen, **own},
    )


def bert(options: Options, left_out: int = 0) -> Architecture:
    """The architecture of BERT, or of RoBERTa, whose first positions are left out."""
    options.only("position_embedding_type", ("absolute", None), 'only "absolute" positions are served')
    types, epsilon = options.count("type_vocab_size", 2), options.number("layer_norm_eps", 1e-12)
    a = plain_architecture(options, True, token_types=types, epsilon=epsilon)
    return dataclasses.replace(a, longest=kept(options, a.longest, left_out), position_offset=left_out)


def roberta(options: Options) -> Architecture:
    """BERT's architecture. Positions are counted from pad_token_id + 1, and the head's activation is fixed."""
    padding = options.count("pad_token_id", 1, least=0)
    return dataclasses.replace(bert(options, padding + 1), head_activation="gelu")


def electra(options: Options) -> Architecture:
    """The head's activation is fixed."""
    a, narrow = bert(options), options.count("embedding_size", 128)
    width = None if narrow == a.width else narrow
    return dataclasses.replace(a, embedding_width=width, head_activation="gelu")


def albert(options: Options) -> Architecture:
    """All layers share their parameters, and an embedding is always widened."""
    for name in ("num_hidden_groups", "inner_group_num"):
        options.only(name, (1, None), "groups of layers with parameters of their own are not served")
    return dataclasses.replace(bert(options), embedding_width=options.count("embedding_size", 128))


def mpnet(options: Options) -> Architecture:
    """Without token types. The head's activation is fixed."""
    buckets, offset = 32, 2
    options.only("relative_attention_num_buckets", (buckets, None), "the library itself computes 32 buckets")
    a = plain_architecture(options, True, epsilon=options.number("layer_norm_eps", 1e-12))
    return dataclasses.replace(
        a,
        longest=kept(options, a.longest, offset),
        position_offset=offset,
        score_bias=RelativeBias(buckets, 128),
        head_activation="gelu",
    )


_TERMS = {"c2p": "key", "p2c": "query"}
"""What there is of distances for each name in pos_att_type."""


def deberta_v2(options: Options) -> Architecture:
    """The scale counts the terms, even without relative_attention. The newer head is always tied."""
    options.ignore("pooler_hidden_act", "pooler_hidden_size")
    options.ignore("conv_act", "conv_groups", "attention_head_size")
    options.only("conv_kernel_size", (0, None), "a convolution mixes rows, which is not served; v3 has none")
    types, epsilon = options.count("type_vocab_size", 0, least=0), options.number("layer_norm_eps", 1e-7)
    own = {"learned_positions": options.flag("position_biased_input", True), "epsilon": epsilon}
    a = plain_architecture(options, True, token_types=types, **own)
    for name, only in (("embedding_size", a.width), ("attention_head_size", a.head_width)):
        options.only(name, (only, None), f"only {only}, which follows from hidden_size, is served")
    terms = options.value("pos_att_type", [])
    terms = [one.strip() for one in terms.lower().split("|")] if isinstance(terms, str) else terms
    if not isinstance(terms, list) or any(one not in [*_TERMS] for one in terms):
        options.refuse("pos_att_type", 'a list of "c2p" and "p2c", or "c2p|p2c"; others are not served')
        terms = []
    scores = _disentangled(options, tuple(part for name, part in _TERMS.items() if name in terms), a.longest)
    return dataclasses.replace(
        a,
        scales=((a.head_width * (1 + len(scores.parts))) ** -0.5,) * a.layers,
        score_bias=scores if options.flag("relative_attention", False) else None,
        tied=not options.flag("legacy", True) or a.tied,
    )


def _disentangled(options: Options, parts: tuple[str, ...], longest: int) -> Disentangled:
    """With m = position_buckets // 2, distance d > m has the bucket m + ceil((m - 1) log(d / m) / log((r - 1) / m)), in
    float64, with r = max_relative_positions, or that of embeddings; without buckets, or up to m, each has its own."""
    buckets = options.count("position_buckets", -1, least=-1)
    reach = options.count("max_relative_positions", -1, least=-1)
    reach, exact = longest if reach < 1 else reach, buckets // 2 if buckets > 0 else longest
    if buckets > 0 and not 0 < exact < reach - 1:
        most = f"less than twice max_relative_positions - 1 = {reach - 1}"
        options.refuse("position_buckets", f"at least 2, and {most}")
        exact = longest
    far = (math.log(d / exact) / math.log((reach - 1) / exact) for d in range(exact + 1, longest))
    places = (*range(min(exact + 1, longest)), *(exact + math.ceil(part * (exact - 1)) for part in far))
    normalised = options.choice("norm_rel_ebd", ("none", "layer_norm"), "none") == "layer_norm"
    span = buckets if buckets > 0 else reach
    return Disentangled(parts, span, places, options.flag("share_att_key", False), normalised)


def gpt_neo(options: Options) -> Architecture:
    """attention_types says how often a list of kinds is repeated; attention_layers is that list in full."""
    layers, width = options.layers(), options.count("window_size", 256)
    types = options.value("attention_types", [[["global", "local"], layers // 2]])
    if not options.given("attention_layers"):
        try:
            repeated = [kind for kinds, count in types for kind in list(kinds) * count]
            options.table["attention_layers"] = repeated
        except (TypeError, ValueError):
            remedy = "a list of pairs: a list of global and local, and how often it stands"
            options.refuse("attention_types", remedy)
    windows = options.entries("attention_layers", {"global": None, "local": width}, layers)
    own: dict[str, Any] = {"scales": (1.0,) * layers, "windows": tuple(windows), "attention_bias": False}
    own["epsilon"] = options.number("layer_norm_epsilon", 1e-5)
    return plain_architecture(options, False, act="activation_function", **own)


def opt(options: Options) -> Architecture:
    """The first two positions are left out. The model of 350 M parameters normalises after residuals, and has narrower
    embeddings."""
    first, bias = options.flag("do_layer_norm_before", True), options.flag("enable_bias", True)
    affine = options.flag("layer_norm_elementwise_affine", True)
    width = options.count("hidden_size")
    narrow = options.count("word_embed_proj_dim", width)
    return plain_architecture(
        options,
        False,
        hidden="ffn_dim",
        act="activation_function",
        norms="before" if first else "after",
        final_norm=first and not options.flag("_remove_final_layer_norm", False),
        position_offset=2,
        bias=bias,
        map_bias=bias,
        norm_scale=affine,
        norm_shift=affine,
        embedding_width=None if narrow == width else narrow,
    )


def distilbert(options: Options) -> Architecture:
    """The position embeddings are stored, whether or not they are sines."""
    options.ignore("sinusoidal_pos_embds")
    return plain_architecture(options, True, hidden="hidden_dim", act="activation", epsilon=1e-12)


def gpt2(options: Options) -> Architecture:
    """Scores are always computed in the model's dtype, never in a narrower one."""
    options.ignore("reorder_and_upcast_attn")
    epsilon = options.number("layer_norm_epsilon", 1e-5)
    a = plain_architecture(options, False, hidden="n_inner", act="activation_function", epsilon=epsilon)
    by_layer = options.flag("scale_attn_by_inverse_layer_idx", False)
    scale = a.head_width**-0.5 if options.flag("scale_attn_weights", True) else 1.0
    scales = tuple(scale / (k + 1 if by_layer else 1) for k in range(a.layers))
    return dataclasses.replace(a, scales=scales)


def modernbert(options: Options) -> Architecture:
    """Old folders say which layers see all rows by a number, and the two bases by themselves."""
    options.ignore("classifier_pooling", "deterministic_flash_attn", "position_embedding_type")
    options.ignore("sparse_prediction", "sparse_pred_ignore_index", "layer_norm_eps")
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
    options.ignore("num_decoder_layers", "is_decoder", "dense_act_fn", "is_gated_act")
    options.ignore("scale_decoder_outputs", "tie_word_embeddings")
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
