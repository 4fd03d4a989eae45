"""Families with learned positions, layer normalisation and a head of keys for each head of queries.

BERT (Devlin et al. 2019), an encoder with layer normalisation after each residual; RoBERTa (Liu et al. 2019) and
XLM-RoBERTa (Conneau et al. 2020), with other positions and another head; DistilBERT (Sanh et al. 2019), without token
types; ELECTRA (Clark et al. 2020) and ALBERT (Lan et al. 2020), with embeddings narrower than rows, ALBERT with the
same parameters in all layers; MPNet (Song et al. 2020), whose scores depend on distances; DeBERTa v2 and v3 (He et al.
2021, 2023), where queries and keys meet distances; and the decoders GPT-2 (Radford et al. 2019), GPT-Neo (Black et al.
2021), with a window in every other layer, and OPT (Zhang et al. 2022).
"""

from __future__ import annotations

import dataclasses
import math

from jaxsens.models.parts.score_positions import RelativeBias
from jaxsens.pretrained.families.architecture import Architecture, Disentangled
from jaxsens.pretrained.families.family import Family, in_thirds
from jaxsens.pretrained.families.options import Options
from jaxsens.pretrained.families.plain import Names, kept, plain_architecture


def _bert(options: Options, left_out: int = 0) -> Architecture:
    """The architecture of BERT, or of RoBERTa, whose first positions are left out."""
    options.only("position_embedding_type", ("absolute", None), 'only "absolute" positions are served')
    types, epsilon = options.count("type_vocab_size", 2), options.number("layer_norm_eps", 1e-12)
    a = plain_architecture(options, Names(), "gelu", True, token_types=types, epsilon=epsilon)
    return dataclasses.replace(a, longest=kept(options, a.longest, left_out), position_offset=left_out)


def _roberta(options: Options) -> Architecture:
    """BERT's architecture. Positions are counted from pad_token_id + 1, and the head's activation is fixed."""
    padding = options.count("pad_token_id", 1, least=0)
    return dataclasses.replace(_bert(options, padding + 1), head_activation="gelu")


def _electra(options: Options) -> Architecture:
    """The head's activation is fixed."""
    a, narrow = _bert(options), options.count("embedding_size", 128)
    width = None if narrow == a.width else narrow
    return dataclasses.replace(a, embedding_width=width, head_activation="gelu")


def _albert(options: Options) -> Architecture:
    """All layers share their parameters, and an embedding is always widened."""
    for name in ("num_hidden_groups", "inner_group_num"):
        options.only(name, (1, None), "groups of layers with parameters of their own are not served")
    options.only("position_embedding_type", ("absolute", None), 'only "absolute" positions are served')
    types, epsilon = options.count("type_vocab_size", 2), options.number("layer_norm_eps", 1e-12)
    own = {"token_types": types, "epsilon": epsilon, "embedding_width": options.count("embedding_size", 128)}
    return plain_architecture(options, Names(), "gelu_new", True, **own)


def _mpnet(options: Options) -> Architecture:
    """Without token types. The head's activation is fixed."""
    buckets, offset = 32, 2
    options.only("relative_attention_num_buckets", (buckets, None), "the library itself computes 32 buckets")
    a = plain_architecture(options, Names(), "gelu", True, epsilon=options.number("layer_norm_eps", 1e-12))
    return dataclasses.replace(
        a,
        longest=kept(options, a.longest, offset),
        position_offset=offset,
        score_bias=RelativeBias(buckets, 128),
        head_activation="gelu",
    )


_TERMS = {"c2p": "key", "p2c": "query"}
"""What there is of distances for each name in pos_att_type."""


def _deberta(options: Options) -> Architecture:
    """The scale counts the terms, even without relative_attention. The newer head is always tied."""
    options.ignore(
        "pooler_hidden_act", "pooler_hidden_size", "conv_act", "conv_groups", "attention_head_size"
    )
    options.only("conv_kernel_size", (0, None), "a convolution mixes rows, which is not served; v3 has none")
    types, epsilon = options.count("type_vocab_size", 0, least=0), options.number("layer_norm_eps", 1e-7)
    own = {"learned_positions": options.flag("position_biased_input", True), "epsilon": epsilon}
    a = plain_architecture(options, Names(), "gelu", True, token_types=types, **own)
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


def _gpt_neo(options: Options) -> Architecture:
    """attention_types says how often a list of kinds is repeated; attention_layers is that list in full."""
    layers, width = options.layers("num_layers"), options.count("window_size", 256)
    types = options.value("attention_types", [[["global", "local"], layers // 2]])
    if not options.given("attention_layers"):
        try:
            options.table["attention_layers"] = [
                kind for kinds, count in types for kind in list(kinds) * count
            ]
        except (TypeError, ValueError):
            remedy = "a list of pairs: a list of global and local, and how often it stands"
            options.refuse("attention_types", remedy)
    windows = options.entries("attention_layers", {"global": None, "local": width}, layers)
    names = Names("hidden_size", "num_heads", "num_layers", activation="activation_function")
    own = {"epsilon": options.number("layer_norm_epsilon", 1e-5), "attention_bias": False}
    return plain_architecture(
        options, names, "gelu_new", False, scales=(1.0,) * layers, windows=tuple(windows), **own
    )


def _opt(options: Options) -> Architecture:
    """The first two positions are left out. The model of 350 M parameters normalises after residuals, and has narrower
    embeddings."""
    first, bias = options.flag("do_layer_norm_before", True), options.flag("enable_bias", True)
    affine = options.flag("layer_norm_elementwise_affine", True)
    width = options.count("hidden_size")
    narrow = options.count("word_embed_proj_dim", width)
    return plain_architecture(
        options,
        Names(hidden="ffn_dim", activation="activation_function"),
        "relu",
        False,
        norms="before" if first else "after",
        final_norm=first and not options.flag("_remove_final_layer_norm", False),
        position_offset=2,
        bias=bias,
        map_bias=bias,
        norm_scale=affine,
        norm_shift=affine,
        embedding_width=None if narrow == width else narrow,
    )


def _distilbert(options: Options) -> Architecture:
    """The position embeddings are stored, whether or not they are sines."""
    options.ignore("sinusoidal_pos_embds")
    names = Names("dim", "n_heads", "n_layers", "hidden_dim", activation="activation")
    return plain_architecture(options, names, "gelu", True, epsilon=1e-12)


def _gpt2(options: Options) -> Architecture:
    """Scores are always computed in the model's dtype, never in a narrower one."""
    options.ignore("reorder_and_upcast_attn")
    names = Names("n_embd", "n_head", "n_layer", "n_inner", "n_positions", "activation_function")
    epsilon = options.number("layer_norm_epsilon", 1e-5)
    a = plain_architecture(options, names, "gelu_new", False, epsilon=epsilon)
    by_layer = options.flag("scale_attn_by_inverse_layer_idx", False)
    scale = a.head_width**-0.5 if options.flag("scale_attn_weights", True) else 1.0
    scales = tuple(scale / (k + 1 if by_layer else 1) for k in range(a.layers))
    return dataclasses.replace(a, scales=scales)


_POOLER = r"(.*\.)?pooler\."
"""What makes one vector of the first row, after the last layer."""

BERT = Family(
    name="bert",
    prefix="bert.",
    architecture=_bert,
    outer={
        "embedding": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
    },
    layer="encoder.layer.{}",
    parts={
        **{part: f"attention.self.{part}" for part in ("query", "key", "value")},
        "output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "map_norm": "output.LayerNorm",
    },
    head_matrix=("cls.predictions.decoder.weight",),
    heads=(_POOLER, r"cls\.", r"classifier\.", r"qa_outputs\."),
    language_model="BertForMaskedLM",
    head_parts={
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
    },
    head_biases=("cls.predictions.decoder.bias", "cls.predictions.bias"),
)

ROBERTA = dataclasses.replace(
    BERT,
    name="roberta",
    prefix="roberta.",
    architecture=_roberta,
    head_matrix=("lm_head.decoder.weight",),
    heads=(_POOLER, r"lm_head\.", r"classifier\.", r"qa_outputs\."),
    language_model="RobertaForMaskedLM",
    head_parts={"transform": "lm_head.dense", "norm": "lm_head.layer_norm"},
    head_biases=("lm_head.decoder.bias", "lm_head.bias"),
)

DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    architecture=_distilbert,
    outer={name: stored for name, stored in BERT.outer.items() if name != "token_types"},
    layer="transformer.layer.{}",
    parts={
        **{part: f"attention.{part[0]}_lin" for part in ("query", "key", "value")},
        "output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
        "map_norm": "output_layer_norm",
    },
    head_matrix=("vocab_projector.weight",),
    heads=(r"vocab_(transform|layer_norm|projector)\.", r"(pre_)?classifier\.", r"qa_outputs\."),
    language_model="DistilBertForMaskedLM",
    head_parts={"transform": "vocab_transform", "norm": "vocab_layer_norm"},
    head_biases=("vocab_projector.bias",),
)

GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    architecture=_gpt2,
    outer={"embedding": "wte", "positions": "wpe", "final_norm": "ln_f"},
    layer="h.{}",
    parts={
        "attention_norm": "ln_1",
        **dict.fromkeys(("query", "key", "value"), "attn.c_attn"),
        "output": "attn.c_proj",
        "map_norm": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    buffers=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias$",),
    heads=(r"lm_head\.", r"multiple_choice_head\.", r"score\.", r"classifier\.", r"qa_outputs\."),
    language_model="GPT2LMHeadModel",
    fused=(in_thirds,),
    inputs_first=True,
)

XLM_ROBERTA = dataclasses.replace(ROBERTA, name="xlm-roberta", language_model="XLMRobertaForMaskedLM")
CAMEMBERT = dataclasses.replace(ROBERTA, name="camembert", language_model="CamembertForMaskedLM")

ELECTRA = dataclasses.replace(
    BERT,
    name="electra",
    prefix="electra.",
    architecture=_electra,
    outer={**BERT.outer, "embedding_map": "embeddings_project"},
    head_matrix=("generator_lm_head.weight",),
    heads=(r"generator_", r"discriminator_predictions\.", r"classifier\.", r"qa_outputs\."),
    language_model="ElectraForMaskedLM",
    head_parts={"transform": "generator_predictions.dense", "norm": "generator_predictions.LayerNorm"},
    head_biases=("generator_lm_head.bias",),
)

ALBERT = dataclasses.replace(
    BERT,
    name="albert",
    prefix="albert.",
    architecture=_albert,
    outer={**BERT.outer, "embedding_map": "encoder.embedding_hidden_mapping_in"},
    layer="encoder.albert_layer_groups.0.albert_layers.0",
    parts={
        **{part: f"attention.{part}" for part in ("query", "key", "value")},
        "output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "up": "ffn",
        "down": "ffn_output",
        "map_norm": "full_layer_layer_norm",
    },
    head_matrix=("predictions.decoder.weight",),
    heads=(_POOLER, r"predictions\.", r"sop_classifier\.", r"classifier\.", r"qa_outputs\."),
    language_model="AlbertForMaskedLM",
    head_parts={"transform": "predictions.dense", "norm": "predictions.LayerNorm"},
    head_biases=("predictions.decoder.bias", "predictions.bias"),
)

MPNET = dataclasses.replace(
    ROBERTA,
    name="mpnet",
    prefix="mpnet.",
    architecture=_mpnet,
    outer={
        **{name: stored for name, stored in BERT.outer.items() if name != "token_types"},
        "score_bias": "encoder.relative_attention_bias",
    },
    parts={
        **BERT.parts,
        **{part: f"attention.attn.{part[0]}" for part in ("query", "key", "value", "output")},
        "attention_norm": "attention.LayerNorm",
    },
    language_model="MPNetForMaskedLM",
)

DEBERTA = dataclasses.replace(
    BERT,
    name="deberta-v2",
    prefix="deberta.",
    architecture=_deberta,
    outer={**BERT.outer, "distances": "encoder.rel_embeddings", "distance_norm": "encoder.LayerNorm"},
    parts={
        **BERT.parts,
        **{part: f"attention.self.{part}_proj" for part in ("query", "key", "value")},
        **{f"distance_{part}": f"attention.self.pos_{part}_proj" for part in ("query", "key")},
    },
    buffers=(r"(deberta\.)?(embeddings\.position_embeddings|encoder\.(rel_embeddings|LayerNorm))\.",),
    heads=(_POOLER, r"cls\.", r"(lm|mask)_predictions\.", r"classifier\.", r"qa_outputs\."),
    language_model="DebertaV2ForMaskedLM with this `legacy`",
)
_NEWER = {"transform": "lm_predictions.lm_head.dense", "norm": "lm_predictions.lm_head.LayerNorm"}
DEBERTA = dataclasses.replace(
    DEBERTA,
    newer=dataclasses.replace(DEBERTA, head_parts=_NEWER, head_biases=("lm_predictions.lm_head.bias",)),
)

GPT_NEO = dataclasses.replace(
    GPT2,
    name="gpt_neo",
    architecture=_gpt_neo,
    parts={
        **GPT2.parts,
        **{part: f"attn.attention.{part[0]}_proj" for part in ("query", "key", "value")},
        "output": "attn.attention.out_proj",
    },
    buffers=(r"(transformer\.)?h\.\d+\.attn\.attention\.(masked_)?bias$",),
    language_model="GPTNeoForCausalLM",
    fused=(),
    inputs_first=False,
)

OPT = Family(
    name="opt",
    counts_padding=True,
    prefix="model.",
    architecture=_opt,
    outer={
        "embedding": "decoder.embed_tokens",
        "positions": "decoder.embed_positions",
        "embedding_map": "decoder.project_in",
        "output_map": "decoder.project_out",
        "final_norm": "decoder.final_layer_norm",
    },
    layer="decoder.layers.{}",
    parts={
        "attention_norm": "self_attn_layer_norm",
        **{part: f"self_attn.{part[0]}_proj" for part in ("query", "key", "value")},
        "output": "self_attn.out_proj",
        "map_norm": "final_layer_norm",
        "up": "fc1",
        "down": "fc2",
    },
    buffers=(r"(model\.)?decoder\.version$",),
    language_model="OPTForCausalLM",
    outer_bias=False,
)
