"""What classifiers of sequences read: a decoder's last symbol that is not padding, or the mean of rows."""

from __future__ import annotations

import dataclasses
import html
import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import jaxsens
from jaxsens import load_result
from jaxsens.cli import main
from tests.pretrained.oracle import LABELLED, Case, in_float64, loaded, save, torch
from tests.refusals import refused

FIRST = {case.family: case for case in reversed(LABELLED) if case.name == "ForSequenceClassification"}
PAD = 13  # "mat", a word of the tests' tokenizer
WORDS = np.array(
    [[7, 8, 9, 10, 11], [7, 8, 9, PAD, PAD], [PAD] * 5, [7, PAD, 8, PAD, 9], [PAD, 12, PAD, 12, PAD]]
)
"""Inputs that end in padding, have it within or are all padding, and others."""


def case_of(family: str, **options: Any) -> Case:
    one = FIRST[family]
    return dataclasses.replace(one, options={**one.options, "num_labels": 3, **options})


def edited(word: list[int], edit: str, position: int, symbol: int) -> list[int]:
    after = {"substitute": [symbol], "delete": [], "insert": [symbol, word[position]]}[edit]
    return [*word[:position], *after, *word[position + 1 :]]


FLIPS = {
    "substitute": lambda pad: jaxsens.Substitute([pad, 12], positions=range(5)),
    "delete": lambda _: jaxsens.Delete(positions=range(5)),
    "insert": lambda pad: jaxsens.Insert([pad, 12], positions=range(5)),
}


def check(case: Case, folder: Any, words: np.ndarray, pad: int, edits: tuple[tuple[str, str], ...]) -> Any:
    """Compares the changes with those of the library's scores, in float64."""
    library = loaded(case, folder, "float64")
    model = jaxsens.load_pretrained(folder, output="labels", dtype="float64")

    def scores(word: list[int]) -> np.ndarray:
        with in_float64(wanted=True), torch.no_grad():
            return library(torch.tensor([word])).logits[0].numpy()

    for edit, engine in edits:
        found = jaxsens.flip_sensitivity(model, words, FLIPS[edit](pad), engine=engine)  # pyright: ignore[reportArgumentType]
        assert len(found) >= 5 * len(words) - 1
        assert all(count < len(found) for _, count in found.engine.elsewhere)  # the engine itself measured
        expected = [
            np.linalg.norm(
                scores(edited(words[k].tolist(), edit, int(i), int(s))) - scores(words[k].tolist())
            )
            for k, i, s in zip(found.inputs, found.positions, found.symbols, strict=True)
        ]
        np.testing.assert_allclose(found.norms, expected, rtol=1e-9, atol=1e-12, err_msg=f"{edit}, {engine}")
        assert np.max(expected) > 0.01
    return model


EVERY = (("substitute", "vmap"), ("substitute", "incremental"), ("delete", "vmap"), ("insert", "vmap"))


@pytest.mark.parametrize(
    ("family", "options", "pad"),
    [
        ("llama", {"pad_token_id": PAD}, PAD),
        pytest.param("llama", {"pad_token_id": PAD, "num_hidden_layers": 1}, PAD, marks=pytest.mark.long),
        pytest.param("llama", {"pad_token_id": None}, PAD, marks=pytest.mark.long),  # the last row
        pytest.param("gemma3_text", {}, 0, marks=pytest.mark.slow),
        ("gemma", {}, 0),  # the library's own, which config.json need not have
        pytest.param("gpt2", {"pad_token_id": PAD}, PAD, marks=pytest.mark.long),
        pytest.param("bloom", {"pad_token_id": PAD}, PAD, marks=pytest.mark.slow),
        pytest.param("mixtral", {"pad_token_id": PAD}, PAD, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning")  # padding deleted before padding
def test_a_decoder_is_read_at_the_last_symbol_that_is_not_padding(family, options, pad, tmp_path):
    case = case_of(family, **options)
    save(case, tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text("utf-8"))
    if not options:
        config.pop("pad_token_id", None)
    file.write_text(json.dumps(config), encoding="utf-8")
    model = check(case, tmp_path, np.where(WORDS == PAD, pad, WORDS), pad, EVERY)
    known = options.get("pad_token_id", pad) is not None
    assert model.layered.readout == (f"last other than {pad}" if known else "last")


@pytest.mark.parametrize("bias", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_head_after_the_mean_of_rows_is_that_of_the_library(bias, tmp_path):
    case = case_of("modernbert", classifier_pooling="mean", classifier_bias=bias)
    save(case, tmp_path)
    model = check(case, tmp_path, WORDS[:2], PAD, EVERY)
    assert model.layered.readout == "mean"
    with pytest.raises(jaxsens.InputError, match="the scores of their mean"):
        jaxsens.flip_sensitivity(model, WORDS[0], [12], engine="first-order")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    case, folder = (
        case_of("llama", pad_token_id=PAD, id2label={0: "a", 1: "b", 2: "c"}),
        tmp_path_factory.mktemp("c"),
    )
    save(case, folder)
    return jaxsens.load_pretrained(folder, output="labels", dtype="float64")


@pytest.mark.parametrize(
    "flips", [jaxsens.Substitute([12]), jaxsens.Delete(), jaxsens.Insert([12]), jaxsens.Repeat()]
)
def test_by_default_the_symbols_before_the_row_that_is_read_are_flipped(model, flips):
    found = jaxsens.flip_sensitivity(model, WORDS[[0, 1, 3]], flips)
    flipped = [set(found.positions[found.inputs == k].tolist()) for k in range(3)]
    before = flips.longer > 0  # an insertion before that row leaves its symbol the last
    assert flipped == [set(range(row + before)) for row in (4, 2, 4)]
    if not before:
        refused("tokens", jaxsens.flip_sensitivity, model, WORDS[2], flips)


def test_positions_are_counted_from_the_row_that_is_read(model):
    flips = jaxsens.Substitute([12], positions=["readout"])
    assert jaxsens.flip_sensitivity(model, WORDS[1], flips).positions.tolist() == [2]
    refused("flips.positions", jaxsens.flip_sensitivity, model, WORDS[:2], flips)


def test_results_and_statistics_say_the_row_that_is_read(model, tmp_path):
    found = jaxsens.flip_sensitivity(model, WORDS[1], [12])
    assert found.readout == "last other than 13"
    found.save(tmp_path / "found.parquet")
    assert load_result(tmp_path / "found.parquet").readout == found.readout
    found.to_html(tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text("utf-8")
    assert "read at last other than 13" in page
    assert "at position 2\nthe model reads its output here" in html.unescape(page)
    attention = jaxsens.analysis.attention_statistics(model, WORDS[1])
    assert attention.readout == 2
    np.testing.assert_array_equal(
        attention.read, jaxsens.analysis.attention_statistics(model, WORDS[1], readout=2).read
    )


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: jaxsens.flip_sensitivity(m, WORDS[1], [12], engine="first-order"), "can move this row"),
        (lambda m: jaxsens.flip_sensitivity(m, WORDS[1], [12], engine="difference"), "difference"),
        (lambda m: jaxsens.theory.worst_input(m, 5, 12), "readout = 'last other than 13': a row that moves"),
    ],
)
def test_what_cannot_follow_the_row_refuses_by_name(model, ask, message):
    with pytest.raises(jaxsens.InputError, match=message):
        ask(model)


def test_the_command_says_the_row_and_the_scores_that_are_read(model, capsys):
    asked = ("--text", "the cat sat mat", "--output", "labels", "--dtype", "float64", "--flips", "delete")
    assert main(["measure", "--pretrained", str(model.folder), *asked]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    scores = np.exp(np.asarray(model([8, 9, 10, PAD]))[2])
    shares = ", ".join(f"{name} {one:.2g}" for name, one in zip("abc", scores / scores.sum(), strict=True))
    assert "read at position 2, 'sat'" in printed
    assert f"labels {shares}" in printed
