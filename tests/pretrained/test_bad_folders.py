"""Folders that cannot be read: one clear error each, before weights are read, and nothing is ever unpickled."""

from __future__ import annotations

import ast
import builtins
import json
import os
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import jaxsens
from jaxsens import InputError
from jaxsens.pretrained import load
from jaxsens.pretrained.families.family import StoredTensor
from tests.pretrained.folders import tokenizer_table, write_folder, write_pooling
from tests.refusals import refusal, refused


class Malice:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.witness,)


Change = Callable[[Path], None]


def changing(change: Callable[..., None]) -> Callable[..., Change]:
    """Of a function of a folder and of what is to be wrong there: a function of the latter that gives a `Change`."""
    return lambda *what, **named: lambda folder: change(folder, *what, **named)


@changing
def options(folder: Path, family: str = "bert", **changed: Any) -> None:
    """A folder of a family whose config.json says something else. The value `...` leaves an option out."""
    write_folder(folder, family)
    table = json.loads((folder / "config.json").read_text())
    table = {name: value for name, value in (table | changed).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(table))


@changing
def tensors(folder: Path, changed: dict[str, Any], family: str = "bert") -> None:
    """A folder in which tensors are something else: an array, `...` for none, or a function of the array."""
    _, own = write_folder(folder, family)
    for name, value in changed.items():
        if value is ...:
            del own[name]
        else:
            own[name] = np.ascontiguousarray(value(own[name]) if callable(value) else value)
    save_file(own, folder / "model.safetensors")


@changing
def text(folder: Path, name: str, content: str | bytes) -> None:
    write_folder(folder)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


@changing
def gone(folder: Path, *names: str) -> None:
    write_folder(folder)
    for name in names:
        (folder / name).unlink()


@changing
def instead(folder: Path, name: str) -> None:
    """A folder whose weights are in another format: a pickle that would leave a file behind."""
    gone("model.safetensors")(folder)
    (folder / name).write_bytes(pickle.dumps({"a": Malice(folder / "unpickled")}))


@changing
def index(folder: Path, weight_map: Any) -> None:
    """A folder with two shards and an index; `weight_map` is the map, or a function of the right one."""
    _, own = write_folder(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(own)
    right = {name: f"model-0000{1 + k % 2}-of-00002.safetensors" for k, name in enumerate(names)}
    for file in set(right.values()):
        save_file({name: own[name] for name in names if right[name] == file}, folder / file)
    table = {"metadata": {}, "weight_map": weight_map(right) if callable(weight_map) else weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))


@changing
def outside(folder: Path, name: str) -> None:
    write_folder(folder)
    target = folder.parent / f"outside-{name}"
    (folder / name).rename(target)
    (folder / name).symlink_to(target)


def first_tensor_in(file: Any) -> Change:
    return index(lambda right: {**right, next(iter(right)): file})


def shard_outside(folder: Path) -> None:
    index(lambda right: right)(folder)
    shard = folder / "model-00001-of-00002.safetensors"
    shard.rename(folder.parent / "shard")
    shard.symlink_to(folder.parent / "shard")


def truncated(folder: Path) -> None:
    write_folder(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def twice(folder: Path) -> None:
    _, own = write_folder(folder)
    for k in (1, 2):
        save_file(own, folder / f"model-{k}.safetensors")
    (folder / "model.safetensors").unlink()


def circle(folder: Path) -> None:
    gone("model.safetensors")(folder)
    (folder / "model.safetensors").symlink_to("model.safetensors")


def directory(folder: Path) -> None:
    gone("model.safetensors")(folder)
    (folder / "model.safetensors").mkdir()


def adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    save_file({"a": np.zeros(2)}, folder / "adapter_model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_table(True)))


def other_tied_head(folder: Path) -> None:
    write_folder(folder, "gpt2")
    own = load_file(folder / "model.safetensors")
    save_file({**own, "lm_head.weight": own["transformer.wte.weight"] + 1}, folder / "model.safetensors")


def symbols(*more: str) -> str:
    table = tokenizer_table(True)
    vocabulary = table["model"]["vocab"]
    table["model"]["vocab"] = vocabulary | {one: len(vocabulary) + k for k, one in enumerate(more)}
    return json.dumps(table)


@changing
def other_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = tokenizer_table(True)
    change(table)
    text("tokenizer.json", json.dumps(table))(folder)


@changing
def parent(folder: Path, name: str) -> None:
    write_folder(folder / name)


@changing
def pooling(folder: Path, **options: Any) -> None:
    write_folder(folder)
    write_pooling(folder, **options)


QUERY = "bert.encoder.layer.0.attention.self.query.weight"
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}

BAD: dict[str, tuple[Change, str]] = {
    # Files
    "empty folder": (lambda folder: None, "it has no config.json; it is no model"),
    "cache of the hub": (lambda folder: (folder / "snapshots").mkdir(), "give a folder within its snapshots"),
    "parent of a model": (parent("MiniLM"), "give the folder of a model: '.*MiniLM'"),
    "cache of all models": (parent("models--a--b/snapshots/0f"), "give the folder of a model: '.*snapshots/0f'"),
    "pooling by maximum": (pooling(pooling_mode_max_tokens=True), "pooling_mode = 'max_tokens': not served"),
    "dropout in the tokenizer": (
        other_tokenizer(lambda table: table["model"].update(type="BPE", dropout=0.1)),
        "tokenizer.json: model.dropout = 0.1: 0 or null",
    ),
    "texts that grow": (
        other_tokenizer(lambda table: table.update(normalizer={"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 33})),
        "replacements that may make a text 8.59e.09 times as long",
    ),
    "a long config": (lambda folder: text("config.json", " " * 2**25 + "{}")(folder), "config.json'.* more than"),
    "no config": (gone("config.json"), "it has no config.json; .* It has model.safetensors, tokenizer.json"),
    "no weights": (gone("model.safetensors"), r"it has no \*.safetensors; download the model again"),
    "no tokenizer": (gone("tokenizer.json"), "it has no tokenizer.json; make it .* AutoTokenizer"),
    "pickled weights": (instead("pytorch_model.bin"), "is a pickle, .* never opened.*save_pretrained"),
    "pickled checkpoint": (instead("model.ckpt"), "model.ckpt is a pickle"),
    "pickle named safetensors": (instead("model.safetensors"), "not readable as safetensors"),
    "gguf": (instead("model.gguf"), "model.gguf is in a format that is not read"),
    "adapter": (adapter, "it is an adapter, .*merge_and_unload"),
    "weights are a directory": (directory, r"it has no \*.safetensors"),
    "link to itself": (circle, "model.safetensors"),
    "weights outside": (outside("model.safetensors"), "it leads out of the folder"),
    "tokenizer outside": (outside("tokenizer.json"), "it leads out of the folder"),
    # JSON
    "config cut off": (text("config.json", '{"model_type": "bert", '), "config.json'.* not readable as JSON"),
    "config a list": (text("config.json", "[]"), "holds a list, not a table"),
    "tokenizer of nothing": (text("tokenizer.json", '{"version": "1.0"}'), "not readable as a tokenizer"),
    "tokenizer of another model": (text("tokenizer.json", symbols("x", "y", "z")), "largest id = 20: the model reads"),
    "a key twice": (
        text("config.json", '{"model_type": "bert", "hidden_size": 8, "hidden_size": 16}'),
        "config.json'.* not readable as JSON .the key 'hidden_size' is there twice.",
    ),
    "two words of one id": (
        other_tokenizer(lambda table: table["model"]["vocab"].update(cat=9, dog=9)),
        "tokenizer.json: id = 9: of both 'cat' and 'dog'",
    ),
    "a word of two ids": (
        other_tokenizer(lambda table: table["added_tokens"][4].update(id=19)),
        r"tokenizer.json: id = 19: '\[MASK\]' has this id among added_tokens, and 4 in the vocabulary",
    ),
    "an unknown word for the unknown": (
        other_tokenizer(lambda table: table["model"].update(unk_token="[NONE]")),
        r"tokenizer.json: model.unk_token = '\[NONE\]': a word of the vocabulary",
    ),
    "an added token with a huge id": (
        other_tokenizer(lambda table: table["added_tokens"].append(
            table["added_tokens"][0] | {"content": "<x>", "id": 10**9})),
        "tokenizer.json: added_tokens.id = 1000000000: '<x>' is to have this id, but it gets 18",
    ),
    "a billion layers": (options(num_hidden_layers=10**9), "num_hidden_layers ="),
    # Files of weights
    "weights cut off": (truncated, r"not readable as safetensors .*may be truncated: download it again"),
    "git lfs": (text("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "a tensor in two files": (twice, "is twice in these files"),
    "index above": (first_tensor_in("../../etc/passwd"), "it leads out of the folder"),
    "index absolute": (first_tensor_in("/etc/passwd"), "the name of a file within the folder"),
    "index of a link outside": (shard_outside, "it leads out of the folder"),
    "index of no file": (first_tensor_in("model-00003-of-00003.safetensors"), "it has no model-00003-of-00003"),
    "index without map": (index(None), "weight_map = None"),
    "index of another file": (first_tensor_in("model-00002-of-00002.safetensors"), "not in the files it names"),
    # Options
    "unknown family": (options(model_type="mamba"), "model_type = 'mamba': not served; the families are bert,"),
    "no family": (options(model_type=...), "model_type = None: not served"),
    "an option that is read": (options("llama", attention_chunk_size=4), "the library reads it for llama"),
    "no layers": (options(num_hidden_layers=0), "num_hidden_layers = 0: a whole number of at least 1"),
    "uneven heads": (options(num_attention_heads=3), "hidden_size = 8: a multiple of num_attention_heads = 3"),
    "decoder": (options(is_decoder=True), "is_decoder = True: a bert-like decoder is not served"),
    "rope type": (options("llama", rope_scaling={"type": "proportional", "factor": 2.0}), "rope_scaling.type ="),
    "rope without factor": (options("llama", rope_scaling={"type": "linear"}), "rope_scaling.factor: required"),
    "rope said twice": (options("llama", rope_parameters=ROPE | {"high_freq_factor": 4.0}), "keep one of them"),
    "chunked layers": (options("qwen3", layer_types=["chunked_attention"] * 2), "layer_types = .*not served"),
    # Tensors
    "tensor missing": (tensors({QUERY: ...}), "a tensor is missing: .*0.attention.self.query.weight: download"),
    "wrong shape": (
        tensors({QUERY: lambda x: x[:, :4]}),
        r"of another shape: .*query.weight \(8, 4\) instead of \(8, 8\):",
    ),
    "more layers by config": (options(num_hidden_layers=3), "16 tensors are missing: encoder.layer.2.*, among others"),
    "eight bits": (tensors({QUERY: lambda x: x.astype(np.int8)}), "weight I8: quantised weights are not served"),
    "not a number": (tensors({QUERY: lambda x: x * np.nan}), "query.weight: it holds numbers that are not finite"),
    "two heads": (other_tied_head, "tie_word_embeddings = True: true, but lm_head.weight is stored and differs"),
}  # fmt: skip


@pytest.fixture
def nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: Any, **named: Any) -> Any:
        raise AssertionError("a pickle was opened")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)


@pytest.mark.parametrize("name", BAD)
def test_one_clear_error(name, tmp_path, monkeypatch, nothing_is_unpickled):
    folder = tmp_path / "model"
    folder.mkdir()
    change, wanted = BAD[name]
    change(folder)
    opened: list[str] = []
    true_open = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda file, *a, **k: opened.append(str(file)) or true_open(file, *a, **k)
    )
    with pytest.raises(InputError, match=wanted) as caught:
        jaxsens.load_pretrained(folder, output="logits" if name == "two heads" else "hidden")
    message = str(caught.value)
    assert message.startswith(f"load_pretrained({str(folder)!r})") or "not finite" in message
    if name not in ("empty folder", "cache of the hub", "adapter"):
        assert "errors\n" not in message, message
    assert not (folder / "unpickled").exists()
    assert not any(one.endswith((".bin", ".ckpt", ".gguf")) for one in opened)


def test_a_good_folder_beside_a_pickle_is_read_without_opening_it(tmp_path, nothing_is_unpickled):
    write_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Malice(tmp_path / "unpickled")))
    assert jaxsens.load_pretrained(tmp_path)([2, 9, 3]).shape == (3, 8)
    assert not (tmp_path / "unpickled").exists()


def test_no_weights_are_read_before_options_and_shapes_are_right(tmp_path, monkeypatch):
    def unread(self: StoredTensor, dtype: str) -> np.ndarray:
        raise AssertionError(f"{self.name} was read")

    monkeypatch.setattr(StoredTensor, "read", unread)
    options(is_decoder=True)(tmp_path)
    with refusal("config.json: is_decoder"):
        jaxsens.load_pretrained(tmp_path)
    options(vocab_size=21)(tmp_path)
    with pytest.raises(InputError, match="of another shape"):
        jaxsens.load_pretrained(tmp_path)


def test_unknown_arguments_and_several_problems_are_told_together(tmp_path):
    write_folder(tmp_path)
    refused("dtype output", jaxsens.load_pretrained, tmp_path, output="pooled", dtype="float16")
    options("llama", hidden_act="xielu", mlp_bias="no", quantization_config={}, rope_scaling={"type": "ntk"})(
        tmp_path
    )
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"")
    names = ("hidden_act", "mlp_bias", "quantization_config", "rope_scaling.type")
    with refusal(*(f"config.json: {name}" for name in names), "folder"):
        jaxsens.load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (
            "sentence-transformers/all-MiniLM-L6-v2",
            "hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir all-MiniLM-L6-v2",
        ),
        ("gpt2", "hf download gpt2 --local-dir gpt2"),
        *((one, "") for one in ("/no/such/folder", "", None, b"gpt2", "a\0b", "file")),
    ],
)
def test_what_is_no_folder(given, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert command in refused("folder", jaxsens.load_pretrained, given)


def test_a_name_at_the_hub_stands_for_its_folder_in_the_local_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--org--name"
    (place / "snapshots" / "abc").mkdir(parents=True)
    write_folder(place / "snapshots" / "abc")
    command = refused("folder", jaxsens.load_pretrained, "org/name")  # which revision is not said
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("../snapshots/abc")
    assert refused("folder", jaxsens.load_pretrained, "org/name") == command
    (place / "refs" / "main").write_text("abc\n")
    model = jaxsens.load_pretrained("org/name")
    assert (model.name, model.folder) == ("org/name", place / "snapshots" / "abc")


_PARTS = ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
_HEAD = ("decoder.bias", *(f"transform.{part}" for part in _PARTS))
HEADLESS = {f"cls.predictions.{name}": ... for name in _HEAD}


@pytest.mark.parametrize(
    "change",
    [
        tensors(HEADLESS),
        tensors(
            {**HEADLESS, "classifier.weight": np.zeros((2, 8)), "bert.pooler.dense.weight": np.zeros((8, 8))}
        ),
        tensors({"lm_head.weight": ..., "score.weight": np.zeros((2, 8))}, "llama"),
        tensors({"score.weight": np.zeros((2, 8))}, "gpt2"),
    ],
)
def test_only_the_language_model_head_has_logits(change, tmp_path):
    change(tmp_path)
    refused("output", jaxsens.load_pretrained, tmp_path, output="logits")
    assert jaxsens.load_pretrained(tmp_path)([2, 9, 3]).shape == (3, 8)


def test_the_command_that_installs_the_extra(tmp_path, monkeypatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    write_folder(tmp_path)
    load_pretrained = jaxsens.load_pretrained  # imported on first use, by the function that is replaced next
    monkeypatch.setattr(load.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r'pip install "jaxsens\[pretrained\]"'):
        load_pretrained(os.fspath(tmp_path))


@pytest.mark.parametrize("name", ["$(touch x)", "it's `touch x`", 'a "b" & touch x', "-rf"])
@pytest.mark.parametrize("change", [gone("tokenizer.json"), instead("pytorch_model.bin")])
def test_the_commands_that_are_told_do_nothing_but_what_they_say(change, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(name)
    write_folder(folder)
    change(folder)
    with pytest.raises(InputError) as caught:
        jaxsens.load_pretrained(folder)
    ((command,),) = [re.findall(r"python -c .*", str(caught.value))]
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" > told\n")
    stub.chmod(0o755)
    subprocess.run(["sh", "-c", command], check=True, env={"PATH": f"{stub.parent}:/usr/bin:/bin"})
    option, program, given = (tmp_path / "told").read_text().split("\0")[:-1]
    assert (option, given) == ("-c", name)
    ast.parse(program)
    assert not (tmp_path / "x").exists()
