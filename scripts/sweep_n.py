"""`python scripts/sweep_n.py CONFIG --out DIR` is `jaxsens sweep CONFIG --out DIR`."""

from __future__ import annotations

import sys

from jaxsens.cli import main

sys.exit(main(["sweep", *sys.argv[1:]]))
