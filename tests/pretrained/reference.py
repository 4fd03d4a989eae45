"""The specification of every family's forward pass: plain NumPy loops over rows, in float64, by the files' own names.

It shares no code with jaxsens: it reads the tensors and the options of a folder as the libraries name them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
_erf = np.vectorize(math.erf)

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def outputs(
    family: str, config: dict[str, Any], tensors: Tensors, ids: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the last hidden states (n, width) and the logits (n, symbols)."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    match family:
        case "bert" | "roberta":
            return _bert(family, config, wide, ids)
        case "distilbert":
            return _distilbert(config, wide, ids)
        case "gpt2":
            return _gpt2(config, wide, ids)
        case _:
            return _llama(family, config, wide, ids)


def _linear(tensors: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    y = x @ tensors[f"{name}.weight"].T
    return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y


def _conv1d(tensors: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    return x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _layer_norm(tensors: Tensors, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return normed * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _rms_norm(tensors: Tensors, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * tensors[f"{name}.weight"]


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, sees: Callable[[int, int], bool], scale: float
) -> np.ndarray:
    """Softmax attention of every row of (n, heads, width); query head h reads key head h // (heads / key heads)."""
    n, heads, _ = q.shape
    group = heads // k.shape[1]
    b = np.zeros((n, heads, v.shape[2]))
    for i in range(n):
        for h in range(heads):
            keys = [j for j in range(n) if sees(i, j)]
            scores = np.array([q[i, h] @ k[j, h // group] * scale for j in keys])
            weights = np.exp(scores - scores.max())
            b[i, h] = sum(w * v[j, h // group] for w, j in zip(weights / weights.sum(), keys, strict=True))
    return b.reshape(n, -1)


def _heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(len(x), heads, -1)


def _everything(i: int, j: int) -> bool:
    return True


def _bert(family: str, config: dict[str, Any], t: Tensors, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    prefix = "" if "embeddings.LayerNorm.weight" in t else f"{family}."
    eps, heads, act = (
        config["layer_norm_eps"],
        config["num_attention_heads"],
        ACTIVATIONS[config["hidden_act"]],
    )
    first = config["pad_token_id"] + 1 if family == "roberta" else 0
    table = f"{prefix}embeddings"
    x = t[f"{table}.word_embeddings.weight"][ids] + t[f"{table}.token_type_embeddings.weight"][0]
    x = x + t[f"{table}.position_embeddings.weight"][first : first + len(ids)]
    x = _layer_norm(t, f"{table}.LayerNorm", x, eps)
    for k in range(config["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{k}"
        parts = (
            _heads(_linear(t, f"{layer}.attention.self.{one}", x), heads) for one in ("query", "key", "value")
        )
        q, key, v = parts
        b = attention(q, key, v, _everything, q.shape[2] ** -0.5)
        x = _layer_norm(
            t,
            f"{layer}.attention.output.LayerNorm",
            x + _linear(t, f"{layer}.attention.output.dense", b),
            eps,
        )
        m = _linear(t, f"{layer}.output.dense", act(_linear(t, f"{layer}.intermediate.dense", x)))
        x = _layer_norm(t, f"{layer}.output.LayerNorm", x + m, eps)
    embedding = t[f"{table}.word_embeddings.weight"]
    if family == "roberta":
        if "lm_head.dense.weight" not in t:
            return x, np.zeros(0)
        z = _layer_norm(t, "lm_head.layer_norm", ACTIVATIONS["gelu"](_linear(t, "lm_head.dense", x)), eps)
        return x, z @ embedding.T + t["lm_head.decoder.bias"]
    if "cls.predictions.transform.dense.weight" not in t:
        return x, np.zeros(0)
    z = act(_linear(t, "cls.predictions.transform.dense", x))
    z = _layer_norm(t, "cls.predictions.transform.LayerNorm", z, eps)
    return x, z @ embedding.T + t["cls.predictions.decoder.bias"]


def _distilbert(config: dict[str, Any], t: Tensors, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    act, table = ACTIVATIONS[config["activation"]], "distilbert.embeddings"
    x = t[f"{table}.word_embeddings.weight"][ids] + t[f"{table}.position_embeddings.weight"][: len(ids)]
    x = _layer_norm(t, f"{table}.LayerNorm", x, 1e-12)
    for k in range(config["n_layers"]):
        layer = f"distilbert.transformer.layer.{k}"
        q, key, v = (
            _heads(_linear(t, f"{layer}.attention.{one}_lin", x), config["n_heads"])
            for one in ("q", "k", "v")
        )
        b = attention(q, key, v, _everything, q.shape[2] ** -0.5)
        x = _layer_norm(t, f"{layer}.sa_layer_norm", x + _linear(t, f"{layer}.attention.out_lin", b), 1e-12)
        m = _linear(t, f"{layer}.ffn.lin2", act(_linear(t, f"{layer}.ffn.lin1", x)))
        x = _layer_norm(t, f"{layer}.output_layer_norm", x + m, 1e-12)
    z = _layer_norm(t, "vocab_layer_norm", act(_linear(t, "vocab_transform", x)), 1e-12)
    return x, z @ t[f"{table}.word_embeddings.weight"].T + t["vocab_projector.bias"]


def _gpt2(config: dict[str, Any], t: Tensors, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    heads, act = config["n_head"], ACTIVATIONS[config.get("activation_function", "gelu_new")]
    x = t["transformer.wte.weight"][ids] + t["transformer.wpe.weight"][: len(ids)]
    for k in range(config["n_layer"]):
        layer = f"transformer.h.{k}"
        z = _layer_norm(t, f"{layer}.ln_1", x, 1e-5)
        q, key, v = (_heads(one, heads) for one in np.split(_conv1d(t, f"{layer}.attn.c_attn", z), 3, axis=1))
        b = attention(q, key, v, lambda i, j: j <= i, q.shape[2] ** -0.5)
        x = x + _conv1d(t, f"{layer}.attn.c_proj", b)
        z = _layer_norm(t, f"{layer}.ln_2", x, 1e-5)
        x = x + _conv1d(t, f"{layer}.mlp.c_proj", act(_conv1d(t, f"{layer}.mlp.c_fc", z)))
    x = _layer_norm(t, "transformer.ln_f", x, 1e-5)
    return x, x @ t["transformer.wte.weight"].T


def rotated(x: np.ndarray, theta: float, factor: float = 1.0) -> np.ndarray:
    """Turns coordinate c of (n, heads, width) with c + width / 2, in row i by i theta^(-2c/width) / factor."""
    n, _, width = x.shape
    y = np.zeros_like(x)
    for i in range(n):
        for c in range(width // 2):
            angle = i / factor * theta ** (-2 * c / width)
            a, b = x[i, :, c], x[i, :, c + width // 2]
            y[i, :, c] = a * math.cos(angle) - b * math.sin(angle)
            y[i, :, c + width // 2] = b * math.cos(angle) + a * math.sin(angle)
    return y


def _llama(family: str, config: dict[str, Any], t: Tensors, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    eps, heads, keys = config["rms_norm_eps"], config["num_attention_heads"], config["num_key_value_heads"]
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    x = t["model.embed_tokens.weight"][ids]
    for k in range(config["num_hidden_layers"]):
        layer = f"model.layers.{k}"
        window = config.get("sliding_window") if k >= config.get("max_window_layers", 0) else None

        def sees(i: int, j: int, window: int | None = window) -> bool:
            return j <= i and (window is None or i - j < window)

        z = _rms_norm(t, f"{layer}.input_layernorm", x, eps)
        q, key, v = (
            _heads(_linear(t, f"{layer}.self_attn.{one}_proj", z), size)
            for one, size in (("q", heads), ("k", keys), ("v", keys))
        )
        if family == "qwen3":
            q, key = (
                _rms_norm(t, f"{layer}.self_attn.{one}_norm", part, eps)
                for one, part in (("q", q), ("k", key))
            )
        q, key = (rotated(part, theta, scaling.get("factor", 1.0)) for part in (q, key))
        x = x + _linear(t, f"{layer}.self_attn.o_proj", attention(q, key, v, sees, q.shape[2] ** -0.5))
        z = _rms_norm(t, f"{layer}.post_attention_layernorm", x, eps)
        gate, up = (_linear(t, f"{layer}.mlp.{one}_proj", z) for one in ("gate", "up"))
        x = x + _linear(t, f"{layer}.mlp.down_proj", ACTIVATIONS[config["hidden_act"]](gate) * up)
    x = _rms_norm(t, "model.norm", x, eps)
    head = t["model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"]
    return x, x @ head.T
