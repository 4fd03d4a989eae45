"""Tables that grow with the training: exact numbers, whole files, rows of later steps dropped on going on."""

from __future__ import annotations

import pytest

from jaxsens import InputError
from jaxsens.training.records import Records

COLUMNS = ("step", "n", "value")


def filled(path):
    records = Records(path, COLUMNS, None)
    for step in (2, 4, 6):
        records.add(step, 8, step / 3)
    records.add(6, 16, None)
    records.write()
    return records


def test_numbers_come_back_exactly_and_none_as_an_empty_field(tmp_path):
    filled(tmp_path / "r.csv")
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert lines[0] == "step,n,value,check"
    assert [float(line.split(",")[2]) for line in lines[1:4]] == [2 / 3, 4 / 3, 2.0]
    assert lines[4].startswith("6,16,,")


def test_rows_after_the_step_gone_on_from_are_dropped(tmp_path):
    path = tmp_path / "r.csv"
    filled(path)
    for last, kept in ((None, 0), (0, 0), (2, 1), (5, 2), (6, 4), (100, 4)):
        assert len(Records(path, COLUMNS, last).rows) == kept
    again = Records(path, COLUMNS, 4)
    assert again.has(4)
    assert again.has(4, 8)
    assert not again.has(6)
    assert not again.has(4, 16)
    again.add(6, 8, 2.0)
    again.add(6, 16, None)
    before = path.read_bytes()
    again.write()
    assert path.read_bytes() == before


def test_every_flipped_bit_is_noticed(tmp_path):
    filled(tmp_path / "r.csv")
    whole = (tmp_path / "r.csv").read_bytes()
    assert len(Records(tmp_path / "r.csv", COLUMNS, 10).rows) == 4
    for bit in range(8 * len(whole) - 8):  # but for the last line's end
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "r.csv").write_bytes(data)
        with pytest.raises(InputError, match=r"r\.csv: .*remove the file to begin it again"):
            Records(tmp_path / "r.csv", COLUMNS, 10)


def test_a_row_that_is_missing_in_between_is_noticed(tmp_path):
    filled(tmp_path / "r.csv")
    lines = (tmp_path / "r.csv").read_text().splitlines(keepends=True)
    (tmp_path / "r.csv").write_text("".join([*lines[:2], *lines[3:]]))
    with pytest.raises(InputError, match="damaged: line 3 is not as it was written"):
        Records(tmp_path / "r.csv", COLUMNS, 10)


def test_a_file_that_is_not_there_begins_empty(tmp_path):
    assert Records(tmp_path / "none.csv", COLUMNS, 10).rows == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "its columns are"),
        ("step,n\n2,8\n", "line 1 does not end in check"),
        ("step,n,value\n2,8,1.0\n", "line 1 does not end in check"),
        ("step,n,value,check\n2,8,1.0,1\n", "line 2 is not as it was written"),
        ("step,n,value,check\n2,8\n", "line 2 is not as it was written"),
        ("step,n,value,check\n2,8,\udcff\n", "can't decode"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_a_remedy(tmp_path, text, problem):
    (tmp_path / "r.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match=f"{problem}(?s:.)*remove the file"):
        Records(tmp_path / "r.csv", COLUMNS, 10)


def test_a_table_of_other_columns_is_refused(tmp_path):
    filled(tmp_path / "r.csv")
    with pytest.raises(
        InputError, match=r"its columns are \['step', 'n', 'value'\]: a table of step, n, loss"
    ):
        Records(tmp_path / "r.csv", ("step", "n", "loss"), 10)


def test_without_rows_there_is_no_file(tmp_path):
    records = filled(tmp_path / "r.csv")
    records.rows.clear()
    records.write()
    records.write()
    assert not (tmp_path / "r.csv").exists()


def test_a_row_of_another_length_is_a_mistake(tmp_path):
    with pytest.raises(TypeError, match="2 values"):
        Records(tmp_path / "r.csv", COLUMNS, None).add(1, 2)
