"""What a sweep asks of all inputs, not only of those it measures: the `[bounds]` table, and one answer a point.

An answer holds the worst input that a search finds, the bound that can be certified, and Lemma 5's closed form. For
hard attention it holds the number of inputs that matter under a restriction (Hahn 2020, Theorem 1).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from jaxsens.core.base import stopping
from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.inputs import NORMS
from jaxsens.core.base.programs import versions
from jaxsens.core.base.strict import STRICT
from jaxsens.core.engines.options import Auto
from jaxsens.core.flips.flips import Substitute
from jaxsens.core.models.adapters import as_model
from jaxsens.core.models.parts.weighting import Softmax
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.placement.placement import Placement
from jaxsens.core.sweeps.points import Point
from jaxsens.core.sweeps.progress import Reporter
from jaxsens.core.sweeps.sources import SEEDED, ModelSource
from jaxsens.core.sweeps.tables import RecordTable, TablePoint
from jaxsens.theory.certified.bound import certified_bound
from jaxsens.theory.certified.intervals import TERMS
from jaxsens.theory.hard_attention.checker import check
from jaxsens.theory.hard_attention.restrict import restrict
from jaxsens.theory.lemma5 import lemma5
from jaxsens.theory.search.problem import Search
from jaxsens.theory.search.worst_input import worst_input
from jaxsens.theory.tables.record import BOUND_COLUMNS, BoundRecord

BOUNDS_FORMAT = 3
"""Raised when the meaning of a `Bounds` table, or of the numbers behind it, changes."""


class Unsound(AssertionError):
    """An input was found beyond a certified bound: one of the two is wrong."""


@dataclass(frozen=True)
class Bounds(RecordTable):
    """The `[bounds]` table. A part that does not apply to a variant is left out, and the report says why.

    Attributes:
        worst: whether to search for the worst input (`jaxsens.theory.worst_input`).
        restarts: of that search.
        budget: how many measurements of all flips the search may use; None to end when every restart has converged.
        certified: whether to certify a bound for every input, and compute Lemma 5's constants (soft attention).
        restrict: whether to find the inputs that matter (leftmost- and rightmost-hard attention).
        free_fraction: the share of positions that a restriction must leave free.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    columns = BOUND_COLUMNS
    record = BoundRecord
    task = "the bounds over all inputs"
    worst: bool = True
    restarts: Annotated[int, Field(ge=1)] = 2
    budget: Annotated[int, Field(ge=1)] | None = None
    certified: bool = True
    restrict: bool = True
    free_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def check(self, sources: Mapping[str, ModelSource], keys: Mapping[str, Any], problems: Problems) -> None:
        """Notes lengths beyond what can be certified, and parts that are of norms only, or of other flips."""
        lengths, measure = keys.get("lengths", ()), keys.get("measure")
        for name, source in sources.items():
            longest = _longest_certified(source) if self.certified else None
            if longest is not None and max(lengths, default=0) > longest:
                limit = f'{longest}, the longest that a bound of variant "{name}" can be certified for'
                remedy = f"beyond {limit}: leave it out, or give [bounds] certified = false"
                problems.add("lengths", max(lengths), remedy)
        if measure is None:
            return
        flips, norm = measure.flips, measure.measure
        if norm.order is None and (self.worst or self.certified):
            remedy = (
                f"[bounds] searches and certifies {', '.join(NORMS)} only: give one of these, or worst = false and "
                "certified = false there"
            )
            problems.add("measure.measure", norm.kind, remedy)
        if not isinstance(flips, Substitute):
            remedy = "[bounds] are those of replaced symbols: leave the table out"
            problems.add("measure.flips", flips.kind, remedy)
        elif flips.drawing(None) != Substitute() and (self.worst or self.certified):
            remedy = (
                "[bounds] searches and certifies all symbols at all positions but the one that is read: leave it out, "
                "or give worst = false and certified = false there"
            )
            problems.add("measure.flips", flips.drawing(None).table(), remedy)

    def sections(self, data: Any, results: Sequence[BoundRecord]) -> list[Any]:
        from jaxsens.theory.tables.report import BoundsData, bounds_sections

        norm = data.plan.measurement.measure.kind
        return bounds_sections(BoundsData(results, data.points, data.names, norm, data.unseeded))

    def expanded(self, point: Point) -> dict[str, Any]:
        return {
            "format": BOUNDS_FORMAT,
            "bounds": asdict(self),
            "model": point.source.expanded_at(point.n, point.seed),
            "symbols": asdict(point.source.symbols),
            "n": point.n,
            "measure": point.measure.measure.table(),
            "seed": point.seed,
        }

    def answer(
        self, item: TablePoint, reporter: Reporter, shared: dict[Any, Any], placement: Placement
    ) -> BoundRecord:
        """Computes every part that applies to the point's model. `shared` has the parts of models that do not depend on
        the seed, or why they cannot be had, by the part's name, the variant and the length.

        Raises:
            Unsound: if the worst input found exceeds the certified bound beyond what rounding explains.
        """
        point = item.point
        model = point.model()
        found: dict[str, Any] = {}
        notes: dict[str, str] = {}
        seconds: dict[str, float] = {}
        inside = partial(reporter.inside, f"{item}: search", unit="measurements")
        parts: list[tuple[str, bool, Callable[[], dict[str, Any]]]] = [
            ("worst", self.worst, lambda: _worst(self, model, point, inside, placement)),
            ("certified", self.certified, lambda: _certified(model, point)),
            ("lemma5", self.certified, lambda: _lemma5(model, point)),
            ("matter", self.restrict, lambda: _matter(self, model, point)),
        ]
        for name, requested, part in parts:
            if not requested:
                continue
            stopping.check()
            began = time.perf_counter()
            of_model = name in ("certified", "lemma5") and point.source.weights not in SEEDED
            cached = shared if of_model else {}
            key = (name, *point.group)
            if key not in cached:
                try:
                    cached[key] = part()
                except InputError as error:
                    cached[key] = " ".join(str(error).split())
            if isinstance(cached[key], str):
                notes[name] = cached[key]
            else:
                found |= cached[key]
            seconds[name] = round(time.perf_counter() - began, 3)
        told: dict[str, Any] = {"notes": notes, "seconds": seconds, "versions": versions()}
        record = BoundRecord(item.key, point.variant, point.n, point.seed, **told, **found)
        _check(record, as_model(model).dtype)
        return record


def _check(record: BoundRecord, dtype: str) -> None:
    if record.worst is None or record.certified is None:
        return
    # The bound speaks of real arithmetic, the search measures in the model's.
    relative, absolute = (1e-9, 1e-14) if dtype == "float64" else (1e-4, 1e-5)
    if record.worst > record.certified * (1 + relative) + absolute:
        raise Unsound(
            f"{record.variant} n={record.n} seed={record.seed}: an input with sensitivity {record.worst!r} was found, "
            f"above the certified bound {record.certified!r}; please report this"
        )


def _fixed(point: Point) -> dict[int, int]:
    """The end-of-sequence symbol by its position, if the sweep's inputs have one."""
    symbols = point.source.symbols
    if symbols.end_of_sequence is None:
        return {}
    return {0 if symbols.end_first else point.n - 1: symbols.end_of_sequence}


def _worst(
    bounds: Bounds, model: Any, point: Point, inside: Callable[[int, int | None], None], placement: Placement
) -> dict[str, Any]:
    measure = point.measure
    found = worst_input(
        model,
        point.n,
        search=Search(fixed=_fixed(point), restarts=bounds.restarts, budget=bounds.budget, seed=point.seed),
        measure=measure.measure,
        engine=measure.engine if measure.engine.exact else Auto(),
        placement=placement,
        progress=lambda now: inside(now.done, now.total),
    )
    return {
        "worst": float(found.value),
        "worst_exact": bool(found.exact),
        "worst_word": tuple(int(symbol) for symbol in found.tokens),
        "worst_position": int(found.position),
        "worst_symbol": int(found.symbol),
    }


def _longest_certified(source: ModelSource) -> int | None:
    """The longest input that a bound can be certified for; None for a model that has none at any length."""
    config = source.network
    if not isinstance(config, TransformerConfig):
        return None
    softmax = all(isinstance(config.layer(k).weighting, Softmax) for k in range(config.layers))
    return TERMS // config.vocabulary_size if softmax else None


def _certified(model: Any, point: Point) -> dict[str, Any]:
    found = certified_bound(model, point.n, measure=point.measure.measure, fixed=_fixed(point))
    if not math.isfinite(found.value):
        why = "the certified bound is infinite: the parameters are so large that intervals overflow"
        raise InputError(why)
    return {"certified": found.value}


def _lemma5(model: Any, point: Point) -> dict[str, Any]:
    found = lemma5(model, point.n, measure=point.measure.measure)
    if found.reason is not None:
        raise InputError(f"Lemma 5 has no closed form: {found.reason}")
    return {"log_lemma5": found.log_closed_form, "logit_bound": found.A}


def _matter(bounds: Bounds, model: Any, point: Point) -> dict[str, Any]:
    found = restrict(model, point.n, bounds.free_fraction, fixed=_fixed(point), seed=point.seed)
    verdict = check(found, model)
    if not verdict.accepted:
        why = "; ".join(verdict.problems[:3])
        raise Unsound(f"bounds of {point}: the restriction's certificate does not hold: {why}")
    return {"matter": found.c, "free": int(found.free.sum())}
