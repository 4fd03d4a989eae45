"""`jaxsens corpus`: a file of texts to tables by token, position and label, and a picture."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

import jaxsens
from jaxsens.cli import main
from jaxsens.experiments.single import corpus as single
from tests.pretrained.folders import write_folder

TEXTS = [("the cat sat", "a"), ("a dog slept on the mat", "b"), ("the cat slept", "a"), ("the cat sat", "b")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bert").mkdir()
    write_folder(tmp_path / "bert")
    lines = ["text\tlabel", *("\t".join(one) for one in TEXTS)]
    (tmp_path / "texts.tsv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def run(folder: Path, *options: object) -> int:
    given = ("--pretrained", folder / "bert", "--texts", folder / "texts.tsv", "--flips", "9,11")
    return main(["corpus", *map(str, (*given, *options))])


@pytest.mark.long
def test_tables_are_those_of_each_text_alone(folder, capsys):
    assert (
        run(folder, "--table", folder / "t.csv", "--png", folder / "p.png", "--html", folder / "h.html") == 0
    )
    model = jaxsens.load_pretrained(folder / "bert")
    alone = [jaxsens.flip_sensitivity(model, text, jaxsens.Substitute([9, 11])) for text, _ in TEXTS]
    with (folder / "t.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    cat = next(row for row in rows if (row["by"], row["key"]) == ("token", "cat"))
    own = []
    for one, (text, _) in zip(alone, TEXTS, strict=True):
        if "cat" in text:
            own.append(one.norms[one.positions == model.encode(text).index(model.token_id("cat"))])
    means = np.array([one.mean() for one in own])
    assert (cat["texts"], cat["places"]) == ("3", "3")
    np.testing.assert_allclose(float(cat["mean"]), means.mean(), rtol=1e-5)
    np.testing.assert_allclose(float(cat["error"]), means.std(ddof=1) / math.sqrt(3), rtol=1e-4)
    np.testing.assert_allclose(float(cat["largest"]), max(one.max() for one in own), rtol=1e-5)
    labels = {row["key"]: float(row["mean"]) for row in rows if row["by"] == "label"}
    for label in ("a", "b"):
        expected = np.mean(
            [one.norms.mean() for one, (_, other) in zip(alone, TEXTS, strict=True) if other == label]
        )
        np.testing.assert_allclose(labels[label], expected, rtol=1e-5)
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "slept" in (folder / "h.html").read_text("utf-8")
    printed = capsys.readouterr().out
    assert "By position" in printed
    assert "By label" in printed


def test_what_was_stopped_is_gone_on_from(folder, monkeypatch):
    kept, measured = folder / "k.parquet", []
    real = single.flip_sensitivity

    def stopping(model, words, **arguments):
        measured.append((len(words), len(model.encode(words[0]))))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return real(model, words, **arguments)

    monkeypatch.setattr(single, "flip_sensitivity", stopping)
    assert run(folder, "--save", kept) == 130
    assert run(folder, "--save", kept, "--table", folder / "t.json") == 0
    assert measured == [(3, 5), (1, 8), (1, 8)]
    assert len(jaxsens.load_result(kept).tokens) == 4
    rows = json.loads((folder / "t.json").read_text("utf-8"))
    assert sum(row["texts"] for row in rows if row["by"] == "label") == 4


def test_parts_of_inputs_are_counted_in_tenths(folder):
    model = jaxsens.load_pretrained(folder / "bert")
    result = jaxsens.flip_sensitivity(model, [text for text, _ in TEXTS], jaxsens.Substitute([9, 11]))
    table = jaxsens.corpus_table(result, "position")
    assert [row.key for row in table] == sorted(row.key for row in table)
    assert sum(row.places for row in table) == sum(len(text.split()) for text, _ in TEXTS)
    with pytest.raises(jaxsens.InputError, match="labels = None: a list of 4 texts"):
        jaxsens.corpus_table(result, "label")
    with pytest.raises(jaxsens.InputError, match="by = 'word'"):
        jaxsens.corpus_table(result, "word")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.doc", "a", "ends with .txt, .csv, .tsv, .jsonl, not '.doc'"),
        ("t.csv", "a,b\n1,2", "line 1: a header with the column text"),
        ("t.jsonl", '{"text": "the cat"}\n[1]\n{"text": 3}', "line 2: an object"),
        ("t.txt", "\n", "it has no text"),
        ("t.txt", "the cat\n" + "the " * 40, "line 2: text = "),
        ("none.txt", None, "no such file"),
    ],
)
def test_a_bad_file_is_refused_by_its_lines(folder, capsys, name, content, message):
    if content is not None:
        (folder / name).write_text(content, encoding="utf-8")
    assert main(["corpus", "--pretrained", str(folder / "bert"), "--texts", str(folder / name)]) == 2
    assert message in capsys.readouterr().err


def test_wrong_options_are_told_together(folder, capsys):
    assert run(folder, "--table", "t.xml", "--resume", "a.parquet", "--png", "p.svg", "--output", "rows") == 2
    said = capsys.readouterr().err
    for part in ("--table = 't.xml'", "--resume", "--png = 'p.svg'", "--output = 'rows'"):
        assert part in said
