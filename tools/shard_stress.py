"""Shards of one sweep killed at random moments: `python -m tools.shard_stress --shards 16 --points 48`.

All shards of a sweep work on one directory, a few at a time and in random order. Some are sent SIGKILL or SIGTERM at a
random moment, and started again later; some are started twice at once, as by a scheduler that takes a living process
for dead. Looked at is that points.csv has every point once, with the numbers of a plain run, that the report is there,
and that no cached program is damaged. What goes wrong is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.several_processes import environment
from tools.distributed_stress import command, table, write_config

PATIENCE = 300.0
"""Seconds within which every process must have ended by itself."""

LENGTHS = (8, 10, 12, 14)


@dataclass
class Running:
    """A process: its shard, its log, when it began, and when it is to be sent which signal."""

    shard: int
    log: Path
    process: subprocess.Popen[bytes]
    began: float
    kill_at: float = float("inf")
    kind: signal.Signals = signal.SIGTERM


class Stress:
    """A sweep in so many shards."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options, self.rng = folder, options, random.Random(options.seed)
        self.config = write_config(folder, LENGTHS, options.points // len(LENGTHS))
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.typical = 5.0

    def run(self) -> None:
        """A plain run, then the shards."""
        shards = [*range(self.options.shards)]
        self.rng.shuffle(shards)
        waiting = [shard for shard in shards for _ in range(1 + (self.rng.random() < self.options.twice))]
        running: list[Running] = []
        while waiting or running:
            while waiting and len(running) < self.options.at_once:
                running.append(self._start(waiting.pop(0)))
            for one in [*running]:
                self._signal(one)
                if one.process.poll() is not None:
                    running.remove(one)
                    if not self._done(one):
                        waiting.append(one.shard)
            time.sleep(0.01)
        plain = self.folder / "plain"
        subprocess.run([*command(self.config, plain), "--quiet"], env=environment(), check=True)
        if table(self.folder / "sweep") != table(plain):
            self.wrong.append("points.csv: not that of a plain run")
        if not (self.folder / "sweep" / "report.html").exists():
            self.wrong.append("there is no report")

    def _start(self, shard: int) -> Running:
        log, began = self.folder / f"shard{shard}.log", time.monotonic()
        share = ("--shard", f"{shard}/{self.options.shards}")
        cache = ("--compilation-cache", str(self.folder / "compiled"))
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*command(self.config, self.folder / "sweep"), *share, *cache],
                env=environment(),
                stdout=out,
                stderr=out,
            )
        one = Running(shard, log, process, began)
        if self.rng.random() < self.options.kill:
            one.kill_at = began + self.rng.uniform(0.0, 1.2 * self.typical)
            one.kind = self.rng.choice((signal.SIGKILL, signal.SIGTERM))
        return one

    def _signal(self, one: Running) -> None:
        now = time.monotonic()
        if now - one.began > PATIENCE:
            self.wrong.append(f"shard {one.shard}: it does not end: {one.log.read_text()[-2000:]}")
            one.process.kill()
        elif now >= one.kill_at:
            one.process.send_signal(one.kind)
            one.kill_at = float("inf")

    def _done(self, one: Running) -> bool:
        """Notes how a process ended; returns whether its shard is done."""
        how = {0: "done", -9: "SIGKILL", -15: "SIGTERM, before it listened", 143: "SIGTERM"}
        code, log = one.process.returncode, one.log.read_text()
        self.ended[how.get(code, f"exit code {code}")] += 1
        if code not in how or "compilation cache entry" in log:
            self.wrong.append(f"shard {one.shard}: exit code {code}: {log[-2000:]}")
            return True
        if code == 0:
            self.typical += 0.2 * (time.monotonic() - one.began - self.typical)
        return code == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--points", type=int, default=48, help=f"a multiple of {len(LENGTHS)}")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--kill", type=float, default=0.5, help="how likely a process is sent a signal")
    parser.add_argument("--twice", type=float, default=0.1, help="how likely a shard is started twice")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="shard-stress-") as name:
        stress = Stress(Path(name), options)
        stress.run()
    print(f"{stress.ended.total()} processes for {options.shards} shards: {dict(stress.ended)}")
    print(f"wrong: {len(stress.wrong)}", *stress.wrong, sep="\n", flush=True)
    return 1 if stress.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
