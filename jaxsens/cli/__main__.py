"""`python -m jaxsens.cli` is the `jaxsens` command."""

from __future__ import annotations

from jaxsens.cli import run

run()
