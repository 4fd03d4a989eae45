"""Runs the tests of the core in a copy of the project in which the packages around the core are missing.

    python -m tools.core_alone [arguments of pytest]

The copy has `jaxsens/core`, the public names, and the tests in `tests/core` with what they share. The command line and
the packages around the core are not there; their entry points are left out (`jaxsens.core.base.registry`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "pyproject.toml",
    "README.md",
    "jaxsens/__init__.py",
    "jaxsens/__init__.pyi",
    "jaxsens/core",
    "tests/*.py",
    "tests/core",
    "tools",
    "benchmarks",
)


def copy(root: Path, folder: Path) -> None:
    """Copies the core, its tests and what they share into an empty folder."""
    ignored = shutil.ignore_patterns("__pycache__")
    for pattern in PARTS:
        for path in sorted(root.glob(pattern)):
            place = folder / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, place, ignore=ignored)
            elif not path.name.startswith("test_"):
                shutil.copy2(path, place)


def main(arguments: list[str]) -> int:
    """Runs pytest in the copy and returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="jaxsens-core-") as folder:
        copy(ROOT, Path(folder))
        environment = {**os.environ, "PYTHONPATH": folder}
        command = [sys.executable, "-m", "pytest", *arguments, "tests/core"]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
