"""The figure of docs/figures.md, made as the page says."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import TINY, quiet


def test_the_figure_of_the_guide_is_made_in_ten_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "docs" / "figures.md").read_text("utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 10
    text = TINY.replace("[4, 6]", "[4, 6, 8]")
    sweep = parse_sweep_config(text)
    assert run_sweep(sweep, Path("results/quickstart"), sweep.points, quiet()).exit_code == 0
    with mpl.rc_context():
        exec(compile(code, "figures.md", "exec"), {})
        pyplot.close()
    pdf = Path("figure.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
