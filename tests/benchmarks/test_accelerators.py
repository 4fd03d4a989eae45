"""The cells of the lane that compiles for devices that are not here."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

from benchmarks.accelerators import LAYERS, TARGETS, WORK, Cell, Options, cells


def values(cell: Cell) -> tuple[object, ...]:
    return cell.work, cell.model, cell.long, cell.device, cell.devices


def test_every_pair_of_values_that_can_meet_stands_in_a_cell():
    factors = WORK, (*LAYERS, "published"), (False, True), tuple(TARGETS), (1, 8)
    found = {pair for cell in cells(Options(Path("published"))) for pair in combinations(values(cell), 2)}
    for one, other in combinations(factors, 2):
        for pair in product(one, other):
            assert (pair in found) == (pair != (("difference", "substitute"), "published")), pair


def test_a_few_cells_are_of_different_engines_and_models():
    few = cells(Options(devices=("v5e",), only=4))
    assert len({cell.work[0] for cell in few}) == len({cell.model for cell in few}) == 4
