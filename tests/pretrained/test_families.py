"""Files of weights as they come: shards, old names, other dtypes, a stored tied head and the links of a cache."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxsens.pretrained.load import load_pretrained
from tests.pretrained.folders import CONFIGS, tensors_of, write_folder
from tests.refusals import refused

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
