"""The faults that `tools.plant` plants can be planted: what they stand in for is there, and so are their tests."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest

from tools.lines import Plan
from tools.planted import ROOT, Fault, faults

FAULTS = faults()


def test_there_are_forty_faults_in_every_room_that_computes_or_guards():
    assert len(FAULTS) == 40
    computing = {room.name for room in Plan.load().rooms if room.of_package}
    # Those two put together what the other rooms do.
    assert {fault.room for fault in FAULTS.values()} == computing - {"core/flip_sensitivity", "core/sweep"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_a_place_something_that_it_does_and_tests(name):
    fault = FAULTS[name]
    assert fault.function().__code__ is not None
    assert callable(fault.body())
    assert fault.tests
    assert all((ROOT / file).is_file() for file in fault.tests)


@pytest.fixture
def small_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module with a function, a class and a property, and one that has imported the function."""
    (tmp_path / "small_faulty.py").write_text(
        textwrap.dedent(
            """
            def shard_without_last_point(points, only=(), shard=None):
                return list(points)

            class Base:
                @property
                def points(self):
                    return [1, 2]

            class Derived(Base):
                @property
                def points(self):
                    return super().points + [3]
            """
        )
    )
    (tmp_path / "small_importer.py").write_text("from small_faulty import shard_without_last_point\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "small_faulty"
    for name in ("small_faulty", "small_importer"):
        sys.modules.pop(name, None)


def test_a_planted_function_is_faulty_under_every_name_and_notes_that_it_was_reached(
    small_package, tmp_path, monkeypatch
):
    monkeypatch.setenv("JAXSENS_FAULT_LOG", str(tmp_path / "reached"))
    importer = importlib.import_module("small_importer")
    Fault("shard-without-last-point", "", "", f"{small_package}:shard_without_last_point", ()).plant()
    assert not (tmp_path / "reached").exists()
    assert importer.shard_without_last_point([1, 2, 3]) == [1, 2, 3]
    assert importer.shard_without_last_point([1, 2, 3], shard="0/1") == [1, 2]
    assert (tmp_path / "reached").read_text() == "shard-without-last-point\n"


def test_a_planted_property_may_call_that_of_its_base(small_package):
    Fault("weights-not-in-key", "", "", f"{small_package}:Derived.points", ()).plant()
    with pytest.raises(
        TypeError, match="list"
    ):  # the fault takes a dictionary, and the original gave its list
        _ = importlib.import_module(small_package).Derived().points


@pytest.mark.parametrize("at", ["small_faulty:nothing", "small_faulty:Base.nothing", "small_nothing:points"])
def test_a_place_that_is_gone_is_an_error(small_package, at):
    with pytest.raises(LookupError, match="correct the path"):
        Fault("shard-without-last-point", "", "", at, ()).plant()
