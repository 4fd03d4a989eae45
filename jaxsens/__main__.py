"""`python -m jaxsens` is the `jaxsens` command."""

from __future__ import annotations

import sys

from jaxsens.cli import main

sys.exit(main())
