"""What people read: tables in Markdown."""

from __future__ import annotations

from jaxsens.core.base.text import markdown_table


def test_a_table_has_a_line_for_its_header_the_rule_and_each_row_and_bars_are_no_cells():
    table = markdown_table(("a", "n"), [("x|y", 3), ("", 1.5)])
    assert table.splitlines() == ["| a | n |", "| --- | --- |", r"| x\|y | 3 |", "|  | 1.5 |"]
