"""Runs the bounds of a sweep: one by one what is missing, beside the sweep's points and resumed as they are."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from jaxsens.experiments.bounds import BoundPoint, BoundRecord, Shared, answer
from jaxsens.experiments.claims import claim, is_claimed
from jaxsens.experiments.csv_text import csv_text
from jaxsens.experiments.points import Point
from jaxsens.experiments.progress import Reporter, reporting
from jaxsens.experiments.results import Plan
from jaxsens.experiments.runner import Failure, Outcome, one_line, why_unwritable
from jaxsens.experiments.sweep import Sweep
from jaxsens.files import takes_no_more, write_text
from jaxsens.sealed import DamagedFile, read_sealed, write_sealed
from jaxsens.stopping import check, noting

BOUNDS_CSV = "bounds.csv"
_KIND = "bounds of a point"
_COLUMNS = (
    "variant",
    "n",
    "seed",
    "worst",
    "worst_exact",
    "certified",
    "ratio",
    "log_lemma5",
    "logit_bound",
    "matter",
    "free",
)


def run_bounds(sweep: Sweep, directory: Path, chosen: Sequence[Point], console: Console) -> Outcome:
    """Computes the bounds of the chosen points that have no sound file yet, and writes bounds.csv.

    One that fails is reported and does not stop the others. Ctrl-C and SIGTERM leave what was finished, and so does a
    disk that takes no more.
    """
    wanted = {bound.point: bound for bound in sweep.bound_points}
    rest = [wanted[point] for point in chosen]
    failures: list[Failure] = []
    missing = [bound for bound in rest if not _is_done(bound, directory)]
    unwritable = ""
    with noting(signal.SIGINT, signal.SIGTERM) as request:
        interrupted = None
        try:
            _compute(directory, missing, len(rest), failures, console)
        except KeyboardInterrupt:
            interrupted = signal.SIGINT
        except OSError as error:
            unwritable = why_unwritable(error, directory)
        records = read_bounds(directory, sweep.plan)
        try:
            write_bounds_csv(directory, records)
        except OSError as error:
            unwritable = unwritable or why_unwritable(error, directory)
        stopped_by = request.answer() or interrupted
    done = {record.key for record in records}
    return Outcome(
        chosen=len(rest),
        measured=sum(bound.key in done for bound in missing),
        finished=len(records),
        planned=len(sweep.bound_points),
        failures=tuple(failures),
        stopped_by=stopped_by,
        unwritable=unwritable,
    )


def _compute(
    directory: Path, missing: Sequence[BoundPoint], wanted: int, failures: list[Failure], console: Console
) -> None:
    rest = list(missing)
    shared = Shared()
    with reporting(console, wanted, wanted - len(rest)) as reporter:
        while rest:
            check()
            # Those that another process has begun come last, in case it dies.
            free = (k for k, bound in enumerate(rest) if not is_claimed(bound.path(directory)))
            bound = rest.pop(next(free, 0))
            if _is_done(bound, directory):
                reporter.finished(f"{bound}: computed by another process", None)
                continue
            try:
                with claim(bound.path(directory)):
                    record = _answer(bound, directory, shared, reporter)
            except Exception as error:  # whatever one raises, the others are computed
                if takes_no_more(error):
                    raise
                failures.append(Failure(bound.point, one_line(error)))
                reporter.note(f"failed: {bound}: {one_line(error)}")
                reporter.finished(f"{bound}: failed", None)
                continue
            taken = sum(record.seconds.values())
            reporter.finished(f"{bound}: {record.summary()} ({taken:.2g} s)", None)


def _answer(bound: BoundPoint, directory: Path, shared: Shared, reporter: Reporter) -> BoundRecord:
    def progress(done: int, of: int | None) -> None:
        reporter.inside(f"{bound}: search", done, of, "measurements")

    record = answer(bound, progress, shared)
    write_sealed(bound.path(directory), _KIND, asdict(record))
    return record


def state_of_bound(bound: BoundPoint, directory: Path) -> str:
    """ "done", "missing", or "damaged": what there is of what is asked."""
    path = bound.path(directory)
    if _read(path, bound.key) is not None:
        return "done"
    return "damaged" if path.is_file() else "missing"


def _is_done(bound: BoundPoint, directory: Path) -> bool:
    return state_of_bound(bound, directory) == "done"


def _read(path: Path, key: str) -> BoundRecord | None:
    """A stored record, or None where there is none, or a damaged one, or one under another key."""
    try:
        stored = read_sealed(path, _KIND)
        record = BoundRecord(**{**stored, "worst_word": tuple(stored["worst_word"])})
    except (FileNotFoundError, DamagedFile, KeyError, TypeError):
        return None
    return record if record.key == key else None


def read_bounds(directory: Path, plan: Plan) -> list[BoundRecord]:
    """The bounds that are done, in the plan's order; those that are missing or damaged left out."""
    found = (_read(directory / planned.file, planned.key) for planned in plan.bounds)
    return [record for record in found if record is not None]


def write_bounds_csv(directory: Path, records: Iterable[BoundRecord]) -> None:
    """Writes bounds.csv, atomically: a row a record."""
    rows = [{name: getattr(record, name) for name in _COLUMNS} for record in records]
    write_text(directory / BOUNDS_CSV, csv_text(_COLUMNS, rows))
