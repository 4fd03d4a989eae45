"""The table of Theorem 1 in practice: random hard-attention models, their restrictions, and what is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from jaxsens.core.base import stopping
from jaxsens.core.base.text import markdown_table
from jaxsens.core.models.transformer.config import TransformerConfig
from jaxsens.core.models.transformer.module import Transformer
from jaxsens.core.sweeps.job import Named, RowsJob
from jaxsens.theory.hard_attention.checker import check
from jaxsens.theory.hard_attention.restrict import misclassified_pair, restrict
from jaxsens.theory.hard_attention.restriction import Restriction, RestrictionRefused

LENGTHS = (64, 128, 256, 512, 1024)
DEPTHS = (1, 2)

_VARIANTS: tuple[dict[str, Any], ...] = (
    {"positions": "sinusoidal", "weighting": "leftmost-hard"},
    {"positions": "sinusoidal", "weighting": "rightmost-hard", "mask": "future"},
    {"positions": "learned", "weighting": "leftmost-hard", "heads": 1},
    {"positions": "rotary", "weighting": "rightmost-hard"},
    {"positions": "alibi", "weighting": "leftmost-hard", "mask": "future"},
    {"positions": "none", "weighting": "rightmost-hard"},
    {"positions": ("fraction", "alternating"), "weighting": "leftmost-hard"},
    {"positions": "index", "weighting": "rightmost-hard", "heads": 1},
    {"positions": "sinusoidal", "weighting": "leftmost-hard", "layer_norm": "pre", "activation": "gelu"},
    {"positions": "sinusoidal", "weighting": "rightmost-hard", "scores": "additive"},
)
_CALLED = {"heads": "{} head", "mask": "{}-masked", "layer_norm": "{}-norm"}

MODELS = len(_VARIANTS)
"""How many models there are."""


@dataclass(frozen=True)
class RestrictionRow:
    """One model at one depth and length.

    Attributes:
        model: what is particular about it.
        depth, n: layers, length of the inputs.
        seconds: of `restrict`.
        free_fraction: the share of positions left free; NaN where `restrict` refused.
        c: how many free inputs the output may depend on; -1 where refused.
        accepted: the checker's verdict.
        largest_change, words: see `largest_change`; NaN and 0 where refused.
        pairs: of "parity" and "dyck-1", those for which a misclassified pair was made and run.
        refusal: why there is no restriction, if there is none.
    """

    model: str
    depth: int
    n: int
    seconds: float
    free_fraction: float = math.nan
    c: int = -1
    accepted: bool = False
    largest_change: float = math.nan
    words: int = 0
    pairs: tuple[str, ...] = ()
    refusal: str = ""

    def summary(self) -> str:
        """The verdict."""
        if self.refusal:
            return f"refused: {self.refusal}"
        accepted = "accepted" if self.accepted else "NOT ACCEPTED"
        return f"{self.free_fraction:.2f} free, {self.c} matter, {accepted} by the checker"


def random_model(number: int, depth: int) -> Transformer:
    """One of ten random hard-attention models over two symbols, float64."""
    common = {"alphabet_size": 2, "width": 16, "heads": 2, "feed_forward": 32, "dtype": "float64"}
    return Transformer(TransformerConfig(**{**common, **_VARIANTS[number]}, layers=depth), seed=number)


def _described(number: int) -> str:
    named = []
    for field, value in _VARIANTS[number].items():
        text = " + ".join(value) if isinstance(value, tuple) else value
        named.append(_CALLED.get(field, "{}").format(text))
    return f"{number}: {', '.join(named)}"


Place = tuple[int, int, int]
"""A row of the table: a model by its number, a depth and a length."""


def restrictions_job(
    numbers: Sequence[int], lengths: Sequence[int], free_fraction: float, folder: Path | None = None
) -> RowsJob[Place, RestrictionRow]:
    """Restricts, checks and measures random models at every depth and length.

    Args:
        numbers: of the models, from 0 to 9.
        lengths: of the inputs.
        free_fraction: the least share of inputs to leave free.
        folder: where rows are kept for a run that goes on with a stopped one.
    """
    items: list[Named[Place]] = [
        Named(
            f"{_described(number)}, depth {depth}, n = {n}",
            (number, depth, n),
            (f"{number}, depth {depth}", n),
        )
        for number, depth, n in product(numbers, DEPTHS, lengths)
    ]
    settings = {"free_fraction": free_fraction}
    return RowsJob(
        items, lambda place, _: measure_restriction(place, free_fraction), RestrictionRow, settings, folder
    )


def measure_restriction(place: Place, free_fraction: float) -> RestrictionRow:
    """One row of the table."""
    number, depth, n = place
    model, told = random_model(number, depth), {"model": _described(number), "depth": depth, "n": n}
    start = time.perf_counter()
    try:
        restriction = restrict(model, n, free_fraction)
    except RestrictionRefused as error:
        return RestrictionRow(**told, seconds=time.perf_counter() - start, refusal=str(error))
    seconds = time.perf_counter() - start
    verdict = check(restriction, model, free_fraction)
    change, words = largest_change(restriction, model)
    found = []
    for language in ("parity", "dyck-1"):
        with suppress(RestrictionRefused):
            misclassified_pair(model, language, n)
            found.append(language)
    return RestrictionRow(
        **told,
        seconds=seconds,
        free_fraction=restriction.free_fraction,
        c=restriction.c,
        accepted=verdict.accepted,
        largest_change=change,
        words=words,
        pairs=tuple(found),
    )


def largest_change(restriction: Restriction, model: Transformer) -> tuple[float, int]:
    """The largest change of any output coordinate when irrelevant free inputs change, and the number of words run.

    Each of 4 random words under the restriction is run with 8 words that differ from it in irrelevant free positions
    only, half of them in a single one.
    """
    generator = np.random.default_rng(0)
    largest, words = 0.0, 0
    for word in restriction.complete(generator, 4):
        stopping.check()
        output = np.asarray(model(word))
        for number, other in enumerate(restriction.vary(word, generator, 8)):
            if number % 2 and len(restriction.irrelevant):
                other = word.copy()
                i = generator.choice(restriction.irrelevant)
                others = [symbol for symbol in restriction.symbols if symbol != word[i]]
                other[i] = generator.choice(others)
            largest = max(largest, float(np.abs(np.asarray(model(other)) - output).max()))
            words += 1
    return largest, words


def table(rows: Sequence[RestrictionRow]) -> str:
    """The rows as a Markdown table, one line a model and depth, lengths side by side."""
    lengths = sorted({row.n for row in rows})
    lines = []
    for model, depth in dict.fromkeys((row.model, row.depth) for row in rows):
        mine = {row.n: row for row in rows if (row.model, row.depth) == (model, depth)}
        said = {
            n: "refused" if row.refusal else f"{row.free_fraction:.2f}, {row.c}" for n, row in mine.items()
        }
        cells = [said.get(n, "") for n in lengths]
        done = [row for row in mine.values() if not row.refusal]
        accepted = sum(row.accepted for row in done)
        change = max((row.largest_change for row in done), default=float("nan"))
        both = sum(len(row.pairs) for row in done)
        slowest = max(row.seconds for row in mine.values())
        found = (f"{accepted}/{len(mine)}", f"{change:g}", f"{both}/{2 * len(mine)}", f"{slowest:.1f}")
        lines.append([model, depth, *cells, *found])
    header = ["model", "depth", *(f"n = {n}" for n in lengths)]
    return markdown_table([*header, "checker", "largest change", "pairs", "seconds"], lines)
