"""The queue: accepts questions that can be afforded, hands them to workers, and follows what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from jaxsens.base.errors import InputError
from jaxsens.service.metrics import Metrics
from jaxsens.service.pool import WorkerProcess
from jaxsens.service.store import ENDED, Store, StoredJob

_MOST_ATTEMPTS = 3
"""The worker processes that may end during a job before it has failed."""

_ADMITTING = 32
"""The questions that may wait to be looked at."""


class Refused(Exception):
    """A question that is not accepted now.

    Attributes:
        status: of HTTP.
        retry: seconds after which to try again, or None.
    """

    def __init__(self, status: int, why: str, retry: float | None = None) -> None:
        super().__init__(why)
        self.status, self.retry = status, retry


@dataclass(frozen=True)
class Limits:
    """What is accepted.

    Attributes:
        queued: how many jobs may wait or run.
        seconds: that a measurement may take, by its estimate.
        memory: bytes that it may take; None for no limit.
    """

    queued: int = 1000
    seconds: float = 3600.0
    memory: int | None = None


class Jobs:
    """The jobs of a store, and the workers that do them. All in the event loop's thread."""

    def __init__(
        self, store: Store, workers: Sequence[WorkerProcess], limits: Limits, metrics: Metrics
    ) -> None:
        self.store, self.workers, self._limits, self.metrics = store, workers, limits, metrics
        self._admitting, self._closing = 0, False
        self._waked, self._watching = asyncio.Event(), dict[str, set[asyncio.Event]]()
        self._doing: dict[WorkerProcess, dict[str, StoredJob]] = {worker: {} for worker in workers}
        self._free: dict[WorkerProcess, bool] = dict.fromkeys(workers, False)
        self.fault: BaseException | None = None

    @property
    def ready(self) -> bool:
        """Whether a worker has its models loaded, and jobs are accepted."""
        return not self._closing and any(worker.ready for worker in self.workers)

    async def look_at(self, kind: str, question: Any) -> dict[str, Any]:
        """Returns what a worker knows of a question without measuring.

        Raises:
            InputError: for what cannot be measured.
            Refused: if no worker is ready, too many questions wait, or the worker's process ends.
        """
        workers = [worker for worker in self.workers if worker.ready]
        if self._closing or not workers:
            raise Refused(503, "no worker is ready: models are being loaded, or the service ends", 2.0)
        if self._admitting >= _ADMITTING:
            raise Refused(429, f"{self._admitting} questions wait to be looked at", 1.0)
        self._admitting += 1
        try:
            return await min(workers, key=lambda one: len(self._doing[one])).ask(kind, question)
        except RuntimeError as error:  # the process ended, or the model raised
            # Not 503: a client that tries again may end the next process too.
            raise Refused(500, f"{error}, while a worker looked at this question") from error
        finally:
            self._admitting -= 1

    async def accept(self, kind: str, question: Any) -> StoredJob:
        """Queues a question, or returns the job that asked it before.

        Raises:
            InputError: for what cannot be measured.
            Refused: if it would take too long or too much memory, or too much waits already.
            OSError: if the store takes no more.
        """
        known = await self.look_at(kind, question)
        before = self.store.get(known["id"])
        if before is None or before.state in ("failed", "cancelled"):
            self._check_affordable(known["about"])
        job = self.store.add(known["id"], kind, question, known["about"])
        self.metrics.asked.labels(kind, "again" if before is not None else "new").inc()
        self._changed(job.id)
        self._waked.set()
        return job

    def _check_affordable(self, about: dict[str, Any]) -> None:
        """Raises Refused, with the estimate and what to do instead."""
        waiting, seconds = self.store.waiting()
        if waiting >= self._limits.queued:
            retry = max(1.0, min(60.0, seconds / max(1, waiting)))
            raise Refused(429, f"{waiting} jobs wait, as many as may (--most-queued)", retry)
        told = (
            f"{about['flips']} flips take about {about['seconds']:.0f} s and {about['bytes'] / 2**30:.1f} GiB"
        )
        instead = 'ask for fewer flips, as {"kind": "neighbours", "sample": 1000}, or run `jaxsens measure`'
        if about["seconds"] > self._limits.seconds:
            raise Refused(
                413, f"{told}; at most {self._limits.seconds:.0f} s here (--most-seconds): {instead}"
            )
        if self._limits.memory is not None and about["bytes"] > self._limits.memory:
            limit = f"{self._limits.memory / 2**30:.1f} GiB"
            raise Refused(413, f"{told}; at most {limit} here (--most-memory): {instead}")

    def cancel(self, job: StoredJob) -> None:
        """Cancels a job that waits or runs, at once; a worker saves what it has measured. Forgets a measurement that
        has ended."""
        if job.state in ENDED:
            if job.kind == "measurement":
                self.store.forget(job.id)
            return
        self._end(job, "cancelled")
        for worker, doing in self._doing.items():
            if job.id in doing:
                worker.send(do="cancel", id=job.id)

    async def watch(self, job: str) -> AsyncIterator[StoredJob]:
        """Yields a job whenever it has changed, until it has ended."""
        changed = asyncio.Event()
        self._watching.setdefault(job, set()).add(changed)
        try:
            while (found := self.store.get(job)) is not None:
                yield found
                if found.state in ENDED or self._closing:
                    return
                await changed.wait()
                changed.clear()
        finally:
            self._watching[job].discard(changed)
            if not self._watching[job]:
                del self._watching[job]

    async def ended(self, job: str, seconds: float) -> StoredJob | None:
        """Returns a job when it has ended, or after so many seconds."""
        found = self.store.get(job)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(self.watch(job)) as watched:  # pyright: ignore[reportArgumentType]
                async for now in watched:
                    found = now
        return found

    # Workers

    async def run(self, worker: WorkerProcess) -> None:
        """Keeps a worker process running, and starts another when one ends.

        Where the store takes no more, or no process can be started, it tries again until that has passed.
        """
        while not self._closing:
            began, counted = time.monotonic(), True
            try:
                why = await worker.run(lambda message: self._heard(worker, message))
                counted = not worker.admitting  # else the question it looked at may have ended it
            except InputError as error:
                self.fault = error
                self._waked.set()
                return
            except OSError as error:
                why, counted = str(error), False
            self._free[worker] = False
            self.metrics.restarts.inc()
            while not self._closing:
                with suppress(OSError):
                    self._lost(worker, why, counted)
                    break
                await asyncio.sleep(1.0)
            # One that ends at once would otherwise be started again and again.
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    async def hand_out(self) -> None:
        """Gives each worker what is due, as soon as it is free."""
        while not self._closing and self.fault is None:
            with suppress(OSError):  # the store takes no more: once it does
                for worker, free in self._free.items():
                    taken = {job for doing in self._doing.values() for job in doing}
                    if free and worker.ready and (job := self.store.next(taken)) is not None:
                        self._begin(worker, job)
            self._waked.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._waked.wait(), 1.0)

    async def close(self) -> None:
        """Accepts nothing more; workers save what they have measured, for a few seconds."""
        self._closing = True
        for job in self._watching:
            self._changed(job)
        await asyncio.gather(*(worker.end() for worker in self.workers))
        for doing in self._doing.values():
            for job in doing:
                if (found := self.store.get(job)) is not None and found.state not in ENDED:
                    with suppress(OSError):  # the next start queues it too
                        self.store.change(job, state="queued")

    def _begin(self, worker: WorkerProcess, job: StoredJob) -> None:
        sweep = job.kind == "sweep"
        try:
            place = self.store.directory(job.id) if sweep else self.store.result(job.id)
        except InputError as error:
            self.store.change(job.id, state="failed", message=str(error), ended=time.time())
            self._changed(job.id)
            return
        self.store.change(job.id, state="running", began=time.time())
        self._free[worker] = False
        self._doing[worker][job.id] = job
        self._changed(job.id)
        told = {"id": job.id, "question": job.question, "place": str(place)}
        worker.send(do="sweep" if sweep else "measure", job=told, whole=not worker.in_turns)

    def _heard(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        """Takes note of what a worker says."""
        match message["event"]:
            case "idle":
                for job in [*self._doing[worker]]:  # what it said nothing more of
                    self._again(worker, job)
                self._free[worker] = True
                self._waked.set()
            case "ready" | "submitted":
                self._free[worker] = True
                self._waked.set()
            case "compiling" | "running":
                self._progress(message)
            case "measured":
                self._measured(worker, message)
            case "turned":
                self._turned(worker, message)
            case "refused":
                pass  # the process ends, and says why
            case unknown:
                raise RuntimeError(f"a worker said {unknown!r}, for which the server has no rule")

    def _progress(self, message: dict[str, Any]) -> None:
        found = self.store.get(message["id"])
        if found is not None and found.state not in ENDED:
            counts = {name: message[name] for name in ("done", "total") if name in message}
            with suppress(OSError):  # where the store takes no more, the next count may do
                self.store.change(found.id, state=message["event"], **counts)
            self._changed(found.id)

    def _again(self, worker: WorkerProcess, job: str) -> None:
        """Lets go of a job; queues it if it has not ended, for it was stopped."""
        found = self.store.get(job)
        if found is not None and found.state not in ENDED:
            self.store.change(job, state="queued")
            self._changed(job)
        self._doing[worker].pop(job, None)

    def _measured(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        job, found = self.store.get(message["id"]), message.get("found")
        if job is None:  # it was forgotten while it ran
            self.store.discard(message["id"])
            self._doing[worker].pop(message["id"], None)
            return
        if found is not None:
            self.store.change(job.id, found=found, done=found["flips"])
        if message.get("stopped"):
            if job.state not in ENDED:  # the service ends: it goes on after the next start
                self.store.change(job.id, state="queued")
        elif found is not None and job.state not in ENDED:
            self.store.change(job.id, total=found["flips"])
            self.metrics.flips.inc(found["flips"])
            self._end(job, "finished")
        elif job.state not in ENDED:
            self.store.change(job.id, found={"refusal": message.get("refusal")})
            self._end(job, "failed", message["error"])
        self._doing[worker].pop(job.id, None)

    def _turned(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        job = self.store.get(message["id"])
        if job is not None and job.state not in ENDED:
            if "error" in message:
                self._end(job, "failed", message["error"])
            elif not message.get("stopped"):
                self.store.change(job.id, done=message["done"], total=message["total"])
                if message["ended"]:
                    self._end(job, "failed" if message["failed"] else "finished", message["failed"])
                elif worker.in_turns:  # behind what was asked in the meantime and takes less than a turn
                    self.store.change(job.id, state="queued", due=time.time() + message["seconds"])
                    self._changed(job.id)
        if message.get("stopped") or "error" in message or message["ended"]:
            self._again(worker, message["id"])

    def _lost(self, worker: WorkerProcess, why: str, counted: bool) -> None:
        """Queues what a worker was doing when its process ended, or lets it fail after some `counted` attempts."""
        if not worker.in_turns:  # a scheduler has them
            return
        for job in [*self._doing[worker].values()]:
            found = self.store.get(job.id)
            if found is not None and found.state not in ENDED:
                attempts = found.attempts + counted
                if attempts < _MOST_ATTEMPTS:
                    self.store.change(job.id, state="queued", attempts=attempts)
                else:
                    self._end(found, "failed", f"{why}, {attempts} times while it did this")
                self._changed(job.id)
            del self._doing[worker][job.id]

    def _end(self, job: StoredJob, state: str, message: str = "") -> None:
        now = time.time()
        self.store.change(job.id, state=state, message=message, ended=now)
        self.metrics.ended.labels(job.kind, state).inc()
        if state == "finished":
            self.metrics.seconds.labels(job.kind).observe(now - job.asked)
        self._changed(job.id)

    def _changed(self, job: str) -> None:
        for event in self._watching.get(job, ()):
            event.set()
