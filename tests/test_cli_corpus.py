"""`jaxsens corpus`: a file of texts to tables by token, position and label, and a picture."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

import jaxsens
from jaxsens.cli import main
from jaxsens.core.base.errors import Problems
from jaxsens.pretrained import corpus as single
from jaxsens.pretrained.corpus import CorpusRow, read_texts
from tests.pretrained.folders import write_folder

TEXTS = [("the cat sat", "a"), ("a dog slept on the mat", "b"), ("the cat slept", "a"), ("the cat sat", "b")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "bert")
    lines = ["text\tlabel", *("\t".join(one) for one in TEXTS)]
    (tmp_path / "texts.tsv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def run(folder: Path, *options: object) -> int:
    given = ("--pretrained", folder / "bert", "--texts", folder / "texts.tsv", "--flips", "9,11")
    return main(["corpus", *map(str, (*given, *options))])


@pytest.mark.long
def test_tables_are_those_of_the_library(folder, capsys):
    drawn = ("--png", folder / "p.png", "--html", folder / "h.html")
    assert run(folder, "--table", folder / "t.csv", *drawn) == 0
    model = jaxsens.load_pretrained(folder / "bert")
    results = jaxsens.flip_sensitivity(model, [text for text, _ in TEXTS], jaxsens.Substitute([9, 11]))
    with (folder / "t.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    tables: Any = {"token": None, "position": None, "label": [label for _, label in TEXTS]}
    for by, labels in tables.items():
        expected = {row.key: row for row in jaxsens.corpus_table(results, by, labels)}
        written = {row["key"]: row for row in rows if row["by"] == by}
        assert written.keys() == expected.keys()
        for key, row in written.items():
            assert (row["texts"], row["places"]) == (str(expected[key].texts), str(expected[key].places))
            for column in ("mean", "error", "largest"):
                assert float(row[column]) == pytest.approx(
                    getattr(expected[key], column), rel=1e-4, nan_ok=True
                )
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "slept" in (folder / "h.html").read_text("utf-8")
    printed = capsys.readouterr().out
    columns = [line.split() for line in printed.splitlines() if line.split()[:1] == ["key"]]
    assert columns == [list(rows[0])[1:]] * 3
    assert "not listed: 6 in fewer than 3 texts" in printed


@pytest.mark.long
def test_what_was_stopped_is_gone_on_from(folder, monkeypatch):
    kept, measured = folder / "kept", []
    real = single.flip_sensitivity

    def stopping(model, words, **arguments):
        measured.append((len(words), len(words[0])))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return real(model, words, **arguments)

    monkeypatch.setattr(single, "flip_sensitivity", stopping)
    assert run(folder, "--save", kept) == 130
    assert run(folder, "--save", kept, "--table", folder / "t.csv") == 0
    assert measured == [(3, 5), (1, 8), (1, 8)]
    files = {path.name: len(jaxsens.load_result(path).tokens) for path in kept.iterdir()}
    assert files == {"n=5.parquet": 3, "n=8.parquet": 1}
    rows = csv.DictReader((folder / "t.csv").read_text("utf-8").splitlines())
    assert sum(int(row["texts"]) for row in rows if row["by"] == "label") == 4


@pytest.mark.long
def test_files_of_other_options_or_texts_are_not_taken(folder, capsys):
    kept = folder / "kept"
    assert run(folder, "--save", kept, "--quiet") == 0
    before = (kept / "n=5.parquet").read_bytes()
    assert run(folder, "--save", kept, "--measure", "l1") == 2
    assert "n=5.parquet is of other texts or options; remove it" in capsys.readouterr().err
    config = folder / "bert" / "config.json"
    own = config.read_text("utf-8")
    config.write_text(json.dumps({**json.loads(own), "layer_norm_eps": 0.5}), "utf-8")
    assert run(folder, "--save", kept) == 2  # the same weights, another function
    config.write_text(own, "utf-8")
    (folder / "texts.tsv").write_text("text\nthe dog sat", encoding="utf-8")
    assert run(folder, "--save", kept) == 2
    assert (kept / "n=5.parquet").read_bytes() == before
    assert run(folder, "--save", folder / "texts.tsv") == 2
    assert "a directory name; this is a file" in capsys.readouterr().err


def test_a_file_that_is_no_result_is_named_with_its_remedy(folder, capsys):
    (folder / "kept").mkdir()
    (folder / "kept" / "n=5.parquet").write_bytes(b"PAR1")
    assert run(folder, "--save", folder / "kept") == 2
    assert "n=5.parquet is of no use: remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "nothing was kept: --save DIR"), (("--save", "kept"), "goes on from anything that was kept")],
)
def test_a_command_that_is_stopped_says_what_was_kept(folder, monkeypatch, capsys, options, said):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(single, "flip_sensitivity", Mock(side_effect=KeyboardInterrupt))
    assert run(folder, *options) == 130
    assert said in capsys.readouterr().err


def test_a_key_is_printed_as_it_stands_without_control_characters(capsys):
    keys = ("[/b]", "[red]x", ":smile:", "a\x1b[2J")
    table = [CorpusRow("label", key, 1, 1, 1.0, 0.1, 1.0, 0, 0, 0) for key in keys]
    Console(width=100).print(single.printed(table, 9))
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if " 0.1 " in line]
    assert printed == ["[/b]", "[red]x", ":smile:", r"a\x1b[2J"]


def texts_of(path: Path, content: bytes) -> tuple[list[tuple[str, str, int]], list[str]]:
    path.write_bytes(content)
    problems = Problems("")
    return [(one.text, one.label, one.line) for one in read_texts("--texts", path, problems)], [
        *map(str, problems)
    ]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", 'text,label\n"good\nbut long",pos\nx,neg\n', [("good\nbut long", "pos", 2), ("x", "neg", 4)]),
        ("a.csv", "text, Label\nhello, pos\n", [("hello", "pos", 2)]),
        ("a.csv", "\ufeffid,text\r1,one\r\n\r\n2,two", [("one", "", 2), ("two", "", 4)]),
        ("a.csv", "text\n" + "a " * 80_000, [("a " * 80_000, "", 2)]),
        ("a.tsv", 'text\tlabel\nsay "so"\t1\n"say ""so""\tnow"\t0\n', [
            ('say "so"', "1", 2), ('say "so"\tnow', "0", 3)]),
        ("a.txt", "one\u2028two\nthree\x0cfour\rfive\x85six\r\n\n  x \n", [
            ("one\u2028two", "", 1), ("three\x0cfour", "", 2), ("five\x85six", "", 3), ("  x ", "", 5)]),
        ("a.jsonl", '{"text": "one\u2028two", "label": "x "}\n\n{"text": "y", "label": 1}\n{"text": "z"}', [
            ("one\u2028two", "x", 1), ("y", "1", 3), ("z", "", 4)]),
    ],
)  # fmt: skip
def test_every_text_is_read_as_it_stands(tmp_path, name, content, texts):
    assert texts_of(tmp_path / name, content.encode()) == (texts, [])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"text,label\nhello, world,pos\n", "line 2: 3 fields of 2; quote"),
        ("a.csv", b"text,label\nx,pos\nhello\n", "line 3: 1 fields of 2; quote"),
        ("a.csv", b"text,label\n ,pos\n", "line 2: a row without a text"),
        ("a.csv", b"text,text\na,b\n", "line 1: a header with the column text"),
        ("a.csv", b"", "it has no text"),
        ("a.csv", b"text\n", "it has no text"),
        ("a.csv", b'text\n"a"b\n', "line 2: a stray quotation mark"),
        ("a.tsv", b'text\tlabel\n"So much\t1\nfine\t0\nlast "one\t1\n', "line 2: a stray quotation mark"),
        ("a.tsv", b'text\tlabel\nfine\t0\n"So much\t1\n', "line 3: a stray quotation mark"),
        ("a.txt", "a\ncaf\xe9".encode("latin-1"), "line 2 is not UTF-8"),
        ("a.txt", "ab".encode("utf-16"), "line 1 is not UTF-8"),
        ("a.txt", "a\nb".encode("utf-16-le"), "line 1 has a NUL"),
        ("a.jsonl", b"[" * 100_000, "line 1: an object"),
        ("a.jsonl", b'{"text": "a", "text": "b"}', "line 1: an object"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "a \\ud83d"}', "line 2: half of an emoji"),
    ],
)
def test_what_is_no_text_is_refused_with_its_line(tmp_path, name, content, said):
    assert said in texts_of(tmp_path / name, content)[1][0]


def test_texts_with_nothing_to_flip_are_refused_by_their_lines_before_others_are_measured(folder, capsys):
    lines = ["the cat sat", "zebra", "", "the dog sat", "lion tiger bear"]
    (folder / "t.txt").write_text("\n".join(lines), encoding="utf-8")
    assert main(["corpus", "--pretrained", str(folder / "bert"), "--texts", str(folder / "t.txt")]) == 2
    said = capsys.readouterr().err
    assert "line 2: text = 'zebra': nothing to flip" in said
    assert "line 5: text = 'lion tiger bear': nothing to flip" in said
    assert "line 4" not in said
    assert " of 4 texts" not in said


def test_closed_output_and_names_of_the_hub(folder, monkeypatch, capsys):
    open_still = sys.stdout
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["measure", "--model", "alphabet_size=2", "--n", "4"]) == 0
    sys.stdout.close()
    sys.stdout = open_still
    for command in (["measure", "--text", "x", "--pretrained"], ["serve", "--model"]):
        named = "org/name" if command[0] == "measure" else "m=org/name"
        assert main([*command, named]) == 2
        assert "hf download org/name --local-dir name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.doc", "a", "ends with .txt, .csv, .tsv, .jsonl, not '.doc'"),
        ("t.txt", "the cat\n" + "the " * 40, "line 2: text = "),
        ("none.txt", None, "no such file"),
    ],
)
def test_a_bad_file_is_refused_by_its_lines(folder, capsys, name, content, message):
    if content is not None:
        (folder / name).write_text(content, encoding="utf-8")
    assert main(["corpus", "--pretrained", str(folder / "bert"), "--texts", str(folder / name)]) == 2
    assert message in capsys.readouterr().err
