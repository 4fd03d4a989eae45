"""Published models as the `[model]` of a sweep: variants, checkpoints, texts, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, Neighbours
from jaxsens.cli import main
from jaxsens.core.sweeps.config import load_sweep_config, parse_sweep_config
from tests.pretrained.folders import CONFIGS as FAMILIES
from tests.pretrained.folders import write_dense, write_folder, write_pooling
from tests.refusals import refused

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs" / "published").glob("*.toml"))
CONFIG = """
lengths = [5, 6]
variants = ["softmax", "temperature-log"]
[model]
pretrained = "bert"
[inputs]
count = 2
[measure]
flips = { kind = "neighbours", k = 2 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "bert", "bert")
    return tmp_path


@pytest.mark.long
def test_points_are_what_the_function_measures_of_the_model_and_its_words(folder):
    sweep = parse_sweep_config(CONFIG, folder=folder)
    assert [one.source.weights for one in sweep.variants] == ["published"] * 2
    model = jaxsens.load_pretrained(folder / "bert")
    point = next(one for one in sweep.points if one.n == 6 and one.variant == "softmax")
    words = point.tokens()
    assert words.shape == (2, 6)
    around = model.encode("the")
    assert (words[:, 0] == around[0]).all()
    assert (words[:, -1] == around[-1]).all()
    assert not set(words[:, 1:-1].ravel().tolist()) & set(model.reserved)
    expected = jaxsens.flip_sensitivity(model, words, Neighbours(2))
    found = point.measure.flip_sensitivity(point.model(), words, 0)
    np.testing.assert_array_equal(found.norms, expected.norms)
    warm, cold = (
        next(one for one in sweep.points if one.variant == name) for name in ("softmax", "temperature-log")
    )
    assert warm.key != cold.key
    assert warm.expanded["model"]["pretrained"].keys() == {"config.json", "model.safetensors"}


@pytest.mark.long
def test_a_sweep_runs_resumes_and_is_planned(folder, capsys):
    (folder / "sweep.toml").write_text(CONFIG, encoding="utf-8")
    out = folder / "out"
    assert main(["sweep", str(folder / "sweep.toml"), "--out", str(out)]) == 0
    capsys.readouterr()
    shutil.move(folder / "bert", folder / "moved")  # the place on the disk is no part of a point
    moved = CONFIG.replace('"bert"', '"moved"')
    (folder / "sweep.toml").write_text(moved, encoding="utf-8")
    assert main(["sweep", str(folder / "sweep.toml"), "--out", str(out), "--list"]) == 0
    assert "4 of 4 points are done" in capsys.readouterr().out
    assert (out / "points.csv").is_file()
    assert main(["plan", str(folder / "sweep.toml"), "--on", "h100"]) == 0


def test_checkpoints_are_an_axis_of_variants(folder):
    for k, step in enumerate(("step1", "step2")):
        (folder / "run" / step).mkdir(parents=True)
        write_folder(folder / "run" / step, "gpt2", {"layer_norm_epsilon": 1e-5 * (1 + k)})
    text = CONFIG.replace('pretrained = "bert"', 'pretrained = "run"\ncheckpoints = ["step1", "step2"]')
    names = [one.name for one in parse_sweep_config(text, folder=folder).variants]
    assert names == ["softmax step1", "softmax step2", "temperature-log step1", "temperature-log step2"]
    with pytest.raises(InputError) as caught:  # what is wrong at every one of them is said once
        parse_sweep_config(text.replace('"run"', '"run"\nlayers = 3'), folder=folder)
    assert str(caught.value).count("layers = 3: at most 2") == 1


def test_texts_are_cut_off_or_repeated_to_each_length(folder):
    (folder / "texts.txt").write_text("the cat sat on a mat\n\ndog\n", encoding="utf-8")
    text = CONFIG.replace("count = 2", 'texts = "texts.txt"')
    sweep = parse_sweep_config(text, folder=folder)
    model = jaxsens.load_pretrained(folder / "bert")
    words = next(one for one in sweep.points if one.n == 6).tokens()
    assert [model.tokens(word) for word in words.tolist()] == [
        ["[CLS]", "the", "cat", "sat", "on", "[SEP]"],
        ["[CLS]", "dog", "dog", "dog", "dog", "[SEP]"],
    ]


def test_a_key_has_the_dense_modules_that_are_applied(folder):
    def keys(scale: float, pooled: bool) -> frozenset[str]:
        """Those of points of the model, with a Dense module unless its scale is 0."""
        name = f"{scale} {pooled}"
        shutil.copytree(folder / "bert", folder / name)
        if scale:
            write_dense(
                folder / name, "2_Dense", scale * np.eye(8, dtype=np.float32), None, "linear.Identity"
            )
        if pooled:
            write_pooling(folder / name, pooling_mode_cls_token=True)
        sweep = parse_sweep_config(CONFIG.replace('"bert"', f'"{name}"'), folder=folder)
        return frozenset(one.key for one in sweep.points)

    plain = keys(0, False)
    assert (
        keys(1, False) == plain == keys(0, True)
    )  # the readout is its own, and a module without one is not applied
    assert len({plain, keys(1, True), keys(2, True)}) == 3


@pytest.mark.parametrize("beside", [True, False])
def test_the_tokenizer_of_a_key_is_the_one_that_is_read(folder, monkeypatch, beside):
    own = {"pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary"}
    monkeypatch.setitem(FAMILIES, "esm", {**FAMILIES["bert"], **own})
    (folder / "esm").mkdir()
    write_folder(folder / "esm", "esm")
    words = folder / "esm" / "vocab.txt"
    words.write_text("<cls>\n<pad>\n<eos>\n<unk>\n<mask>\nL\nA\nG\nV\nS\nE\nR\nT\nI\nD\nP\nK\nQ\nN\nF")
    if not beside:
        (folder / "esm" / "tokenizer.json").unlink()
    symbols = parse_sweep_config(CONFIG.replace("bert", "esm"), folder=folder).variants[0].source.symbols
    assert symbols.table()["tokenizer"] == hashlib.sha256(words.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ('"bert"', '"nothing"', "model.pretrained"),
        ('"bert"', '"bert"\nwindow = 0', "model.window"),
        ('"bert"', '"bert"\nheat = 1', "model.heat"),
        ('"bert"', '"bert"\nlayers = 3', "model.layers"),
        ('"bert"', '"bert"\noutput = "labels"', "model.output"),
        ('"bert"', '"bert"\nreadout = -1', "model.readout"),
        ('"bert"', '"bert"\nreadout = 5', "lengths"),
        ('"temperature-log"', '"unbounded"', "variant.unbounded.model.positions"),
        ("lengths = [5, 6]", "lengths = [2, 60]", "lengths"),
        ("count = 2", 'texts = "none.txt"', "inputs.texts"),
        ('"bert"', '"bert"\ncheckpoints = "step1"', "model.checkpoints"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(folder, old, new, path):
    refused(path, parse_sweep_config, CONFIG.replace(old, new), folder=folder)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_config_is_read_with_a_model_in_place_of_its_own(path, tmp_path):
    """The models are those that their comments say how to get."""
    text = path.read_text("utf-8")
    family, longest = ("gpt2", "n_positions") if "gpt2" in text else ("bert", "max_position_embeddings")
    layers = "n_layer" if family == "gpt2" else "num_hidden_layers"
    write_folder(tmp_path / "model", family, {longest: 1024, layers: 6})
    named = json.dumps(str(tmp_path / "model"))
    lines = [f"pretrained = {named}" if line.startswith("pretrained") else line for line in text.splitlines()]
    sweep = parse_sweep_config("\n".join(lines), folder=tmp_path)
    assert len(sweep.variants) == 4
    assert text.startswith("# ")
    assert "hf download" in text
    refused("model.pretrained", load_sweep_config, shutil.copy(path, tmp_path / "there.toml"))
