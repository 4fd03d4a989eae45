"""The queue, with workers that are played: what becomes of jobs when the disk is full, or a process ends."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from jaxsens.service import pool, routes
from jaxsens.service.jobs import Jobs
from jaxsens.service.routes import Routes
from jaxsens.service.store import Store

pytestmark = pytest.mark.anyio
FOUND = {"flips": 1, "mean": 1.0}


class PlayedWorker:
    """A worker that answers what a test lets it answer, and notes what it is sent."""

    def __init__(self) -> None:
        self.ready, self.starts, self.job = True, 0, None
        self.given: list[str] = []
        self.admitted: list[str] = []
        self.deadly = ["deadly"]
        self.sent: list[dict[str, Any]] = []
        self.answer, self.end_of_process = asyncio.Future[dict[str, Any]](), asyncio.Future[None]()

    async def run(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.starts, self.end_of_process = self.starts + 1, asyncio.Future[None]()
        on_event({"event": "ready"})
        await self.end_of_process

    async def ask(self, do: str, seconds: float, **message: Any) -> dict[str, Any]:
        if do == "measure":
            self.given.append(message["id"])
            self.answer = asyncio.Future[dict[str, Any]]()
            return await self.answer
        question = message["question"]
        self.admitted.append(question)
        if question == "late":
            await asyncio.Future()
        if question in self.deadly:
            return {"crash": "the worker process ended", "blame": 1.0}
        about = {"seconds": 7200.0 * (question == "long"), "bytes": 2**40 * (question == "large"), "flips": 1}
        return {"id": str(question), "about": about}

    def send(self, **message: Any) -> None:
        self.sent.append(message)

    def crash(self, blame: float = 1.0) -> None:
        self.answer.set_result({"crash": "it was killed", "blame": blame})
        self.end_of_process.set_result(None)

    async def end(self) -> None: ...


@pytest.fixture
async def workers(request: pytest.FixtureRequest) -> list[PlayedWorker]:
    return [PlayedWorker() for _ in range(getattr(request, "param", 1))]


@pytest.fixture
def worker(workers: list[PlayedWorker]) -> PlayedWorker:
    return workers[0]


@pytest.fixture
async def jobs(tmp_path: Path, workers: list[PlayedWorker]) -> AsyncIterator[Jobs]:
    """A queue beside its own tasks."""
    store = Store(tmp_path / "store")
    jobs = Jobs(store, workers, queued=1000, seconds=3600, memory=2**30)  # pyright: ignore[reportArgumentType] - as a worker
    acts = [act(one) for one in workers for act in (jobs.run, jobs.hand_out)]  # pyright: ignore[reportArgumentType]
    tasks = [asyncio.ensure_future(one) for one in acts]
    yield jobs
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await task
    store.close()


def state(jobs: Jobs, name: str) -> tuple[str, float]:
    job = jobs.store.jobs.get(name)
    assert job is not None
    return job.state, job.crashes


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_store_that_was_full_for_a_while_does_not_stop_the_queue(jobs, worker, monkeypatch):
    full, change = False, jobs.store.change

    def changed(*args: Any, **values: Any) -> None:
        if full:
            raise OSError("full")
        change(*args, **values)

    monkeypatch.setattr(jobs.store, "change", changed)
    await jobs.accept("a")
    await until(lambda: worker.given)
    full = True
    worker.answer.set_result({"found": FOUND})
    await asyncio.sleep(0.3)
    full = False
    await until(lambda: state(jobs, "a") == ("finished", 0))
    assert worker.given == ["a"]


async def test_a_full_disk_is_507_and_no_worker_that_is_ready_503(jobs, worker, tmp_path, monkeypatch):
    async def answers() -> list[int]:
        answer = await http.post("/v1/measurements", json={"model": "tiny", "tokens": [0]})
        assert str(tmp_path) not in answer.text
        return [answer.status_code, (await http.get("/readyz")).status_code]

    def full(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    transport = httpx.ASGITransport(Routes(jobs, {"tiny": ""}))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        monkeypatch.setattr("os.replace", full)
        assert await answers() == [507, 200]
        worker.ready = False
        assert await answers() == [503, 503]


@pytest.mark.parametrize("question", ["long", "large"])
async def test_what_would_take_too_much_time_or_memory_is_refused_with_the_estimate(jobs, question):
    said = {"long": "about 7200 s", "large": r"1024.0 GiB; at most 1.0 GiB here \(--most-memory\)"}
    with pytest.raises(HTTPException, match=said[question]) as refused:
        await jobs.accept(question)
    assert refused.value.status_code == 413
    assert jobs.store.jobs.get(question) is None


async def test_many_questions_that_wait_to_be_looked_at_let_no_other_in(jobs, worker):
    late = [asyncio.ensure_future(jobs.look_at("late")) for _ in range(32)]
    await until(lambda: len(worker.admitted) == 32)
    with pytest.raises(HTTPException) as refused:
        await asyncio.wait_for(jobs.look_at("late"), 5)
    assert (refused.value.status_code, len(worker.admitted)) == (429, 32)
    late[0].cancel()
    await asyncio.sleep(0)
    assert (await jobs.look_at("a"))["id"] == "a"


async def test_who_follows_a_job_hears_of_each_change_and_of_the_end_of_the_service(jobs):
    heard: list[str] = []

    async def follow() -> None:
        async for job in jobs.watch("a"):
            heard.append(job.state)

    await jobs.accept("a")
    following = asyncio.ensure_future(follow())
    await until(lambda: heard[-1:] == ["running"])
    async with asyncio.timeout(5):
        await jobs.close()
        await following
    assert heard[-1] == "running"


async def test_reports_of_a_folder_are_listed_and_opened_and_nothing_else_of_it(jobs, tmp_path):
    folder, away = tmp_path / "sweeps", tmp_path / "away"
    for place in (folder / "a b", folder / "points", away):
        place.mkdir(parents=True)
    (folder / "a b" / "report.html").write_text("<p>of a</p>")
    (away / "report.html").write_text("of another")
    (folder / "points" / "secret.html").write_text("no report")
    (folder / "linked").symlink_to(away)
    (folder / "points" / "report.html").symlink_to(away / "report.html")
    (folder / "a b" / "points.csv").write_text("n,mean")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff/report.html")).write_text("a name that is no text")
    for reports, names in ((folder, ["a b"]), (None, [])):
        transport = httpx.ASGITransport(Routes(jobs, {"tiny": ""}, reports))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/v1/reports")).json() == names
            answer = await http.get("/reports/a%20b/report.html")
            assert (answer.status_code, "of a" in answer.text) == ((200, True) if names else (404, False))
            assert ("form-action 'none'" in answer.headers.get("content-security-policy", "")) == bool(names)
            assert (await http.get("/reports/a%20b/points.csv")).status_code == answer.status_code
            others = ("linked/report.html", "points/report.html", "points/secret.html", "a b")
            for other in (*others, "..%2Faway%2Freport.html", "%2e%2e/away/report.html", "/etc/passwd"):
                assert (await http.get(f"/reports/{other}")).status_code == 404, other


@pytest.mark.parametrize("wait", ["nan", "-1", "soon", "1e9"])
async def test_a_wait_is_a_number_of_seconds_and_has_an_end(jobs, monkeypatch, wait):
    monkeypatch.setattr(routes, "_LONGEST_WAIT", 0.2)
    job = await jobs.accept("a")
    transport = httpx.ASGITransport(Routes(jobs, {"tiny": ""}))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await asyncio.wait_for(http.get(f"/v1/measurements/{job.id}?wait={wait}"), 5)
    assert answer.status_code == (200 if wait == "1e9" else 400)
    assert ("state" in answer.json()) == (wait == "1e9")


@pytest.mark.parametrize("workers", [2], indirect=True)
async def test_a_job_is_never_with_two_workers(jobs, workers):
    first, second = workers
    job = await jobs.accept("a")
    await until(lambda: first.given or second.given)
    owner, other = (first, second) if first.given else (second, first)
    jobs.cancel(job)
    assert (owner.sent, other.sent) == ([{"do": "cancel"}], [])
    await jobs.accept("a")  # asked again, while the worker has not yet let it go
    await jobs.accept("b")
    await until(lambda: other.given)
    assert (owner.given, other.given) == (["a"], ["b"])
    owner.answer.set_result({"error": "KeyboardInterrupt: "})
    await until(lambda: len(owner.given) == 2)
    owner.answer.set_result({"found": FOUND})
    await until(lambda: state(jobs, "a") == ("finished", 0))


async def test_a_job_that_ends_its_worker_twice_fails_however_often_it_is_asked(jobs, worker):
    for crashes in (1, 2):
        await jobs.accept("a")
        await until(lambda crashes=crashes: worker.given == ["a"] * crashes)
        await jobs.accept("a")  # while it runs
        worker.crash()
        await until(lambda crashes=crashes: worker.starts == crashes + 1)
    assert state(jobs, "a") == ("failed", 2)
    job = await jobs.accept("a")
    assert "it was killed, again, while it measured this" in job.message
    await jobs.accept("b")
    await until(lambda: worker.given[-1] == "b")
    assert worker.given == ["a", "a", "b"]


async def test_a_question_that_ends_two_processes_while_it_is_looked_at_is_given_to_none_and_fails_no_job(
    jobs, worker
):
    await jobs.accept("a")
    for starts in (1, 2, 3):
        await until(lambda starts=starts: worker.starts == starts and len(worker.given) == starts)
        with pytest.raises(HTTPException) as refused:
            await jobs.accept("deadly")
        assert refused.value.status_code == 500
        if starts < 3:
            worker.crash(blame=0.5)
    assert worker.admitted == ["a", "deadly", "deadly"]
    assert state(jobs, "a") == ("running", 1)


async def test_a_question_that_was_looked_at_since_it_ended_a_process_is_looked_at_again(jobs, worker):
    for deadly in (True, False, True, False):
        worker.deadly = ["a"] if deadly else []
        with pytest.raises(HTTPException) if deadly else nullcontext():
            assert (await jobs.look_at("a"))["id"] == "a"


async def test_a_job_that_ends_its_worker_fails_also_where_other_questions_always_wait(jobs, worker):
    await jobs.accept("a")
    for crashes in (1, 2, 3, 4):
        await until(lambda crashes=crashes: worker.starts == crashes == len(worker.given))
        worker.crash(blame=0.5)
    await until(lambda: state(jobs, "a") == ("failed", 2))


async def test_a_job_that_is_forgotten_while_it_runs_leaves_no_file(jobs, worker):
    job = await jobs.accept("a")
    await until(lambda: worker.given)
    jobs.cancel(job)
    cancelled = jobs.store.jobs.get("a")
    assert cancelled is not None
    jobs.cancel(cancelled)
    jobs.store.result("a").write_text("the text")
    worker.answer.set_result({"found": FOUND})
    await until(lambda: worker.job is None)
    assert jobs.store.jobs.get("a") is None
    assert not jobs.store.result("a").exists()


_BEATS = 'import time\nwhile True:\n    print(\'{"event": "alive"}\', flush=True)\n    time.sleep(0.1)'


@pytest.mark.parametrize(
    ("program", "silent", "why"),
    [
        ("import time; time.sleep(60)", 1.0, "said nothing for 1 s"),
        (_BEATS, 60.0, "no sign of a question for 2 s"),
    ],
)
async def test_a_worker_that_stops_or_never_answers_is_ended_and_its_question_fails(
    program, silent, why, monkeypatch
):
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", program))
    monkeypatch.setattr(pool, "SILENT_SECONDS", silent)
    worker = pool.WorkerProcess({}, {})
    running = asyncio.ensure_future(worker.run(lambda message: None))
    async with asyncio.timeout(20):
        assert why in (await worker.ask("measure", 2.0))["crash"]
        await running


async def test_a_measurement_that_goes_on_step_by_step_is_not_ended(monkeypatch):
    program = (
        'import time\nfor _ in range(8):\n    time.sleep(0.5)\n    print(\'{"event": "running"}\', flush=True)\n'
        'print(\'{"of": 0, "found": 1}\', flush=True)\ninput()'
    )
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", program))
    worker = pool.WorkerProcess({}, {})
    running = asyncio.ensure_future(worker.run(lambda message: None))
    assert (await worker.ask("measure", 2.0)).get("found") == 1
    await worker.end()
    await running


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "0,1"}, [None]),
        ({"CUDA_VISIBLE_DEVICES": "2,5"}, ["2", "5"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, [None]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [None]),
    ],
)
def test_each_gpu_has_a_worker_that_sees_no_other(environ, seen):
    given = pool.device_environments(environ)
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in given] == seen


async def test_of_what_a_process_had_to_do_when_it_ended_the_first_question_and_half_the_job_are_blamed(
    monkeypatch,
):
    program = "import sys; [sys.stdin.readline() for _ in range(4)]"
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", program))
    worker = pool.WorkerProcess({}, {})
    running = asyncio.ensure_future(worker.run(lambda message: None))
    await asyncio.sleep(0.2)
    gone = await asyncio.gather(*(worker.ask(do, 60.0) for do in ("measure", "admit", "admit")))
    assert [one["blame"] for one in gone] == [0.5, 1.0, 0.0]
    await running


@pytest.mark.parametrize(
    "end", ['os.write(1, b\'{"event": "rea\'); os.kill(os.getpid(), 9)', "os.kill(os.getpid(), 40)"]
)
def test_a_worker_that_dies_within_a_line_or_by_a_signal_without_a_name_ends_no_service(end, monkeypatch):
    monkeypatch.setattr(
        pool, "COMMAND", (sys.executable, "-c", f"import os, sys; sys.stdin.readline(); {end}")
    )
    events: list[dict[str, Any]] = []
    asyncio.run(pool.WorkerProcess({}, {}).run(events.append))
    assert events == []
