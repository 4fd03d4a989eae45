"""`python scripts/benchmark.py --out DIR`: jaxsens, PyTorch and Captum; see benchmarks/README.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # `benchmarks` is no part of the installed package

from benchmarks.command import main

if __name__ == "__main__":  # worker processes import this file again
    sys.exit(main())
