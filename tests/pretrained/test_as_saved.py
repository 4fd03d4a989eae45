"""Folders as people save them, and every family and option, beside the transformers library."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file
from safetensors.torch import save_model

import jaxsens
from jaxsens.core.base.errors import Problems
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Disentangled
from jaxsens.pretrained.load import _architecture
from tests.pretrained.folders import write_folder
from tests.pretrained.oracle import (
    CASES,
    DECODER,
    ENCODER,
    Case,
    class_of,
    config_of,
    ids_of,
    save,
    torch,
    transformers,
)
from tests.refusals import refusal, refused

HEADLESS = ("t5", "mt5")
FUSED = ("mixtral", "qwen3_moe", "qwen2_moe", "olmoe")
"""Families whose experts have one matrix of all in the library's memory, and one each in its files."""


def _saved(family, folder, **options):
    """Saves a tiny model, and returns it, as the library loads it, and its last outputs."""
    case = Case(family, "as saved", options)
    save(case, folder)
    model = getattr(transformers, class_of(case)).from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(torch.tensor([ids_of(case)]))
    return case, model, np.asarray(found[0] if family in HEADLESS else found.logits)[0]


def _check(case, folder, wanted):
    output = "hidden" if case.family in HEADLESS else "logits"
    ours = np.asarray(jaxsens.load_pretrained(folder, output=output)(ids_of(case)))
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=2e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=() if one in ("bert", "gpt2", "llama", "t5") else pytest.mark.slow)
        for one in (*ENCODER, *DECODER)
        if one not in FUSED
    ],
)
def test_a_tied_matrix_is_read_under_either_of_its_names(family, tmp_path):
    case, model, wanted = _saved(family, tmp_path, tie_word_embeddings=True)
    weights = tmp_path / "model.safetensors"
    save_model(model, str(weights))
    _check(case, tmp_path, wanted)  # the file's metadata says which
    own = load_file(weights)
    shared = model.get_input_embeddings().weight.data_ptr()
    tied = sorted(name for name, one in model.state_dict().items() if one.data_ptr() == shared)
    for name in tied:  # it does not
        kept = next(one for one in own if one in tied)
        own[name] = own.pop(kept)
        save_file(own, weights)
        _check(case, tmp_path, wanted)


@pytest.mark.parametrize("before", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "net.0."])
@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_what_stands_before_all_names_of_tensors_is_left_out(family, before, tmp_path):
    case, _, wanted = _saved(family, tmp_path)
    own = load_file(tmp_path / "model.safetensors")
    save_file({before + name: one for name, one in own.items()}, tmp_path / "model.safetensors")
    _check(case, tmp_path, wanted)


def test_what_wrappers_put_into_names_of_tensors_is_left_out(tmp_path):
    case, _, wanted = _saved("llama", tmp_path)
    own = load_file(tmp_path / "model.safetensors")
    wrapped = {
        name.replace("model.layers.0.", "model.layers.0._checkpoint_wrapped_module.").replace(
            "model.", "model._orig_mod.", 1
        ): one
        for name, one in own.items()
    }
    assert len([name for name in own if name not in wrapped]) == len(own) - 1  # all but the head's matrix
    save_file(wrapped, tmp_path / "model.safetensors")
    _check(case, tmp_path, wanted)
    (name,) = (one for one in wrapped if "embed_tokens" in one)
    save_file(wrapped | {"model.embed_tokens.weight": wrapped[name] + 1}, tmp_path / "model.safetensors")
    assert "is twice in these files" in refused("folder", jaxsens.load_pretrained, tmp_path)


def test_an_adapter_beside_a_model_is_refused(tmp_path):
    _saved("llama", tmp_path)
    jaxsens.load_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert "adapters are not applied: merge it" in refused("folder", jaxsens.load_pretrained, tmp_path)


def test_a_model_without_windows_loads_as_the_library_writes_it(tmp_path):
    case, _, wanted = _saved("qwen2_moe", tmp_path, use_sliding_window=False)
    assert json.loads((tmp_path / "config.json").read_text())["sliding_window"] == 0
    _check(case, tmp_path, wanted)


def test_tensors_that_the_user_shared_are_read_under_the_name_that_the_file_says(tmp_path):
    case, model, _ = _saved("llama", tmp_path)
    first, second = model.model.layers
    second.mlp.up_proj.weight = first.mlp.up_proj.weight
    save_model(model, str(tmp_path / "model.safetensors"))
    with torch.no_grad():
        wanted = model(torch.tensor([ids_of(case)])).logits[0].numpy()
    _check(case, tmp_path, wanted)


@pytest.mark.parametrize("sizes", [(256, 512), (6, 28), (5, 24), (4, 9), (2, 5)])
def test_buckets_of_distances_are_those_of_deberta(sizes):
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    problems = Problems("config.json")
    given = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
        "max_position_embeddings": 700,
        "relative_attention": True,
        **dict(zip(("position_buckets", "max_relative_positions"), sizes, strict=True)),
    }
    family = FAMILIES["deberta-v2"]
    scores = family.architecture(family.options(given, "config.json", problems)).score_bias
    problems.raise_if_any()
    assert isinstance(scores, Disentangled)
    theirs = module.make_log_bucket_position(torch.arange(-699, 700), *sizes).long().numpy()
    ours = scores.place(jnp.arange(-699, 700))
    np.testing.assert_array_equal(ours, np.clip(theirs + sizes[0], 0, 2 * sizes[0] - 1))


TEN = ("bert", "distilbert", "gpt2", "gpt_neox", "llama", "mistral", "modernbert", "opt", "qwen2", "t5")


@pytest.mark.parametrize("family", TEN)
def test_a_model_in_memory_is_that_of_its_folder_bit_for_bit(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    case = next(one for one in CASES if one.family == family)
    save(case, tmp_path)
    loaded = jaxsens.load_pretrained(tmp_path)
    kind = transformers.T5EncoderModel if family == "t5" else transformers.AutoModel
    made = jaxsens.from_transformers(kind.from_pretrained(tmp_path))
    ids = 6 + np.arange(9) % 8  # none is reserved, which only a tokenizer says
    np.testing.assert_array_equal(np.asarray(made(ids)), np.asarray(loaded(ids)))
    ours, theirs = (jaxsens.flip_sensitivity(one, ids, [7, 8]).norms for one in (made, loaded))
    np.testing.assert_array_equal(ours, theirs)


def test_a_model_in_memory_encodes_texts_with_its_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_folder(tmp_path, "bert")
    model, tokenizer = (
        kind.from_pretrained(tmp_path) for kind in (transformers.AutoModel, transformers.AutoTokenizer)
    )
    made, text = jaxsens.from_transformers(model, tokenizer), "the cat sat"
    expected = jaxsens.flip_sensitivity(jaxsens.load_pretrained(tmp_path), text, [5, 6])
    for tokens in (text, tokenizer(text), tokenizer([text]), tokenizer(text, return_tensors="pt")):
        np.testing.assert_array_equal(jaxsens.flip_sensitivity(made, tokens, [5, 6]).norms, expected.norms)
    refused("tokens", jaxsens.flip_sensitivity, made, tokenizer([text, "the"], padding=True), [5, 6])


@pytest.mark.parametrize(("model", "tokenizer"), [(3, None), (None, None), ("gpt2", 3)])
def test_what_is_no_model_in_memory_is_refused(model, tokenizer):
    with refusal(*(["model", "tokenizer"] if tokenizer else ["model"])):
        jaxsens.from_transformers(model, tokenizer)


ABSENT = object()
WRONG = (ABSENT, None, 0, -1, 1, 2**40, 1.5, True, "x", [], [1], {"a": 1}, float("nan"))
FIRST = {case.family: config_of(case).to_dict() for case in reversed(CASES)}
ESM = {"position_embedding_type": "absolute"}


@pytest.mark.parametrize("family", [*FIRST])
def test_no_option_of_a_wrong_kind_is_a_traceback_or_hides_other_errors(family):
    for whole in (FIRST[family], {**FIRST[family], **ESM}) if family == "esm" else (FIRST[family],):
        for name in whole.keys() - {"model_type"}:
            for value in WRONG:
                table = {**whole, name: value, "vocab_size": "many"}
                if value is ABSENT:
                    del table[name]
                problems = Problems("")
                found = _architecture(FAMILIES[family], table, problems)
                assert (found is None) == bool(problems)
                assert len({*problems}) == len(problems), problems
                assert all(one.path[0] == "config.json" for one in problems), problems
                if name != "vocab_size" and "text_config" not in whole:  # whose table is within that one
                    assert any(one.path[-1] == "vocab_size" for one in problems), (name, value)
