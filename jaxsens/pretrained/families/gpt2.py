"""GPT-2 (Radford et al. 2019): decoders with learned positions and layer normalisation before each map.

Matrices are stored as (inputs, outputs), and those of queries, keys and values side by side.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxsens.pretrained.activations import ACTIVATIONS
from jaxsens.pretrained.architecture import Architecture
from jaxsens.pretrained.families.family import Family
from jaxsens.pretrained.options import Options
from jaxsens.pretrained.tensors import Place, Tensor, norm

_SUMMARY = ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")


def architecture(options: Options) -> Architecture:
    """Returns the architecture. Scores are always computed in the model's dtype, never in a narrower one."""
    options.ignore(*_SUMMARY, "summary_first_dropout", "reorder_and_upcast_attn", "n_ctx")
    width, heads, layers = options.count("n_embd"), options.count("n_head"), options.layers("n_layer")
    if width % heads:
        options.refuse("n_embd", f"a multiple of n_head = {heads}")
    scaled = options.flag("scale_attn_weights", True)
    by_layer = options.flag("scale_attn_by_inverse_layer_idx", False)
    scale = (width // heads or 1) ** -0.5 if scaled else 1.0
    return Architecture(
        width=width,
        layers=layers,
        heads=heads,
        key_heads=heads,
        head_width=width // heads,
        hidden=options.count("n_inner", 4 * width),
        symbols=options.count("vocab_size"),
        longest=options.count("n_positions"),
        norm="layer",
        epsilon=options.number("layer_norm_epsilon", 1e-5),
        norm_first=True,
        activation=options.choice("activation_function", ACTIVATIONS, "gelu_new"),
        gated=False,
        causal=True,
        windows=(None,) * layers,
        scales=tuple(scale / (k + 1 if by_layer else 1) for k in range(layers)),
        tied=options.flag("tie_word_embeddings", True),
    )


def tensors(a: Architecture) -> Iterator[Tensor]:
    """Yields the tensors up to the last rows, with the final normalisation."""
    yield Tensor(("embedding",), ("wte.weight",), (a.symbols, a.width))
    yield Tensor(("positions",), ("wpe.weight",), (a.longest, a.width))
    for k in range(a.layers):
        here, name = ("layers", k), f"h.{k}"
        yield from norm((*here, "attention_norm"), f"{name}.ln_1", a.width)
        for j, part in enumerate(("query", "key", "value")):
            columns = (j * a.width, (j + 1) * a.width)
            yield from _map((*here, part), f"{name}.attn.c_attn", a.width, 3 * a.width, columns)
        yield from _map((*here, "output"), f"{name}.attn.c_proj", a.width, a.width)
        yield from norm((*here, "map_norm"), f"{name}.ln_2", a.width)
        yield from _map((*here, "up"), f"{name}.mlp.c_fc", a.width, a.hidden)
        yield from _map((*here, "down"), f"{name}.mlp.c_proj", a.hidden, a.width)
    yield from norm(("final_norm",), "ln_f", a.width)


def _map(
    place: Place, name: str, inputs: int, outputs: int, columns: tuple[int, int] | None = None
) -> Iterator[Tensor]:
    yield Tensor((*place, "matrix"), (f"{name}.weight",), (inputs, outputs), columns=columns)
    yield Tensor((*place, "bias"), (f"{name}.bias",), (outputs,), columns=columns)


GPT2 = Family(
    name="gpt2",
    prefix="transformer.",
    architecture=architecture,
    tensors=tensors,
    head=lambda a: (),
    head_matrix=("lm_head.weight",),
    buffers=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias$",),
    heads=(r"lm_head\.", r"multiple_choice_head\.", r"score\.", r"classifier\.", r"qa_outputs\."),
    language_model="GPT2LMHeadModel",
)
