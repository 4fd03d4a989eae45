"""Records come back as they were written or not at all; tables keep every digit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from jaxsens.core.base.sealed import DamagedFile, write_sealed
from jaxsens.core.sweeps.jobs.job import Record


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


def test_a_record_of_another_key_another_kind_or_other_fields_is_damaged(tmp_path):
    path = tmp_path / "whole.json"
    WHOLE.write(path)
    assert Whole.read(path, WHOLE.key) == WHOLE
    with pytest.raises(DamagedFile):
        Whole.read(path, "l" * 64)
    write_sealed(path, "whole", {"key": "k", "parts": [{"name": "a"}], "by_number": {}})
    with pytest.raises(DamagedFile):
        Whole.read(path)
    write_sealed(path, "half", {})
    with pytest.raises(DamagedFile):
        Whole.read(path)
