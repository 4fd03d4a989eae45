"""Processes of a distributed sweep killed at random moments: `python -m tools.distributed_stress 20 --processes 2`.

Every time a sweep is begun, one of its processes is killed in the middle, or all are sent SIGTERM (one time in four),
and all are started again until they finish.
Looked at is that the others end within a minute, that no finished point is lost or measured again, and that
the end is that of a plain run. What goes wrong is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxsens.cli.sweep import LOST
from tests.several_processes import environment, free_port

LIMIT = 60.0
"""Seconds within which the other processes must have ended."""

CONFIG = """
title = "tiny"
lengths = {lengths}
seeds = {seeds}
variants = ["softmax"]
statistics = ["mean", "max"]

[model]
alphabet_size = 2
width = 4
heads = 1
layers = 1
feed_forward = 0

[measure]
engine = "vmap"

[placement]
batch_size = 1
"""


def write_config(folder: Path, lengths: Sequence[int] = (4,), seeds: int = 1) -> Path:
    """A small sweep."""
    path = folder / "sweep.toml"
    path.write_text(CONFIG.format(lengths=list(lengths), seeds=seeds))
    return path


def command(config: Path, out: Path) -> list[str]:
    """The command line of a plain run."""
    return [sys.executable, "-m", "jaxsens", "sweep", str(config), "--out", str(out)]


def start(config: Path, out: Path, processes: int, *options: str) -> list[subprocess.Popen[str]]:
    """Starts all processes of a job."""
    job = ["--coordinator", f"localhost:{free_port()}", "--processes", str(processes), *options]
    return [
        subprocess.Popen(
            [*command(config, out), *job, "--process", str(k)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(processes)
    ]


def table(out: Path) -> list[dict[str, str]]:
    """The rows of points.csv."""
    with (out / "points.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@dataclass
class Stress:
    """Jobs of so many processes, and what became of them."""

    config: Path
    folder: Path
    processes: int
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    killed: int = 0
    stopped: int = 0
    asked: float = 0.25

    def __post_init__(self) -> None:
        plain = self.folder / "plain"
        subprocess.run([*command(self.config, plain), "--quiet"], env=environment(), check=True)
        self.expected = table(plain)
        self.seconds = self._finish(self.folder / "undisturbed")

    def once(self, k: int) -> None:
        """Kills one process of a job, and finishes the sweep."""
        out = self.folder / f"job{k}"
        running = start(self.config, out, self.processes, *self._only())
        joined(running, out)
        time.sleep(self.rng.uniform(0.0, 0.95) * self.seconds)
        victim = self.rng.randrange(self.processes)
        asked = self.rng.random() < self.asked
        if asked:
            for process in running:
                process.terminate()
        else:
            running[victim].kill()
        died = time.monotonic()
        logs = [process.communicate(timeout=5 * LIMIT)[0] for process in running]
        codes = [process.returncode for process in running]
        if asked and any(codes):
            self.stopped += 1
            if any(code not in (0, 128 + signal.SIGTERM, -signal.SIGTERM) for code in codes):
                self.wrong.append(f"{k}: SIGTERM to all: exit codes {codes}: {logs}")
        elif any(codes):
            self.killed += 1
            self.waited.append(time.monotonic() - died)
            self._look(k, victim, codes, logs)
        files = {path: path.read_bytes() for path in (out / "points").rglob("seed=*.parquet")}
        self.kept.append(len(files))
        self._finish(out)
        if any(path.read_bytes() != content for path, content in files.items()):
            self.wrong.append(f"{k}: a finished point was measured again")
        how = "SIGTERM to all" if asked else f"killed {victim}"
        print(f"{k}: {how}: {codes}, {len(files)} points were done", flush=True)

    def _only(self) -> list[str]:
        # Half of the jobs share all points, the others deal them out whole.
        return ["--share-above", "0"] if self.rng.random() < 0.5 else []

    def _look(self, k: int, victim: int, codes: list[int], logs: list[str]) -> None:
        others = [process for process in range(self.processes) if process != victim]
        lost = (LOST, -signal.SIGABRT)  # by the next exchange, or by JAX's runtime
        if codes[victim] != -signal.SIGKILL or any(codes[other] not in lost for other in others):
            self.wrong.append(f"{k}: process {victim} was killed: exit codes {codes}: {logs}")
        said = "start all processes again; what is finished is kept: jaxsens sweep"
        if any(codes[other] == LOST and said not in logs[other] for other in others):
            self.wrong.append(f"{k}: not said how to resume: {logs}")
        if self.waited[-1] > LIMIT:
            self.wrong.append(f"{k}: the others ended after {self.waited[-1]:.0f} s")

    def _finish(self, out: Path) -> float:
        """Runs a job to its end; returns the seconds that it took after all processes had joined."""
        running = start(self.config, out, self.processes, *self._only())
        joined(running, out)
        began = time.monotonic()
        logs = [process.communicate(timeout=5 * LIMIT)[0] for process in running]
        if any(process.returncode for process in running):
            self.wrong.append(f"{out.name}: it did not finish: {logs}")
        elif not same(table(out), self.expected):
            self.wrong.append(f"{out.name}: other numbers than those of a plain run")
        return time.monotonic() - began


def joined(running: list[subprocess.Popen[str]], out: Path) -> None:
    """Waits until a job has written its plan, which it does once all processes have joined it."""
    while running[0].poll() is None and not (out / "sweep.json").exists():
        time.sleep(0.02)


def same(rows: list[dict[str, str]], others: list[dict[str, str]]) -> bool:
    """Whether tables agree to rounding."""
    if [row.keys() for row in rows] != [row.keys() for row in others]:
        return False
    pairs = [(one[key], other[key]) for one, other in zip(rows, others, strict=True) for key in one]
    return all(a == b or math.isclose(float(a), float(b), rel_tol=1e-5) for a, b in pairs)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="?", default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--asked", type=float, default=0.25, help="how likely all are sent SIGTERM instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distributed-stress-") as name:
        folder = Path(name)
        config = write_config(folder, (8, 12, 16, 20, 24, 28), 4)
        rng = random.Random(options.seed)
        stress = Stress(config, folder, options.processes, rng, asked=options.asked)
        print(f"undisturbed: {stress.seconds:.1f} s", flush=True)
        for k in range(options.times):
            stress.once(k)
    waited = f"{min(stress.waited):.1f} to {max(stress.waited):.1f} s" if stress.waited else "-"
    print(f"killed in the middle: {stress.killed}; the others ended after {waited}")
    print(f"stopped by SIGTERM to all: {stress.stopped}")
    print(f"points that were done then: {stress.kept} of {len(stress.expected)}")
    print(f"wrong: {len(stress.wrong)}", *stress.wrong, sep="\n")
    return 1 if stress.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
