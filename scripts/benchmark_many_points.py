"""`python scripts/benchmark_many_points.py`: what very many points cost; see docs/measured/sweeps.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # `benchmarks` is no part of the installed package

from benchmarks.many_points import main

if __name__ == "__main__":
    sys.exit(main())
