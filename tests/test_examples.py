"""Each script of examples/ runs, and writes what it says that it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = "--functions first mean --lengths 3 4 --width 4 --batch 16 --steps 300 --learning-rate 3e-2"


@pytest.mark.long
def test_sharpness_trains_measures_and_writes_a_table_and_a_figure(tmp_path):
    command = [sys.executable, str(EXAMPLES / "sharpness.py"), str(tmp_path / "out"), *TINY.split()]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = (tmp_path / "out" / "sharpness.md").read_text(encoding="utf-8")
    assert table in printed
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:6]]
    assert [row[:2] for row in cells] == [["first", "3"], ["first", "4"], ["mean", "3"], ["mean", "4"]]
    fitted = [row for row in cells if row[3]]
    assert fitted
    for function, n, _, rise, blowup, sensitivity, _ in fitted:
        # The average sensitivity of the function itself: 1 of the first symbol, 1/n of the mean.
        assert float(sensitivity) == pytest.approx(1 if function == "first" else 1 / int(n), rel=0.2)
        assert float(rise) > 0
        assert float(blowup) > 0
    assert (tmp_path / "out" / "sharpness.png").stat().st_size > 1000
