"""The transformers library as an oracle: tiny random models of every family and option, and their outputs.

The library computes RMS norms, rotary angles and attention weights in float32 whatever the model's dtype. `in_float64`
makes them follow it, so that agreement can be tested to the digits of float64.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tests.pretrained.folders import write_tokenizer

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")

SYMBOLS = 40
ENCODER = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
DECODER = {"gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
HEADS = (
    dict.fromkeys(ENCODER, "ForMaskedLM") | dict.fromkeys(DECODER, "ForCausalLM") | {"gpt2": "LMHeadModel"}
)


@dataclass(frozen=True)
class Case:
    """A tiny model: its family, options of its config, and the length of the input."""

    family: str
    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    n: int = 11

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"


_SIZES: dict[str, dict[str, Any]] = {
    "bert": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 24,
    },
    "distilbert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": 24,
    },
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 24,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
}
_SIZES["roberta"] = _SIZES["bert"]
_ROTARY = {
    **_SIZES["bert"],
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_QWEN = {
    "layer_types": ["full_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 4,
}


def _rope(kind: str, **options: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **options}}


LLAMA3 = _rope(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)

CASES = (
    Case("bert", "defaults"),
    Case("bert", "gelu of tanh, one token type, untied head", {"hidden_act": "gelu_new", "type_vocab_size": 1,
         "tie_word_embeddings": False}, n=1),
    Case("bert", "relu, longest input", {"hidden_act": "relu", "layer_norm_eps": 1e-3}, n=24),
    Case("roberta", "defaults"),
    Case("roberta", "silu, padding 0, untied head", {"hidden_act": "silu", "pad_token_id": 0,
         "tie_word_embeddings": False}),
    Case("distilbert", "defaults"),
    Case("distilbert", "relu, sines, untied head", {"activation": "relu", "sinusoidal_pos_embds": True,
         "tie_word_embeddings": False}),
    Case("gpt2", "defaults"),
    Case("gpt2", "erf gelu, inner width, untied head", {"activation_function": "gelu", "n_inner": 56,
         "tie_word_embeddings": False}),
    Case("gpt2", "scores scaled by layer", {"scale_attn_by_inverse_layer_idx": True}),
    Case("gpt2", "scores without scale", {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3}),
    Case("llama", "grouped heads, untied head"),
    Case("llama", "one key head, tied head", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    Case("llama", "biases", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    Case("llama", "head width of its own, tanh gelu", {"head_dim": 12, "hidden_act": "gelu_pytorch_tanh"}),
    Case("llama", "rope linear", _rope("linear", factor=2.5)),
    Case("llama", "rope dynamic, short", _rope("dynamic", factor=2.0)),
    Case("llama", "rope dynamic, long", _rope("dynamic", factor=2.0), n=37),
    Case("llama", "rope llama3", LLAMA3),
    Case("llama", "rope yarn", _rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    Case("llama", "rope yarn, all its options", _rope("yarn", factor=4.0, original_max_position_embeddings=16,
         beta_fast=4.0, beta_slow=0.5, mscale=1.2, mscale_all_dim=0.6, truncate=False)),
    Case("mistral", "window of 4", {"sliding_window": 4}),
    Case("mistral", "window wider than the input", {"sliding_window": 16}),
    Case("mistral", "no window, linear rope", {"sliding_window": None, **_rope("linear", factor=2.0)}),
    Case("qwen2", "no window, untied head"),
    Case("qwen2", "window in the last layer, tied head", {**_QWEN, "tie_word_embeddings": True}),
    Case("qwen2", "window from a layer on, yarn", {"use_sliding_window": True, "sliding_window": 3,
         "max_window_layers": 1, **_rope("yarn", factor=2.0, original_max_position_embeddings=16)}),
    Case("qwen3", "defaults", {"head_dim": 8}),
    Case("qwen3", "window in the last layer, wide heads, biases, tied head",
         {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True, **_QWEN}),
)  # fmt: skip
"""Every family, with every option that changes its forward pass."""


def config_of(case: Case) -> Any:
    """Returns the library's config."""
    prefix = (ENCODER | DECODER)[case.family]
    sizes = {"vocab_size": SYMBOLS, **(_SIZES.get(case.family, _ROTARY)), **case.options}
    return getattr(transformers, f"{prefix}Config")(**sizes)


def save(case: Case, folder: Path, head: bool = True) -> Any:
    """Saves a tiny random model with the library, writes a tokenizer beside it, and returns the model."""
    torch.manual_seed(0)
    prefix = (ENCODER | DECODER)[case.family]
    model = getattr(transformers, prefix + (HEADS[case.family] if head else "Model"))(config_of(case)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no zeros, ones or tiny numbers: every weight must count
            parameter += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    write_tokenizer(folder, encoder=case.family in ENCODER)
    return model


def ids_of(case: Case) -> list[int]:
    """Returns an input of the case's length."""
    return np.random.default_rng(case.n).integers(5, SYMBOLS, case.n).tolist()


def reference(case: Case, folder: Path, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the library's last hidden states (n, width) and logits (n, symbols) for `ids_of(case)`."""
    prefix = (ENCODER | DECODER)[case.family]
    kind = getattr(transformers, prefix + HEADS[case.family])
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=getattr(torch, dtype)).eval()
    ids = torch.tensor([ids_of(case)])
    with in_float64(dtype == "float64"), torch.no_grad():
        if dtype == "float64":
            _widen_angles(model)
        rows = model.base_model(ids).last_hidden_state[0]
        logits = model(ids).logits[0]
    return rows.numpy(), logits.numpy()


@contextmanager
def in_float64(wanted: bool) -> Iterator[None]:
    """Makes the library's casts to float32 casts to float64."""
    if not wanted:
        yield
        return
    softmax, to, arange, default = (
        torch.nn.functional.softmax,
        torch.Tensor.to,
        torch.arange,
        torch.get_default_dtype(),
    )

    def wide(kind: Any) -> Any:
        return torch.float64 if kind in (torch.float32, torch.float) else kind

    def wide_softmax(x: Any, dim: Any = None, dtype: Any = None, **rest: Any) -> Any:
        return softmax(x, dim=dim, dtype=wide(dtype), **rest)

    def wide_to(x: Any, *args: Any, **named: Any) -> Any:
        return to(x, *map(wide, args), **{key: wide(one) for key, one in named.items()})

    def wide_arange(*args: Any, dtype: Any = None, **rest: Any) -> Any:
        return arange(*args, dtype=wide(dtype), **rest)

    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch.nn.functional, "softmax", wide_softmax),
            mock.patch.object(torch.Tensor, "to", wide_to),
            mock.patch.object(torch.Tensor, "float", lambda x: x.double()),
            mock.patch.object(torch, "arange", wide_arange),
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def _widen_angles(model: Any) -> None:
    """Computes the rotary frequencies again, in float64; they were computed when the model was made."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            made = type(module)(model.config)
            module.inv_freq, module.original_inv_freq = made.inv_freq, made.original_inv_freq
            module.attention_scaling = made.attention_scaling
            assert module.inv_freq.dtype == torch.float64
            assert math.isfinite(float(module.inv_freq.sum()))
