"""Families with learned positions, layer normalisation and a head of keys for each head of queries.

BERT (Devlin et al. 2019), an encoder with layer normalisation after each residual; RoBERTa (Liu et al. 2019), with
other positions and another head; DistilBERT (Sanh et al. 2019), without token types; and GPT-2 (Radford et al. 2019), a
decoder with layer normalisation before each map.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture
from jaxsens.pretrained.families.family import Family, in_thirds
from jaxsens.pretrained.families.options import REQUIRED, Options


class _Names(NamedTuple):
    """What a family calls its options."""

    width: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    hidden: str = "intermediate_size"
    longest: str = "max_position_embeddings"
    activation: str = "hidden_act"


def _architecture(
    options: Options, names: _Names, activation: str, encodes: bool, **own: Any
) -> Architecture:
    width, heads, layers = (
        options.count(names.width),
        options.count(names.heads),
        options.layers(names.layers),
    )
    if width % heads:
        options.refuse(names.width, f"a multiple of {names.heads} = {heads}")
    activation = options.choice(names.activation, ACTIVATIONS, activation)
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=heads,
        head_width=width // heads,
        hidden=options.count(names.hidden, REQUIRED if encodes else 4 * width),
        symbols=options.count("vocab_size"),
        longest=options.count(names.longest),
        norm="layer",
        norms="after" if encodes else "before",
        learned_positions=True,
        activation=activation,
        gated=False,
        causal=not encodes,
        windows=(None,) * layers,
        scales=(None,) * layers,
        embedding_norm=encodes,
        tied=options.flag("tie_word_embeddings", True),
        head_activation=activation if encodes else None,
        **own,
    )


def _bert(options: Options, left_out: int = 0) -> Architecture:
    """The architecture of BERT, or of RoBERTa, whose first positions are left out."""
    options.ignore("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")
    options.ignore("pooler_size_per_head", "pooler_type")
    types, epsilon = options.count("type_vocab_size", 2), options.number("layer_norm_eps", 1e-12)
    a = _architecture(options, _Names(), "gelu", True, token_types=types, epsilon=epsilon)
    if a.longest <= left_out:
        options.refuse("max_position_embeddings", f"more than the {left_out} that are left out")
    return dataclasses.replace(a, longest=a.longest - left_out, position_offset=left_out)


def _roberta(options: Options) -> Architecture:
    """BERT's architecture. Positions are counted from pad_token_id + 1, and the head's activation is fixed."""
    padding = options.count("pad_token_id", 1, least=0)
    return dataclasses.replace(_bert(options, padding + 1), head_activation="gelu")


def _distilbert(options: Options) -> Architecture:
    """The position embeddings are stored, whether or not they are sines."""
    options.ignore("sinusoidal_pos_embds")
    names = _Names("dim", "n_heads", "n_layers", "hidden_dim", activation="activation")
    return _architecture(options, names, "gelu", True, epsilon=1e-12)


def _gpt2(options: Options) -> Architecture:
    """Scores are always computed in the model's dtype, never in a narrower one."""
    options.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    options.ignore("summary_first_dropout", "reorder_and_upcast_attn", "n_ctx")
    names = _Names("n_embd", "n_head", "n_layer", "n_inner", "n_positions", "activation_function")
    a = _architecture(options, names, "gelu_new", False, epsilon=options.number("layer_norm_epsilon", 1e-5))
    by_layer = options.flag("scale_attn_by_inverse_layer_idx", False)
    scale = (a.head_width or 1) ** -0.5 if options.flag("scale_attn_weights", True) else 1.0
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
    buffers=(r"(bert\.)?embeddings\.(position|token_type)_ids$",),
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
    buffers=(r"(roberta\.)?embeddings\.(position|token_type)_ids$",),
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
    buffers=(r"(distilbert\.)?embeddings\.position_ids$",),
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
    head_matrix=("lm_head.weight",),
    buffers=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias$",),
    heads=(r"lm_head\.", r"multiple_choice_head\.", r"score\.", r"classifier\.", r"qa_outputs\."),
    language_model="GPT2LMHeadModel",
    fused=(in_thirds,),
    inputs_first=True,
)
