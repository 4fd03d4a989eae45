"""`jaxsens measure --pretrained`: agrees with the library, says what it measured, and refuses what does not fit."""

from __future__ import annotations

import io
import json
import re
import sys

import numpy as np
import pytest

import jaxsens

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from tests.commands import refused, run
from tests.pretrained.folders import write_folder, write_pooling

TEXT = "the cat sat on the mat"
OF_TEXT, LOG = ("--text-file", "t.txt"), ("--measure", "log-probability")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    write_folder(folder, "bert")
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2")
    write_folder(folder, "qwen2")
    return folder


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT + "\n", "utf-8")
    return tmp_path / "text.txt"


@pytest.mark.long
def test_a_text_is_measured_as_the_library_measures_it(encoder, text, tmp_path, capsys):
    page, saved = tmp_path / "o.html", tmp_path / "o.parquet"
    options = ("--flips", "neighbours", "k=3", "--readout", "mean", "--html", page, "--save", saved)
    options += ("--png", tmp_path / "o.png", "--svg", tmp_path / "o.svg")
    code, out, err = run(capsys, "measure", "--pretrained", encoder, "--text-file", text, *options)
    assert (code, err) == (0, "")
    model = jaxsens.load_pretrained(encoder)
    expected = jaxsens.flip_sensitivity(model, TEXT, jaxsens.Neighbours(3), readout="mean")
    np.testing.assert_array_equal(jaxsens.load_result(saved).norms, expected.norms)
    assert "the mean over positions" in out
    assert "‖y(x) − y(x′)‖₂" in out
    assert f"{expected.max:.4g}" in out
    assert out.count("«") == 5
    assert ">sat</span>" in page.read_text("utf-8")
    assert f"<title>Sensitivity by token: {encoder} (bert)</title>" in page.read_text("utf-8")
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "o.svg").read_text("utf-8")


def test_a_wrong_choice_and_missing_files_are_reported_together(encoder, capsys):
    options = ("--engine", "fast", "--dtype", "int8", "--text-file", "none.txt", "--pretrained", "nowhere")
    refused(capsys, "--engine --dtype --text-file --pretrained", "measure", *options)
    refused(capsys, "--config --measure", "measure", "--n", "8", "--config", "none.toml", "--measure", "l3")


@pytest.mark.long
def test_the_log_probability_of_a_token_of_standard_input(decoder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{TEXT}\r\n".encode())))
    options = ("--measure", "log-probability", "token=cat", "--json", "--top", "2", "--dtype", "float64")
    code, out, _ = run(capsys, "measure", "--pretrained", decoder, "--text-file", "-", *options)
    told = json.loads(out)
    model = jaxsens.load_pretrained(decoder, output="logits", dtype="float64")
    token = model.token_id("cat")
    expected = jaxsens.flip_sensitivity(model, TEXT, jaxsens.Neighbours(8), jaxsens.LogProbability(token))
    assert (code, told["readout"], told["text"]) == (0, "last", TEXT)
    assert told["measure"] == {"kind": "log-probability", "token": token, "name": "cat"}
    assert told["max"] == pytest.approx(expected.max, rel=1e-9)
    largest = told["top"][0]
    assert largest["value"] == pytest.approx(expected.values[np.argmax(expected.norms)], rel=1e-9)
    assert largest["token"] == model.tokens([told["tokens"][largest["position"]]])[0]
    assert told["pieces"] == ["the", "cat", "sat", "on", "the", "mat"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("flips", "replacement"),
    [
        (["mask"], "[MASK]"),
        (["mask", "symbol=8"], "the"),
        (["delete"], "(deleted)"),
        (["substitute"], "the"),
        (["insert", "symbols=8,"], "the"),
        (["repeat"], "cat"),
        (["8,9"], "the"),
    ],
)
def test_each_kind_of_flips(flips, replacement, encoder, text, capsys):
    options = ("--flips", *flips, "--readout", "cls", "--json", "--top", "99")
    code, out, err = run(capsys, "measure", "--pretrained", encoder, "--text-file", text, *options)
    assert (code, err) == (0, "")
    assert replacement in {flip["replacement"] for flip in json.loads(out)["top"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--text-file", "none.txt"], "--text-file = 'none.txt': no such file or directory"),
        ([], "--text = None: give the text, or --text-file"),
        (["--text", ""], "--text = '': give the text, or --text-file"),
        (["--text", "the cat", "--text-file", "t.txt"], "--text-file = 't.txt': give it or --text, not both"),
        (["--text-file", "t.txt", "--tokens", "01"], "--tokens = '01': leave it out; with --pretrained"),
        (["--text-file", "t.txt", "--n", "8", "--model", "width=4"], "--model = 'width=4': leave it out"),
        (["--text-file", "t.txt", "--config", "x.toml"], "--config = 'x.toml': leave it out"),
        (["results", "--text-file", "t.txt"], "CHECKPOINT = 'results': leave it out"),
        (["--text-file", "t.txt", "--readout", "first"], "--readout = 'first': cls, last, mean, or a 0-based position"),
        (["--text-file", "t.txt", "--readout", "99"], "--readout = 99: a position from 0 to 7"),
        (["--text-file", "t.txt", "--measure", "kl"], "--measure = 'kl': give --output logits"),
        ([*OF_TEXT, *LOG, "token=cat", "--output", "hidden"], "--measure = 'log-probability': give --output logits"),
        ([*OF_TEXT, *LOG, "token=the cat"], "one token; these are 2: 'the', 'cat'"),
        ([*OF_TEXT, *LOG, "token=20"], "token = 20: the output has 20 numbers"),
        ([*OF_TEXT, *LOG, "token="], "--measure token = '': a whole number of at least 0"),
        (["--text-file", "empty.txt"], "--text-file = 'empty.txt': a text; it is empty"),
        (["--text-file", "latin.txt"], "--text-file = 'latin.txt': a text; line 1 is not UTF-8"),
        (["--text-file", "long.txt"], "tokens; the model reads at most"),
        (["--text-file", "t.txt", "--html", "."], "--html = '.': a file name; this is a directory"),
        (["--text-file", "t.txt", "--html", "a.png"], "ends in .html or .htm; --png writes .png"),
        (["--text-file", "t.txt", "--quiet"], "--quiet = True: give --save or --html too"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_message(arguments, said, encoder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(TEXT, "utf-8")
    (tmp_path / "empty.txt").write_text("\n", "utf-8")
    (tmp_path / "latin.txt").write_bytes("fünf".encode("latin-1"))
    (tmp_path / "long.txt").write_text("the " * 500, "utf-8")
    assert said in refused(capsys, "", "measure", *arguments, "--pretrained", encoder)


def test_options_of_published_models_need_one(text, capsys):
    line = "measure --model alphabet_size=2 --n 8 --readout cls --text-file"
    refused(capsys, "--readout --pretrained --text-file", *line.split(), text)


def test_a_page_is_written_for_other_models_too(tmp_path, capsys):
    page = tmp_path / "o.html"
    line = "measure --model alphabet_size=2 width=4 heads=1 layers=1 --n 6 --quiet --html"
    assert run(capsys, *line.split(), page) == (0, "", "")
    assert 'class="text numbers"' in page.read_text("utf-8")


@pytest.mark.long
def test_the_readout_is_that_of_the_folder_as_the_help_of_both_commands_says(tmp_path, capsys):
    write_folder(tmp_path, "bert")
    write_pooling(tmp_path, pooling_mode_mean_tokens=True)
    asked = ("--text", TEXT, "--flips", "mask", "--json", "--top", "1")
    code, out, err = run(capsys, "measure", "--pretrained", tmp_path, *asked)
    assert (code, json.loads(out)["readout"]) == (0, "mean"), err
    for command in ("measure", "corpus"):
        _, out, _ = run(capsys, command, "--help")
        told = " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())
        assert re.search(r"--readout .{0,200}?that of the folder", told), told
