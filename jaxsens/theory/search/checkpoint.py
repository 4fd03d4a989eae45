"""The checkpoint of a search: one file, which is rewritten as the search goes on."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.sealed import DamagedFile, read_sealed, write_sealed
from jaxsens.core.results.request import weights_of
from jaxsens.theory.search.local_search import SearchState
from jaxsens.theory.search.problem import SearchTask

KIND = "checkpoint of worst_input"
FORMAT = 3
"""Increased when a search would go on in another way than before."""

_REMEDY = "delete it, or name another file"

_EVERY = 1.0
"""Least seconds between two writes."""


def identity(problem: SearchTask) -> dict[str, Any]:
    """What a search depends on, except the budget and the number of restarts: with more of these it goes on.

    A model is identified by the type of its function, its config and the SHA-256 of its parameters. `Checkpoint`
    notices from the outputs if a function holds other numbers.
    """
    model, space, outputs = problem.model, problem.space, problem.engine.outputs
    # The config of a jaxsens transformer says where it is read.
    readout = {} if model.config is not None else {"readout": model.readout}
    return {
        **readout,
        "format": FORMAT,
        "model": type(model.apply).__name__ if model.config is None else repr(model.config),
        "parameters": weights_of(model),
        "n": space.n,
        "flips": space.alphabet.tolist(),
        "fixed": {str(position): symbol for position, symbol in sorted(space.fixed.items())},
        "objective": problem.search.objective,
        "measure": problem.norm.table(),
        "outputs": None if outputs is None else list(outputs),
        "engine": problem.choice.name,
        "seed": problem.search.seed,
        "start": space.start_words.tolist(),
    }


@dataclass
class Checkpoint:
    """The latest state of a search, and the file that holds it.

    Where processes share the search, the first one reads and writes the file, and the others receive the state.

    Attributes:
        problem: What is searched.
        latest: The latest state; at first that in the file, if there is one.

    Raises:
        InputError: If the file is damaged, or belongs to another search.
    """

    problem: SearchTask
    latest: SearchState = field(default=SearchState(), init=False)
    _written: float = field(default=0.0, init=False)
    _unsaved: bool = field(default=False, init=False)
    _keeps: bool = field(default=True, init=False)

    @property
    def path(self) -> str | os.PathLike[str] | None:
        """The file; None for none."""
        return self.problem.search.checkpoint

    def __post_init__(self) -> None:
        if self.path is None:
            return
        self._of = identity(self.problem)
        group = self.problem.devices.group
        if group is None:
            self.latest = self._read(self.path)
        else:
            self._keeps = group.rank == 0
            with group.together(b"checkpoint"):
                state = self._read(self.path) if self._keeps else SearchState()
                known = TypeAdapter(SearchState)
                self.latest = known.validate_json(group.from_first(known.dump_json(state)))
        self._check_model(self.path)

    def _read(self, path: str | os.PathLike[str]) -> SearchState:
        try:
            content = read_sealed(path, KIND)
            state = TypeAdapter(SearchState).validate_python(content["state"])
        except FileNotFoundError:
            return SearchState()
        except (DamagedFile, ValidationError, KeyError) as error:
            why = f"damaged, or not a checkpoint of a search ({error}); {_REMEDY}"
            raise InputError.of("checkpoint", str(path), why) from error
        own, other = self._of, content["of"]
        if differing := sorted(name for name in own | other if own.get(name) != other.get(name)):
            why = f"of another search, with other {', '.join(differing)}; {_REMEDY}"
            raise InputError.of("checkpoint", str(path), why)
        return state

    def _check_model(self, path: str | os.PathLike[str]) -> None:
        best = self.latest.best
        if best is None:
            return
        value = self.problem.measure(np.array(best.tokens, np.int32)).value
        if abs(value - best.value) > 1e3 * self.problem.slack * best.value:
            raise InputError.of(
                "checkpoint",
                str(path),
                f"of another model: it gives the best word the value {best.value}, but "
                f"{value} is measured; {_REMEDY}",
            )

    def note(self, state: SearchState) -> None:
        """Takes a state, and writes it if the last write is at least a second ago."""
        self.latest, self._unsaved = state, True
        if time.monotonic() - self._written >= _EVERY:
            self.write()

    def write(self) -> None:
        """Writes the latest state, if one was noted since the last write."""
        if self.path is not None and self._keeps and self._unsaved:
            write_sealed(self.path, KIND, {"of": self._of, "state": asdict(self.latest)})
            self._written, self._unsaved = time.monotonic(), False
