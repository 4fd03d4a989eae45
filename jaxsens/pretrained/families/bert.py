"""BERT (Devlin et al. 2019): encoders with learned positions and layer normalisation after each residual."""

from __future__ import annotations

from collections.abc import Iterator

from jaxsens.pretrained.activations import ACTIVATIONS
from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.options import Options
from jaxsens.pretrained.tensors import Tensor, linear_map, masked_language_head, norm

POOLER = (r"(.*\.)?pooler\.",)
"""What makes one vector of the first row, after the last layer."""

_OLD_POOLER = ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")


def architecture(options: Options, position_offset: int = 0) -> Architecture:
    """Returns the architecture of BERT, or of RoBERTa, whose first positions are left out."""
    options.ignore(*_OLD_POOLER, "pooler_size_per_head", "pooler_type")
    width, heads = options.count("hidden_size"), options.count("num_attention_heads")
    if width % heads:
        options.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}")
    layers, activation = options.layers(), options.choice("hidden_act", ACTIVATIONS, "gelu")
    positions = options.count("max_position_embeddings")
    if positions <= position_offset:
        options.refuse("max_position_embeddings", f"more than the {position_offset} that are left out")
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=heads,
        head_width=width // heads,
        hidden=options.count("intermediate_size"),
        symbols=options.count("vocab_size"),
        longest=positions - position_offset,
        norm="layer",
        epsilon=options.number("layer_norm_eps", 1e-12),
        norm_first=False,
        activation=activation,
        gated=False,
        causal=False,
        windows=(None,) * layers,
        scales=(None,) * layers,
        position_offset=position_offset,
        token_types=options.count("type_vocab_size", 2),
        embedding_norm=True,
        tied=options.flag("tie_word_embeddings", True),
        head_activation=activation,
    )


def tensors(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors of BERT and RoBERTa."""
    stored, last = a.longest + a.position_offset, a.longest + a.position_offset
    yield Tensor(("embedding",), ("embeddings.word_embeddings.weight",), (a.symbols, a.width))
    yield Tensor(
        ("positions",),
        ("embeddings.position_embeddings.weight",),
        (stored, a.width),
        rows=(a.position_offset, last),
    )
    types = ("embeddings.token_type_embeddings.weight",)
    yield Tensor(("token_types",), types, (a.token_types, a.width), rows=(0, 1))
    yield from norm(("embedding_norm",), "embeddings.LayerNorm", a.width)
    for k in range(a.layers):
        here, name = ("layers", k), f"encoder.layer.{k}"
        for part in ("query", "key", "value"):
            yield from linear_map((*here, part), f"{name}.attention.self.{part}", a.width, a.width)
        yield from linear_map((*here, "output"), f"{name}.attention.output.dense", a.width, a.width)
        yield from norm((*here, "attention_norm"), f"{name}.attention.output.LayerNorm", a.width)
        yield from linear_map((*here, "up"), f"{name}.intermediate.dense", a.width, a.hidden)
        yield from linear_map((*here, "down"), f"{name}.output.dense", a.hidden, a.width)
        yield from norm((*here, "map_norm"), f"{name}.output.LayerNorm", a.width)


def head(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors of the masked-language head."""
    biases = ("cls.predictions.decoder.bias", "cls.predictions.bias")
    return masked_language_head(
        a.width, a.symbols, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", biases
    )


BERT = Family(
    name="bert",
    prefix="bert.",
    architecture=architecture,
    tensors=tensors,
    head=head,
    head_matrix=("cls.predictions.decoder.weight",),
    buffers=(r"(bert\.)?embeddings\.(position|token_type)_ids$",),
    heads=(*POOLER, r"cls\.", r"classifier\.", r"qa_outputs\."),
    language_model="BertForMaskedLM",
)
