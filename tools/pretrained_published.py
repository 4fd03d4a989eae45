"""The config.json of models that people use: `python -m tools.pretrained_published [FAMILY ...]` compares them.

`published.jsonl` has a model a line: its name at the hub, where its options were seen ("known": written down by hand),
and the options. Sizes are scaled down, everything else stays, the library makes a model of it, and rows are compared in
float64. The largest relative error of each family is printed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.jsonl")
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "n_embed", "d_model", "dim"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "hidden_dim", "ffn_dim", "moe_intermediate_size"), 48),
    **dict.fromkeys(("shared_expert_intermediate_size", "pooler_hidden_size"), 32),
    "vocab_size": 40, "rotary_dim": 4, "sliding_window": 4, "window_size": 4, "local_attention": 6, "head_dim": 12,
    "d_kv": 6, "num_experts": 5, "num_local_experts": 5, "num_experts_per_tok": 2, "attention_head_size": 8,
}  # fmt: skip
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
SYMBOLS = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
REFUSED = {"microsoft/deberta-v2-xlarge": "conv_kernel_size = 3: a convolution mixes rows"}
"""The models that are refused, for an option that changes their rows."""


def published() -> dict[str, dict[str, Any]]:
    """Returns the options of each model."""
    lines = map(json.loads, FILE.read_text("utf-8").splitlines())
    return {one["name"]: one["config"] for one in lines}


def scaled(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a tiny model of the same kind."""
    own = dict(config)
    if "text_config" in own:
        defaults = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208, "head_dim": 256}
        own["text_config"] = scaled({**defaults, **own["text_config"]})
        own["vision_config"] = {**own["vision_config"], "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads":
            2, "intermediate_size": 8, "image_size": 28}  # fmt: skip
        return {
            **own,
            "mm_tokens_per_image": 4,
            "boi_token_index": 37,
            "eoi_token_index": 38,
            "image_token_index": 39,
        }
    heads = next((own[name] for name in HEADS if name in own), 4)
    for name in own.keys() & SIZES.keys():
        own[name] = own[name] and SIZES[name]
    if own.get("embedding_size"):
        own["embedding_size"] = 32 if config["embedding_size"] == config["hidden_size"] else 12
    if own.get("word_embed_proj_dim"):
        own["word_embed_proj_dim"] = 32 if config["word_embed_proj_dim"] == config["hidden_size"] else 16
    for name in ("num_key_value_heads", "num_kv_heads"):
        if own.get(name):
            own[name] = 4 if own[name] == heads else 1 if own[name] == 1 else 2
    own |= dict.fromkeys(own.keys() & set(HEADS), 4)
    layers = 7 if "gemma3" in own["model_type"] else 4
    own |= dict.fromkeys(own.keys() & set(LAYERS), layers)
    for name in own.keys() & {"layer_types", "no_rope_layers", "attention_layers"}:
        own[name] = own[name][:layers]
    if own.get("attention_types"):
        own["attention_types"] = [[own["attention_types"][0][0], 2]]
    for name in SYMBOLS:
        if name in own:
            own[name] = min(own[name], 4) if isinstance(own[name], int) else own[name] and 3
    if own.get("reorder_and_upcast_attn"):  # the library's float32 scores, which float64 does not have
        own["reorder_and_upcast_attn"] = False
    if own.get("partial_rotary_factor") == 0.4:
        own["partial_rotary_factor"] = 0.5  # of 8 coordinates, an even number
    scaling = own.get("rope_scaling")
    if scaling and "long_factor" in scaling:
        pairs = int(8 * own.get("partial_rotary_factor", 1.0)) // 2
        own["rope_scaling"] = {
            **scaling,
            **{key: scaling[key][:pairs] for key in ("long_factor", "short_factor")},
        }
    return own


def errors_of(config: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Returns the errors of the hidden states and of the logits of the scaled-down model, in float64."""
    from tests.pretrained.oracle import Case, save
    from tools.pretrained_table import errors

    case = Case(config["model_type"], "published", scaled(config), n=17, whole=True)
    save(case, folder)
    return errors(case, folder, "float64")


def main(families: list[str]) -> None:
    """Prints the largest error of each family."""
    worst: dict[str, list[float]] = {}
    for name, config in published().items():
        kind = config["model_type"]
        if name not in REFUSED and (not families or kind in families):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    worst.setdefault(kind, []).append(max(errors_of(config, Path(folder))))
                except Exception as error:  # noqa: BLE001 - the next one is tried
                    print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                else:
                    print(f"{name}: {worst[kind][-1]:.1e}", file=sys.stderr, flush=True)
    for kind, found in worst.items():
        print(f"| {kind} | {len(found)} | {max(found, default=float('nan')):.1e} |")


def known(families: dict[str, Any]) -> Iterator[str]:
    """Yields the families of which fewer than two models are here."""
    there = [config["model_type"] for config in published().values()]
    yield from (name for name in families if there.count(name) < 2)


if __name__ == "__main__":
    main(sys.argv[1:])
