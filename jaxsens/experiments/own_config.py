"""Which config a directory is of: a sweep's may grow, and a report never stands beside another config than its own."""

from __future__ import annotations

from pathlib import Path

from jaxsens.errors import InputError
from jaxsens.experiments.results import Plan, read_plan
from jaxsens.files import write_text

_REPORT = ("report.html", "summary.csv")


def check_grows(plan: Plan, directory: Path) -> None:
    """Refuses a directory with finished points that are not in the plan, which came from another config.

    What a config may add to a directory are lengths, seeds, variants and statistics: points are found by their keys.

    Raises:
        InputError: saying in what the configs differ.
    """
    try:
        before = read_plan(directory)
    except InputError:  # There is none, or it cannot be read: nothing says what the points are of.
        return
    wanted = {point.file for point in plan.points}
    lost = [
        point for point in before.points if point.file not in wanted and (directory / point.file).exists()
    ]
    if not lost:
        return
    differences = "; ".join(_differences(before, plan)) or "what its inputs are"
    raise InputError(
        f"directory = {str(directory)!r}: it holds {len(lost)} points that this config does not have, and its report "
        f"would not be of one config. There and here differ: {differences}. Name another directory; or leave to this "
        "one what it has: lengths, seeds, variants and statistics may be added, and --only takes a part"
    )


def write_config(path: Path, text: str) -> bool:
    """Writes a config beside its results; removes the report of another one first, and returns whether there was any.

    A report is drawn again from the results at any time.
    """
    try:
        same = path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        same = False
    stale = [] if same else [path.with_name(name) for name in _REPORT if path.with_name(name).exists()]
    for file in stale:
        file.unlink(missing_ok=True)
    write_text(path, text)
    return bool(stale)


def _differences(before: Plan, now: Plan) -> list[str]:
    """In what two plans differ, as far as it decides which points there are, a line each."""
    found = []
    for name in ("lengths", "seeds"):
        missing = sorted(set(getattr(before, name)) - set(getattr(now, name)))
        if missing:
            found.append(f"{name}: {', '.join(map(str, missing))} there only")
    models = {variant.name: variant.model for variant in now.variants}
    found += [f'variant "{each.name}" there only' for each in before.variants if each.name not in models]
    kept = [each for each in before.variants if each.name in models]
    # What [model] says changes every variant alike, and is told once.
    changes = [change for each in kept for change in _changed("model", each.model, models[each.name])]
    return list(dict.fromkeys([*found, *changes, *_changed("measure", before.measure, now.measure)]))


def _changed(table: str, before: dict[str, object], now: dict[str, object]) -> list[str]:
    keys = [key for key in {**before, **now} if _listed(before.get(key)) != _listed(now.get(key))]
    return [f"{table}.{key}: {before.get(key)!r} there, {now.get(key)!r} here" for key in keys]


def _listed(value: object) -> object:
    # A tuple is a list once it was written.
    return list(value) if isinstance(value, tuple) else value
