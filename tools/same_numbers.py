"""`python -m tools.same_numbers ../then` checks that two checkouts compute the same numbers.

Each runs small copies of its own configs (all below `configs/`), by the command that the config's header names. Points
are compared flip by flip: what was flipped, the value, the resolution, whether it is resolved, and the engine that
measured it. So is every other table that a run writes. Weights of published models are made here: small and random.

`tools/same_numbers.toml` says which columns and configs have been renamed, and by how much columns may differ. The exit
code is 1 where anything else differs, or where a config runs with one checkout alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tools.api_table import write_published

HERE = Path(__file__).resolve().parents[1]
RULES = HERE / "tools" / "same_numbers.toml"
DURATIONS = re.compile(r"second|duration|elapsed")
"""Columns that differ from run to run."""

RESOLVED = 0.01, 1e-300
"""A change is resolved if its rounding is below this part of it, or below this."""


# Small configs


LONGEST = 24
"""The longest words of a small config whose own words are longer than 64 symbols."""

LEAST: Mapping[str, Any] = {
    "words": 8,
    "count": 2,
    "inputs": 2,
    "sample": 8,
    "sample_beyond": 8,
    "verify": 8,
    "budget": 10,
    "restarts": 2,
    "draws": 2,
    "lengths_per_bin": 1,
    "batch": 8,
    "steps": 20,
    "warmup": 5,
    "every": 10,
    "steps_per_call": 5,
}
"""The most that a small config has of each of these."""


def small_lengths(lengths: Sequence[int]) -> list[int]:
    """Two of the lengths of a config: its own first two, or shorter ones."""
    return list(lengths[:2]) if lengths[1] <= 64 else [16, LONGEST]


def shrunk(table: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """A config, or a table in it, made small: two lengths, few seeds, words, flips and steps; all of its variants."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found[key] = shrunk(value, key)
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            found[key] = [shrunk(one, key) for one in value]
        elif key in LEAST and isinstance(value, int):
            found[key] = min(value, LEAST[key])
        else:
            found[key] = value
    if name in ("data", "evaluation"):
        found.pop("curriculum", None)  # its stages begin after the last step
        low, high = table["lengths"][0], table["lengths"][-1]
        found["lengths"] = [low, min(high, low + 8)] if name == "data" else [low]
        if "distinct" in table:
            found["distinct"] = min(table["distinct"], found["lengths"][1] - low + 1, 2)
    elif not name:
        found["seeds"] = 1 if "bins" in table or "functions" in table else min(table["seeds"], 2)
        if "lengths" in table:
            found["lengths"] = small_lengths(table["lengths"])
        if "bins" in table:
            low = table["bins"][0][0]
            found["bins"] = [[low, low + 8], [low + 9, low + 12]]
        if "fit_from" in table:
            found["fit_from"] = found["lengths"][0]
    if "exact_up_to" in table:
        found["exact_up_to"] = 16
    if name == "train" and isinstance(found.get("model"), dict) and found["model"].get("width", 0) > 32:
        found["model"] |= {"width": 32}
    return found


def toml(value: Any) -> str:
    """A value as TOML."""
    match value:
        case bool():
            return str(value).lower()
        case Mapping():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + " }"
        case list():
            return f"[{', '.join(toml(one) for one in value)}]"
        case str():
            return json.dumps(value)
        case _:
            return repr(value)


# Runs


@dataclass(frozen=True)
class Rules:
    """What two checkouts may differ in."""

    renamed: Mapping[str, str]
    relative: Mapping[str, float]
    absolute: Mapping[str, float]
    configs: Mapping[str, str]

    @classmethod
    def load(cls, path: Path = RULES) -> Rules:
        """Reads the rules."""
        table = tomllib.loads(path.read_text("utf-8"))
        return cls(*(table.get(name, {}) for name in ("renamed", "relative", "absolute", "configs")))


def configs_of(checkout: Path) -> dict[str, Path]:
    """The configs of a checkout, by their names below its folder of configs."""
    folder = checkout / "configs"
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))
    }


def command_of(config: Path) -> list[str]:
    """The command in the header of a config: the arguments of Python before the config's path."""
    found = re.search(r"(?m)^# Command: *(jaxsens|python) (\S+) ", config.read_text("utf-8"))
    if found is None:
        raise ValueError(f"{config}: no line '# Command: jaxsens COMMAND CONFIG ...' in its header")
    return ["-m", "jaxsens", found[2]] if found[1] == "jaxsens" else [found[2]]


def run(checkout: Path, config: Path, folder: Path) -> Path:
    """Runs the small copy of a config with a checkout; returns the folder of its results."""
    folder.mkdir()
    table = shrunk(tomllib.loads(config.read_text("utf-8")))
    if "pretrained" in table.get("model", {}):
        family = "gpt2" if "gpt2" in table["model"]["pretrained"] else "bert"
        write_published(folder / "model", family, layers=6, longest=4 * LONGEST)
        table["model"]["pretrained"] = str(folder / "model")
    small, results = folder / config.name, folder / "results"
    small.write_text("".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in table.items()), "utf-8")
    ran = subprocess.run(
        [sys.executable, *command_of(config), str(small), "--out", str(results)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise RuntimeError(f"{checkout}: exit code {ran.returncode}\n{ran.stderr[-3000:]}")
    return results


def flips_of(path: Path) -> pd.DataFrame:
    """The flips of a point, a row each, with `resolved` and the engine that measured it."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    metadata = json.loads((table.schema.metadata or {}).get(b"jaxsens", b"{}"))
    flips = table.to_pandas()
    if "resolved" not in flips and {"value", "resolution"} <= {*flips.columns}:
        bound = np.maximum(RESOLVED[0] * flips["value"].abs().astype(float), RESOLVED[1])
        flips["resolved"] = flips["resolution"].astype(float) <= bound
    if "engine" not in flips and "engine" in metadata.get("result", {}):
        flips["engine"] = metadata["result"]["engine"]["name"]
    return flips


def tables(results: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every table of a run by its path, without the keys that names of points end with."""
    for path in sorted(results.rglob("*")):
        name = re.sub(r"-[0-9a-f]{12}(?=\.)", "", path.relative_to(results).as_posix())
        if path.suffix == ".parquet":
            yield name, flips_of(path)
        elif path.suffix == ".csv":
            yield name, pd.read_csv(path, dtype=str)  # every digit counts, as it is written


# Comparison


def unlike(old: Any, new: Any, relative: float, absolute: float) -> np.ndarray:
    """Which entries of a column differ by more than is allowed."""
    missing = np.asarray(pd.isna(old) & pd.isna(new))
    if not relative and not absolute:
        return (np.asarray(old, str) != np.asarray(new, str)) & ~missing
    one, other = (np.asarray(pd.to_numeric(column, errors="coerce"), float) for column in (old, new))
    return ~((np.abs(one - other) <= absolute + relative * np.abs(one)) | missing)


def differences(old: pd.DataFrame, new: pd.DataFrame, rules: Rules) -> list[str]:
    """In what two tables differ, a line a column."""
    old = old.rename(columns=dict(rules.renamed))
    ours, theirs = ({one for one in table if not DURATIONS.search(one)} for table in (new, old))
    found = [f"{column}: of one checkout only" for column in sorted(ours ^ theirs)]
    if len(old) != len(new):
        return [*found, f"{len(old)} rows -> {len(new)}"]
    for column in [one for one in old if one in ours & theirs]:
        limits = (rules.relative.get(column, 0.0), rules.absolute.get(column, 0.0))
        one, other = (table[column].to_numpy() for table in (old, new))
        wrong = unlike(one, other, *limits)
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            found.append(f"{column}: {wrong.sum()} of {len(old)}, such as {one[k]} -> {other[k]}")
    return found


def compared(old: Path, new: Path, rules: Rules) -> tuple[int, int, list[str]]:
    """The flips and the values that two runs have, and in what they differ."""
    before, after = dict(tables(old)), dict(tables(new))
    found = [f"{name}: of one checkout only" for name in sorted(before.keys() ^ after.keys())]
    points_first = sorted(
        before.keys() & after.keys(), key=lambda name: (not name.endswith(".parquet"), name)
    )
    for name in points_first:
        found += [f"{name}: {line}" for line in differences(before[name], after[name], rules)]
    flips = sum(len(table) for name, table in after.items() if name.endswith(".parquet"))
    return flips, sum(table.size for table in after.values()), found


def main() -> int:
    """Runs the comparison, prints a row a config, and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="another checkout, such as the commit before the work")
    parser.add_argument("new", type=Path, nargs="?", default=HERE, help="a checkout (default: this one)")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="CONFIG", help="these alone: quickstart atlas/yang2025"
    )
    parser.add_argument(
        "--rules", type=Path, default=RULES, help="another file in place of same_numbers.toml"
    )
    parser.add_argument("--lines", type=int, default=8, help="print so many differences of a config")
    arguments = parser.parse_args()
    checkouts, rules, failed = (
        (arguments.old.resolve(), arguments.new.resolve()),
        Rules.load(arguments.rules),
        0,
    )
    before, after = (configs_of(one) for one in checkouts)
    missing = {*arguments.only} - {*before}
    if missing:
        parser.error(f"--only: no such config: {', '.join(sorted(missing))}; known: {', '.join(before)}")
    names = {name: rules.configs.get(name, name) for name in arguments.only or before}
    new_names = {name: name for name in after if name not in names.values()} if not arguments.only else {}
    print(f"{'config':<28}{'flips':>7}{'values':>8}  differences")
    for old_name, new_name in [*names.items(), *new_names.items()]:
        if new_name == "":
            print(f"{old_name:<28}{'':>15}  gone, as tools/same_numbers.toml says", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                runs = [
                    run(checkout, known[name], Path(folder, label))
                    for checkout, known, name, label in (
                        (checkouts[0], before, old_name, "old"),
                        (checkouts[1], after, new_name, "new"),
                    )
                ]
                flips, values, found = compared(runs[0], runs[1], rules)
            except (RuntimeError, ValueError, KeyError) as error:
                flips, values, found = 0, 0, [f"not compared: {error}"]
        failed += bool(found or not values)
        print(f"{old_name:<28}{flips:>7}{values:>8}  {len(found) or 'the same'}", flush=True)
        print("".join(f"    {line}\n" for line in found[: arguments.lines]), end="", flush=True)
    print(
        f"{failed} of {len(names) + len(new_names)} configs differ"
        if failed
        else "every config gives the same"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
