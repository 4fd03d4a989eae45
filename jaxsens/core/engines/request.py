"""What is asked of a measurement, and the one place that decides whether a model and its inputs have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsens.core.base.errors import TOKEN_BYTES, InputError, Problems, Written, check_fits
from jaxsens.core.base.registry import read
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.fields import positions_at
from jaxsens.core.flips.flip_table import Candidates, FlipTable
from jaxsens.core.flips.flips import Flips, Neighbours, Substitute
from jaxsens.core.measures import Measure
from jaxsens.core.models.adapters import Model
from jaxsens.core.models.transformer.layered import LAST_OTHER, row_read


@dataclass(frozen=True, eq=False)
class Selection:
    """The flips that a call asks for.

    Attributes:
        kind: what is flipped.
        tokens: the inputs.
        lists: lists of symbols to insert, `DELETED` for a deletion.
        rows: (batch, n), the number of the list of each place; -1 for a place that is not flipped.
    """

    kind: Flips
    tokens: Int[np.ndarray, "batch n"]
    lists: Sequence[Any]
    rows: Int[np.ndarray, "batch n"]

    @cached_property
    def candidates(self) -> Candidates:
        """The flips before they are listed. An insertion may be of the symbol that stands at its position."""
        return Candidates.of(self.tokens, self.lists, self.rows, self.kind.groups, self.kind.longer > 0)

    def number(self, own: bool = True) -> int:
        """Returns the number of flips; at most that, if those that put back the present symbol count too: not `own`."""
        count = int(self.candidates.counts.sum() + (0 if own else np.sum(self.candidates.own >= 0)))
        return count if self.kind.sample is None else min(count, self.kind.sample)

    def flips(self) -> FlipTable:
        """Returns the flips.

        Raises:
            InputError: if there are none.
        """
        if not self.candidates.counts.any():
            remedy = (
                "nothing to flip. The readout position, and special and unknown symbols, are excluded by default; give "
                f"a longer input, or positions, as in flips=jaxsens.{type(self.kind).__name__}(positions=[0])"
            )
            raise InputError.of("tokens", Written(f"shape {self.tokens.shape}"), remedy)
        return self.candidates.table(self.kind.sample, self.kind.seed)


Valid = tuple[Model, Selection, Measure, AskedEngine]


@dataclass(frozen=True)
class Request:
    """Arguments of `flip_sensitivity` as they are given: objects, or names, tables and shorthands for them."""

    flips: Any = None
    measure: Any = "l2"
    engine: Any = "auto"
    readout: Any = "auto"

    def read(self, problems: Problems) -> Request:
        """Returns the request with objects alone, and None for those that cannot be read. Flips may not be given."""
        flips = None if self.flips is None else read(Flips, self.flips, problems)
        measure, engine = read(Measure, self.measure, problems), read(AskedEngine, self.engine, problems)
        return replace(self, flips=flips, measure=measure, engine=engine)

    def validated(self, model: Model, words: Int[np.ndarray, "batch n"], problems: Problems) -> Valid:
        """Returns model, flips, measure and engine as they are measured, after adding all mistakes.

        The inputs are checked, and (0, 0) if they cannot be used.
        """
        before, objects, selection = len(problems), self.read(problems), None
        flips, measure = default_flips(model) if self.flips is None else objects.flips, objects.measure
        model = model.reading(self.readout, words.shape[1], problems)
        if flips is not None:
            selection = select(flips, model, words, problems)
        if len(problems) == before:
            try:
                measure = measure.resolved(model.output_of)
            except InputError as error:
                problems.include(error.problems)
        valid: Any = model, selection, measure, objects.engine  # None only after a mistake, which is raised
        return valid


SUBSTITUTE, NEIGHBOURS = Substitute(), Neighbours()


def default_flips(model: Model) -> Flips:
    """Returns what is flipped by default: all symbols of the model's alphabet, or the 8 neighbours of each symbol in a
    model that encodes text, whose alphabet has tens of thousands."""
    return SUBSTITUTE if model.token_names is None or model.embeddings is None else NEIGHBOURS


def select(flips: Flips, model: Model, tokens: Int[np.ndarray, "batch n"], problems: Problems) -> Selection:
    """Returns the flips that are asked for; adds the errors, such as symbols that no input of the model may have.

    Args:
        flips: what is flipped.
        model: the model, with its readout.
        tokens: the inputs; (0, n) if they are not known, or (0, 0) if not even their length is.
        problems: collects the errors.
    """
    n, groups, readout = tokens.shape[1], flips.groups or (), model.readout
    last = max((group[-1] for group in groups), default=-1)
    if n and last >= n:
        problems.add(("flips", "groups", "position"), last, f"positions from 0 to {n - 1}")
    read, behind = model.position_read(n), None
    if tokens.size and isinstance(readout, str) and readout.startswith(LAST_OTHER):  # which symbols decide
        rows = np.asarray(row_read(readout, tokens))
        read = int(rows[0]) if len({*rows.tolist()}) == 1 else None
        behind = np.arange(n) >= rows[:, None] + (flips.longer > 0)  # an insertion goes before a position
    where = _places(flips, model, n, read, problems)
    if flips.longer:
        _check_length(flips, model, tokens, where, problems)
    lists, rows = flips.insertable(model, tokens, problems)
    model.check_readable("flips.symbols", np.concatenate([np.zeros(0, int), *lists]), problems)
    flippable = np.zeros(tokens.shape, bool)
    if problems or not tokens.size:
        return Selection(flips, tokens, lists, np.where(flippable, 0, -1))
    if groups:
        flippable[:, [position for group in groups for position in group]] = True
    elif flips.by_position is not None:
        flippable[:] = True
    else:
        flippable[:, where] = True
        flippable &= ~flips.excluded(model, tokens)
        if behind is not None and flips.positions is None:  # padding
            flippable &= ~behind
    return Selection(flips, tokens, lists, np.where(flippable, rows, -1))


def _places(
    flips: Flips, model: Model, n: int, read: int | None, problems: Problems
) -> Int[np.ndarray, " places"]:
    """Returns the positions that may be flipped, sorted: those given, or all except the one that is read, if any.

    Insertions before the last position leave the symbol that is read in its place.
    """
    if flips.positions is None:
        everywhere = np.arange(n)
        excluded = (0 if model.readout == 0 else None) if flips.longer > 0 else read
        return everywhere if excluded is None else everywhere[everywhere != excluded]
    if not n:
        return np.array([one for one in flips.positions if isinstance(one, int)], int)
    try:
        return np.array(positions_at(flips.positions, n, read), int)
    except InputError as error:
        problems.include(error.problems, "flips")
        return np.zeros(0, int)


def _check_length(
    flips: Flips,
    model: Model,
    tokens: Int[np.ndarray, "batch n"],
    where: Int[np.ndarray, " places"],
    problems: Problems,
) -> None:
    """Adds the errors of an input that is too short or too long for flips that change its length, and of a readout that
    the edited word does not have."""
    n = tokens.shape[1]
    if n and n + flips.longer < 1:
        problems.add("tokens", f"shape {tokens.shape}", "at least two symbols, of which one may be deleted")
    if flips.longer > 0 and n and not problems:  # among which may be that the input itself is too long
        own, m = Problems(), n + flips.longer
        remedy = "repeat it fewer times, or give a shorter input"
        if check_fits("n", m, m * TOKEN_BYTES, "a word of this length", remedy, own):
            model.check_length(m, own)
        for one in own:
            problems.add("flips", flips, f"it makes an input of length {n} longer: {one}")
    readout, other = model.readout, "shorter" if flips.longer < 0 else "longer"
    if isinstance(readout, int) and readout != 0:
        remedy = f'a {other} word has another symbol there: with {flips!r}, give "last", "mean" or 0'
        problems.add("readout", readout, remedy)
    if readout == 0 and flips.positions is not None and 0 in where:
        remedy = "it is read, and the edited word has another symbol there; leave it out"
        if flips.longer < 0:
            remedy = "it is read, and a word without it has nothing to compare; leave it out"
        problems.add(("flips", "positions"), 0, remedy)
