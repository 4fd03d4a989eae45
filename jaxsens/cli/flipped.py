"""The options of `jaxsens measure` that say what is flipped: --candidates and --groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxsens.errors import InputError, Problems

if TYPE_CHECKING:
    from jaxsens.sensitivity.candidates import Candidates

_NUMBERS: dict[str, tuple[int, int | None, int]] = {
    "neighbours": (0, 1, 1),
    "mask": (0, 1, 0),
    "delete": (0, 0, 0),
    "insert": (0, None, 0),
    "repeat": (0, 1, 1),
    "symbols": (1, None, 0),
    "all": (0, 0, 0),
}
"""How many numbers may follow each kind of candidates (None for any number), and the least that they may be."""


def check_flipped(
    candidates: tuple[str, ...] | None,
    groups: tuple[str, ...] | None,
    names_mask: bool,
    problems: Problems,
) -> None:
    """Collects the errors that do not depend on the model. `names_mask`: whether it may name its mask symbol."""
    if candidates is not None and _read(candidates) is None:
        wanted = (
            "neighbours [K], mask [ID], delete, insert [ID ...], repeat [TIMES], symbols ID [ID ...] or all"
        )
        problems.add("--candidates", " ".join(candidates), f"{wanted}; K and TIMES are at least 1")
    elif candidates == ("mask",) and not names_mask:
        problems.add(
            "--candidates", "mask", "give its number too, as in mask 2: only a published model says it"
        )
    if groups is not None and _positions(groups) is None:
        wanted = "positions joined by commas, with blanks between groups: 3,4,5 9"
        problems.add("--groups", " ".join(groups), wanted)


def flipped_by(candidates: tuple[str, ...] | None, groups: tuple[str, ...] | None) -> dict[str, Any]:
    """Returns the arguments of `flip_sensitivity` that the options give, once checked."""
    found = {} if candidates is None else {"candidates": _candidates(candidates)}
    return found if groups is None else {**found, "groups": _positions(groups)}


def _candidates(words: tuple[str, ...]) -> Candidates | None:
    from jaxsens.sensitivity import candidates as made

    match _read(words):
        case ("neighbours", numbers):
            return made.neighbours(*numbers)
        case ("mask", numbers):
            return made.masking(*numbers)
        case ("delete", _):
            return made.deletion()
        case ("insert", numbers):
            return made.insertion(numbers or None)
        case ("repeat", numbers):
            return made.repetition(*numbers)
        case ("symbols", numbers):
            return numbers
        case ("all", _):
            return None
        case _:
            raise InputError(f"--candidates = {' '.join(words)!r}: one of {', '.join(_NUMBERS)}")


def _read(words: tuple[str, ...]) -> tuple[str, tuple[int, ...]] | None:
    """Returns the kind and the numbers behind it; None if they cannot be read."""
    kind, *numbers = words or ("",)
    least_count, most, least = _NUMBERS.get(kind, (1, 0, 0))
    if not all(map(_is_number, numbers)) or not least_count <= len(numbers) <= (
        len(numbers) if most is None else most
    ):
        return None
    found = tuple(map(int, numbers))
    return (kind, found) if min(found, default=least) >= least else None


def _positions(words: tuple[str, ...]) -> list[list[int]] | None:
    """Returns the positions of each group; None if they cannot be read."""
    groups = [word.split(",") for word in words]
    if not groups or not all(_is_number(part) for group in groups for part in group):
        return None
    return [[int(part) for part in group] for group in groups]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
