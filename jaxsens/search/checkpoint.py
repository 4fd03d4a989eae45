"""The checkpoint of a search: one file, rewritten as the search goes on."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxsens.errors import InputError
from jaxsens.sealed import DamagedFile, read_sealed, write_sealed
from jaxsens.search.local_search import State
from jaxsens.search.problem import Problem

KIND = "checkpoint of worst_input"
FORMAT = 1
"""Raised when a search would go on otherwise than it did."""

_EVERY = 1.0
"""Seconds between two writings, at least."""


def identity(problem: Problem, given: Int[np.ndarray, "given n"], seed: int) -> dict[str, Any]:
    """What a search depends on, budget and number of restarts apart: with more of these it goes on.

    A model is known by the kind of its function, its config and the SHA-256 of its parameters. What a function holds
    besides, `Checkpoint.read` finds out from the outputs.
    """
    subject, digest = problem.subject, hashlib.sha256()
    for leaf in jax.tree.leaves(problem.parameters):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    outputs = problem.engine.outputs
    # The config of a jaxsens transformer says where it is read.
    readout = {} if subject.config is not None else {"readout": subject.readout}
    return {
        **readout,
        "format": FORMAT,
        "model": type(subject.apply).__name__ if subject.config is None else repr(subject.config),
        "parameters": digest.hexdigest(),
        "n": problem.n,
        "symbols": problem.alphabet.tolist(),
        "fixed": {str(position): symbol for position, symbol in sorted(problem.fixed.items())},
        "objective": problem.objective,
        "norm": problem.norm,
        "outputs": None if outputs is None else list(outputs),
        "engine": problem.choice.name,
        "seed": seed,
        "start": given.tolist(),
    }


@dataclass
class Checkpoint:
    """A file that holds the latest state of a search.

    Attributes:
        path: the file.
        of: the search's `identity`.
    """

    path: str | os.PathLike[str]
    of: dict[str, Any]
    _latest: State | None = field(default=None, init=False)
    _written: float = field(default=0.0, init=False)

    def read(self, problem: Problem) -> State:
        """The state in the file, or the first state if there is no file.

        Raises:
            InputError: if the file is damaged, or of another search.
        """
        try:
            content = read_sealed(self.path, KIND)
        except FileNotFoundError:
            return State()
        except DamagedFile as error:
            raise InputError(
                f"checkpoint = {str(self.path)!r}: damaged, or no checkpoint of a search ({error}); delete it, or name "
                "another file"
            ) from error
        other = content["of"]
        if differing := sorted(
            name for name in self.of.keys() | other.keys() if self.of.get(name) != other.get(name)
        ):
            raise InputError(
                f"checkpoint = {str(self.path)!r}: of another search, with other {', '.join(differing)}; "
                "delete it, or name another file"
            )
        state = State.from_json(content["state"])
        if state.best is not None:
            value = problem.measure(np.array(state.best.tokens, np.int32)).value
            if abs(value - state.best.value) > 1e3 * problem.slack * state.best.value:
                raise InputError(
                    f"checkpoint = {str(self.path)!r}: of another model: of the best word it says {state.best.value}, "
                    f"but {value} is measured; delete it, or name another file"
                )
        return state

    def note(self, state: State) -> None:
        """Takes a state, and writes it if the last writing is a second ago."""
        self._latest = state
        if time.monotonic() - self._written >= _EVERY:
            self.write()

    def write(self) -> None:
        """Writes the latest state, if there is any that is not written."""
        if self._latest is not None:
            write_sealed(self.path, KIND, {"of": self.of, "state": self._latest.to_json()})
            self._latest, self._written = None, time.monotonic()
