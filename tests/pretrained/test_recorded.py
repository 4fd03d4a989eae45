"""Every family and option beside what transformers computed, files of weights as they come, and the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxsens import load_pretrained
from jaxsens.pretrained.families import FAMILIES
from jaxsens.pretrained.families.architecture import Output
from jaxsens.pretrained.load import KINDS
from tests.pretrained.folders import CONFIGS, tensors_of, write_folder, write_pooling
from tests.pretrained.test_large import folder_in_bfloat16
from tests.refusals import refused
from tools.pretrained_recorded import Recorded, recorded

RECORDED = {(one.family, one.name): one for one in recorded()}
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))


@pytest.mark.quick(2, 46)
@pytest.mark.parametrize(("family", "name"), RECORDED)
def test_hidden_states_and_logits_are_those_of_the_library(family, name, tmp_path):
    case: Recorded = RECORDED[family, name]
    case.write(tmp_path)
    for dtype, tolerance in TOLERANCE.items():
        hidden = np.asarray(load_pretrained(tmp_path, dtype=dtype)(case.ids))
        assert error(hidden[case.rows], case.hidden) <= tolerance, (dtype, "hidden")
        if case.logits.size:
            output: Output = "labels" if name in KINDS else "logits"
            logits = np.asarray(load_pretrained(tmp_path, output=output, dtype=dtype)(case.ids))
            first = case.encoder and name == "ForSequenceClassification"
            own = logits[:1] if first else logits[-1:]
            assert error(own, case.logits) <= tolerance, (dtype, output)


def test_every_family_is_recorded():
    assert {family for family, _ in RECORDED} == set(FAMILIES)


DOCS = Path(__file__).resolve().parents[2] / "docs"
SENTENCE = "The committee did not approve the budget, because the treasurer was absent."


@pytest.mark.long
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    page = (DOCS / "pretrained.md").read_text("utf-8").replace(SENTENCE, "the cat sat on a mat")
    folder = tmp_path / "all-MiniLM-L6-v2"
    write_folder(folder, "bert")
    write_pooling(folder, pooling_mode_mean_tokens=True)
    (tmp_path / "Meta-Llama-3-8B").mkdir()
    folder_in_bfloat16(tmp_path / "Meta-Llama-3-8B", "llama")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"(?ms)^```python\n(.*?)^```$", page):
        exec(compile(code, "docs/pretrained.md", "exec"), names)
    assert capsys.readouterr().out.startswith("FlipSensitivity(n=8, ")
    assert names["result"].max > 0


def test_every_family_has_a_row():
    listed = re.findall(r"(?m)^- `([\w-]+)` \(", (DOCS / "reference" / "families.md").read_text("utf-8"))
    assert listed == [*FAMILIES]


IDS = [2, 9, 17, 8, 8, 19, 3]


def test_shards_old_names_and_names_without_a_prefix(tmp_path):
    _, tensors = write_folder(tmp_path, "bert")
    wanted = load_pretrained(tmp_path, output="logits", dtype="float64")(IDS)
    old = {
        name.removeprefix("bert.")
        .replace("Norm.weight", "Norm.gamma")
        .replace("Norm.bias", "Norm.beta"): value
        for name, value in tensors.items()
    }
    old["embeddings.position_ids"] = np.arange(12)[None]
    old["pooler.dense.weight"] = np.zeros((8, 8), np.float32)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(old)
    shards = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for file, own in shards.items():
        save_file({name: old[name] for name in own}, tmp_path / file)
    np.testing.assert_allclose(
        load_pretrained(tmp_path, output="logits", dtype="float64")(IDS), wanted, rtol=1e-10
    )
    index = {"weight_map": {name: file for file, own in shards.items() for name in own}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_allclose(
        load_pretrained(tmp_path, output="logits", dtype="float64")(IDS), wanted, rtol=1e-10
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_other_dtypes_are_converted(dtype, tmp_path):
    narrow = {name: one.astype(jnp.dtype(dtype)) for name, one in tensors_of("gpt2", CONFIGS["gpt2"]).items()}
    for name, tensors in (
        ("narrow", narrow),
        ("wide", {name: one.astype("float32") for name, one in narrow.items()}),
    ):
        (tmp_path / name).mkdir()
        write_folder(tmp_path / name, "gpt2", tensors=tensors)
    found, wanted = (load_pretrained(tmp_path / name, dtype="float64")(IDS) for name in ("narrow", "wide"))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_a_tied_head_may_be_stored_too(tmp_path):
    _, tensors = write_folder(tmp_path, "gpt2")
    wanted = load_pretrained(tmp_path, output="logits", dtype="float64")(IDS)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    write_folder(tmp_path, "gpt2", tensors=tensors)
    np.testing.assert_allclose(
        load_pretrained(tmp_path, output="logits", dtype="float64")(IDS), wanted, rtol=1e-10
    )


def test_a_folder_of_the_hubs_cache_is_read_through_its_links(tmp_path):
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0f"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    write_folder(snapshot, "llama")
    wanted = load_pretrained(snapshot, dtype="float64")(IDS)
    for file in list(snapshot.iterdir()):
        file.rename(blobs / file.name.upper())
        file.symlink_to(f"../../blobs/{file.name.upper()}")
    np.testing.assert_allclose(load_pretrained(snapshot, dtype="float64")(IDS), wanted, rtol=1e-10)
    # In a folder that is none of a cache, the same links lead out of it.
    snapshot.parent.rename(tmp_path / "models--a--b" / "mine")
    refused("folder.file", load_pretrained, tmp_path / "models--a--b" / "mine" / "0f")
