"""Folders as people save them: tied matrices under either name, wrappers' prefixes, adapters; beside transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file
from safetensors.torch import save_model

import jaxsens
from tests.pretrained.oracle import DECODER, ENCODER, Case, class_of, ids_of, save, torch, transformers
from tests.refusals import refused

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
