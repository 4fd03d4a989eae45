"""What follows from the times: growth, ratios, files; costs that match a count by hand."""

from __future__ import annotations

import csv
import io

import pytest

from benchmarks.costs import Cost, Rates, cost
from benchmarks.options import Case
from benchmarks.plot import seconds_figure
from benchmarks.rows import COLUMNS, Row, compared, csv_text
from benchmarks.table import HEADINGS, NARROW, WIDE, markdown, rich_table


def row(method: str, n: int, seconds: float | None, **more: object) -> Row:
    return Row(method, 2, n, n - 1, measured_flips=more.pop("measured", n - 1), seconds=seconds, **more)  # pyright: ignore[reportArgumentType]


ROWS = compared(
    [
        row("torch", 128, 4.0, limit_seconds=1.0),
        row("captum-1", 128, 3.0, limit_seconds=1.0),
        row("vmap", 128, 2.0, limit_seconds=1.0),
        row("difference", 128, 0.5, limit_seconds=0.1),
        row("torch", 512, None, note="left out: about 256 s expected"),
        row("vmap", 512, 128.0, measured=64, limit_seconds=64.0),
        row("difference", 512, 8.0, limit_seconds=1.6),
    ]
)
BY_KEY = {(one.method, one.n): one for one in ROWS}


def test_rows_come_by_length_and_in_the_order_of_the_methods():
    assert [(one.n, one.method) for one in ROWS[:4]] == [
        (128, "vmap"),
        (128, "difference"),
        (128, "torch"),
        (128, "captum-1"),
    ]


def test_growth_is_per_doubling_also_over_two_doublings():
    assert BY_KEY["difference", 512].growth == pytest.approx(4)
    assert BY_KEY["vmap", 512].growth == pytest.approx(8)
    assert BY_KEY["vmap", 128].growth is None


def test_ratios_are_to_vmap_and_to_the_fastest_rival():
    fast = BY_KEY["difference", 128]
    assert fast.times_faster_than_vmap == pytest.approx(4)
    assert fast.times_faster_than_rival == pytest.approx(6)
    assert BY_KEY["difference", 512].times_faster_than_rival is None


def test_extrapolated_times_are_marked_everywhere():
    assert BY_KEY["vmap", 512].extrapolated
    assert not BY_KEY["vmap", 128].extrapolated
    assert HEADINGS["seconds"](BY_KEY["vmap", 512]) == "≈ 128"
    assert HEADINGS["seconds"](BY_KEY["vmap", 128]) == "2"
    labels = [text.get_text() for text in seconds_figure(ROWS, "a machine").legends[0].get_texts()]
    assert "extrapolated from a sample of the flips" in labels


def test_the_csv_file_holds_every_column_and_leaves_out_what_was_not_measured():
    read = list(csv.DictReader(io.StringIO(csv_text(ROWS))))
    assert tuple(read[0]) == COLUMNS
    assert float(read[1]["seconds"]) == 0.5
    assert read[-1]["method"] == "torch"
    assert read[-1]["seconds"] == ""
    assert "256 s" in read[-1]["note"]


def test_tables_have_a_row_for_each_row_and_fewer_columns_on_a_narrow_terminal():
    wide, narrow = rich_table(ROWS, WIDE), rich_table(ROWS, 100)
    assert wide.row_count == narrow.row_count == len(ROWS)
    assert [column.header for column in wide.columns] == [*HEADINGS]
    assert [column.header for column in narrow.columns] == [*NARROW]
    lines = markdown(ROWS).splitlines()
    assert len(lines) == len(ROWS) + 2
    assert {line.count("|") for line in lines} == {len(HEADINGS) + 1}


def test_every_drawn_line_is_a_method_or_the_limit():
    figure = seconds_figure(ROWS, "a machine")
    (axis,) = figure.axes
    assert axis.get_xscale() == axis.get_yscale() == "log"
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert "physical limit of difference" in labels
    assert len(labels) == 4 + 2


def test_the_limit_is_the_larger_of_arithmetic_and_traffic():
    assert Cost(10.0, 4.0).seconds(Rates(5.0, 1.0)) == 4.0
    assert Cost(10.0, 4.0).seconds(Rates(2.0, 4.0)) == 5.0


def test_a_forward_pass_costs_what_a_count_by_hand_says():
    n, d, heads, hidden = 128, 64, 4, 256
    by_hand = (
        3 * 2 * n * d * d
        + 2 * n * n * d
        + heads * n * n
        + 2 * n * n * d
        + 2 * n * d * d
        + 2 * 2 * n * d * hidden
    )
    assert cost(Case("torch", 1, n)).operations == (n - 1) * by_hand
    assert cost(Case("torch", 3, n)).operations == 3 * (n - 1) * by_hand
    keys_and_values, one_row = (
        2 * 2 * n * d * d,
        2 * 2 * n * d + heads * n + 2 * 2 * d * d + 2 * 2 * d * hidden,
    )
    assert cost(Case("vmap", 3, n)).operations == (n - 1) * (2 * by_hand + keys_and_values + one_row)
    closed_form = n * (8 * d + heads) + 2 * n * d * d + 2 * 2 * n * d * hidden
    per_flip = closed_form + by_hand + keys_and_values + one_row
    assert cost(Case("incremental", 3, n)).operations == 3 * by_hand + (n - 1) * per_flip


@pytest.mark.parametrize(("layers", "low", "high"), [(1, 1.9, 4.1), (2, 3.8, 4.1), (3, 7.0, 8.1)])
def test_operations_of_the_difference_engine_grow_as_they_should(layers, low, high):
    grown = (
        cost(Case("difference", layers, 8192)).operations / cost(Case("difference", layers, 4096)).operations
    )
    assert low < grown < high
