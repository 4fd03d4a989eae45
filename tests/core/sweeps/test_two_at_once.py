"""Real processes, real measurements: two at once end with the data of one. `tools.shard_stress` kills some, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.sweeps.tiny import TINY, quiet

CONFIG = TINY.replace("seeds = 2", "seeds = 5")

RUN = """
import sys
from pathlib import Path
from rich.console import Console
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.config import load_sweep_config

sweep = load_sweep_config(sys.argv[1])
sys.exit(run_sweep(sweep, Path(sys.argv[2]), select(sweep.points), Console(stderr=True)).exit_code)
"""


@pytest.mark.long
def test_two_sweeps_of_one_directory_at_once_do_no_harm_and_share_the_work(tmp_path):
    config, alone, shared = (tmp_path / name for name in ("sweep.toml", "alone", "shared"))
    config.write_text(CONFIG)
    command = [sys.executable, "-c", RUN, str(config), str(shared)]
    root = Path(__file__).resolve().parents[3]
    processes = [subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    sweep = load_sweep_config(config)
    assert run_sweep(sweep, alone, select(sweep.points), quiet()).finished == 20
    for process in processes:
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log
    assert (shared / "points.csv").read_bytes() == (alone / "points.csv").read_bytes()
    assert len(list(shared.glob("points/*/*/[!.]*.parquet"))) == 20
    assert not [path for path in shared.rglob(".*") if path.is_file()]
