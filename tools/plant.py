"""`python -m tools.plant [NAME ...]` plants faults one by one and runs the tests of their rooms: which are caught?

`tools/faults.toml` has the faults. Their test files run once without a fault first: a test that fails then catches
nothing. A fault is `caught` if a test fails, `escaped` if none does, `never reached` if no test called the faulty
function, and `timed out` if its tests took longer than `--timeout`. The exit code is 1 unless all are caught.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.planted import FAULT, LOG, ROOT, Fault, faults

RECORD = ROOT / "tools" / "planted.md"
INTERRUPTED = re.compile(r"(?m)^(\S+::.+?) *\n+!+ KeyboardInterrupt")
"""A test that sent Ctrl-C, which ended pytest instead of what was tested."""

FAILED = re.compile(r"(?m)^(?:FAILED|ERROR) (.+?)(?: - .*)?$")


@dataclass(frozen=True)
class Verdict:
    """What became of a fault, the first test that failed, and how long its tests took."""

    fault: Fault
    verdict: str
    test: str
    seconds: float


def run_tests(
    tests: Sequence[str], timeout: float, fault: Fault | None = None
) -> tuple[int | None, list[str], bool]:
    """Runs test files; returns the exit code, None after the timeout, the tests that failed, and whether the fault was
    reached."""
    with tempfile.TemporaryDirectory() as folder:
        # Python imports this first, in the processes that a test starts too.
        Path(folder, "sitecustomize.py").write_text("import tools.planted\n", "utf-8")
        log = Path(folder, "reached")
        paths = [folder, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), LOG: str(log)}
        environment |= {FAULT: fault.name if fault else ""}
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            # A process that reads a cache while another one writes to it would warn.
            environment["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".cache" / f"jax-plant-{thread.name}")
        command = [sys.executable, "-m", "pytest", "-v", "-n0", "-p", "no:cacheprovider", "-m", "not slow"]
        process = subprocess.Popen(
            [*command, *(["-x"] if fault else []), *tests],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, [], log.exists()
        failed = FAILED.findall(output)
        failed += INTERRUPTED.findall(output)
        if process.returncode and not failed:
            raise RuntimeError(f"pytest ended with exit code {process.returncode}:\n{output[-3000:]}")
        return process.returncode, failed, log.exists()


def plant(fault: Fault, timeout: float) -> Verdict:
    """Plants a fault and runs its tests."""
    began = time.monotonic()
    code, failed, reached = run_tests(fault.tests, timeout, fault)
    if not reached:
        verdict = "never reached"
    elif code is None:
        verdict = "timed out"
    else:
        verdict = "caught" if failed else "escaped"
    return Verdict(fault, verdict, failed[0] if failed else "", time.monotonic() - began)


def baseline(file: str, timeout: float) -> list[str]:
    """Runs a test file without a fault; returns the tests that fail, or the file if it takes too long."""
    began = time.monotonic()
    code, failed, _ = run_tests([file], timeout)
    print(f"{file:<60}{'green' if code == 0 else 'red':<8}{time.monotonic() - began:6.1f} s", flush=True)
    return [file] if code is None else failed


def record(verdicts: Sequence[Verdict]) -> str:
    """Returns the page that keeps the verdicts."""
    cells = [(one.fault.name, one.fault.room, one.fault.effect, one.test or one.verdict) for one in verdicts]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]
    caught = sum(one.verdict == "caught" for one in verdicts)
    head = [
        "# Planted faults",
        "",
        f"{caught} of {len(verdicts)} are caught. `python -m tools.plant --record`",
    ]
    table = ["| fault | room | what goes wrong | caught by |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, "", *table, *rows, ""])


def main() -> int:
    """Plants the faults, prints a row each, and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="these faults alone")
    parser.add_argument("--jobs", type=int, default=1, help="plant so many at once (default: 1)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for the tests of a fault")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    arguments = parser.parse_args()
    known = faults()
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}; known: {', '.join(known)}")
    if arguments.record and arguments.names:
        parser.error("--record: the page holds all faults; leave the names out")
    if arguments.jobs < 1:
        parser.error(f"--jobs = {arguments.jobs}: at least 1")
    chosen = [known[name] for name in arguments.names] or [*known.values()]
    for fault in chosen:
        fault.function()  # a path that leads nowhere is an error before anything runs
        fault.body()
    files = sorted({file for fault in chosen for file in fault.tests})
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(arguments.jobs) as threads:
        in_order = map if arguments.jobs == 1 else threads.map
        red = [
            test for tests in in_order(partial(baseline, timeout=arguments.timeout), files) for test in tests
        ]
        if red:
            print(f"red without any fault, correct these first: {', '.join(red)}")
            return 1
        for one in in_order(partial(plant, timeout=arguments.timeout), chosen):
            print(f"{one.fault.name:<30}{one.verdict:<15}{one.seconds:6.1f} s  {one.test}", flush=True)
            verdicts.append(one)
    if arguments.record:
        RECORD.write_text(record(verdicts), "utf-8")
    missed = [one.fault.name for one in verdicts if one.verdict != "caught"]
    print(
        f"{len(verdicts) - len(missed)} of {len(verdicts)} caught; not caught: {', '.join(missed) or 'none'}"
    )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
