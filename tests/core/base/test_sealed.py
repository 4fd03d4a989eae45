"""Sealed JSON: what was written comes back; anything else is told apart."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest

from jaxsens.core.base.sealed import DamagedFile, digest, read_sealed, write_sealed

CONTENT = {"key": "abc", "values": (1.5, 2, None), "name": "x"}


def test_what_was_written_comes_back_tuples_as_lists(tmp_path):
    write_sealed(tmp_path / "one.json", "thing", CONTENT)
    assert read_sealed(tmp_path / "one.json", "thing") == {**CONTENT, "values": [1.5, 2, None]}


def test_keys_that_are_numbers_come_back_as_strings_under_the_same_checksum(tmp_path):
    write_sealed(tmp_path / "one.json", "thing", {"by": {9: 1, 10: 2}})
    assert read_sealed(tmp_path / "one.json", "thing") == {"by": {"9": 1, "10": 2}}


def test_a_missing_file_is_told_apart_from_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "none.json", "thing")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("1.5", "1.25"),
        lambda text: text.replace("thing", "other"),
        *(lambda text, other=other: other for other in ("[]", "{}", '"kind content sha256"')),
        lambda text: json.dumps({"sha256": "0"}),
        lambda text: json.dumps({"kind": "thing", "content": {}}),
        lambda text: "[" * 100_000,
        lambda text: text.replace("1.5", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_any_damage_is_noticed(tmp_path, damage):
    path = tmp_path / "one.json"
    write_sealed(path, "thing", CONTENT)
    path.write_text(damage(path.read_text()))
    with pytest.raises(DamagedFile):
        read_sealed(path, "thing")


def test_the_digest_is_of_arrays_too_bit_for_bit():
    zeros = np.zeros((2, 3))
    different = [
        [],
        [zeros],
        [zeros.reshape(3, 2)],
        [-zeros],
        [zeros.astype("f4")],
        [zeros, zeros],
        [zeros + 5e-324],
    ]
    assert len({digest({"a": 1}, arrays) for arrays in different}) == len(different)
    assert digest({"a": 1}, [zeros]) == digest({"a": 1}, [zeros.T.copy().T])


def test_every_flipped_bit_is_noticed_or_without_effect(tmp_path):
    path = tmp_path / "one.json"
    write_sealed(path, "thing", CONTENT)
    whole, content = path.read_bytes(), read_sealed(path, "thing")
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with suppress(DamagedFile):
            assert read_sealed(path, "thing") == content


def test_content_of_another_kind_is_refused(tmp_path):
    write_sealed(tmp_path / "one.json", "thing", CONTENT)
    with pytest.raises(DamagedFile):
        read_sealed(tmp_path / "one.json", "word")
