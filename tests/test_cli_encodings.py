"""Commands write to a standard output and error of any encoding: no traceback, and no escape in their own words."""

from __future__ import annotations

import io
import re
import sys

import pytest

from jaxsens.cli import main
from tests.pretrained.folders import write_folder

ENCODINGS = ("ascii", "latin-1", "cp1252")
HELP = ("plan", "status", "train", "theorem6", "sweep", "measure", "corpus", "report", "constructions")
MEASURE = ("measure", "--pretrained", "bert", "--text", "the cat sat on the mat", "--flips", "9,11")


def written(encoding: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    """The exit code of a command, and all that it writes."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
    with monkeypatch.context() as patch:
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name, stream)
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    for stream in streams:
        stream.seek(0)  # writes what it holds
    return code, "".join(stream.read() for stream in streams)


def check(code: int, text: str) -> None:
    """Fails unless a command did its work, in characters that are read."""
    assert code == 0, text
    assert text
    assert "Traceback" not in text
    assert re.findall(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4})", text) == []


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_help_is_read_in_any_encoding(encoding, monkeypatch):
    for command in HELP:
        check(*written(encoding, monkeypatch, command, "--help"))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_signs_that_an_encoding_lacks_are_ascii_and_characters_of_a_text_are_escapes(
    encoding, tmp_path, monkeypatch
):
    (tmp_path / "bert").mkdir()
    write_folder(tmp_path / "bert")
    (tmp_path / "t.txt").write_text("the cat sat\na cat slept\n")
    code, text = written(encoding, monkeypatch, *MEASURE)
    check(code, text)
    assert ("<" if encoding == "ascii" else "«") in text
    code, text = written(encoding, monkeypatch, "corpus", "--pretrained", "bert", "--texts", "t.txt")
    check(code, text)
    assert "By position" in text
    code, text = written(encoding, monkeypatch, "measure", "--pretrained", "bert", "--text", "the \u4eca cat")
    assert code == 0
    assert "\\u4eca" in text
