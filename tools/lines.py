"""`python -m tools.lines` counts the lines of Python by room, and `--check` compares them with the ratchet.

`tools/lines.toml` has the rooms: the paths of each, the lines it is to have, and the most that it may have. Files of
the present layout belong to the room that they will lie in, so that tables before and after a move compare.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tools" / "lines.toml"
SLACK = 1.02
"""A number of the ratchet that is larger than what is there by more than this factor no longer holds anything."""


@dataclass(frozen=True)
class Room:
    """A row of the table. `aim` is None where no number is planned."""

    name: str
    paths: tuple[str, ...]
    most: int
    aim: int | None = None

    @property
    def of_package(self) -> bool:
        """Whether its files are installed."""
        return self.paths[0].startswith("jaxsens/")


@dataclass(frozen=True)
class Plan:
    """The table: its rooms, and the aims and limits of the core and of the package."""

    rooms: tuple[Room, ...]
    total: Mapping[str, int]

    @classmethod
    def load(cls, path: Path = TABLE) -> Plan:
        """Reads the table from a TOML file."""
        table = tomllib.loads(path.read_text("utf-8"))
        rooms = [
            Room(name, tuple(one["paths"]), one["most"], one.get("aim"))
            for name, one in table["rooms"].items()
        ]
        return cls(tuple(rooms), table["total"])

    def room_of(self, file: str) -> str | None:
        """The room of a file, by its path below the root; None if it is in none."""
        fits = [
            (len(path), room.name)
            for room in self.rooms
            for path in room.paths
            if file == path or (path.endswith("/") and file.startswith(path))
        ]
        return max(fits)[1] if fits else None


def python_files(root: Path = ROOT) -> Iterator[Path]:
    """Every Python file of a checkout, but those of hidden folders and of folders that .gitignore names."""
    ignored = root / ".gitignore"
    named = re.findall(r"(?m)^/([\w.-]+)/$", ignored.read_text("utf-8")) if ignored.is_file() else []
    for top in sorted(root.iterdir()):
        if top.name.startswith(".") or top.name in named:
            continue
        for file in [top] if top.is_file() else sorted(top.rglob("*.py")):
            if file.suffix == ".py" and "__pycache__" not in file.parts:
                yield file


def line_count(file: Path) -> int:
    """The lines of a file, empty ones and comments too, as `wc -l` counts them."""
    return file.read_bytes().count(b"\n")


@dataclass(frozen=True)
class Count:
    """What is there: the lines of each file by room, and the files that are in no room."""

    plan: Plan
    files: Mapping[str, Mapping[str, int]]
    homeless: tuple[str, ...]

    @classmethod
    def of(cls, root: Path = ROOT, plan: Plan | None = None) -> Count:
        """Counts a checkout."""
        plan = Plan.load() if plan is None else plan
        files: dict[str, dict[str, int]] = {room.name: {} for room in plan.rooms}
        homeless: list[str] = []
        for file in python_files(root):
            path = file.relative_to(root).as_posix()
            room = plan.room_of(path)
            if room is None:
                homeless.append(path)
            else:
                files[room][path] = line_count(file)
        return cls(plan, files, tuple(homeless))

    def lines(self, room: str) -> int:
        """The lines of a room."""
        return sum(self.files[room].values())

    def problems(self) -> list[str]:
        """What the ratchet forbids, a line each, with the remedy."""
        found = [
            f"{path}: in no room; add its folder to a room of tools/lines.toml" for path in self.homeless
        ]
        for room in self.plan.rooms:
            lines = self.lines(room.name)
            if lines > room.most:
                found.append(
                    f"{room.name}: {lines} lines, {lines - room.most} more than its number {room.most} in "
                    "tools/lines.toml; shorten it, or raise the number and lower another by as much"
                )
        return found

    def loose(self) -> list[str]:
        """The rooms whose number is over 2 % above what is there."""
        return [room.name for room in self.plan.rooms if room.most > SLACK * self.lines(room.name)]


def table_rows(count: Count) -> Iterator[tuple[str, int, int, int | None, int | None]]:
    """Rows of the table: name, files, lines, aim, and the most lines; with sums for the core and the package."""
    plan, package = count.plan, [room for room in count.plan.rooms if room.of_package]
    core = [room for room in package if room.name.startswith("core/")]
    for room in plan.rooms:
        yield room.name, len(count.files[room.name]), count.lines(room.name), room.aim, room.most
        if room is core[-1]:
            yield "core", *_sum(count, core), plan.total["core_aim"], plan.total["core_limit"]
        if room is package[-1]:
            yield "jaxsens", *_sum(count, package), plan.total["aim"], plan.total["limit"]


def _sum(count: Count, rooms: Iterable[Room]) -> tuple[int, int]:
    names = [room.name for room in rooms]
    return sum(len(count.files[name]) for name in names), sum(count.lines(name) for name in names)


def lowered(text: str, count: Count) -> str:
    """The text of the table with each number lowered to what is there; none is raised."""
    for room in count.plan.rooms:
        least = min(room.most, count.lines(room.name))
        heading = re.escape(f"[rooms.{room.name}]") + "|" + re.escape(f'[rooms."{room.name}"]')
        text = re.sub(rf"(?ms)(^(?:{heading})\n(?:(?!^\[).)*?^most = )\d+", rf"\g<1>{least}", text)
    return text


def counting_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of a tool that counts in a checkout, with its --root."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to count (default: this one)")
    return parser


def main() -> int:
    """Prints the table, and returns 1 where the ratchet forbids what is there."""
    parser = counting_parser(__doc__)
    parser.add_argument("--files", action="store_true", help="print each file with its room and lines too")
    parser.add_argument(
        "--check", action="store_true", help="print what the ratchet forbids; exit code 1 if any"
    )
    parser.add_argument(
        "--lower", action="store_true", help="lower the numbers of tools/lines.toml to what is there"
    )
    arguments = parser.parse_args()
    count = Count.of(arguments.root.resolve())
    print(f"{'room':<22}{'files':>7}{'lines':>8}{'aim':>8}{'most':>8}")
    for name, *numbers in table_rows(count):
        files, lines, aim, most = ("" if one is None else one for one in numbers)
        print(f"{name:<22}{files:>7}{lines:>8}{aim:>8}{most:>8}")
    if arguments.files:
        for room, files in count.files.items():
            print("\n".join(f"{room}: {path}: {lines}" for path, lines in files.items()))
    if arguments.lower:
        TABLE.write_text(lowered(TABLE.read_text("utf-8"), count), "utf-8")
    if arguments.check:
        for name in count.loose():
            print(f"{name}: its number is over 2 % above what is there; run python -m tools.lines --lower")
        print("\n".join(count.problems()) or "no room is larger than its number")
    return int(arguments.check and bool(count.problems()))


if __name__ == "__main__":
    sys.exit(main())
