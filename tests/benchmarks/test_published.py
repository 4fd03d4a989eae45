"""The benchmark of a published encoder: its options, its table and its task."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.published import Options, check
from jaxsens.core.base.errors import InputError


def test_unusable_options_are_named_together():
    with pytest.raises(InputError) as caught:
        check(Options(Path("nowhere"), n=2, methods=("magic",), turns=0))
    for name in ("FOLDER", "--n", "--methods", "--turns"):
        assert name in str(caught.value)
