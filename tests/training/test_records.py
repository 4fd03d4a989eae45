"""Tables that grow with the training: exact numbers, whole files, rows that go on from those of a checkpoint."""

from __future__ import annotations

import json

import pytest

from jaxsens.training.records import Records

COLUMNS = ("step", "n", "value")


def filled(path):
    records = Records(path, COLUMNS)
    for step in (2, 4, 6):
        records.add(step, 8, step / 3)
    records.add(6, 16, None)
    records.write()
    return records


def test_numbers_come_back_exactly_and_none_as_an_empty_field(tmp_path):
    filled(tmp_path / "r.csv")
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert lines[0] == "step,n,value"
    assert [float(line.split(",")[2]) for line in lines[1:4]] == [2 / 3, 4 / 3, 2.0]
    assert lines[4] == "6,16,"


def test_rows_as_a_checkpoint_holds_them_give_the_same_file(tmp_path):
    rows = json.loads(json.dumps(filled(tmp_path / "a.csv").rows))
    Records(tmp_path / "b.csv", COLUMNS, rows).write()
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()


def test_a_file_that_was_changed_is_put_right(tmp_path):
    records = filled(tmp_path / "r.csv")
    before = (tmp_path / "r.csv").read_bytes()
    (tmp_path / "r.csv").write_text("step,n\noh")
    records.write()
    assert (tmp_path / "r.csv").read_bytes() == before


def test_without_rows_there_is_no_file(tmp_path):
    records = filled(tmp_path / "r.csv")
    records.rows.clear()
    records.write()
    records.write()
    assert not (tmp_path / "r.csv").exists()


def test_a_row_of_another_length_is_a_mistake(tmp_path):
    with pytest.raises(TypeError, match="2 values"):
        Records(tmp_path / "r.csv", COLUMNS).add(1, 2)
