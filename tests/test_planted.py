"""The faults that `tools.plant` plants can be planted: what they stand in for is there, and so are their tests."""

from __future__ import annotations

import pytest

from tools.lines import Plan
from tools.planted import ROOT, faults

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
