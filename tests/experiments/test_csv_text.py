"""CSV text."""

from __future__ import annotations

from jaxsens.experiments.csv_text import csv_text


def test_csv_keeps_every_digit_and_leaves_nothing_for_none():
    text = csv_text(("a", "b", "c"), [{"a": 0.1 + 0.2, "b": None, "c": "x"}])
    assert text == "a,b,c\n0.30000000000000004,,x\n"
