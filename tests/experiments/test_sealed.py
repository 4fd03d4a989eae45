"""Sealed JSON: what was written comes back; anything else is told apart."""

from __future__ import annotations

import json

import pytest

from jaxsens.experiments.sealed import csv_text, read_sealed, write_sealed
from jaxsens.experiments.store import DamagedFile

CONTENT = {"key": "abc", "values": [1.5, 2, None], "name": "x"}


def test_what_was_written_comes_back(tmp_path):
    write_sealed(tmp_path / "one.json", CONTENT)
    assert read_sealed(tmp_path / "one.json", "abc") == CONTENT


def test_a_missing_file_is_told_apart_from_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "none.json", "abc")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("1.5", "1.25"),
        lambda text: "[]",
        lambda text: json.dumps({"checksum": "0"}),
    ],
)
def test_any_damage_is_noticed(tmp_path, damage):
    path = tmp_path / "one.json"
    write_sealed(path, CONTENT)
    path.write_text(damage(path.read_text()))
    with pytest.raises(DamagedFile):
        read_sealed(path, "abc")


def test_content_under_another_key_is_refused(tmp_path):
    write_sealed(tmp_path / "one.json", CONTENT)
    with pytest.raises(DamagedFile, match="something else"):
        read_sealed(tmp_path / "one.json", "abd")


def test_csv_keeps_every_digit_and_leaves_nothing_for_none():
    text = csv_text(("a", "b", "c"), [{"a": 0.1 + 0.2, "b": None, "c": "x"}])
    assert text == "a,b,c\n0.30000000000000004,,x\n"
