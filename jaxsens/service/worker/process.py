"""A worker process: holds models on one device, and does what the server sends, one thing after another.

It reads lines of JSON from standard input and writes lines of JSON to standard output. `admit` is answered at once, in
a thread of its own; `measure` and `sweep` wait for the one before. When standard input ends, so does the worker.

    python -m jaxsens.service.worker.process FILE EVENTS

reads its lines from a file instead and adds what it says to another: as a job of a cluster's scheduler.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from jaxsens.base.errors import EngineRefusal, InputError
from jaxsens.base.files import remedy, takes_no_more

COMMAND = (sys.executable, "-m", "jaxsens.service.worker.process")

_GRACE_SECONDS = 4.0
"""How long the step that runs may take once a worker is told to end. Then it is given up, with its measurement.
Before the server kills the worker (`pool.END_SECONDS`)."""


def main() -> None:
    """Runs a worker. The first line says which models it serves."""
    if files := sys.argv[1:]:
        lines, out = open(files[0], "rb"), open(files[1], "ab")  # noqa: SIM115 - as long as the process
    else:
        lines, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what libraries print is no answer
    worker = _Worker(json.loads(lines.readline()), out)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if files:
        signal.signal(signal.SIGTERM, lambda number, frame: worker.end())  # the scheduler's way to stop it
        for line in lines:
            worker.hear(json.loads(line))
        worker.hear({"do": "nothing more"})
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server says when to end
        threading.Thread(target=worker.listen, args=(lines,), daemon=True).start()
    worker.run()
    worker.say_all()
    os._exit(0)  # without the interpreter's teardown, which does not wait for computations


class _Worker:
    """The state of a worker process."""

    def __init__(self, settings: dict[str, Any], out: BinaryIO) -> None:
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._saying = threading.Thread(target=self._write, args=(out,), daemon=True)
        self._saying.start()
        self._todo: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._doing: str | None = None
        self._turning = threading.RLock()  # a signal's handler may run within it
        self._cancelled: set[str] = set()
        self._ending = False
        self._admitting = ThreadPoolExecutor(1)
        self._settings = settings

    def run(self) -> None:
        """Loads the models and does what comes, until there is nothing more to come."""
        import jax
        import jax.monitoring

        from jaxsens.base.kept_programs import kept_in
        from jaxsens.service.worker.measuring import Desk
        from jaxsens.service.worker.models import ServedModels
        from jaxsens.service.worker.sweeping import Sweeps

        given = self._settings
        if given["cache"] != "off":
            kept_in(given["cache"], "serve", "--compilation-cache", "another folder, or off")
        models = self._models = ServedModels(given["models"], given["dtype"], given["memory"])
        self._desk, self._sweeps = Desk(models, given["most_tokens"]), Sweeps(Path(given["links"]))
        try:
            for name in given["models"]:
                models.get(name, "hidden")
        except InputError as error:
            self._say(event="refused", message=str(error))
            return
        jax.monitoring.register_scalar_listener(self._compiling)
        self._say(event="ready", models=models.told())
        while self._work():
            pass

    def _work(self) -> bool:
        """Does the next thing; returns whether there may be more."""
        todo = self._todo.get()
        if todo is None:
            return False
        try:
            while self._do(todo):
                pass
        except KeyboardInterrupt:
            pass
        self._let_go()
        self._say(event="idle", models=self._models.told())
        return not self._ending

    def _let_go(self) -> None:
        """Ends the time in which a job may be interrupted. An interrupt that is on its way arrives here."""
        try:
            with self._turning:
                self._doing = None
            time.sleep(0.001)
        except KeyboardInterrupt:
            self._doing = None

    def _interrupt(self, job: str | None) -> None:
        """Interrupts what is being done, if it is this."""
        with self._turning:
            if job is not None and self._doing == job:
                os.kill(os.getpid(), signal.SIGINT)

    def listen(self, lines: BinaryIO) -> None:
        """Hears what the server sends."""
        for line in lines:
            self.hear(json.loads(line))
        self.end()

    def hear(self, message: dict[str, Any]) -> None:
        """Takes note of what is to be done."""
        match message["do"]:
            case "admit":
                self._admitting.submit(self._admit, message)
            case "cancel":
                self._cancelled.add(message["id"])
                self._interrupt(message["id"])
            case "measure" | "sweep":
                self._cancelled.discard(message["job"]["id"])  # asked for again
                self._todo.put(message)
            case "nothing more":
                self._todo.put(None)
            case "end":
                self.end()
            case unknown:
                self._say(event="refused", message=f"worker: no such thing to do: {unknown}")

    def end(self) -> None:
        """Lets the measurement that runs save what it has, and ends the process."""
        self._ending = True
        timer = threading.Timer(_GRACE_SECONDS, self._give_up)
        timer.daemon = True
        timer.start()
        self._todo.put(None)
        self._interrupt(self._doing)

    def _give_up(self) -> None:
        """Ends the process in the middle of a step; what the measurement has finished is lost."""
        os._exit(1)

    def say_all(self) -> None:
        """Waits until all is said."""
        self._said.put(None)
        self._saying.join(_GRACE_SECONDS)

    def _admit(self, message: dict[str, Any]) -> None:
        from jaxsens.service.worker.question import read_question

        def admitted() -> dict[str, Any]:
            if message["kind"] == "sweep":
                return self._sweeps.admit(message["question"])
            return self._desk.admit(read_question(message["question"], self._settings["models"]))

        self._say(of=message["of"], **_answered(admitted))

    def _do(self, message: dict[str, Any]) -> bool:
        """Does a thing; returns whether it is to be done again, as the turns of a sweep are without a server."""
        job = message["job"]
        self._doing, place = job["id"], Path(job["place"])
        if job["id"] in self._cancelled or self._ending:  # looked at last: an interrupt finds it from now on
            return False
        self._say(event="running", id=job["id"])
        if message["do"] == "measure":
            self._say(event="measured", id=job["id"], **_answered(lambda: self._measured(job, place)))
            return False
        answer = _answered(lambda: self._sweeps.turn(job["question"], place, self._tell))
        self._say(event="turned", id=job["id"], **answer)
        return message["whole"] and not (answer.keys() & {"error", "stopped"} or answer["ended"])

    def _measured(self, job: dict[str, Any], place: Path) -> dict[str, Any]:
        from jaxsens.sensitivity.results.resuming import MeasurementInterrupted
        from jaxsens.service.worker.measuring import statistics
        from jaxsens.service.worker.question import read_question

        asked = read_question(job["question"], self._settings["models"])
        try:
            return {"found": self._desk.measure(asked, job["id"], place, self._tell)}
        except MeasurementInterrupted as stop:
            return {"stopped": True, "found": statistics(stop.partial)}

    def _tell(self, done: int, total: int) -> None:
        self._say(event="running", id=self._doing, done=done, total=total)

    def _compiling(self, event: str, value: float, **more: Any) -> None:
        from jaxsens.sensitivity.placement.progress import COMPILATION

        if event == COMPILATION and self._doing and threading.current_thread() is threading.main_thread():
            self._say(event="compiling", id=self._doing)

    def _say(self, **message: Any) -> None:
        self._said.put(message)

    def _write(self, out: BinaryIO) -> None:
        """Writes what is said, in a thread of its own, where no signal interrupts a line."""
        while (message := self._said.get()) is not None:
            with suppress(OSError):  # the server may be gone
                out.write(json.dumps(message).encode() + b"\n")
                out.flush()


def _answered(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what `act` returns; or why it failed, and whether that is the question's fault.

    Whatever a model raises fails its question alone, a library's panic too, which is no `Exception`.
    """
    try:
        return act()
    except KeyboardInterrupt:
        return {"stopped": True}
    except InputError as error:
        return {
            "error": str(error),
            "refusal": "EngineRefusal" if isinstance(error, EngineRefusal) else "InputError",
        }
    except OSError as error:
        return {"error": f"{error}; {remedy(error)}" if takes_no_more(error) else str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever a model raises
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
