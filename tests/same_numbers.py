"""`python -m tests.same_numbers ../then` checks that two checkouts compute the same numbers.

Small copies of four shipped configs are run with this checkout and with another one, such as the commit before a
redesign (`git worktree add ../then COMMIT`). Every CSV file that the runs write must agree in every digit, durations
aside. The exit code is 1 where any differ.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parents[1]

SMALL: Mapping[str, Mapping[str, str]] = {
    "quickstart": {"lengths": "[32, 64, 128]", "seeds": "3"},
    "constructions": {"lengths": "[16, 33, 100]", "seeds": "2"},
    "bounds": {"lengths": "[8, 24]", "seeds": "1", "budget": "10"},
    "theorem6_quick": {
        "lengths": "[4, 16, 32]",
        "seeds": "2",
        "words": "8",
        "inputs": "2",
        "fit_from": "4",
        "steps": "40",
        "warmup": "5",
        "every": "20",
    },
}
"""What is made smaller in each config: the new value of every setting of that name."""


def shrunk(text: str, settings: Mapping[str, str]) -> str:
    """The config with these settings replaced: those of training in every model, others where they occur first."""
    for name, value in settings.items():
        count = 0 if name in ("steps", "warmup", "every") else 1
        setting = re.compile(rf"(^|[{{ ]){name} = (\[[^\]]*\]|[\d.e-]+)", re.MULTILINE)
        text = setting.sub(rf"\g<1>{name} = {value}", text, count=count)
    return re.sub(r"(, )?curriculum = \[[^\]]*\]", "", text)  # its stages begin after the last step


def tables(checkout: Path, name: str, folder: Path) -> dict[str, pd.DataFrame]:
    """Runs the small copy of one config with a checkout; returns every CSV file by its path in the results."""
    folder.mkdir()
    config = folder / f"{name}.toml"
    config.write_text(shrunk((HERE / "configs" / f"{name}.toml").read_text(), SMALL[name]))
    command = "theorem6" if name.startswith("theorem6") else "sweep"
    results = folder / "results"
    run = subprocess.run(
        [sys.executable, "-m", "jaxsens", command, str(config), "--out", str(results)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(f"{checkout}: {name}: exit code {run.returncode}\n{run.stderr[-3000:]}")
    # Every digit counts, so values are compared as they are written.
    return {str(path.relative_to(results)): pd.read_csv(path, dtype=str) for path in results.rglob("*.csv")}


def differences(now: Mapping[str, pd.DataFrame], then: Mapping[str, pd.DataFrame]) -> list[str]:
    """In what the tables differ, a line each."""
    found = [f"{name}: written by one checkout only" for name in sorted(now.keys() ^ then.keys())]
    for name in sorted(now.keys() & then.keys()):
        one, other = (table[[c for c in table if "second" not in c]] for table in (now[name], then[name]))
        if list(one.columns) != list(other.columns) or len(one) != len(other):
            found.append(f"{name}: other columns or another number of rows")
            continue
        wrong = one.ne(other) & ~(one.isna() & other.isna())
        found += [f"{name}: {column}: {count} values" for column, count in wrong.sum().items() if count]
    return found


def main() -> int:
    """Runs the comparison, prints a line a config, and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", type=Path, help="another checkout")
    parser.add_argument("--only", nargs="*", choices=SMALL, default=[], help="these configs alone")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.only or SMALL:
        with tempfile.TemporaryDirectory() as folder:
            now = tables(HERE, name, Path(folder, "now"))
            then = tables(arguments.baseline.resolve(), name, Path(folder, "then"))
        found = differences(now, then)
        failed |= bool(found)
        values = sum(table.size for table in now.values())
        print(f"{name}: {values} values in {len(now)} tables:", "; ".join(found) or "the same", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
