"""The transformers library as an oracle: tiny random models of every family and option, and their outputs.

The library computes RMS norms, rotary angles and attention weights in float32 whatever the model's dtype. `in_float64`
makes them follow it, so that agreement can be tested to the digits of float64.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file, save_file

from jaxsens.pretrained.load import HEADS as HEADS_OF_LABELS
from jaxsens.pretrained.load import KINDS
from tests.pretrained.folders import weights, write_tokenizer

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")

SYMBOLS = 40
ENCODER = {
    "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert", "electra": "Electra", "albert": "Albert", "mpnet": "MPNet", "modernbert": "ModernBert",
    "esm": "Esm", "t5": "T5", "mt5": "MT5", "deberta-v2": "DebertaV2",
}  # fmt: skip
DECODER = {
    "gpt2": "GPT2", "gpt_neo": "GPTNeo", "opt": "OPT", "gpt_neox": "GPTNeoX", "gptj": "GPTJ", "phi": "Phi",
    "falcon": "Falcon", "bloom": "Bloom", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
    "phi3": "Phi3", "olmo": "Olmo", "olmo2": "Olmo2", "smollm3": "SmolLM3", "granite": "Granite", "cohere": "Cohere",
    "stablelm": "StableLm", "starcoder2": "Starcoder2", "gemma": "Gemma", "gemma2": "Gemma2",
    "gemma3_text": "Gemma3Text", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe",
    "nemotron": "Nemotron", "olmo3": "Olmo3", "cohere2": "Cohere2", "qwen2_moe": "Qwen2Moe", "gemma3": "Gemma3",
}  # fmt: skip
HEADS = (
    dict.fromkeys(ENCODER, "ForMaskedLM")
    | dict.fromkeys(DECODER, "ForCausalLM")
    | {
        "gpt2": "LMHeadModel",
        "t5": "EncoderModel",
        "mt5": "EncoderModel",
        "gemma3": "ForConditionalGeneration",
    }
)
MODELS = {"gemma3_text": "Gemma3"}
"""The prefix of a model's class, where it is not that of its config."""


@dataclass(frozen=True)
class Case:
    """A tiny model: its family, options of its config, and the length of the input. `whole`: the options are all that
    config.json has."""

    family: str
    name: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    n: int = 11
    whole: bool = False

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
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 24},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 24,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
}
for _name in ("roberta", "xlm-roberta", "camembert", "mpnet"):
    _SIZES[_name] = {**_SIZES["bert"], "pad_token_id": 1}
for _name in ("electra", "albert"):
    _SIZES[_name] = {**_SIZES["bert"], "embedding_size": 12}
_SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
_SIZES["modernbert"] = {**_SIZES["bert"], **_SPECIAL, "num_hidden_layers": 4, "local_attention": 6}
_SIZES["esm"] = {**_SIZES["bert"], "pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary"}
_SIZES["t5"] = {"d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_SIZES["mt5"] = _SIZES["t5"]
_SIZES["deberta-v2"] = {**_SIZES["bert"], "relative_attention": True, "position_buckets": 6,
    "norm_rel_ebd": "layer_norm", "max_relative_positions": 12, "share_att_key": True, "pos_att_type": "p2c|c2p",
    "position_biased_input": False, "legacy": False}  # fmt: skip
_SIZES["gptj"] = {**_SIZES["gpt2"], "rotary_dim": 4}
_SIZES["bloom"] = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 2, "eos_token_id": 3}
_SIZES["gpt_neo"] = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
    "max_position_embeddings": 24, "window_size": 4, "bos_token_id": 2, "eos_token_id": 3}  # fmt: skip
_SIZES["opt"] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48,
    "max_position_embeddings": 24, "word_embed_proj_dim": 32, "bos_token_id": 2, "eos_token_id": 3}  # fmt: skip
_SIZES["gpt_neox"] = {**_SIZES["bert"], "bos_token_id": 2, "eos_token_id": 3}
_SIZES["falcon"] = {name: size for name, size in _SIZES["gpt_neox"].items() if name != "intermediate_size"}
_ROTARY = {
    **_SIZES["bert"],
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
_SIZES["gemma3"] = {
    "vision_config": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        "image_size": 28, "patch_size": 14}, "mm_tokens_per_image": 4, "boi_token_index": 37, "eoi_token_index": 38,
    "image_token_index": 39, "text_config": {**_ROTARY, "vocab_size": SYMBOLS, "head_dim": 12, "sliding_window": 4,
        "num_hidden_layers": 7, "attn_logit_softcapping": 1.0, "rope_parameters": {"sliding_attention": {"rope_type":
        "default", "rope_theta": 100.0}, "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e3}}},
}  # fmt: skip
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

_LONG = {"original_max_position_embeddings": 16, **_rope("longrope", original_max_position_embeddings=16,
    short_factor=[1.0, 1.5, 2.0, 2.5], long_factor=[1.5, 2.5, 4.0, 6.0])}  # fmt: skip

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
    Case("xlm-roberta", "defaults"),
    Case("camembert", "defaults"),
    Case("electra", "defaults"),
    Case("electra", "embeddings as wide as rows", {"embedding_size": 32, "hidden_act": "relu"}),
    Case("albert", "defaults"),
    Case("albert", "three layers, relu, wide embeddings", {"num_hidden_layers": 3, "hidden_act": "relu",
         "embedding_size": 32}),
    Case("mpnet", "defaults"),
    Case("mpnet", "long", n=20),
    Case("modernbert", "defaults", n=17),
    Case("modernbert", "biases", {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
         "decoder_bias": True, "classifier_activation": "silu"}, n=17),
    Case("modernbert", "without the head's bias", {"decoder_bias": False}),
    Case("esm", "defaults"),
    Case("esm", "token dropout", {"token_dropout": True}),
    Case("esm", "learned positions, normalised embeddings", {"position_embedding_type": "absolute",
         "emb_layer_norm_before": True}),
    Case("t5", "defaults", n=20),
    Case("t5", "gated gelu", {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 8,
         "relative_attention_max_distance": 10}, n=20),
    Case("deberta-v2", "defaults, one row", n=1),
    Case("deberta-v2", "two rows, maps of their own", {"share_att_key": False}, n=2),
    Case("deberta-v2", "longest, maps of their own, no norm", {"share_att_key": False, "norm_rel_ebd": "none"}, n=24),
    Case("deberta-v2", "no buckets, untied older head", {"position_buckets": -1, "legacy": True, "pooler_dropout": 0.1,
         "tie_word_embeddings": False}, n=17),
    Case("deberta-v2", "c2p, relu, odd buckets", {"pos_att_type": ["c2p"], "hidden_act": "relu",
         "position_buckets": 5, "tie_word_embeddings": False}, n=24),
    Case("deberta-v2", "p2c, positions, token types, older head", {"pos_att_type": ["p2c"], "share_att_key": False,
         "position_biased_input": True, "type_vocab_size": 2, "legacy": True, "max_relative_positions": -1}, n=24),
    Case("deberta-v2", "distances without terms", {"pos_att_type": None}),
    Case("deberta-v2", "no distances", {"relative_attention": False, "position_biased_input": True}),
    Case("nemotron", "defaults"),
    Case("nemotron", "biases, silu, width of its own", {"attention_bias": True, "mlp_bias": True, "hidden_act": "silu",
         "head_dim": 12}),
    Case("gpt_neo", "defaults", n=17),
    Case("opt", "defaults"),
    Case("opt", "normalised after, narrow embeddings", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    Case("opt", "norms without parameters, no biases", {"layer_norm_elementwise_affine": False, "enable_bias": False}),
    Case("gpt_neox", "defaults"),
    Case("gpt_neox", "one after the other, no biases", {"use_parallel_residual": False, "attention_bias": False,
         "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}),
    Case("gptj", "defaults"),
    Case("gptj", "inner width, whole heads", {"n_inner": 56, "rotary_dim": 8}),
    Case("phi", "defaults", {"num_key_value_heads": 4}),
    Case("phi", "normalised queries and keys", {"qk_layernorm": True}),
    Case("falcon", "defaults"),
    Case("falcon", "new decoder", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    Case("falcon", "new decoder, one norm, biases", {"new_decoder_architecture": True, "num_kv_heads": 2,
         "num_ln_in_parallel_attn": 1, "bias": True}),
    Case("falcon", "alibi, one after the other, biases", {"alibi": True, "parallel_attn": False, "multi_query": False,
         "bias": True}),
    Case("bloom", "defaults"),
    Case("bloom", "twelve heads", {"n_head": 12, "hidden_size": 24}, n=17),
    Case("phi3", "defaults"),
    Case("phi3", "window, partial rotary", {"sliding_window": 4,
         "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}),
    Case("phi3", "longrope, short", _LONG),
    Case("phi3", "longrope, long", _LONG, n=20),
    Case("olmo", "defaults"),
    Case("olmo", "clipped", {"clip_qkv": 0.4}),
    Case("olmo2", "defaults"),
    Case("smollm3", "defaults", {"num_hidden_layers": 4}),
    Case("smollm3", "other layers without positions", {"no_rope_layers": [0, 1]}),
    Case("granite", "defaults"),
    Case("granite", "factors", {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
         "logits_scaling": 2.0}),
    Case("cohere", "defaults"),
    Case("cohere", "normalised queries and keys", {"use_qk_norm": True, "logit_scale": 0.5}),
    Case("stablelm", "defaults"),
    Case("stablelm", "parallel, biases, normalised heads", {"use_parallel_residual": True, "use_qkv_bias": True,
         "qk_layernorm": True}),
    Case("starcoder2", "defaults"),
    Case("starcoder2", "window, no biases", {"sliding_window": 4, "use_bias": False, "tie_word_embeddings": False}),
    Case("gemma", "defaults", {"head_dim": 12}),
    Case("gemma2", "defaults", {"head_dim": 12, "sliding_window": 4, "query_pre_attn_scalar": 10,
         "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    Case("gemma2", "no caps", {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": None,
         "final_logit_softcapping": None}),
    Case("gemma3_text", "defaults", {"head_dim": 12, "sliding_window": 4, "num_hidden_layers": 7}, n=17),
    Case("mixtral", "defaults", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    Case("qwen3_moe", "defaults", {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
         "head_dim": 8}),
    Case("qwen3_moe", "renormalised, one layer without experts", {"num_experts": 5, "num_experts_per_tok": 3,
         "moe_intermediate_size": 20, "norm_topk_prob": True, "mlp_only_layers": [0]}),
    Case("olmoe", "defaults", {"num_experts": 5, "num_experts_per_tok": 2}),
    Case("olmoe", "clipped", {"num_experts": 5, "num_experts_per_tok": 2, "clip_qkv": 0.4}),
    Case("qwen2_moe", "windows, one layer without experts", {"num_experts": 5, "num_experts_per_tok": 2,
         "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28, "mlp_only_layers": [1],
         "use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 3}),
    Case("mt5", "defaults", n=20),
    Case("olmo3", "defaults", {"sliding_window": 4, "num_hidden_layers": 4, "rope_parameters": {"full_attention": {
         "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0},
         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}}),
    Case("cohere2", "defaults", {"sliding_window": 4, "num_hidden_layers": 4}),
    Case("gemma3", "its text part"),
    Case("gemma3_text", "rows that see later ones", {"head_dim": 12, "sliding_window": 8, "num_hidden_layers": 7,
         "use_bidirectional_attention": True}, n=17),
    Case("smollm3", "windows without positions", {"num_hidden_layers": 4, "use_sliding_window": True,
         "sliding_window": 4}),
)  # fmt: skip
"""Every family, with every option that changes its forward pass."""


def _labelled() -> Iterator[Case]:
    """Every family's classifier of sequences and of tokens, of three labels."""
    first = {case.family: case for case in reversed(CASES)}
    for end, kind in KINDS.items():
        for family in HEADS_OF_LABELS[kind]:
            yield Case(family, end, {**first[family].options, "num_labels": 3})
    yield Case("opt", "ForSequenceClassification", {"num_labels": 2, "word_embed_proj_dim": 16})
    yield Case(
        "modernbert", "ForTokenClassification", {"num_labels": 2, "classifier_bias": True, "norm_bias": True}
    )


LABELLED = tuple(_labelled())


def config_of(case: Case) -> Any:
    """Returns the library's config."""
    if case.whole:
        kind = transformers.models.auto.configuration_auto.CONFIG_MAPPING[case.family]
        return kind.from_dict(json.loads(json.dumps(case.options)))
    prefix = (ENCODER | DECODER)[case.family]
    return getattr(transformers, f"{prefix}Config")(**{**sizes_of(case.family), **case.options})


def sizes_of(family: str) -> dict[str, Any]:
    """Returns the options of a tiny model of a family."""
    return {"vocab_size": SYMBOLS, **_SIZES.get(family, _ROTARY)}


def _prefix(case: Case) -> str:
    return MODELS.get(case.family, (ENCODER | DECODER)[case.family])


def class_of(case: Case) -> str:
    """Returns the name of the library's class."""
    if case.name in KINDS:
        return (ENCODER | DECODER)[case.family] + case.name
    return _prefix(case) + HEADS[case.family]


def save(case: Case, folder: Path) -> None:
    """Saves a tiny model with the library, and a tokenizer beside it. Its weights depend on their names alone."""
    getattr(transformers, class_of(case))(config_of(case)).save_pretrained(folder)
    (file,) = folder.glob("*.safetensors")
    stored = load_file(file)
    angles = {name: one for name, one in stored.items() if name.endswith("inv_freq")}  # ESM's, no weights
    save_file(weights({name: one.shape for name, one in stored.items()}) | angles, file, {"format": "pt"})
    if case.whole:
        (folder / "config.json").write_text(json.dumps(case.options), encoding="utf-8")
    write_tokenizer(folder, encoder=case.family in ENCODER)


def ids_of(case: Case) -> list[int]:
    """Returns an input of the case's length."""
    return np.random.default_rng(case.n).integers(5, SYMBOLS, case.n).tolist()


def reference(case: Case, folder: Path, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the library's last hidden states (n, width) and logits (n, symbols) for `ids_of(case)`; of a classifier
    the scores of labels, (1, labels) or (n, labels)."""
    model = loaded(case, folder, dtype)
    ids = torch.tensor([ids_of(case)])
    with in_float64(dtype == "float64"), torch.no_grad():
        rows = model.base_model(ids).last_hidden_state[0]
        logits = model(ids).logits[0] if not class_of(case).endswith("EncoderModel") else rows[:0]  # no head
    return rows.numpy(), np.atleast_2d(logits.numpy())


def loaded(case: Case, folder: Path, dtype: str) -> Any:
    """Returns the library's model; float64 is computed within `in_float64`."""
    kind = getattr(transformers, class_of(case))
    # Falcon with ALiBi adds it twice in the eager form of this library.
    form = "sdpa" if case.options.get("alibi") else "eager"
    plain = {"attn_implementation": form, "dtype": getattr(torch, dtype)}
    if case.whole:
        plain["config"] = config_of(case)
    if "experts" in str(case.options):  # the fast form has no float64
        plain["experts_implementation"] = "eager"
    model = kind.from_pretrained(folder, **plain).eval()
    if dtype == "float64":
        with in_float64(wanted=True):
            _widen_angles(model)
    return model


@contextmanager
def in_float64(wanted: bool) -> Iterator[None]:
    """Makes the library's casts to float32 casts to float64."""
    if not wanted:
        yield
        return
    softmax, to, arange, full, default = (
        torch.nn.functional.softmax,
        torch.Tensor.to,
        torch.arange,
        torch.full,
        torch.get_default_dtype(),
    )

    def wide(kind: Any) -> Any:
        return torch.float64 if kind in (torch.float32, torch.float) else kind

    def wide_softmax(x: Any, dim: Any = None, dtype: Any = None, **rest: Any) -> Any:
        return softmax(x, dim=dim, dtype=wide(dtype), **rest)

    def wide_to(x: Any, *args: Any, **named: Any) -> Any:
        return to(x, *map(wide, args), **{key: wide(one) for key, one in named.items()})

    def wide_full(*args: Any, dtype: Any = None, **rest: Any) -> Any:  # of ALiBi's slopes
        return full(*args, dtype=wide(dtype), **rest)

    def wide_arange(*args: Any, dtype: Any = None, **rest: Any) -> Any:
        return arange(*args, dtype=wide(dtype), **rest)

    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch.nn.functional, "softmax", wide_softmax),
            mock.patch.object(torch.Tensor, "to", wide_to),
            mock.patch.object(torch.Tensor, "float", lambda x: x.double()),
            mock.patch.object(torch, "arange", wide_arange),
            mock.patch.object(torch, "full", wide_full),
            mock.patch.object(torch, "float", torch.float64),
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def _widen_angles(model: Any) -> None:
    """Computes the rotary frequencies again, in float64; they were computed when the model was made."""
    for module in model.modules():
        own = [name for name in dict(module.named_buffers(recurse=False)) if name.endswith("inv_freq")]
        if not own:
            continue
        given = module.config if hasattr(module, "config") else 2 * module.inv_freq.numel()
        made = type(module)(given)
        for name in own:
            setattr(module, name, getattr(made, name))
            assert getattr(module, name).dtype == torch.float64
            assert math.isfinite(float(getattr(module, name).sum()))
        if hasattr(made, "attention_scaling"):
            module.attention_scaling = made.attention_scaling
    for module in model.modules():
        if hasattr(module, "embed_positions") and hasattr(module, "pos_embd_dim"):  # GPT-J's table of sines
            table = importlib.import_module(type(module).__module__)
            module.embed_positions = table.create_sinusoidal_positions(*module.embed_positions.shape)
