"""The benchmark of a published encoder: its options, its table and its task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.published import Options, check, table
from jaxsens.base.errors import InputError


def test_unusable_options_are_named_together():
    with pytest.raises(InputError) as caught:
        check(Options(Path("nowhere"), n=2, methods=("magic",), turns=0))
    for name in ("FOLDER", "--n", "--methods", "--turns"):
        assert name in str(caught.value)


def test_the_table_compares_each_method_with_what_it_estimates(tmp_path):
    rising, falling = np.arange(5.0), np.arange(5.0)[::-1]
    told = table(
        {
            "exact": (4.0, rising),
            "exact, scalar": (4.0, falling),
            "estimate, sketch 24": (0.5, rising),
            "estimate, scalar": (0.1, -rising),
            "captum-1": (8.0, rising),
            "captum-16": (5.0, rising),
        }
    )
    assert "| estimate, sketch 24 | 0.5 | 10 | 1.000 |" in told
    assert "| estimate, scalar | 0.1 | 50 | -1.000 |" in told
    assert "| exact | 4 | 1.25 | 1.000 |" in told
