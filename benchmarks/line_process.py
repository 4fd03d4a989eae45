"""A process of its own that answers every line with one of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxsens.core.base.errors import InputError


class LineProcess:
    """A worker that reads lines and prints a JSON object for each. Use as a context manager."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts the command in a folder, by default in this process's environment."""
        self._folder = folder
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=None if environment is None else dict(environment),
        )

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()  # waits, and closes the pipes

    def ask(self, line: object = "") -> dict[str, Any]:
        """Sends a line and returns the answer.

        Raises:
            InputError: if the process died.
        """
        pipes = self._process.stdin, self._process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise TypeError("the worker has no pipes")
        with suppress(BrokenPipeError):
            print(line, file=pipes[0], flush=True)
        answer = pipes[1].readline()
        if not answer:
            raise InputError(f"benchmark: the measurement in {self._folder} failed; what it said is above")
        return json.loads(answer)
