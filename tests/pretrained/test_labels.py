"""Classifiers of sequences and tokens: the names of labels in measures, tables and pictures, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxsens
from jaxsens.cli import main
from tests.pretrained.folders import by_passes
from tests.refusals import refusal
from tools.pretrained_recorded import recorded

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
        with refusal("token"):
            jaxsens.flip_sensitivity(model, ids, [9], jaxsens.LogProbability(token))
