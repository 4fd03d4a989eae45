"""Local search with restarts, in states from which it goes on exactly as if it had not been stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.search.climbing import CLIMBS
from jaxsens.search.meter import BudgetSpent, Found, Meter
from jaxsens.search.problem import Problem
from jaxsens.search.starts import start_of


@dataclass(frozen=True)
class Restart:
    """One start of the search and where it led.

    Attributes:
        start: the word it began with.
        tokens: the word it ended with.
        value: that word's objective.
        measurements: of all flips of a word, that it took.
        steps: how many it went.
        converged: whether no neighbour that the search looks at was better; else it was stopped.
    """

    start: tuple[int, ...]
    tokens: tuple[int, ...]
    value: float
    measurements: int
    steps: int
    converged: bool


@dataclass(frozen=True)
class State:
    """Everything that the rest of a search depends on, between two steps.

    Attributes:
        finished: the restarts that have converged.
        tokens: where the one in progress is; None before its first measurement.
        value: the objective there.
        steps: how many it has gone.
        idle: how many of the last steps did not raise the objective.
        begun: measurements used when it began.
        used: measurements used.
        best: the best word so far.
        history: (used, value) each time that the best became better.
    """

    finished: tuple[Restart, ...] = ()
    tokens: tuple[int, ...] | None = None
    value: float = 0.0
    steps: int = 0
    idle: int = 0
    begun: int = 0
    used: int = 0
    best: Found | None = None
    history: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The state as a JSON object."""
        return {**asdict(self), "best": None if self.best is None else list(self.best)}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> State:
        """The state that `to_json` wrote."""
        best = table["best"]
        parts = {
            "finished": tuple(restart_from_json(one) for one in table["finished"]),
            "tokens": None if table["tokens"] is None else tuple(table["tokens"]),
            "best": None if best is None else Found(best[0], tuple(best[1]), best[2], best[3]),
            "history": tuple((used, value) for used, value in table["history"]),
        }
        return cls(**{**table, **parts})


def restart_from_json(table: Mapping[str, Any]) -> Restart:
    """A restart that was written as a JSON object."""
    return Restart(**{**table, "start": tuple(table["start"]), "tokens": tuple(table["tokens"])})


def climb(
    problem: Problem,
    given: Int[np.ndarray, "given n"],
    starts: int,
    seed: int,
    state: State,
    meter: Meter,
    note: Callable[[State], None],
) -> None:
    """Goes on from a state until all starts have converged or the budget is spent; `meter` keeps what is found.

    Args:
        problem: what is searched.
        given: the first words to start from.
        starts: how many words to start from in all.
        seed: of everything drawn at random: of each step apart, so that a state need hold no generator.
        state: where to begin; `meter` must stand where the state does.
        meter: measures.
        note: called with every state, the first one included.
    """
    step = CLIMBS[problem.objective]
    at = None if state.tokens is None else problem.measure(np.array(state.tokens, np.int32))
    try:
        while len(state.finished) < starts:
            k = len(state.finished)
            note(state)
            if at is None:
                at, idle, steps, begun = meter.measure(start_of(problem, given, seed, k)), 0, 0, state.used
            else:
                steps, begun = state.steps + 1, state.begun
                led = step(meter, at, state.idle, np.random.default_rng([seed, k, steps]))
                if led is None:
                    done = ended(problem, given, seed, replace(state, used=meter.used), converged=True)
                    state = _at_meter(State(finished=(*state.finished, done)), meter)
                    at = None
                    continue
                at, idle = led.at, led.idle
            state = replace(state, value=at.value, steps=steps, idle=idle, begun=begun)
            state = _at_meter(replace(state, tokens=tuple(int(token) for token in at.word)), meter)
        note(state)
    except BudgetSpent:
        return


def ended(
    problem: Problem, given: Int[np.ndarray, "given n"], seed: int, state: State, converged: bool
) -> Restart:
    """The restart in progress of a state, as one that is over."""
    if state.tokens is None:
        raise ValueError("no restart is in progress")
    start = start_of(problem, given, seed, len(state.finished))
    return Restart(
        tuple(int(token) for token in start),
        state.tokens,
        state.value,
        state.used - state.begun,
        state.steps,
        converged,
    )


def _at_meter(state: State, meter: Meter) -> State:
    return replace(state, used=meter.used, best=meter.best, history=tuple(meter.history))
