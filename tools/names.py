"""`python -m tools.names` counts the identifiers that are participles or other odd names, by room.

Identifiers are the names, attributes, arguments, functions, classes, keywords and imported modules of the syntax tree,
each use counted once; leading underscores and capitals do not matter.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.lines import Plan, counting_parser, python_files

ODD = (
    *(
        "asked",
        "told",
        "say",
        "says",
        "said",
        "tell",
        "telling",
        "subject",
        "measurable",
        "words",
        "doubt",
        "doubts",
    ),
    *(
        "whole",
        "begun",
        "rest",
        "known",
        "elsewhere",
        "carried",
        "shortened",
        "wished",
        "wanted",
        "kept",
        "found",
    ),
    *(
        "given",
        "refused",
        "had",
        "shown",
        "heard",
        "many",
        "alike",
        "desk",
        "ball",
        "bent",
        "since",
        "athand",
    ),
)
"""The odd names: those that the plan replaces by nouns."""


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every identifier of a module, once a use."""
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                yield node.id
            case ast.Attribute():
                yield node.attr
            case ast.arg():
                yield node.arg
            case ast.keyword(arg=str(name)) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef():
                yield node.name
            case ast.alias():
                yield from (node.asname or node.name).split(".")
            case ast.ImportFrom(module=str(module)):
                yield from module.split(".")


def odd_name(identifier: str, parts: bool) -> str | None:
    """The odd name that an identifier is; with `parts`, or the first of which it is made (`_asked_for`)."""
    plain = identifier.strip("_").lower()
    if plain in ODD:
        return plain
    pieces = re.findall(r"[A-Z]?[a-z0-9]+", identifier) if parts else []
    return next((piece.lower() for piece in pieces if piece.lower() in ODD), None)


def counts(root: Path, parts: bool = False) -> dict[str, Counter[str]]:
    """How often each odd name is used, by room; and all identifiers, under the name ""."""
    plan, found = Plan.load(), {}
    for file in python_files(root):
        room = plan.room_of(file.relative_to(root).as_posix()) or "in no room"
        counter = found.setdefault(room, Counter())
        for identifier in identifiers(ast.parse(file.read_text("utf-8"))):
            counter[""] += 1
            name = odd_name(identifier, parts)
            if name is not None:
                counter[name] += 1
    return found


def main() -> int:
    """Prints a row a room, and one of all installed rooms together with each name."""
    parser = counting_parser(__doc__)
    parser.add_argument("--parts", action="store_true", help="count identifiers made of them too: _asked_for")
    arguments = parser.parse_args()
    found, total = counts(arguments.root.resolve(), arguments.parts), Counter()
    installed = {room.name for room in Plan.load().rooms if room.of_package}
    print(f"{'room':<22}{'odd':>7}{'of':>8}  most frequent")
    for room in sorted(found, key=lambda name: (name not in installed, name)):
        own = Counter({name: count for name, count in found[room].items() if name})
        frequent = ", ".join(f"{name} {count}" for name, count in own.most_common(6))
        print(f"{room:<22}{own.total():>7}{found[room]['']:>8}  {frequent}")
        if room in installed:
            total += found[room]
    own = Counter({name: count for name, count in total.items() if name})
    print(f"{'jaxsens':<22}{own.total():>7}{total['']:>8}")
    print(", ".join(f"{name} {count}" for name, count in own.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
