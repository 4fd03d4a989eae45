"""Files are whole or absent; sealed ones tell every change; those of others are bounded and never followed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxsens
from jaxsens import InputError
from jaxsens.core.base.files import (
    atomic_path,
    clear_leftovers,
    never_a_link,
    only_inside,
    remedy,
    takes_no_more,
    write_text,
)
from jaxsens.core.base.sealed import DamagedFile, SavedResult, digest, read_sealed, write_sealed
from jaxsens.core.base.text import printable
from tests.several_processes import files_of_at_most


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


def test_only_what_a_library_says_of_a_full_disk_becomes_an_error_of_the_system(tmp_path):
    text = "RESOURCE_EXHAUSTED: Failed to write 14 bytes to file 14: No space left [os_error_code='28']"
    with pytest.raises(OSError, match="No space left on device") as failed, atomic_path(tmp_path / "file"):
        raise ValueError(text)
    assert takes_no_more(failed.value)
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


@dataclasses.dataclass
class Saved(SavedResult):
    kind: ClassVar[str] = "thing"
    values: np.ndarray


def many_zeros(path: Path) -> None:
    """A Parquet file of 100 kB that takes 2 GB."""
    result = jaxsens.flip_sensitivity(lambda tokens: 1.0 * tokens[0], [0, 1, 1], flips=2, readout=None)
    result.save(path)
    schema, rows = pq.read_schema(path), 2**22
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(16):
            columns = [pa.nulls(rows, kind).fill_null(0) for kind in schema.types]
            writer.write_table(pa.table(columns, schema=schema))


def sealed(**array: object) -> object:
    return lambda path: write_sealed(path, "thing", {"values": array})


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


MADE = {
    "many zeros": ("load_result", many_zeros, "GiB in a file of its size"),
    "a pipe": ("load_result", os.mkfifo, "no regular file"),
    "a device": ("load_result", device, "no regular file"),
    "a sealed pipe": ("Saved.load", os.mkfifo, "no regular file"),
    "a sealed device": ("Saved.load", device, "no regular file"),
    "a long dtype": ("Saved.load", sealed(dtype="<U500000000", shape=[1], values=["a"]), "wider than"),
    "a dtype of many": ("Saved.load", sealed(dtype="(200000000,)f8", shape=[-1], values=[0.0]), "wider than"),
    "objects": ("Saved.load", sealed(dtype="O", shape=[1], values=[[]]), "wider than"),
    "no dtype": ("Saved.load", sealed(dtype="nothing", shape=[1], values=[1]), "path"),
    "a long shape": ("Saved.load", sealed(dtype="<f8", shape=[10**9], values=[1]), "path"),
    "no numbers": ("Saved.load", sealed(dtype="<f8", shape=[1], values=7), "path"),
}


LOADING = """
import json, resource, sys
import jaxsens
from tests.core.base.test_files import MADE, Saved
for path, name in json.loads(sys.argv[1]):
    before, load = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, MADE[name][0]
    try:
        Saved.load(path) if load == "Saved.load" else jaxsens.load_result(path)
        error = ""
    except jaxsens.InputError as raised:
        error = str(raised)
    print(json.dumps([name, error, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024]))
"""


@pytest.mark.long
def test_a_file_takes_no_more_than_its_size_allows_and_is_one_clear_error(tmp_path):
    paths = [(str(tmp_path / f"{k}.parquet"), name) for k, name in enumerate(MADE)]
    for path, name in paths:
        MADE[name][1](Path(path))
    command = [sys.executable, "-c", LOADING, json.dumps(paths)]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PYTHONPATH": "."},
    )
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [name for name, _, _ in told] == [*MADE]
    for name, error, megabytes in told:
        assert "path = " in error, name
        assert MADE[name][2] in error
        assert megabytes < 300, name


def test_control_characters_of_names_are_escaped():
    assert printable("a\x1b[2Jb\x07\x9b\x7f\r\ttab\nline é") == "a\\x1b[2Jb\\x07\\x9b\\x7f\\x0d\ttab\nline é"
    error = jaxsens.InputError.of("model.\x1b]0;owned\x07", 1, "has \x1b[31m names", subject="load")
    assert "\x1b" not in str(error)
    assert "\\x1b]0;owned\\x07" in str(error)


CONTENT = {"key": "abc", "values": (1.5, 2, None), "name": "x"}


def test_keys_that_are_numbers_come_back_as_strings_under_the_same_checksum(tmp_path):
    write_sealed(tmp_path / "one.json", "thing", {"by": {9: 1, 10: 2}})
    assert read_sealed(tmp_path / "one.json", "thing") == {"by": {"9": 1, "10": 2}}


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


@pytest.mark.long
@pytest.mark.needs("cli", "service")
def test_a_name_on_the_command_line_does_nothing_to_a_terminal(tmp_path):
    (place := tmp_path / "a\x1b[2Jb").write_text("a file")
    command = [sys.executable, "-m", "jaxsens", "serve", "--model", "tiny=tests:tiny", "--store", str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "\x1b[2J" not in ran.stderr + ran.stdout
    assert "\\x1b[2Jb" in ran.stderr + ran.stdout
