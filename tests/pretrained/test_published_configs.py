"""The options of models that people use, as their config.json has them, and what they become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxsens.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Architecture
from jaxsens.pretrained.families.options import HARMLESS, Options
from jaxsens.pretrained.families.rotation import RotaryAngles

BERT: dict[str, Any] = {
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
    "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": True,
    "vocab_size": 128256,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": BERT,
    "bert-base-multilingual": {**BERT, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_fc_layers": 3,
        "pooler_num_attention_heads": 12, "pooler_size_per_head": 128, "pooler_type": "first_token_transform"},
    "roberta-base": {"architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
        "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514, "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 12,
        "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265},
    "distilbert-base-uncased": {"activation": "gelu", "architectures": ["DistilBertForMaskedLM"],
        "attention_dropout": 0.1, "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02,
        "max_position_embeddings": 512, "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0,
        "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
        "transformers_version": "4.10.0.dev0", "vocab_size": 30522},
    "gpt2": {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257},
    "Llama-2-7b": {**{name: value for name, value in LLAMA.items() if name not in ("mlp_bias", "rope_theta")},
        "bos_token_id": 1, "eos_token_id": 2, "intermediate_size": 11008, "max_position_embeddings": 4096,
        "num_key_value_heads": 32, "rope_scaling": None, "torch_dtype": "float16", "vocab_size": 32000},
    "Llama-3.1-8B": LLAMA,
    "SmolLM2-135M": {**LLAMA, "is_llama_config": True, "rope_interleaved": False, "rope_scaling": None,
        "transformers.js_config": {"dtype": "fp16"}, "tie_word_embeddings": True},
    "Mistral-7B-v0.1": {"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
        "use_cache": True, "vocab_size": 32000},
    "Qwen2.5-0.5B": QWEN,
    "DeepSeek-R1-Distill-Qwen": {**QWEN, "use_mrope": False, "max_position_embeddings": 131072},
    "Qwen3-0.6B": {**QWEN, "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rope_scaling": None, "sliding_window": None},
    "deberta-v3-base": {"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-07,
        "max_position_embeddings": 512, "max_relative_positions": -1, "model_type": "deberta-v2",
        "norm_rel_ebd": "layer_norm", "num_attention_heads": 12, "num_hidden_layers": 12, "pos_att_type": "p2c|c2p",
        "position_biased_input": False, "position_buckets": 256, "relative_attention": True, "share_att_key": True,
        "type_vocab_size": 0, "vocab_size": 128100},
    "esm2_t6_8M_UR50D": {"architectures": ["EsmForMaskedLM"], "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": None, "emb_layer_norm_before": False, "esmfold_config": None, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 320, "initializer_range": 0.02, "intermediate_size": 1280,
        "is_folding_model": False, "layer_norm_eps": 1e-05, "mask_token_id": 32, "max_position_embeddings": 1026,
        "model_type": "esm", "num_attention_heads": 20, "num_hidden_layers": 6, "pad_token_id": 1,
        "position_embedding_type": "rotary", "token_dropout": True, "torch_dtype": "float32",
        "transformers_version": "4.25.0.dev0", "use_cache": True, "vocab_list": None, "vocab_size": 33},
    "Qwen2.5-7B with yarn": {**QWEN, "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768,
        "type": "yarn"}},
}  # fmt: skip


def architecture(name: str) -> Architecture:
    table = CONFIGS[name]
    with_errors = Problems(name)
    family = FAMILIES[table["model_type"]]
    options = Options(table, "config.json", with_errors)
    found = family.architecture(options)
    options.finish(family.name)
    with_errors.raise_if_any()
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_every_option_is_known(name):
    a = architecture(name)
    assert hash(a) == hash(architecture(name))
    assert list(FAMILIES[CONFIGS[name]["model_type"]].tensors(a))


def test_longest_inputs_and_windows():
    longest = {name: architecture(name).longest for name in CONFIGS}
    assert (
        longest["bert-base-uncased"] == longest["roberta-base"] == longest["distilbert-base-uncased"] == 512
    )
    assert longest["Llama-3.1-8B"] == longest["Qwen2.5-7B with yarn"] == 131072
    assert longest["Mistral-7B-v0.1"] == 32768
    assert set(architecture("Mistral-7B-v0.1").windows) == {4096}
    assert set(architecture("Qwen2.5-0.5B").windows) == set(architecture("Qwen3-0.6B").windows) == {None}


def test_scaled_angles_of_llama_and_qwen():
    llama, qwen = architecture("Llama-3.1-8B").rotary[0], architecture("Qwen2.5-7B with yarn").rotary[0]
    assert llama is not None
    assert qwen is not None
    assert (llama.kind, qwen.kind) == ("llama3", "yarn")
    for angles, factor in ((llama, 8.0), (qwen, 4.0)):
        ratio = RotaryAngles(angles.base, angles.width).frequencies(100) / angles.frequencies(100)
        assert np.all(np.diff(ratio) >= -1e-9)  # fast pairs are kept, slow ones divided
        np.testing.assert_allclose(ratio[[0, -1]], [1, factor])
    assert abs(qwen.amplitude - (0.1 * np.log(4) + 1)) < 1e-12


def test_a_dynamic_base_grows_beyond_the_trained_length_only():
    angles = RotaryAngles(10000.0, 8, "dynamic", factor=2.0, trained_length=16)
    for n in (1, 9, 16):
        np.testing.assert_allclose(
            angles.frequencies(n), 10000.0 ** -np.array([0, 0.25, 0.5, 0.75]), rtol=1e-15
        )
    # At 32 the base is 10000 (2 * 32 / 16 - 1)^(8 / 6).
    wanted = (10000.0 * 3.0 ** (8 / 6)) ** -np.array([0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(angles.frequencies(32), wanted, rtol=1e-14)


def test_yarn_keeps_and_divides_the_pairs_that_qwen_was_trained_with():
    # Pairs with 32 turns and 1 turn in 32768 positions, at base 10^6 and width 128, are 23.6 and 39.7.
    qwen = RotaryAngles(1e6, 128, "yarn", 4.0, 32768, slow=1.0, fast=32.0, truncate=True)
    pairs = np.arange(64)
    slow = np.clip((pairs - 23) / (40 - 23), 0, 1)
    wanted = 1e6 ** (-pairs / 64) * (slow / 4 + 1 - slow)
    np.testing.assert_allclose(qwen.frequencies(100), wanted, rtol=1e-13)
    exact = RotaryAngles(1e6, 128, "yarn", 4.0, 32768, slow=1.0, fast=32.0, truncate=False)
    first, last = (64 * np.log(32768 / (turns * 2 * np.pi)) / np.log(1e6) for turns in (32, 1))
    slow = np.clip((pairs - first) / (last - first), 0, 1)
    np.testing.assert_allclose(
        exact.frequencies(100), 1e6 ** (-pairs / 64) * (slow / 4 + 1 - slow), rtol=1e-13
    )


def test_every_refused_option_says_why():
    assert all(reason for _, reason in HARMLESS.values())
