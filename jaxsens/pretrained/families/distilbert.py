"""DistilBERT (Sanh et al. 2019): BERT without token types, under other names."""

from __future__ import annotations

from collections.abc import Iterator

from jaxsens.pretrained.activations import ACTIVATIONS
from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.options import Options
from jaxsens.pretrained.tensors import Tensor, linear_map, masked_language_head, norm


def architecture(options: Options) -> Architecture:
    """Returns the architecture. The position embeddings are stored, whether or not they are sines."""
    options.ignore("sinusoidal_pos_embds")
    width, heads, layers = options.count("dim"), options.count("n_heads"), options.layers("n_layers")
    if width % heads:
        options.refuse("dim", f"a multiple of n_heads = {heads}")
    activation = options.choice("activation", ACTIVATIONS, "gelu")
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=heads,
        head_width=width // heads,
        hidden=options.count("hidden_dim"),
        symbols=options.count("vocab_size"),
        longest=options.count("max_position_embeddings"),
        norm="layer",
        epsilon=1e-12,
        norm_first=False,
        activation=activation,
        gated=False,
        causal=False,
        windows=(None,) * layers,
        scales=(None,) * layers,
        embedding_norm=True,
        tied=options.flag("tie_word_embeddings", True),
        head_activation=activation,
    )


def tensors(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors up to the last rows."""
    yield Tensor(("embedding",), ("embeddings.word_embeddings.weight",), (a.symbols, a.width))
    yield Tensor(("positions",), ("embeddings.position_embeddings.weight",), (a.longest, a.width))
    yield from norm(("embedding_norm",), "embeddings.LayerNorm", a.width)
    for k in range(a.layers):
        here, name = ("layers", k), f"transformer.layer.{k}"
        for part, stored in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            yield from linear_map((*here, part), f"{name}.attention.{stored}_lin", a.width, a.width)
        yield from norm((*here, "attention_norm"), f"{name}.sa_layer_norm", a.width)
        yield from linear_map((*here, "up"), f"{name}.ffn.lin1", a.width, a.hidden)
        yield from linear_map((*here, "down"), f"{name}.ffn.lin2", a.hidden, a.width)
        yield from norm((*here, "map_norm"), f"{name}.output_layer_norm", a.width)


def head(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors of the masked-language head."""
    biases = ("vocab_projector.bias",)
    return masked_language_head(a.width, a.symbols, "vocab_transform", "vocab_layer_norm", biases)


DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    architecture=architecture,
    tensors=tensors,
    head=head,
    head_matrix=("vocab_projector.weight",),
    buffers=(r"(distilbert\.)?embeddings\.position_ids$",),
    heads=(r"vocab_(transform|layer_norm|projector)\.", r"(pre_)?classifier\.", r"qa_outputs\."),
    language_model="DistilBertForMaskedLM",
)
