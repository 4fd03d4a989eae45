"""The architecture of a transformer whose heads divide its width, from the options of its family."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxsens.pretrained.families.architecture import ACTIVATIONS, Architecture
from jaxsens.pretrained.families.options import REQUIRED, Options


class Names(NamedTuple):
    """What a family calls its options; an empty name is none."""

    width: str = "hidden_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    hidden: str = "intermediate_size"
    longest: str = "max_position_embeddings"
    activation: str = "hidden_act"


def kept(options: Options, longest: int, left_out: int) -> int:
    """Returns the length of the longest input, of which some first positions are left out."""
    if longest <= left_out:
        options.refuse("max_position_embeddings", f"more than the {left_out} that are left out")
    return max(1, longest - left_out)


def plain_architecture(
    options: Options, names: Names, activation: str, encodes: bool, bias: bool = True, **own: Any
) -> Architecture:
    """Returns the architecture with layer normalisation, before each map in a decoder and after each residual in an
    encoder, with a head of keys for each of queries and learned positions, but for the family's `own` choices. `bias`
    is that of all maps of attention."""
    width, heads = options.count(names.width), options.count(names.heads)
    if width % heads:
        options.refuse(names.width, f"a multiple of {names.heads} = {heads}")
    if names.activation:
        activation = options.choice(names.activation, ACTIVATIONS)
    if "longest" not in own:
        own["longest"] = options.count(names.longest)
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
        layers=options.layers(names.layers),
        heads=heads,
        head_width=max(1, width // heads),
        hidden=options.count(names.hidden, REQUIRED if encodes else 4 * width),
        symbols=options.count("vocab_size"),
        activation=activation,
        causal=not encodes,
        **{**chosen, **own},
    )
