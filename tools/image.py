"""The image without a container engine: the Dockerfile's own steps in Debian roots, by debootstrap and chroot.

As root. A Debian with Python stands in for python:3.12-slim. What is mounted is seen by the command alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUITE = "trixie"  # as python:3.12-slim; its Python is 3.13
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMPILER = re.compile(r"(.*-)?(cc|gcc|g\+\+|c\+\+|clang|clang\+\+|tcc|rustc|nvcc|ld|as)(-[\d.]+)?")
LEFT = (
    "wheels",
    "source",
    "root/.cache",
    "home/jaxsens/.cache",
    "var/cache/apt/archives/*.deb",
    "**/jaxsens*.whl",
)
Stages = dict[str, list[tuple[str, str]]]

INSIDE = """
set -e
cd "$1"; shift
for mount in $MOUNTS; do
    case $mount in
        read-only) mount --bind . . && cd "$PWD" && mount -o remount,bind,ro . ;;
        proc) mount -t proc proc proc ;;
        tmp) mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs tmp ;;
        *) mount --bind "$mount" data ;;
    esac
done
exec chroot . "$@"
"""


def stages(dockerfile: str) -> Stages:
    """A Dockerfile's stages in order, each a list of (instruction, arguments) with continued lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", dockerfile).replace("\\\n", " ")
    result: Stages = {}
    name = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, arguments = line.split(maxsplit=1)
        if instruction == "FROM":
            image, _, name = arguments.split()
            assert image.startswith("python:3.12"), "jax's newest line needs Python 3.12 or later"
            result[name] = []
        else:
            result[name].append((instruction, arguments))
    return result


def context(ignored: str, into: Path) -> Path:
    """What an engine would see of the source: what .dockerignore excepts, less what it ignores within."""
    lines = ignored.split("\n")
    within = shutil.ignore_patterns(*(line.removeprefix("**/") for line in lines if line.startswith("**/")))
    for name in (line[1:] for line in lines if line.startswith("!")):
        copy(ROOT / name, into / name, within)
    return into


def copy(source: Path, target: Path, ignore: Any = None) -> None:
    """Copies a file, or what is in a folder; the copy is root's, as COPY makes it."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=ignore, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def inside(
    root: Path, *command: str, environment: dict[str, str], mounts: Sequence[object] = ("proc",)
) -> list[str]:
    """A command that runs a command in a root, in namespaces of its own and as their process 1.

    Mounts are `read-only`, `proc`, `tmp`, or the folder of data.
    """
    own = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    own += ["--net"] * ("read-only" in mounts)
    told = ["env", "--ignore-environment", f"PATH={SEARCHED}", f"MOUNTS={' '.join(map(str, mounts))}"]
    clean = ["env", "--ignore-environment", *(f"{name}={value}" for name, value in environment.items())]
    return [*own, *told, "sh", "-c", INSIDE, "sh", str(root), *clean, *command]


def done(command: list[str]) -> str:
    """What a step prints, which has to succeed."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    # The whole command would tell the addresses of packages, which may hold a password.
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout[-2000:]}{ran.stderr[-4000:]}"
    return ran.stdout


def settings() -> dict[str, str]:
    """Where this machine gets packages from, for the steps alone: addresses, as its folders are not in the root."""
    found = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    for name in ("index-url", "extra-index-url"):
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"], capture_output=True, text=True
        ).stdout
        value = os.environ.get(f"PIP_{name.replace('-', '_').upper()}", asked)
        if addresses := [one for one in value.split() if one.startswith("http")]:
            found[f"PIP_{name.replace('-', '_').upper()}"] = " ".join(addresses)
    return found | {"PIP_CERT": str(CERTIFICATES), "PIP_DEFAULT_TIMEOUT": "180"}


def base(root: Path) -> None:
    """A clean Debian with Python, where python:3.12-slim has it: `python` and `pip` in /usr/local/bin."""
    packages = "--include=python3,python3-venv,ca-certificates"
    done(["debootstrap", "--variant=minbase", packages, SUITE, str(root)])
    for left in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / left)
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    # Debian's is /usr/bin/python3, without pip. An environment in /usr/local has links to it, and those that are made
    # by these links lead to /usr/bin/python3 too.
    done(inside(root, "python3", "-m", "venv", "/usr/local", environment={"PATH": SEARCHED}))


@dataclass
class Image:
    """A root, and what the Dockerfile says of processes in it."""

    root: Path
    environment: dict[str, str]
    arguments: dict[str, str]
    folder: str = "/"
    user: str = "0"
    entry: tuple[str, ...] = ()

    def step(self, instruction: str, text: str, source: Path, made: dict[str, Image]) -> None:
        match instruction:
            case "ARG":
                name, _, default = text.partition("=")
                self.arguments.setdefault(name, default)
            case "ENV":
                for one in shlex.split(text):
                    name, _, value = one.partition("=")
                    self.environment[name] = Template(value).substitute(self.environment)
            case "WORKDIR":
                self.folder = text
                self.at(text).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = text
            case "ENTRYPOINT":
                self.entry = tuple(json.loads(text))
            case "CMD":
                pass
            case "COPY":
                *sources, target = text.split()
                if sources[0].startswith("--from="):
                    source = made[sources.pop(0).removeprefix("--from=")].root
                for one in sources:
                    here = source / one.lstrip("/")
                    copy(here, self.at(target) / here.name if target.endswith("/") else self.at(target))
            case "RUN":
                everything = self.environment | self.arguments | settings()
                folder = f"--chdir={self.folder}"
                done(inside(self.root, "env", folder, "sh", "-c", text, environment=everything))
            case _:
                raise AssertionError(f"no rule for {instruction}")

    def at(self, path: str) -> Path:
        return self.root / os.path.normpath(os.path.join(self.folder, path)).lstrip("/")

    def command(self, data: Path, *arguments: str, user: str = "") -> list[str]:
        """As `docker run --rm --read-only --tmpfs /tmp --network none --cap-drop ALL --volume DATA:/data`."""
        user = user or self.user
        known = re.search(rf"(?m)^.*:x:{user}:.*:.*:(.*):", (self.root / "etc/passwd").read_text())
        lowered = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        lowered += ["--bounding-set=-all", "--inh-caps=-all"]
        return inside(
            self.root,
            *("env", f"--chdir={self.folder}", *lowered, *arguments),
            environment=self.environment | {"HOME": known[1] if known else "/"},
            mounts=("read-only", "proc", "tmp", data),
        )


def build(dockerfile: str, into: Path) -> Image:
    """The image of the last stage; the others are removed."""
    base(into / "base")
    source = context((ROOT / ".dockerignore").read_text("utf-8"), into / "context")
    made: dict[str, Image] = {}
    for name, steps in stages(dockerfile).items():
        subprocess.run(["cp", "--archive", into / "base", into / name], check=True)
        made[name] = Image(into / name, {"PATH": SEARCHED, "LANG": "C.UTF-8"}, {})
        for instruction, text in steps:
            made[name].step(instruction, text, source, made)
    *earlier, last = made.values()
    for one in earlier:
        shutil.rmtree(one.root)
    return last


def left_over(root: Path) -> list[str]:
    """Compilers, caches and what building needed, in a root."""
    found = {path for pattern in LEFT for path in root.glob(pattern)}
    for path in root.rglob("*"):
        if COMPILER.fullmatch(path.name) and path.is_file() and os.access(path, os.X_OK):
            found.add(path)
    return sorted(str(path.relative_to(root)) for path in found)


def megabytes(folder: Path) -> float:
    """What the files below it take on disk, as `du` counts."""
    taken = subprocess.run(["du", "-sk", folder], check=True, capture_output=True, text=True).stdout
    return int(taken.split()[0]) * 1024 / 1e6
