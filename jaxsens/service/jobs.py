"""The queue: accepts questions that can be afforded, hands them to workers, follows what becomes of them, and
counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.sealed import digest
from jaxsens.core.results.result import FlipSensitivity, load_result
from jaxsens.service.pool import WorkerProcess
from jaxsens.service.store import ENDED, MOST_CRASHES, Store, StoredJob

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

_LOOKING = 32
"""The questions that may wait to be looked at."""

STEP_SECONDS = 600.0
"""That a worker may take to look at a question, for which it may load a model, or for a step of a measurement beside
ten times what all of it was estimated to take. Then it is replaced."""


def _later(status: int, why: str, seconds: float) -> HTTPException:
    """Returns the refusal of a question that may be asked again after so many seconds."""
    return HTTPException(status, why, {"Retry-After": f"{seconds:.0f}"})


class Jobs:
    """The jobs of a store, the workers that do them, and counts for Prometheus. All in the event loop's thread.

    So many jobs may wait or run (`queued`), and a measurement may take, by its estimate, so many seconds and bytes.
    """

    def __init__(
        self, store: Store, workers: Sequence[WorkerProcess], queued: int, seconds: float, memory: float
    ) -> None:
        self.store, self.workers = store, workers
        store.on_change = self._changed
        self._queued, self._seconds, self._memory = queued, seconds, memory
        self._looking, self._closing, self._announced = asyncio.Semaphore(_LOOKING), False, False
        self._crashes = defaultdict[str, float](float)  # of workers that looked at a question, by its digest
        self._waked, self._news = asyncio.Event(), dict[str, asyncio.Event]()
        self.counts = counts = CollectorRegistry()
        self._asked = Counter("jaxsens_questions", "Questions", ("how",), registry=counts)
        self._ended = Counter("jaxsens_jobs", "Jobs that ended", ("state",), registry=counts)
        self._answered = Histogram(
            "jaxsens_answer_seconds", "From question to answer", registry=counts, buckets=_BUCKETS
        )
        self._flips = Counter("jaxsens_flips", "Flips measured", registry=counts)
        self._restarts = Counter("jaxsens_worker_restarts", "Worker processes that ended", registry=counts)
        waiting = Gauge("jaxsens_waiting", "Jobs that wait or run", registry=counts)
        waiting.set_function(lambda: store.waiting()[0])
        ready = Gauge("jaxsens_ready", "Workers that are ready", registry=counts)
        ready.set_function(lambda: sum(one.ready for one in workers))

    @property
    def ready(self) -> bool:
        """Whether a worker has its models loaded, and jobs are accepted."""
        return not self._closing and any(worker.ready for worker in self.workers)

    async def look_at(self, question: Any) -> dict[str, Any]:
        """Returns what a worker knows of a question without measuring. Raises InputError for what cannot be measured,
        and HTTPException if no worker is ready, too many questions wait, or the worker's process ends."""
        if not self.ready:
            raise _later(503, "no worker is ready: models are being loaded, or the service ends", 2.0)
        if self._looking.locked():
            raise _later(429, f"{_LOOKING} questions wait to be looked at", 1.0)
        name = digest(question)
        if self._crashes.get(name, 0) >= MOST_CRASHES:
            raise HTTPException(500, "a worker process ended, twice, while it looked at this question")
        worker = min((one for one in self.workers if one.ready), key=lambda one: one.job is not None)
        async with self._looking:
            answer = await worker.ask("admit", STEP_SECONDS, question=question)
        if "crash" in answer:
            self._crashes[name] += answer["blame"]
        else:
            self._crashes.pop(name, None)
        if answer.get("refusal"):
            raise InputError.of_json(answer["refusal"])
        if (why := answer.get("crash") or answer.get("error")) is not None:
            # Not 503: a client that tries again may end the next process too.
            raise HTTPException(500, f"{why}, while a worker looked at this question")
        return answer

    async def accept(self, question: Any) -> StoredJob:
        """Queues a question, or returns the job that asked it before. Raises as `look_at` does; HTTPException if it
        would take too long or too much memory, or too much waits already; and OSError if the store takes no more."""
        known = await self.look_at(question)
        before = self.store.jobs.get(known["id"])
        if before is not None and before.state == "finished":
            await self.result(before)  # one that is lost or damaged is measured again
            before = self.store.jobs.get(known["id"])
        if before is None or before.again:
            self._check_affordable(known["about"])
        job = self.store.add(known["id"], question, known["about"])
        self._asked.labels("again" if before is not None else "new").inc()
        return job

    async def result(self, job: StoredJob) -> FlipSensitivity | None:
        """Returns the result of a job that has finished; None if it is lost or damaged, which fails the job."""
        try:
            return await asyncio.to_thread(load_result, self.store.result(job.id))
        except InputError as error:
            if self.store.jobs.get(job.id) is job:  # nobody has forgotten it in the meantime
                self.store.lose(job.id, str(error))
            return None

    def _check_affordable(self, about: dict[str, Any]) -> None:
        """Raises HTTPException, with the estimate and what to do instead."""
        waiting, seconds = self.store.waiting()
        if waiting >= self._queued:
            retry = max(1.0, min(60.0, seconds / max(1, waiting)))
            raise _later(429, f"{waiting} jobs wait, as many as may (--most-queued)", retry)
        limit = ""
        if about["seconds"] > self._seconds:
            limit = f"{self._seconds:.0f} s here (--most-seconds)"
        elif about["bytes"] > self._memory:
            limit = f"{self._memory / 2**30:.1f} GiB here (--most-memory)"
        if limit:
            cost = f"about {about['seconds']:.0f} s and {about['bytes'] / 2**30:.1f} GiB"
            instead = 'fewer flips, as {"kind": "neighbours", "sample": 1000}, or run `jaxsens measure`'
            why = f"{about['flips']} flips take {cost}; at most {limit}: ask for {instead}"
            raise HTTPException(413, why)

    def cancel(self, job: StoredJob) -> None:
        """Cancels a job that waits or runs, at once: a worker then ends its step. Forgets one that has ended."""
        if job.state in ENDED:
            self.store.forget(job.id)
            return
        self._end(job, "cancelled")
        for worker in self.workers:
            if worker.job == job.id:
                worker.send(do="cancel")

    async def watch(self, job: str) -> AsyncIterator[StoredJob]:
        """Yields a job whenever it has changed, until it has ended."""
        while (found := self.store.jobs.get(job)) is not None:
            if found.state in ENDED or self._closing:
                yield found
                return
            news = self._news.setdefault(job, asyncio.Event())
            yield found
            await news.wait()

    # Workers

    async def run(self, worker: WorkerProcess) -> None:
        """Keeps a worker process running: starts another when one ends, or tries again where none can be started.
        Raises InputError if a model cannot be loaded."""
        while not self._closing:
            with suppress(OSError):
                await worker.run(self._heard)
            self._restarts.inc()
            await asyncio.sleep(1.0)  # one that ends at once would otherwise be started again and again

    async def hand_out(self, worker: WorkerProcess) -> None:
        """Gives a worker the jobs that are due, in the order in which they were asked for.

        A job that was cancelled and asked for again waits until the worker that still has it lets it go. Where the
        store takes no more, it tries again until the store does.
        """
        while not self._closing:
            taken = {one.job for one in self.workers if one.job is not None}
            if not worker.ready or (job := self.store.next(taken)) is None:
                self._waked.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._waked.wait(), 1.0)
                continue
            worker.job, seconds = job.id, STEP_SECONDS + 10 * job.about["seconds"]
            self.store.change(job.id, state="running")
            try:
                place = str(self.store.result(job.id))
                answer = await worker.ask("measure", seconds, id=job.id, question=job.question, place=place)
            except InputError:
                answer = {"error": "a link is in the place of its result, and none is followed: remove it"}
            while not self._closing:
                with suppress(OSError):
                    self._note(job.id, answer)
                    break
                await asyncio.sleep(1.0)
            worker.job = None
            self._waked.set()

    def _heard(self, message: dict[str, Any]) -> None:
        """Takes note that a worker is ready, or has done a step."""
        if message["event"] == "ready" and not self._announced:
            self._announced = True
            print("jaxsens: models are loaded", file=sys.stderr, flush=True)
        job = self.store.jobs.get(message.get("id", ""))
        if job is not None and job.state == "running":
            self.store.change(job.id, done=message["done"], total=message["total"])
        self._waked.set()

    def _note(self, name: str, answer: dict[str, Any]) -> None:
        """Notes what became of a job. A job that is no longer running was cancelled, and perhaps asked for again or
        forgotten: nothing is kept of it."""
        job = self.store.jobs.get(name)
        if job is None or job.state != "running":
            self.store.discard(name)
        elif "crash" in answer:
            crashes = job.crashes + answer["blame"]
            if crashes < MOST_CRASHES:
                self.store.change(name, state="queued", crashes=crashes, done=0)
            else:
                why = f"{answer['crash']}, again, while it measured this; forget it (DELETE) to ask again"
                self._end(job, "failed", why, crashes=crashes)
        elif "error" in answer:
            self._end(job, "failed", answer["error"], found={"refusal": answer.get("refusal")})
        else:
            found, flips = answer["found"], answer["found"]["flips"]
            self._end(job, "finished", found=found, done=flips, total=flips)
            self._flips.inc(flips)
            self._answered.observe(max(0.0, time.time() - job.asked))

    async def close(self) -> None:
        """Accepts nothing more, and ends the workers: the next start asks again for what they have not answered."""
        self._closing = True
        for job in [*self._news]:
            self._changed(job)
        await asyncio.gather(*(worker.end() for worker in self.workers))

    def _end(self, job: StoredJob, state: str, message: str = "", **values: Any) -> None:
        self.store.change(job.id, state=state, message=message, **values)
        self._ended.labels(state).inc()

    def _changed(self, job: str) -> None:
        if (news := self._news.pop(job, None)) is not None:
            news.set()
        self._waked.set()
