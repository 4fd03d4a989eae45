"""`jaxsens.service.Client`: asks a service as one calls `flip_sensitivity`."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import numpy as np

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.strict import naming_arguments, typed_arguments
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.engines.request import Request
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.core.placement.placement import Placement
from jaxsens.core.placement.run import PROGRESS, progress_of
from jaxsens.core.results.result import FlipSensitivity, load_result
from jaxsens.core.sweeps.inputs import PlacementTable
from jaxsens.service.question import Question

if TYPE_CHECKING:
    import httpx

_MEASUREMENTS = "/v1/measurements"
# Arrays and numbers of NumPy are lists and numbers; half a character cannot be sent.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=lambda one: np.asarray(one).tolist())
_WAIT_SECONDS, _TOLD_SECONDS, _PATIENCE_SECONDS = 20.0, 0.5, 600.0


class ServiceError(RuntimeError):
    """Raised for an answer of the service that is no result, and for none: `status` is HTTP's, 0 for a failed job.

    >>> ServiceError(429, "the queue is full").status
    429
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Client(AbstractContextManager["Client"]):
    """A service that `jaxsens serve` started.

    >>> client = jaxsens.service.Client("http://127.0.0.1:8321", token="...")  # doctest: +SKIP
    >>> client.flip_sensitivity("minilm", "The cat sat.", "neighbours").max  # doctest: +SKIP
    0.61

    Args:
        address: of the service. It is called without the proxies of the environment, which would see the token.
        token: that it printed at its start, or was given; by default JAXSENS_TOKEN.
        timeout: seconds that a measurement may take; None to wait until it has ended.

    Raises:
        InputError: if httpx, of the extra `service`, is not installed; for an address or a token that cannot be used.
    """

    @typed_arguments
    def __init__(self, address: str, token: str | None = None, timeout: float | None = None) -> None:
        token = os.environ.get("JAXSENS_TOKEN") if token is None else token
        with collecting("Client") as problems:
            if not token:
                problems.note("token", "give the token of the service, or set JAXSENS_TOKEN")
            if timeout is not None and not timeout > 0:
                problems.add("timeout", timeout, "seconds, more than 0, or None")
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise InputError('Client: it needs httpx: pip install "jaxsens[service]"') from error
        headers = {"Authorization": f"Bearer {token}"}
        self._failures, self._token, self._timeout = httpx.TransportError, token, timeout or math.inf
        try:
            self._http = httpx.Client(base_url=address, headers=headers, timeout=60.0, trust_env=False)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise InputError(
                f"Client: address = {address!r}, or the token: no HTTP has it: {error}"
            ) from error

    @property
    def page(self) -> str:
        """The address to open in a browser. It has the token."""
        return f"{self._http.base_url.join('/')}?token={self._token}"

    @naming_arguments
    @typed_arguments
    def flip_sensitivity(
        self,
        model: str,
        tokens: Any,
        flips: Flips | Any = None,
        measure: Measure | Any = "l2",
        *,
        readout: int | Literal["auto", "last", "mean"] | None = "auto",
        engine: AskedEngine | Any = "auto",
        placement: Placement | None = None,
        progress: Callable[[int, int], object] | bool | Any = None,
        output: Literal["hidden", "logits", "labels"] | None = None,
    ) -> FlipSensitivity:
        """Returns what `jaxsens.flip_sensitivity` returns for the served model, bit for bit on the same machine.

        A question that was asked before is answered at once. Where too much waits, it tries again for ten minutes.

        Args:
            model: its name.
            tokens, flips, measure, readout, engine: as for `jaxsens.flip_sensitivity`. `Function` and `Comparison`
                cannot be sent, nor a list of texts: ask of each.
            placement: its `batch_size` and `memory_budget`; devices are the service's.
            progress: a function called with (flips done, flips in all) whenever the service tells; True for a bar on
                standard error, False for nothing. By default, a bar on a terminal if it takes long.
            output: of a published model what is read; by default hidden states, or the logits of a log-probability.

        Raises:
            InputError: for unusable arguments, in the words of `flip_sensitivity`.
            ServiceError: if the service refuses the question, fails at it, or has not measured it within the
                client's `timeout`: it then measures on, and answers when it is asked again.
        """
        until = time.monotonic() + self._timeout
        with collecting("flip_sensitivity") as problems:
            request = Request(flips, measure, engine, readout).read(problems)
            if request.measure is not None and not request.measure.portable:
                problems.add("measure", request.measure, "a Python function cannot be sent to a service")
            if placement is not None and placement.mesh is not None:
                problems.add("placement", placement, "devices are the service's: leave the mesh out")
            inputs.progress(progress, 2, PROGRESS, problems)
        given = placement or Placement()
        place = PlacementTable(given.batch_size, given.memory_budget)
        question = Question(model, tokens, **vars(request), placement=place, output=output).table()
        with collecting("flip_sensitivity") as problems:
            for name, value in question.items():
                try:
                    question[name] = json.loads(_ENCODER.encode(value).encode())
                except (TypeError, ValueError):
                    problems.add(name, value, "texts, finite numbers, or lists of them, which JSON can hold")
        job = self._post(question, until)
        with progress_of(progress) as told:
            while job["state"] not in ("finished", "failed", "cancelled"):
                wait = min(_WAIT_SECONDS if told is None else _TOLD_SECONDS, until - time.monotonic())
                if wait <= 0:
                    late = f"{job['state']} after timeout = {self._timeout} s: ask again for its result"
                    raise ServiceError(0, late)
                job = self._answer("GET", _place(job["id"]), params={"wait": wait}).json()
                if told is not None and job["total"]:
                    told(job["done"], job["total"])
        if job["state"] == "failed" and job["found"].get("refusal"):
            raise InputError.of_json(job["found"]["refusal"])
        if job["state"] != "finished":
            raise ServiceError(0, f"{job['state']}: {job['message']}")
        return self.result(job["id"])

    @typed_arguments
    def result(self, job: str) -> FlipSensitivity:
        """Returns the result of a measurement.

        Raises:
            ServiceError: if there is none.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.parquet"
            path.write_bytes(self._answer("GET", f"{_place(job)}/result.parquet").content)
            return load_result(path)

    def models(self) -> list[dict[str, Any]]:
        """Returns what is served, and whether it is loaded."""
        return self._answer("GET", "/v1/models").json()

    def measurements(self) -> list[dict[str, Any]]:
        """Returns the measurements asked for last, the last first."""
        return self._answer("GET", _MEASUREMENTS).json()

    @typed_arguments
    def cancel(self, job: str) -> dict[str, Any]:
        """Cancels a measurement, or forgets one that has ended."""
        return self._answer("DELETE", _place(job)).json()

    def close(self) -> None:
        """Closes the connection; a `with` block does."""
        self._http.close()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _post(self, question: Mapping[str, Any], until: float) -> dict[str, Any]:
        until = min(until, time.monotonic() + _PATIENCE_SECONDS)
        while True:
            left = max(0.01, until - time.monotonic())
            try:
                # A model that no question has named yet is loaded first.
                return self._answer("POST", _MEASUREMENTS, json=question, timeout=left).json()
            except ServiceError as error:
                if error.status not in (429, 503) or time.monotonic() > until:
                    raise
                time.sleep(1.0)

    def _answer(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **more)
        except self._failures as error:
            raise ServiceError(0, f"{self._http.base_url}: {type(error).__name__}: {error}") from error
        if answer.is_success:
            return answer
        told = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else {}
        if answer.status_code == 400:
            raise InputError.of_json(told)
        raise ServiceError(answer.status_code, told.get("error", answer.text[:200]))


def _place(job: str) -> str:
    return f"{_MEASUREMENTS}/{quote(job, '', errors='replace')}"
