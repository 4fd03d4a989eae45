"""Files that others made: none takes more memory than its size allows, none is waited for, and none writes to a
terminal what it likes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxsens
from jaxsens.core.base.sealed import SavedResult, write_sealed
from jaxsens.core.base.text import printable


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
from tests.core.base.test_files_of_others import MADE, Saved
for path, name in json.loads(sys.argv[1]):
    before, load = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, MADE[name][0]
    try:
        Saved.load(path) if load == "Saved.load" else jaxsens.load_result(path)
        error = ""
    except jaxsens.InputError as raised:
        error = str(raised)
    print(json.dumps([name, error, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024]))
"""


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


@pytest.mark.needs("cli", "service")
def test_a_name_on_the_command_line_does_nothing_to_a_terminal(tmp_path):
    (place := tmp_path / "a\x1b[2Jb").write_text("a file")
    command = [sys.executable, "-m", "jaxsens", "serve", "--model", "tiny=tests:tiny", "--store", str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "\x1b[2J" not in ran.stderr + ran.stdout
    assert "\\x1b[2Jb" in ran.stderr + ran.stdout
