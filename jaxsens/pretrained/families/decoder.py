"""What Llama, Mistral, Qwen2 and Qwen3 share: RMS normalisation, rotary positions, grouped heads and gated maps."""

from __future__ import annotations

from collections.abc import Iterator

from jaxsens.pretrained.activations import ACTIVATIONS
from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.family import Family, Reader
from jaxsens.pretrained.families.rope import rotary_angles
from jaxsens.pretrained.options import REQUIRED, Options
from jaxsens.pretrained.tensors import Tensor, linear_map, norm


def rotary_decoder(
    options: Options,
    windows: tuple[int | None, ...],
    *,
    attention_bias: bool,
    output_bias: bool,
    map_bias: bool = False,
    head_norms: bool = False,
    head_width: int | None = None,
    all_heads_have_keys: bool = False,
) -> Architecture:
    """Returns the architecture of a decoder.

    Args:
        options: those of config.json.
        windows: the width of each layer's sliding window, None for none.
        attention_bias: whether queries, keys and values have biases.
        output_bias: whether the map after attention has one.
        map_bias: whether the gated map has biases.
        head_norms: whether each head's queries and keys are normalised.
        head_width: the width of a head where config.json does not give it; None for hidden_size / heads.
        all_heads_have_keys: whether num_key_value_heads may be absent, for as many as query heads.
    """
    width, heads = options.count("hidden_size"), options.count("num_attention_heads")
    own_width = options.count("head_dim", head_width or max(width // heads, 1))
    if not options.given("head_dim") and head_width is None and width % heads:
        options.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}, or give head_dim")
    null = "num_key_value_heads" in options.table
    key_heads = options.count("num_key_value_heads", heads if null or all_heads_have_keys else REQUIRED)
    if heads % key_heads:
        options.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    rotary, longest = rotary_angles(options, own_width, options.count("max_position_embeddings"))
    layers = len(windows)
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_width=own_width,
        hidden=options.count("intermediate_size"),
        symbols=options.count("vocab_size"),
        longest=longest,
        norm="rms",
        epsilon=options.number("rms_norm_eps", 1e-6),
        norm_first=True,
        activation=options.choice("hidden_act", ACTIVATIONS, "silu"),
        gated=True,
        causal=True,
        windows=windows,
        scales=(None,) * layers,
        rotary=rotary,
        head_norms=head_norms,
        attention_bias=attention_bias,
        output_bias=output_bias,
        map_bias=map_bias,
        tied=options.flag("tie_word_embeddings", False),
    )


def windows_of_layers(options: Options) -> tuple[int | None, ...]:
    """Returns the width of each layer's sliding window, as Qwen's options say."""
    layers, first = options.layers(), options.count("max_window_layers", 28, least=0)
    width = options.count("sliding_window", 4096)
    sliding = options.flag("use_sliding_window", False) and options.given("sliding_window")
    kinds = options.value("layer_types", None)
    if kinds is None:
        return tuple(width if sliding and k >= first else None for k in range(layers))
    known = {"full_attention": None, "sliding_attention": width}
    if not isinstance(kinds, list) or any(not isinstance(one, str) or one not in known for one in kinds):
        options.refuse("layer_types", f"a list of {' and '.join(known)}; others are not served")
    elif len(kinds) != layers:
        options.refuse("layer_types", f"a list of num_hidden_layers = {layers} entries")
    elif "sliding_attention" in kinds and not sliding:
        options.refuse("layer_types", "sliding_attention needs use_sliding_window = true and sliding_window")
    else:
        return tuple(known[one] for one in kinds)
    return (None,) * layers


def tensors(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors up to the last rows, with the final normalisation."""
    queries, keys = a.heads * a.head_width, a.key_heads * a.head_width
    yield Tensor(("embedding",), ("embed_tokens.weight",), (a.symbols, a.width))
    for k in range(a.layers):
        here, name = ("layers", k), f"layers.{k}"
        yield from norm((*here, "attention_norm"), f"{name}.input_layernorm", a.width, shift=False)
        for part, size in (("query", queries), ("key", keys), ("value", keys)):
            stored = f"{name}.self_attn.{part[0]}_proj"
            yield from linear_map((*here, part), stored, a.width, size, a.attention_bias)
        if a.head_norms:
            for part in ("query", "key"):
                stored = f"{name}.self_attn.{part[0]}_norm"
                yield from norm((*here, f"{part}_norm"), stored, a.head_width, shift=False)
        yield from linear_map((*here, "output"), f"{name}.self_attn.o_proj", queries, a.width, a.output_bias)
        yield from norm((*here, "map_norm"), f"{name}.post_attention_layernorm", a.width, shift=False)
        for part in ("gate", "up"):
            yield from linear_map((*here, part), f"{name}.mlp.{part}_proj", a.width, a.hidden, a.map_bias)
        yield from linear_map((*here, "down"), f"{name}.mlp.down_proj", a.hidden, a.width, a.map_bias)
    yield from norm(("final_norm",), "norm", a.width, shift=False)


def decoder_family(name: str, architecture: Reader, language_model: str) -> Family:
    """Returns a family whose tensors have Llama's names."""
    return Family(
        name=name,
        prefix="model.",
        architecture=architecture,
        tensors=tensors,
        head=lambda a: (),
        head_matrix=("lm_head.weight",),
        buffers=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$",),
        heads=(r"lm_head\.", r"score\.", r"classifier\.", r"qa_outputs\."),
        language_model=language_model,
    )
