"""Small folders in the Hugging Face layout, written without transformers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxsens.core.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.family import Tensor

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "slept", "##ing", "dog")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_table(encoder: bool, unused: int = 3) -> dict:
    """A WordPiece tokenizer of a few words: specials, unused symbols, then words. An encoder's adds [CLS] and [SEP]."""
    symbols = [*SPECIALS, *(f"[unused{k}]" for k in range(unused)), *WORDS]
    ids = {symbol: k for k, symbol in enumerate(symbols)}
    added = [
        {
            "id": ids[one],
            "content": one,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for one in SPECIALS
    ]
    around = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            one: {"id": one, "ids": [ids[one]], "tokens": [one]} for one in ("[CLS]", "[SEP]")
        },
    }
    around["pair"] = [*around["single"], {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 12},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": around if encoder else None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def write_tokenizer(folder: Path, encoder: bool = True) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_table(encoder)), encoding="utf-8")


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Weights of a model, each a function of its name: near 1 for scales of norms. No number is 0 or tiny for all."""
    return {
        name: (
            0.3 * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(shape))
            + (len(shape) == 1 and name.endswith(("weight", "gamma")))
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


_ENCODER: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "hidden_act": "gelu",
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-5,
}
_DECODER: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 12,
    "hidden_act": "silu",
    "max_position_embeddings": 10,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_ENCODER, "layer_norm_eps": 1e-12, "max_position_embeddings": 12},
    "roberta": {**_ENCODER, "pad_token_id": 1},
    "distilbert": {
        "vocab_size": 20,
        "dim": 8,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 12,
        "activation": "gelu",
        "max_position_embeddings": 10,
    },
    "gpt2": {"vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 10},
    "llama": {**_DECODER, "rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "mistral": {**_DECODER, "sliding_window": 3},
    "qwen2": {**_DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {**_DECODER, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
}
"""A tiny config.json of every family, without its model_type. Rotary positions are written both ways."""


def tensors_of(family: str, config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors of a family, with its language-model head, under the names and in the shapes of its files."""
    own, problems = FAMILIES[family], Problems(family)
    a = own.architecture(own.options(config, "config.json", problems))
    problems.raise_if_any()
    listed = [*own.tensors(a), *own.head(a)]
    if not a.tied:
        listed.append(Tensor(("head", "matrix"), own.head_matrix, (a.symbols, a.width)))
    heads = tuple(name for tensor in own.head(a) for name in tensor.names) + own.head_matrix
    generator = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for tensor in listed:
        name = tensor.names[0] if tensor.names[0] in heads else own.prefix + tensor.names[0]
        if name not in found:
            found[name] = generator.normal(0.2, 0.5, tensor.shape).astype(np.float32)
    return found


def write_pooling(folder: Path, **options: Any) -> None:
    (folder / "1_Pooling").mkdir()
    table = {"word_embedding_dimension": 8, "include_prompt": True, **options}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(table), encoding="utf-8")


def write_dense(
    folder: Path, name: str, matrix: np.ndarray, bias: np.ndarray | None, activation: str
) -> None:
    """Writes a sentence encoder's Dense module."""
    (folder / name).mkdir()
    table = {"in_features": matrix.shape[1], "out_features": matrix.shape[0], "bias": bias is not None}
    table |= {"activation_function": f"torch.nn.modules.{activation}"}
    (folder / name / "config.json").write_text(json.dumps(table), encoding="utf-8")
    own = {"linear.weight": matrix} | ({} if bias is None else {"linear.bias": bias})
    save_file(own, folder / name / "model.safetensors")


def write_folder(
    folder: Path,
    family: str = "bert",
    options: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Makes a folder of a family with random weights; returns its config and its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[family], **(options or {})}
    tensors = tensors_of(family, config) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps({"model_type": family, **config}), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, encoder=family in ("bert", "roberta", "distilbert"))
    return config, tensors


def by_passes(
    model: Any, ids: Sequence[int], flips: Any, read: Callable[[np.ndarray], np.ndarray]
) -> list[float]:
    """How far each flip of a result moves what is read of the rows, by a forward pass each."""
    word = [int(one) for one in ids]
    before, found = read(np.asarray(model(word))), []
    for position, symbol in zip(flips.positions, flips.symbols, strict=True):
        other = [*word[:position], int(symbol), *word[position + 1 :]]
        found.append(float(np.linalg.norm(read(np.asarray(model(other))) - before)))
    return found
