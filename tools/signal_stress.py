"""Signals at random moments, sent to real commands: `python -m tools.signal_stress --signals 40 --kills 20 --seed 0`.

Ctrl-C, SIGTERM and SIGHUP, once or twice, and SIGKILL. Every command is started again in the directory in which it was
stopped, until it comes to its end; half of the directories begin with an empty compilation cache. Looked at is how it
exits, that it has ended `PROMISED` seconds after the signal, that no table loses a row, no finished point changes, no
result loses a flip, that no cached program is damaged, and that the end is that of an undisturbed run. What goes wrong
is printed, and the exit code is 1. The slow test beside this sends a few.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxsens import load_result

ROOT = Path(__file__).resolve().parents[1]

SWEEP = """
title = "tiny"
lengths = [4, 6, 9]
seeds = 2
variants = ["softmax"]
statistics = ["mean", "max"]

[model]
alphabet_size = 2
width = 4
heads = 1
layers = 1
feed_forward = 0
"""
TRAINING = """
language = {name = "parity", end_probability = 0.5}
model = {kind = "lstm", width = 4}
data = {lengths = [1, 3], distinct = 1, batch = 4, steps_per_call = 2}
optimiser = {steps = 200}
evaluation = {every = 100, lengths = [3, 9], words = 4}
checkpoint = {every = 100}
"""
CONFIGS = {
    "sweep": SWEEP,
    "bounds": SWEEP.replace("seeds = 2", "seeds = 1") + "\n[bounds]\nrestarts = 1\n",
    "train": TRAINING,
}
KINDS = (*CONFIGS, "measure")
MODEL = "--n 96 --model alphabet_size=2 width=8 heads=1 layers=2"
MEASURE = f"measure {MODEL} --engine vmap --placement batch_size=1 --inputs 12 --json".split()
FLIPS = "flips.parquet"

# Of metrics.csv and evaluation.csv only the end is compared: a training goes on from a checkpoint, and says no more
# than that until it is saved again.
GROWING = ("points.csv", "bounds.csv")
WRONG = (
    "Traceback",
    "Exception ignored",
    "Fatal Python error",
    "terminate called",
    "compilation cache entry",
)
PATIENCE = 180.0
PROMISED = 10.0
"""Seconds after a signal until a command whose steps are short has ended."""

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Tally:
    """What became of the signals: how processes exited, and a line for everything that went wrong."""

    sent: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    finished: int = 0
    seconds: list[float] = field(default_factory=list)


def command(kind: str, folder: Path, out: Path) -> list[str]:
    """The command line of a kind, in `folder` where the configs are."""
    start = [sys.executable, "-m", "jaxsens"]
    if kind == "measure":
        file = str(out / FLIPS)
        return [*start, *MEASURE, "--save", file]
    return [*start, "sweep" if kind == "bounds" else kind, str(folder / f"{kind}.toml"), "--out", str(out)]


def tables(out: Path) -> dict[str, bytes]:
    """Every CSV file below a directory."""
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*.csv"))}


def points(out: Path) -> dict[Path, bytes]:
    """Every finished point of a sweep."""
    return {path: path.read_bytes() for path in (out / "points").rglob("seed=*.parquet")}


def flips_of(out: Path) -> dict[str, np.ndarray]:
    """What a measurement has kept: the flips and their norms."""
    if not (out / FLIPS).exists():
        return {}
    found = load_result(out / FLIPS)
    return {name: getattr(found, name) for name in ("inputs", "positions", "symbols", "norms")}


def same_flips(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two measurements found the same, up to the rounding of flips that end up in other batches."""
    names = ("inputs", "positions", "symbols")
    if not one or any(not np.array_equal(one[name], other[name]) for name in names):
        return False
    return np.allclose(one["norms"], other["norms"], rtol=1e-5, atol=0)


def shrunk(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """What tables lost."""
    lost = []
    for name, text in before.items():
        if Path(name).name in GROWING:
            rows = set(text.splitlines()) - set(after.get(name, b"").splitlines())
            lost += [f"{name} lost {len(rows)} of {len(text.splitlines())} lines"] if rows else []
    return lost


@contextmanager
def _heard() -> Iterator[None]:
    """What is started in the block hears signals, also where this was started in the background or by nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, effect in before.items():
            signal.signal(number, effect)


class Stress:
    """Signals to commands of one kind."""

    def __init__(self, kind: str, folder: Path, rng: random.Random, tally: Tally) -> None:
        self.kind, self.folder, self.rng, self.tally = kind, folder, rng, tally
        self.cache = folder / "cache"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONFAULTHANDLER": "1",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            "MPLBACKEND": "agg",
        }
        self.out = self._new()
        began = time.monotonic()
        process = self._start()
        _, log = process.communicate(timeout=10 * PATIENCE)
        if process.returncode != 0:
            raise RuntimeError(f"{kind}: it does not run undisturbed: {log}")
        self.seconds, self.expected = time.monotonic() - began, tables(self.out)
        self.flips = flips_of(self.out)
        self.out = self._new()

    def _new(self) -> Path:
        if self.rng.random() < 0.5:
            shutil.rmtree(self.cache, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=self.folder))

    def _start(self) -> subprocess.Popen[str]:
        with _heard():
            return subprocess.Popen(
                command(self.kind, self.folder, self.out),
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def run(self, signals: int, kills: int = 0) -> None:
        """Sends so many signals, and kills so many processes, in a random order."""
        numbers = [*(self.rng.choice(NUMBERS) for _ in range(signals)), *[signal.SIGKILL] * kills]
        self.rng.shuffle(numbers)
        while numbers:
            if self._sent_one(numbers[-1]):
                numbers.pop()
            if self.rng.random() < 0.3 or not numbers:
                process = self._start()
                log = process.communicate(timeout=PATIENCE)[1]
                self._finished(process.returncode, log)

    def _sent_one(self, number: signal.Signals) -> bool:
        """Starts a command and sends it a signal; whether it came while the command was running."""
        before = tables(self.out), points(self.out), flips_of(self.out)
        process = self._start()
        twice = number != signal.SIGKILL and self.rng.random() < 0.35
        name = f"{self.kind} {number.name}{' twice' if twice else ''}"
        delay = self.rng.uniform(0.02, self.seconds)
        if not self._sent(process, number, delay):
            log = process.communicate(timeout=PATIENCE)[1]
            self._finished(process.returncode, log)
            return False
        self.tally.sent[name] += 1
        began = time.monotonic()
        if twice:
            self._sent(process, number, self.rng.uniform(0.15, 1.0))
        try:
            log = process.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            self._wrong(name, delay, "LOST: it did not end", process.communicate()[1])
            return True
        took, code = time.monotonic() - began, process.returncode
        print(f"{name} after {delay:.1f} of {self.seconds:.1f} s: {code}, {took:.2f} s", flush=True)
        if number != signal.SIGKILL:
            self.tally.seconds.append(took)
            if took > PROMISED:
                self._wrong(name, delay, f"it ended only after {took:.1f} s", log)
        if code == 0 and took < 1.0 and "stopping" not in log and self._complete():
            self.tally.exits[f"{number.name}: too late, at its very end"] += 1
            return True
        self._ended(name, delay, number, code, log)
        lost = shrunk(before[0], tables(self.out))
        left = points(self.out)
        lost += [f"{path.name} is another" for path, text in before[1].items() if left.get(path) != text]
        if len(flips_of(self.out).get("norms", ())) < len(before[2].get("norms", ())):
            lost.append(f"{FLIPS} lost flips")
        for what in lost:
            self._wrong(name, delay, what, log)
        return True

    def _sent(self, process: subprocess.Popen[str], number: signal.Signals, delay: float) -> bool:
        """Whether the signal came while the process was running."""
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            alive = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, process.pid, alive) is None
        return False

    def _ended(self, name: str, delay: float, number: signal.Signals, code: int, log: str) -> None:
        # Before its handlers stand, and after its last line, a process dies of the signal: a shell sees the same code.
        kind = {128 + number: "128 + signal", -number: "by the signal"}.get(code, f"code {code}")
        self.tally.exits[f"{number.name}: {kind}"] += 1
        if code not in (128 + number, -number):
            self._wrong(name, delay, f"{'LOST: ' if code == 0 else ''}exit code {code}", log)
        elif any(text in log for text in WRONG) and code != -number:
            self._wrong(name, delay, "it says more than it should", log)

    def _complete(self) -> bool:
        if self.kind == "measure":
            return same_flips(flips_of(self.out), self.flips)
        page = self.kind == "train" or (self.out / "report.html").exists()
        return page and tables(self.out) == self.expected

    def _finished(self, code: int, log: str) -> None:
        """A run came to its end: with what an undisturbed one has. Then looks at it again, or begins anew."""
        self.tally.finished += 1
        if code != 0 or any(text in log for text in WRONG) or not self._complete():
            self._wrong(
                self.kind, 0.0, f"resumed to the end, exit code {code}, it is not as undisturbed", log
            )
            self.out = self._new()
        elif self.rng.random() < 0.5:
            shutil.rmtree(self.out)
            self.out = self._new()

    def _wrong(self, name: str, delay: float, what: str, log: str) -> None:
        text = f"{name} after {delay:.2f} of {self.seconds:.2f} s in {self.out.name}: {what}"
        self.tally.wrong.append(text)
        print(text, "".join(f"\n    {line}" for line in log.splitlines()[-30:]), flush=True)


def stress(kinds: list[str], signals: int, seed: int, folder: Path, kills: int = 0) -> Tally:
    """Sends `signals` signals and kills `kills` processes of each kind."""
    tally, rng = Tally(), random.Random(seed)
    for kind, text in CONFIGS.items():
        (folder / f"{kind}.toml").write_text(text)
    for kind in kinds:
        Stress(kind, folder, rng, tally).run(signals, kills)
    return tally


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=40, help="of each kind")
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="signal-stress-") as folder:
        tally = stress(options.kinds, options.signals, options.seed, Path(folder), options.kills)
    late, longest = sum(one > PROMISED for one in tally.seconds), max(tally.seconds, default=0.0)
    print(f"signals sent: {tally.sent.total()}; runs that came to their end: {tally.finished}")
    print(f"ended later than {PROMISED:.0f} s: {late} of {len(tally.seconds)}; longest {longest:.2f} s")
    for exits, count in sorted(tally.exits.items()):
        print(f"{count:5} {exits}")
    print(f"wrong: {len(tally.wrong)}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
