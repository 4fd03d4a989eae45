"""`python scripts/benchmark_published.py FOLDER`: a published encoder and Captum; see benchmarks/README.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # `benchmarks` is no part of the installed package

from benchmarks.published import main

if __name__ == "__main__":  # worker processes import this file anew
    sys.exit(main())
