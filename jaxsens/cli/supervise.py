"""The parent of a process of a distributed job, which says why that process ended and how to resume.

If a process of a job dies, JAX's runtime ends the others without a Python exception, so they cannot say anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from jaxsens.base import stopping

WORKER = "JAXSENS_SUPERVISED"
"""Set in the environment of the process that does the work: the process id of its parent."""

LOST = 75
"""The exit code of a process that ended because another one of its job has: EX_TEMPFAIL, start all again."""

_UNHEALTHY = re.compile(rb"unhealthy[^\n]*:\s*\n((?:[^\n]*\d\n)+)")
_TASK = re.compile(rb"(\d+)$", re.MULTILINE)
_SILENT = re.compile(rb"task[ :](\d+) heartbeat timeout", re.IGNORECASE)
_LEADER = re.compile(rb"UNAVAILABLE[^\n]*(?:coordination service|leader|coordinator)", re.IGNORECASE)
"""What JAX's runtime prints when it loses a process, and when it loses the one where the coordinator runs."""

_POLL = 0.02  # seconds; a signal sent to both processes must not count as a second one
_LATE = 10.0  # seconds


def is_worker() -> bool:
    """Whether this process has such a parent."""
    return WORKER in os.environ


def supervise(arguments: Sequence[str], again: str) -> int:
    """Runs `jaxsens` with these arguments in a child, and returns the exit code.

    Signals are passed on. The child's standard error is printed, and searched for the process that was lost.

    Args:
        arguments: of the command line, without the program.
        again: the command that resumes the work, for messages.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "jaxsens.cli", *arguments],
        env={**os.environ, WORKER: str(os.getpid())},
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process only, which passes it on once.
    )
    log = _Log()
    reader = threading.Thread(target=log.copy, args=(child.stderr,), daemon=True)
    reader.start()
    sent = False
    with stopping.handing_over(partial(_awaited, child)):
        while child.poll() is None:
            number = stopping.requested_signal()
            if number is not None and not sent:
                sent = True
                child.send_signal(number)
            time.sleep(_POLL)
        reader.join(5.0)
        return _explained(child.returncode, log, again)


def _awaited(child: subprocess.Popen[bytes]) -> None:
    """Waits for a child that ends by a deadline of its own, and for this process to say how; kills one that does not.

    Called in place of giving up: it is the child that has work to give up.
    """
    with suppress(subprocess.TimeoutExpired):
        child.wait(stopping.WRITING_SECONDS + _LATE)
    child.kill()
    time.sleep(_LATE)


class _Log:
    """What a child prints: passed on at once; its end is kept."""

    def __init__(self) -> None:
        self.end = b""

    def copy(self, stream: IO[bytes] | None) -> None:
        """Copies the stream to standard error, to its end."""
        while stream is not None and (part := os.read(stream.fileno(), 65536)):
            self.end = (self.end + part)[-(2**18) :]
            sys.stderr.buffer.write(part)
            sys.stderr.buffer.flush()

    def lost(self) -> str:
        """Which process the runtime says it has lost."""
        tasks = {int(task) for found in _UNHEALTHY.findall(self.end) for task in _TASK.findall(found)}
        tasks |= {int(task) for task in _SILENT.findall(self.end)}
        if tasks:
            return f"process {', '.join(map(str, sorted(tasks)))} of the job has"
        if _LEADER.search(self.end):
            return "process 0 of the job, where the coordinator runs, has"
        return "another process of the job has"


def _explained(code: int, log: _Log, again: str) -> int:
    """Returns the exit code, after a message if the child could not say itself why it ended."""
    resume = f"What was finished is kept. To resume, start all processes again: {again}"
    if code in (LOST, -signal.SIGABRT, 128 + signal.SIGABRT):
        print(f"jaxsens: {log.lost()} ended, so this one ends too. {resume}", file=sys.stderr, flush=True)
        return LOST
    if code < 0:
        how = signal.Signals(-code).name
        print(f"jaxsens: the measuring process was ended by {how}. {resume}", file=sys.stderr, flush=True)
        return 128 - code
    return code


def end_with_parent() -> None:
    """Ends this process, from a thread, soon after its parent has ended: nobody else would."""
    parent = int(os.environ[WORKER])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="jaxsens parent", daemon=True).start()
