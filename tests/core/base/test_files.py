"""Files are whole or as they were, name themselves where they cannot be written, and leave nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import (
    atomic_path,
    clear_leftovers,
    never_a_link,
    only_inside,
    remedy,
    takes_no_more,
    try_writing_to,
    write_text,
)
from tests.disks import files_of_at_most


def write_table(path: Path) -> None:
    with atomic_path(path) as temporary:
        pq.write_table(pa.table({"x": range(200_000)}), temporary, compression="none")


@pytest.mark.parametrize("write", [write_table, lambda path: write_text(path, "x" * 200_000)])
def test_a_write_that_fails_names_the_file_and_the_remedy_and_leaves_the_old_one(tmp_path, write):
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(OSError, match="File too large") as failed, files_of_at_most(100_000):
        write(path)
    assert (failed.value.errno, failed.value.filename) == (errno.EFBIG, str(path))
    assert takes_no_more(failed.value)
    assert "ulimit -f" in remedy(failed.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_all_of_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    flush, rename, done = os.fsync, os.replace, []

    def fsync(number):
        done.append(("flushed", os.fstat(number).st_ino, os.fstat(number).st_size))
        flush(number)

    def replace(source, target):
        done.append(("renamed", os.stat(source).st_ino, os.stat(source).st_size))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_text(tmp_path / "file", "x" * 100_000)
    inode = (tmp_path / "file").stat().st_ino
    assert done == [("flushed", inode, 100_000), ("renamed", inode, 100_000)]


def test_what_a_library_says_of_a_full_disk_is_an_error_of_the_system(tmp_path):
    text = "RESOURCE_EXHAUSTED: Failed to write 14 bytes to file 14: No space left [os_error_code='28']"
    with pytest.raises(OSError, match="No space left on device") as failed, atomic_path(tmp_path / "file"):
        raise ValueError(text)
    assert takes_no_more(failed.value)


def test_errors_that_are_not_of_the_file_stay_as_they_are(tmp_path):
    with pytest.raises(ValueError, match="not a number"), atomic_path(tmp_path / "file"):
        raise ValueError("not a number")
    with pytest.raises(FileNotFoundError) as missing, atomic_path(tmp_path / "file"):
        Path("another").read_text()
    assert missing.value.filename == "another"


def test_what_killed_writers_left_is_cleared_away_and_nothing_of_the_living(tmp_path):
    dead, folder, living, own = (
        tmp_path / name
        for name in (
            ".a.0123456789abcdef.tmp",
            ".b.0123456789abcdef.tmp",
            ".c.0123456789abcdef.tmp",
            ".a.tmp",
        )
    )
    folder.mkdir()
    for file in (dead, living, own):
        file.write_text("half a file")
    for path in (dead, folder, own):
        os.utime(path, (0, 0))
    clear_leftovers([dead, folder, living, own, tmp_path / ".d.0123456789abcdef.tmp"])
    assert {*tmp_path.iterdir()} == {folder, living, own}


def test_a_symbolic_link_is_written_through(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "elsewhere" / "real.csv")
    write_text(link, "written")
    assert link.is_symlink()
    assert (tmp_path / "elsewhere" / "real.csv").read_text() == "written"


@pytest.mark.parametrize("named", ["out", "link to out"])
def test_a_folder_that_leads_out_of_a_guarded_directory_is_refused_and_one_within_is_not(tmp_path, named):
    outside, out = tmp_path / "outside", tmp_path / "out"
    (out / "a").mkdir(parents=True)
    outside.mkdir()
    (tmp_path / "link to out").symlink_to(out)
    (out / "b").symlink_to(outside)
    (out / "c").symlink_to("a")
    with only_inside(tmp_path / named):
        with pytest.raises(InputError, match=r"/b leads out of it, to .*outside.*remove that link"):
            write_text(tmp_path / named / "b" / "file", "written")
        write_text(tmp_path / named / "c" / "file", "written")
    assert not any(outside.iterdir())
    assert (out / "a" / "file").read_text() == "written"


def test_a_file_opened_in_place_of_a_link_is_not_the_one_it_leads_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with open(tmp_path / "link", "w", opener=never_a_link) as file:
        file.write("written")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "written"


def test_trying_a_folder_leaves_nothing_and_says_why_it_cannot_be_written_to(tmp_path):
    try_writing_to(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="/proc"):
        try_writing_to("/proc/not/there")
    with pytest.raises(NotADirectoryError, match="/dev/null"):
        try_writing_to("/dev/null/x")
    with pytest.raises(OSError, match="File too large") as failed, files_of_at_most(0):
        try_writing_to(tmp_path)
    assert failed.value.filename == str(tmp_path)


def test_a_file_that_holds_the_text_is_left_alone(tmp_path):
    path = tmp_path / "folder" / "kept"
    write_text(path, "new")
    os.utime(path, (0, 0))
    write_text(path, "new")
    assert path.stat().st_mtime == 0
    write_text(path, "newer")
    assert path.read_text() == "newer"
    path.write_bytes(b"\xff")
    write_text(path, "text")
    assert path.read_text() == "text"
