"""What a published model knows: its text, its special and unused symbols, its longest input, and which row is read.

Of classifiers the names of labels in measures, tables and pictures, and what is refused.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens import EstimateWarning
from jaxsens.cli import main
from jaxsens.core.base.errors import collecting
from jaxsens.pretrained.tokenizer import read_tokenizer
from tests.pretrained.folders import by_passes, write_dense, write_folder, write_pooling
from tests.refusals import refusal, refused
from tools.pretrained_recorded import recorded

UNUSED_IDS, UNKNOWN_IDS = (5, 6, 7), (18, 19)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    write_folder(folder, "bert")
    return jaxsens.load_pretrained(folder)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2")
    write_folder(folder, "qwen2")
    return jaxsens.load_pretrained(folder, output="logits", dtype="float64")


def test_text_to_ids_and_back_without_padding_or_cutting_off(encoder, decoder):
    ids = encoder.encode("the cat sat on the mat")  # the tokenizer.json says: cut at 4, pad to 12
    assert ids == [2, 8, 9, 10, 11, 8, 13, 3]
    assert encoder.tokens(ids) == ["[CLS]", "the", "cat", "sat", "on", "the", "mat", "[SEP]"]
    assert encoder.decode(ids) == "[CLS] the cat sat on the mat [SEP]"
    assert (
        encoder.encode("the cat sat on the mat", special=False)
        == ids[1:-1]
        == decoder.encode("the cat sat on the mat")
    )
    assert encoder.encode("bird") == [2, 1, 3]
    assert encoder.tokens([18]) == ["<id 18>"]


def test_special_unused_and_unknown_ids_are_reserved(encoder):
    assert encoder.special == (0, 1, 2, 3, 4)
    assert encoder.reserved == (*encoder.special, *UNUSED_IDS, *UNKNOWN_IDS)
    assert encoder.tokens([encoder.mask]) == ["[MASK]"]


def test_pieces_of_a_word_are_flipped_together(encoder, tmp_path):
    ids = encoder.encode("the cat sat on the mat")
    dog, mask = encoder.encode("dog", special=False)[0], encoder.mask
    result = jaxsens.flip_sensitivity(
        encoder,
        ids,
        flips=jaxsens.Substitute({2: [dog, mask], 3: [mask, mask], 6: [dog]}, groups=[(2, 3), (6,)]),
    )
    table = result.to_pandas()
    assert sorted(table["token"]) == ["cat sat", "cat sat", "mat"]
    assert sorted(table["replacement"]) == ["[MASK] [MASK]", "dog", "dog [MASK]"]
    shown = result.view().inputs[0]
    assert np.flatnonzero(shown.flipped).tolist() == [2, 3, 6]
    assert shown.largest[2] == shown.largest[3] == table["norm"][table["token"] == "cat sat"].max()
    result.save(tmp_path / "r.parquet")
    assert jaxsens.load_result(tmp_path / "r.parquet").to_pandas().equals(table)


def test_only_whole_names_of_unused_symbols_are_reserved(tmp_path):
    names = ["the", "[unused1]", "my[unused2]", "[unused3]s", "unused4", "[MASK]", "reserved", "<0x0A>"]
    names += ["<unused12>", "<|reserved_special_token_7|>", "<|extra_3|>", "madeupword0001", "<|endoftext|>"]
    table = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {one: k for k, one in enumerate(names)}, "merges": []},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(table))
    with collecting("test") as problems:
        tokenizer = read_tokenizer(tmp_path / "tokenizer.json", None, 15, problems)
    assert tokenizer is not None
    assert tokenizer.reserved(15) == (1, 8, 9, 10, 11, 13, 14)
    assert tokenizer.reserved(2) == (1,)


def test_a_model_says_what_it_is_and_reads_cls_of_an_encoder_and_the_last_row_of_a_decoder(encoder, decoder):
    assert (encoder.layered.readout, decoder.layered.readout) == (0, "last")
    ids = encoder.encode("the cat sat on a mat")
    np.testing.assert_allclose(encoder.layered(encoder.parameters, np.array(ids)), encoder(ids)[0], rtol=1e-6)
    assert decoder(ids).shape == (8, 20)
    assert repr(encoder).startswith(
        "PretrainedModel('bert', layers=2, width=8, symbols=20, max_length=12, output='hidden'"
    )
    assert "dtype='float64'" in repr(decoder)
    assert encoder.embeddings().shape == (20, 8)


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(
    ("options", "readout"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 0),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_the_readout_of_a_sentence_encoder_is_its_pooling(options, readout, tmp_path):
    write_folder(tmp_path)
    write_pooling(tmp_path, **options)
    model = jaxsens.load_pretrained(tmp_path)
    assert model.layered.readout == readout
    assert jaxsens.flip_sensitivity(model, "the cat", [9, 12]).readout == readout
    assert jaxsens.load_pretrained(tmp_path, output="logits").layered.readout == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("pooling", "activation", "served"),
    [("mean", "linear.Identity", True), ("cls", "activation.Tanh", True),
     ("mean", "activation.Tanh", False), ("cls", "activation.GELU", False)],
)  # fmt: skip
def test_a_sentence_encoders_dense_modules_map_what_is_pooled(pooling, activation, served, tmp_path):
    write_folder(tmp_path)
    write_pooling(tmp_path, **{f"pooling_mode_{pooling}_token{'s' * (pooling == 'mean')}": True})
    before = jaxsens.load_pretrained(tmp_path, dtype="float64")
    generator = np.random.default_rng(0)
    first, second, bias = (generator.normal(size=one).astype(np.float32) for one in ((12, 8), (5, 12), (5,)))
    write_dense(tmp_path, "2_Dense", first, None, activation)
    write_dense(tmp_path, "3_Dense", second, bias, "linear.Identity")
    if not served:
        with refusal("2_Dense/config.json: activation_function"):
            jaxsens.load_pretrained(tmp_path)
        return
    model = jaxsens.load_pretrained(tmp_path, dtype="float64")

    def vector(ids: list[int]) -> np.ndarray:
        rows = np.asarray(before(ids))
        pooled = rows.mean(axis=0) if pooling == "mean" else rows[0]
        inner = first.astype(float) @ pooled
        return second.astype(float) @ (np.tanh(inner) if "Tanh" in activation else inner) + bias

    expected = np.linalg.norm(vector([2, 9, 12, 3]) - vector([2, 9, 11, 3]))
    for engine in ("vmap", "incremental"):
        found = jaxsens.flip_sensitivity(
            model, [2, 9, 11, 3], jaxsens.Substitute([12], positions=[2]), engine=engine
        )
        np.testing.assert_allclose(found.norms, [expected], rtol=1e-9)
    write_dense(tmp_path, "4_Dense", first, None, "linear.Identity")
    refused("folder", jaxsens.load_pretrained, tmp_path)


def test_a_model_has_its_name_at_the_hub_or_the_path_that_was_given(tmp_path, monkeypatch):
    folder = tmp_path / "models--some--encoder" / "snapshots" / "0f1e"
    folder.mkdir(parents=True)
    write_folder(folder)
    assert jaxsens.load_pretrained(folder).name == "some/encoder"
    write_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert jaxsens.load_pretrained(".").name == tmp_path.name
    (tmp_path / "models" / "model").mkdir(parents=True)
    write_folder(tmp_path / "models" / "model")
    assert jaxsens.load_pretrained("models/model").name == "models/model"


@pytest.mark.long
def test_the_log_probability_of_a_token_exactly_and_to_first_order(decoder):
    ids = decoder.encode("the cat sat on a mat and slept")
    measure = jaxsens.LogProbability(9)
    assert measure == jaxsens.LogProbability(9)
    assert hash(measure) == hash(jaxsens.LogProbability(9))
    exact = jaxsens.flip_sensitivity(decoder, ids, [8, 14], measure)
    rows = [
        np.asarray(decoder([*ids[:i], s, *ids[i + 1 :]]))[-1]
        for i, s in zip(exact.positions, exact.symbols, strict=True)
    ]
    logs = [row[9] - np.log(np.exp(row).sum()) for row in [*rows, np.asarray(decoder(ids))[-1]]]
    np.testing.assert_allclose(exact.values, np.array(logs[:-1]) - logs[-1], rtol=1e-8, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EstimateWarning)  # eight random rows are no test of the estimate
        estimated = jaxsens.flip_sensitivity(
            decoder, ids, [8, 14], measure, engine=jaxsens.FirstOrder(verify=len(exact))
        )
    np.testing.assert_allclose(estimated.norms, exact.norms, rtol=1e-6)


def test_bad_ids_and_texts_and_tokens_beyond_the_logits(encoder, decoder):
    for name, token, against in ("token", 20, None), ("against", 3, 20):
        measure = jaxsens.LogProbability(token, against=against)
        refused(name, jaxsens.flip_sensitivity, decoder, [8, 9], [10], measure)
    for ids in ([8] * 13, [], [20], [-1], [0.5], "the cat", [[8, 9]]):
        refused("ids", encoder, ids)
    refused("text", encoder.encode, "a " * 11)
    refused("text", encoder.encode, "", special=False)
    refused("text special", encoder.encode, b"a", special="yes")
    refused("ids", encoder.tokens, [20])
    refused("n", jaxsens.flip_sensitivity, encoder, [8] * 13, flips=[9])
    assert encoder.decode([]) == ""


def test_roberta_does_not_count_padding(tmp_path):
    write_folder(tmp_path, "roberta")
    model = jaxsens.load_pretrained(tmp_path)
    assert model.max_length == 8
    assert "padding, which roberta does not count" in refused("ids", model, [8, 1, 9])


RECORDED = {(one.family, one.name): one for one in recorded()}
NAMES = {"0": "negative", "1": "neutral", "2": "positive <3"}


def classifier(
    folder: Path, family: str = "bert", kind: str = "ForSequenceClassification", **options: Any
) -> Path:
    one = RECORDED[family, kind]
    config = {**one.config, "id2label": NAMES, **options}
    dataclasses.replace(one, config={key: value for key, value in config.items() if value is not None}).write(
        folder
    )
    return folder


@pytest.mark.long
@pytest.mark.parametrize("engine", ["vmap", "incremental"])
def test_a_label_is_measured_against_another_one_by_name(tmp_path, engine):
    model = jaxsens.load_pretrained(classifier(tmp_path), output="labels", dtype="float64")
    ids, flips = model.encode("the cat sat"), jaxsens.Substitute([9, 11])
    measure = jaxsens.LogProbability("positive <3", against="neutral")
    found = jaxsens.flip_sensitivity(model, ids, flips, measure, engine=engine)
    labels = [model.labels.index(name) for name in ("positive <3", "neutral")]
    expected = by_passes(model, ids, found, lambda rows: rows[0, labels[0]] - rows[0, labels[1]])
    np.testing.assert_allclose(found.norms, expected, rtol=1e-9)
    assert found.measure.symbol.startswith("[log p(positive <3 | x′) − log p(neutral | x′)]")
    found.save(tmp_path / "found.parquet")
    assert jaxsens.load_result(tmp_path / "found.parquet").measure == found.measure


@pytest.mark.long
def test_the_command_says_the_label(tmp_path, capsys):
    folder = str(classifier(tmp_path))
    asked = ("--output", "labels", "--measure", "log-probability", "token=neutral", "--flips", "delete")
    assert main(["measure", "--pretrained", folder, "--text", "the cat sat", *asked]) == 0
    printed = capsys.readouterr().out
    assert "p(neutral |" in printed
    assert "negative" in printed  # the scores of all labels
    against = (*asked[:4], "token=neutral", "against=negative", *asked[5:])
    assert main(["measure", "--pretrained", folder, "--text", "the cat sat", *against]) == 0
    assert "log p(neutral | x′) − log p(negative | x′)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "output", "path"),
    [
        ({"architectures": ["BertModel"]}, "labels", "output"),
        ({"architectures": None}, "labels", "output"),
        (
            {"architectures": ["BertForTokenClassification"], "id2label": {"0": "A", "2": "B"}},
            "labels",
            "config.json: id2label",
        ),
        ({"id2label": {"0": "A", "1": "B"}}, "labels", ""),  # the shape of its matrix
        ({}, "logits", "output"),
    ],
)
def test_a_head_that_is_not_there_is_refused_by_name(tmp_path, options, output: Any, path):
    with refusal(path):
        jaxsens.load_pretrained(classifier(tmp_path, **options), output=output)


def test_a_pooling_that_is_not_served_is_refused_by_name(tmp_path):
    folder = classifier(tmp_path, "modernbert", classifier_pooling="max")
    with refusal("config.json: classifier_pooling"):
        jaxsens.load_pretrained(folder, output="labels")


def test_a_label_that_is_not_there_is_refused_by_name(tmp_path):
    model = jaxsens.load_pretrained(classifier(tmp_path), output="labels")
    ids = model.encode("the cat sat")
    for token in ("happy", 3):
        refused("token", jaxsens.flip_sensitivity, model, ids, [9], jaxsens.LogProbability(token))
