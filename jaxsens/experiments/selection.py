"""Which points of a sweep one run takes: all, some by name, or one shard of a job array."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxsens.errors import Faults
from jaxsens.experiments.points import Point

_FIELDS = ("variant", "n", "seed")


def select(points: Sequence[Point], only: Sequence[str] = (), shard: str | None = None) -> list[Point]:
    """The chosen points, cheap ones first: by n, so that the whole picture is there early, then seed, then variant.

    Args:
        points: of the sweep.
        only: such as "variant=softmax", "n=64,128", "seed=0"; a point must meet every one.
        shard: "K/M" takes, of the points in this order, those whose number is K modulo M, 0 <= K < M.

    Raises:
        InputError: if a condition cannot be read, or names what the sweep does not have.
    """
    faults = Faults("sweep")
    wanted = {field: _wanted(field, points, only, faults) for field in _FIELDS}
    for condition in only:
        if condition.partition("=")[0] not in _FIELDS:
            faults.add("--only", condition, "variant=NAME, n=LENGTH or seed=SEED")
    index, count = _shard(shard, faults)
    faults.raise_if_any()
    # Sorting is stable: points of one n and seed keep the config's order of variants.
    ordered = sorted(points, key=lambda point: (point.n, point.seed))
    chosen = [point for point in ordered if all(str(getattr(point, f)) in wanted[f] for f in _FIELDS)]
    return chosen[index::count]


def _wanted(field: str, points: Sequence[Point], only: Sequence[str], faults: Faults) -> set[str]:
    """The values of a field that are taken."""
    present = {str(getattr(point, field)): None for point in points}
    wanted = set(present)
    for condition in only:
        name, _, values = condition.partition("=")
        if name == field:
            named = values.split(",")
            unknown = [value for value in named if value not in present]
            if unknown:
                faults.add("--only", condition, f"{field} is one of {', '.join(present)}")
            wanted &= set(named)
    return wanted


def _shard(shard: str | None, faults: Faults) -> tuple[int, int]:
    if shard is None:
        return 0, 1
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or int(match[1]) >= int(match[2]):
        faults.add("--shard", shard, "K/M with 0 <= K < M, such as 0/16 to 15/16")
        return 0, 1
    return int(match[1]), int(match[2])
