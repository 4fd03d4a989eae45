"""What is counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


class Metrics:
    """The counts of one service.

    Attributes:
        asked: questions, by whether they were new.
        ended: jobs, by how they ended.
        seconds: from a question to its answer.
        flips: that were measured.
        restarts: of worker processes.
    """

    def __init__(self) -> None:
        self._all = CollectorRegistry()
        self.asked = Counter("jaxsens_questions", "Questions", ("how",), registry=self._all)
        self.ended = Counter("jaxsens_jobs", "Jobs that ended", ("state",), registry=self._all)
        self.seconds = Histogram(
            "jaxsens_answer_seconds", "From question to answer", registry=self._all, buckets=_SECONDS
        )
        self.flips = Counter("jaxsens_flips", "Flips measured", registry=self._all)
        self.restarts = Counter("jaxsens_worker_restarts", "Worker processes that ended", registry=self._all)

    def follow(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Adds a number that is looked up whenever it is asked for."""
        Gauge(f"jaxsens_{name}", about, registry=self._all).set_function(value)

    def text(self) -> bytes:
        """Returns all of it, as Prometheus reads it."""
        return generate_latest(self._all)
