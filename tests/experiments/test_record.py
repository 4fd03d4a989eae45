"""Records come back as they were written or not at all; tables keep every digit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from jaxsens.base.errors import InputError
from jaxsens.base.sealed import DamagedFile, write_sealed
from jaxsens.experiments.jobs.job import Record, read_finished, write_table


@dataclass(frozen=True)
class Part:
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Whole(Record):
    kind: ClassVar[str] = "whole"
    key: str
    parts: tuple[Part, ...]
    by_number: dict[int, str]
    last: float | None = None


WHOLE = Whole("k" * 64, (Part("a", (0.1 + 0.2, float("inf"))),), {9: "x", 10: "y"})


def test_a_record_comes_back_with_its_types(tmp_path):
    WHOLE.write(tmp_path / "whole.json")
    assert Whole.read(tmp_path / "whole.json") == Whole.read(tmp_path / "whole.json", "k" * 64) == WHOLE


def test_a_record_of_another_key_another_kind_or_other_fields_is_damaged(tmp_path):
    path = tmp_path / "whole.json"
    WHOLE.write(path)
    with pytest.raises(DamagedFile, match=r"whole\.json: .*another key \(kkkkkkkkkkkk, not llllllllllll\)"):
        Whole.read(path, "l" * 64)
    write_sealed(path, "whole", {"key": "k", "parts": [{"name": "a"}], "by_number": {}})
    with pytest.raises(DamagedFile, match=r"whole\.json: not a whole: parts\.0\.values"):
        Whole.read(path)
    write_sealed(path, "half", {})
    with pytest.raises(DamagedFile, match="holds a half, not a whole"):
        Whole.read(path)


def test_missing_records_are_left_out_and_damaged_ones_refused_with_the_remedy(tmp_path):
    paths = [tmp_path / f"{k}.json" for k in range(3)]
    WHOLE.write(paths[0])
    WHOLE.write(paths[2])
    assert list(read_finished(paths, Whole.read, "again")) == [WHOLE, WHOLE]
    paths[2].write_text("{}")
    with pytest.raises(InputError, match=r"2\.json: .*; again$"):
        list(read_finished(paths, Whole.read, "again"))


def test_a_table_keeps_every_digit_and_leaves_nothing_for_none(tmp_path):
    rows = [
        {"a": 0.1 + 0.2, "b": None, "c": "x, y", "d": 1},
        {"d": None, "a": 1e-300, "b": True, "c": "", "e": 2},
        {"a": float("inf"), "b": None, "c": "z", "d": 10**18},
    ]
    write_table(tmp_path / "t.csv", ("a", "b", "c", "d"), rows)
    text = 'a,b,c,d\n0.30000000000000004,,"x, y",1\n1e-300,True,,\ninf,,z,1000000000000000000\n'
    assert (tmp_path / "t.csv").read_text() == text
    write_table(tmp_path / "t.csv", ("a", "b"), [])
    assert (tmp_path / "t.csv").read_text() == "a,b\n"
