"""The queue, with workers that are played: what becomes of jobs when the disk is full, or a process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from jaxsens.service.jobs import Jobs, Limits, Refused
from jaxsens.service.metrics import Metrics
from jaxsens.service.pool import WorkerGone
from jaxsens.service.store import Store, StoreFull

FOUND = {"flips": 1, "mean": 1.0}


class PlayedWorker:
    """A worker that says what a test lets it say, and notes what it is sent."""

    def __init__(self, in_turns: bool = True) -> None:
        self.ready, self.admitting, self.in_turns = True, False, in_turns
        self.sent: list[dict[str, Any]] = []
        self.hear: Callable[[dict[str, Any]], None] = lambda message: None
        self.starts, self.end_of_process = 0, asyncio.Future[str]()

    async def run(self, on_event: Callable[[dict[str, Any]], None]) -> str:
        self.starts, self.end_of_process = self.starts + 1, asyncio.Future[str]()

        def heard(message: dict[str, Any]) -> None:
            try:
                on_event(message)
            except OSError as error:
                self.end_of_process.set_exception(error)

        self.hear = heard
        heard({"event": "ready"})
        return await self.end_of_process

    async def ask(self, kind: str, question: Any) -> dict[str, Any]:
        if question == "deadly":
            raise WorkerGone("the worker process ended")
        return {
            "id": str(question),
            "about": {"seconds": 7200.0 * (question == "long"), "bytes": 0, "flips": 1},
        }

    def send(self, **message: Any) -> None:
        self.sent.append(message)

    def given(self) -> list[str]:
        return [one["job"]["id"] for one in self.sent if one["do"] in ("measure", "sweep")]

    async def end(self) -> None: ...


def played(tmp_path: Any, act: Callable[..., Any], workers: int = 1, **options: Any) -> None:
    """Runs an act with (jobs, workers) beside the queue's own tasks."""

    async def main() -> None:
        store = Store(tmp_path)
        those = [PlayedWorker(**options) for _ in range(workers)]
        jobs = Jobs(store, those, Limits(), Metrics())  # pyright: ignore[reportArgumentType] - as a worker
        tasks = [asyncio.ensure_future(jobs.run(one)) for one in those]  # pyright: ignore[reportArgumentType]
        tasks.append(asyncio.ensure_future(jobs.hand_out()))
        try:
            await act(jobs, *those)
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task
            store.close()

    asyncio.run(main())


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("when", ["it is handed out", "its result is noted"])
def test_a_store_that_was_full_for_a_while_does_not_stop_the_queue(tmp_path, monkeypatch, when):
    async def act(jobs: Jobs, worker: PlayedWorker) -> None:
        full, change = False, jobs.store.change

        def changed(*args: Any, **values: Any) -> None:
            if full:
                raise StoreFull("full")
            change(*args, **values)

        monkeypatch.setattr(jobs.store, "change", changed)
        full = when == "it is handed out"
        await jobs.accept("measurement", "a")
        if not full:
            await until(worker.given)
            full = True
            worker.hear({"event": "measured", "id": "a", "found": FOUND})
        await asyncio.sleep(0.3)
        full = False
        await until(lambda: len(worker.given()) == (1 if when == "it is handed out" else 2))
        worker.hear({"event": "measured", "id": "a", "found": FOUND})
        job = jobs.store.get("a")
        assert job is not None
        assert (job.state, job.attempts) == ("finished", 0)

    played(tmp_path, act)


def test_what_would_take_too_long_is_refused_with_the_estimate(tmp_path):
    async def act(jobs: Jobs, worker: PlayedWorker) -> None:
        with pytest.raises(Refused, match="1 flips take about 7200 s") as refused:
            await jobs.accept("measurement", "long")
        assert refused.value.status == 413
        assert jobs.store.get("long") is None

    played(tmp_path, act)


def test_a_job_is_never_with_two_workers(tmp_path):
    async def act(jobs: Jobs, first: PlayedWorker, second: PlayedWorker) -> None:
        await jobs.accept("sweep", "s")
        await until(first.given)
        turned = {"event": "turned", "id": "s", "done": 1, "total": 3, "seconds": 0.0, "ended": False}
        first.hear({**turned, "failed": ""})
        await asyncio.sleep(0.1)  # queued again, and the first worker has not said yet that it is idle
        assert not second.given()
        first.hear({"event": "idle"})
        await until(lambda: len(first.given()) + len(second.given()) == 2)

    played(tmp_path, act, workers=2)


def test_a_question_that_ends_the_process_while_it_is_looked_at_fails_no_other_job(tmp_path):
    async def act(jobs: Jobs, worker: PlayedWorker) -> None:
        await jobs.accept("measurement", "a")
        for starts in range(1, 5):
            await until(lambda starts=starts: worker.starts == starts and len(worker.given()) == starts)
            with pytest.raises(Refused) as refused:
                await jobs.accept("measurement", "deadly")
            assert refused.value.status == 500
            worker.admitting = starts < 4
            worker.end_of_process.set_result("it was killed")
        await until(lambda: worker.starts == 5)
        job = jobs.store.get("a")
        assert job is not None
        assert (job.state, job.attempts) != ("failed", 0)
        assert job.attempts == 1

    played(tmp_path, act)


def test_a_job_that_is_forgotten_while_it_runs_leaves_no_file(tmp_path):
    async def act(jobs: Jobs, worker: PlayedWorker) -> None:
        job = await jobs.accept("measurement", "a")
        await until(worker.given)
        jobs.cancel(job)
        cancelled = jobs.store.get("a")
        assert cancelled is not None
        jobs.cancel(cancelled)
        for file in (jobs.store.result("a"), tmp_path / "slurm" / "a" / "asked"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("the text")
        worker.hear({"event": "measured", "id": "a", "stopped": True, "found": FOUND})
        assert jobs.store.get("a") is None
        assert not jobs.store.result("a").exists()
        assert not (tmp_path / "slurm" / "a").exists()

    played(tmp_path, act)


def test_a_sweep_that_a_scheduler_stops_is_handed_over_again(tmp_path):
    async def act(jobs: Jobs, worker: PlayedWorker) -> None:
        await jobs.accept("sweep", "s")
        await until(worker.given)
        worker.hear({"event": "submitted"})
        worker.hear({"event": "turned", "id": "s", "stopped": True})
        await until(lambda: worker.given() == ["s", "s"])

    played(tmp_path, act, in_turns=False)
