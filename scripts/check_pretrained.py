"""`python scripts/check_pretrained.py FOLDER`: a published model and a slow NumPy pass; see benchmarks/README.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # `benchmarks` is no part of the installed package

from benchmarks.pretrained import main

if __name__ == "__main__":
    sys.exit(main())
