"""`python -m jaxsens` is the `jaxsens` command."""

from __future__ import annotations

from jaxsens.cli import run

if __name__ == "__main__":
    run()
