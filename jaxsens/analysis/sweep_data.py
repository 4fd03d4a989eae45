"""What a report is made from: the points of a sweep, how each was measured, and what had been planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxsens.analysis.profiles import Profile
from jaxsens.experiments.bounds import BoundRecord

if TYPE_CHECKING:
    import pandas

PointKey = tuple[str, int, int]
"""Variant, input length and seed: which point of a sweep."""


@dataclass(frozen=True)
class PointRun:
    """How one point was measured.

    flips, population: how many flips were measured, of how many there are; fewer for a random sample.
    seconds: wall time. versions: of Python and the packages that matter, by name.
    """

    key: PointKey
    flips: int
    population: int
    engine: str
    engine_reason: str
    device: str
    dtype: str
    precision: str
    seconds: float
    versions: Mapping[str, str]


@dataclass(frozen=True)
class SweepData:
    """Everything a report shows of one sweep.

    title, claim: of the sweep, as its config gives them; may be empty.
    points: the columns of points.csv. runs: one a point. profiles: sensitivity by position.
    planned: every point the config asks for; those without a row in `points` are missing.
    descriptions: by variant, one line that says what it is; absent if not known.
    bounded: by variant, whether its position embeddings stay bounded as n grows; absent if not known.
    norm: of the change of the output, "l1", "l2" or "linf".
    outputs: by variant, in words, which coordinates of its output enter the norm; absent if not known.
    constructed: the variants whose weights are given by a construction, not drawn by the seed.
    trained: the variants whose weights are those of a checkpoint.
    exact_lengths: by variant, the longest input that a construction is exact for; absent if there is none.
    config_text: the config file as it was given; empty if there is none.
    bounds: over all inputs; empty where the sweep did not ask for any.
    """

    title: str
    claim: str
    points: pandas.DataFrame
    runs: tuple[PointRun, ...]
    profiles: tuple[Profile, ...]
    planned: tuple[PointKey, ...]
    descriptions: Mapping[str, str]
    bounded: Mapping[str, bool]
    norm: str
    outputs: Mapping[str, str]
    constructed: frozenset[str]
    trained: frozenset[str]
    exact_lengths: Mapping[str, int]
    config_text: str
    bounds: tuple[BoundRecord, ...] = ()

    @property
    def variants(self) -> tuple[str, ...]:
        """The measured variants in the order of the config, with those it does not name at the end."""
        present = set(self.points["variant"])
        named = [variant for variant, _, _ in self.planned if variant in present]
        return tuple(dict.fromkeys([*named, *self.points["variant"]]))

    def weights(self, variant: str) -> str:
        """Where a variant's weights come from: "random", "constructed" or "trained"."""
        if variant in self.constructed:
            return "constructed"
        return "trained" if variant in self.trained else "random"

    @property
    def sampled(self) -> bool:
        """Whether some point measured a random sample of its flips only."""
        return any(run.flips < run.population for run in self.runs)

    @property
    def inexact(self) -> Mapping[str, int]:
        """The variants that were measured at lengths for which they are not exact, with the last exact length."""
        beyond = {v for v, n, _ in (run.key for run in self.runs) if n > self.exact_lengths.get(v, n)}
        return {variant: exact for variant, exact in self.exact_lengths.items() if variant in beyond}

    @property
    def missing(self) -> tuple[PointKey, ...]:
        """The planned points that have not been measured."""
        columns = self.points[["variant", "n", "seed"]].itertuples(index=False)
        present = {(str(variant), int(n), int(seed)) for variant, n, seed in columns}
        return tuple(key for key in self.planned if key not in present)
