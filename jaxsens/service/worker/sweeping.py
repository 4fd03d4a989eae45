"""Sweeps of the service: a turn measures one point, so that short measurements come in between."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxsens.base.errors import collecting
from jaxsens.base.strict import join, parse_toml
from jaxsens.experiments.jobs.job import Job, run
from jaxsens.experiments.report.data import load_sweep
from jaxsens.experiments.report.report import write_report
from jaxsens.experiments.sweep.config import parse_sweep_config
from jaxsens.experiments.sweep.sweep import BoundsJob, PointsJob, Sweep, check_grows

_DRAWN_EVERY = 20.0
"""Seconds between two drawings of the report of an unfinished sweep."""

_FILES = ("checkpoint", "checkpoints", "texts", "python", "words", "config", "folder")
"""Keys whose values name files or code."""

_WORDS = ("title", "claim", "label", "description", "name")
"""Keys whose values are any text."""


class Sweeps:
    """Runs sweeps in turns.

    Args:
        links: a folder with a link, by its name, to the folder of each served model that has one: what
            `[model] pretrained = "NAME"` means.
    """

    def __init__(self, links: Path) -> None:
        self._links = links
        self._failed: dict[str, dict[str, str]] = {}
        self._drawn: dict[str, float] = {}

    def admit(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns what is known of a sweep without measuring, as `Desk.admit` does.

        Raises:
            InputError: for a config that `jaxsens sweep` would reject, or that names files, folders or code.
        """
        sweep = self._sweep(question["config"])
        points = len(PointsJob(sweep, Path()).items) + len(BoundsJob(sweep, Path()).items)
        name = hashlib.sha256(question["config"].encode()).hexdigest()[:24]
        about = {"title": sweep.title, "points": points, "seconds": 0.0, "bytes": 0, "flips": 0}
        return {"id": name, "about": about}

    def turn(
        self, question: dict[str, Any], directory: Path, tell: Callable[[int, int], object]
    ) -> dict[str, Any]:
        """Measures one point of a sweep that has none yet, or one bound; draws the report now and then, and at the end.

        Returns the points done and in all, the turn's seconds, and what failed.
        """
        began, sweep = time.monotonic(), self._sweep(question["config"])
        directory.mkdir(parents=True, exist_ok=True)
        check_grows(sweep.plan, directory)
        jobs: list[Job[Any, Any]] = [PointsJob(sweep, directory), BoundsJob(sweep, directory)]
        failed, console = self._failed.setdefault(directory.name, {}), Console(quiet=True)
        total = sum(len(job.items) for job in jobs)
        missing = _missing(jobs)
        tell(total - len(missing), total)
        left = [one for one in missing if str(one[1]) not in failed]
        if left:
            job, item = left[0]
            outcome = run(job, console, [item])
            if outcome.stopped_by is not None:
                raise KeyboardInterrupt
            if outcome.unwritable:
                raise OSError(outcome.unwritable)
            failed |= {str(failure.item): failure.message for failure in outcome.failures}
            missing = [one for one in missing if one is not left[0] or str(item) in failed]
        ended = all(str(item) in failed for _, item in missing)
        due = time.monotonic() - self._drawn.get(directory.name, -_DRAWN_EVERY) >= _DRAWN_EVERY
        if (ended or due) and len(missing) < total:
            write_report(load_sweep(directory), directory)
            self._drawn[directory.name] = time.monotonic()
        if ended:  # asked again, it tries again what failed
            self._failed.pop(directory.name)
        return {
            "done": total - len(missing),
            "total": total,
            "seconds": time.monotonic() - began,
            "ended": ended,
            "failed": "; ".join(f"{item}: {why}" for item, why in failed.items()),
        }

    def _sweep(self, text: str) -> Sweep:
        """Returns the sweep of a config that names nothing but served models."""
        served = sorted(one.name for one in self._links.iterdir() if one.is_symlink())
        with collecting("sweep") as problems:
            for where, key, value in _texts(parse_toml(text, "sweep"), "", ""):
                if key == "pretrained":
                    if value not in served:
                        problems.add(where, value, f"the name of a served folder: {', '.join(served)}")
                elif key in _FILES or (key not in _WORDS and ("/" in value or "\\" in value)):
                    remedy = "no files, folders or code in a request; run it with `jaxsens sweep`"
                    problems.add(where, value, remedy)
        return parse_sweep_config(text, "sweep", self._links)


def _texts(value: Any, where: str, key: str) -> Iterator[tuple[str, str, str]]:
    """Yields every text of a table: its path, the last key above it, and the text."""
    if isinstance(value, str):
        yield where, key, value
    elif isinstance(value, dict | list):
        for own, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(one, join(where, [own]), own if isinstance(own, str) else key)


def _missing(jobs: list[Job[Any, Any]]) -> list[tuple[Job[Any, Any], Any]]:
    return [(job, item) for job in jobs for item in job.items if job.state(item) != "done"]
