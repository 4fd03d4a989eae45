"""What a sweep takes on devices that need not be at hand, one TOML file each: bytes and the least time, point by
point; and the job that runs it, as a file for Slurm or Kubernetes: the files in cluster/, with the plan's numbers.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.programs import PLATFORMS
from jaxsens.core.base.strict import Positive, config, did_you_mean, read_table, read_toml
from jaxsens.core.sweeps.points import Point
from jaxsens.core.sweeps.status import POINT_SECONDS, START_SECONDS, ExpectedPoints, expected_points

_DEVICES = Path(__file__).parent / "devices"

Rate = Annotated[float, Field(ge=0)]


@config
class Tpu:
    """The slices of a TPU.

    Args:
        kubernetes: the name of its nodes in Google Kubernetes Engine, as "tpu-v5-lite-podslice".
        slices: the topologies of one host and of several, as "2x4", by the number in the name of the slice.
    """

    kubernetes: str
    slices: dict[str, str]


@config
class Device:
    """A device, as its TOML file says it.

    Args:
        platform: "gpu" or "tpu".
        description: in a few words.
        memory: bytes.
        bandwidth: bytes per second between the device and its memory.
        float32: operations per second of matrix products at the precision that jaxsens computes in: without TF32 on a
            GPU, as six products in bfloat16 on a TPU. A multiply-add counts as two.
        float64: the same in float64; 0 if the host computes it.
        tpu: the slices of a TPU.
    """

    platform: Literal["gpu", "tpu"]
    description: str
    memory: Positive
    bandwidth: Rate
    float32: Rate
    float64: Rate
    tpu: Tpu | None = None

    def __post_init__(self) -> None:
        if (self.tpu is not None) != (self.platform == "tpu"):
            remedy = "a TPU has the table [tpu], a GPU none"
            raise InputError.of("platform", self.platform, remedy, subject="Device")

    def rate(self, dtype: str) -> float:
        """Returns the operations per second in a dtype; 0 if the host computes it."""
        return self.float64 if dtype == "float64" else self.float32


@dataclass(frozen=True)
class Target:
    """Devices of one kind that work together.

    Attributes:
        name: as in the request, such as "h100x8" or "v6e-8".
        device: what each of them is.
        count: how many.
        slice: the number in the name of a TPU's slice; None for a GPU.
    """

    name: str
    device: Device
    count: int
    slice: str | None = None


def known_devices() -> tuple[str, ...]:
    """Returns the names of the devices that jaxsens describes."""
    return tuple(sorted(path.stem for path in _DEVICES.glob("*.toml")))


def target_called(name: str) -> Target:
    """Returns the devices of a name: "h100", "h100x8", "v6e-8", or the path of a TOML file, with "x8" after it.

    The number after a TPU's name is that of its slice, as Google Cloud counts: v5p-8 has four chips.

    Raises:
        InputError: naming all errors, for a device that is not known, a file with errors, or a slice there is none of.
    """
    match = re.fullmatch(r"(?P<device>.+?)(?:[x-](?P<number>\d+))?", name)
    word, number = (match["device"], match["number"]) if match else (name, None)
    file = Path(word) if word.endswith(".toml") else _DEVICES / f"{word}.toml"
    if not word.endswith(".toml") and word not in known_devices():
        names = ", ".join(known_devices())
        remedy = (
            f"no such device{did_you_mean(word, known_devices())} Known are {names}; describe another in a TOML file, "
            "as docs/planning.md shows, and give its path"
        )
        raise InputError.of("--on", name, remedy)
    _, table = read_toml(file, "--on")
    with collecting(word) as problems:
        device: Any = read_table(Device, table, "", problems)
    if device.tpu is None:
        if number == "0":
            raise InputError.of("--on", name, "at least one device")
        return Target(name, device, int(number or 1))
    slices = device.tpu.slices
    if number is None:  # a single chip of the smallest slice
        return Target(name, device, 1, min(slices, key=int))
    if number not in slices:
        raise InputError.of("--on", name, f"no slice of that number; known: {', '.join(slices)}")
    return Target(name, device, math.prod(map(int, slices[number].split("x"))), number)


REACHED = 0.1
"""The share of a device's rates that a job's time limit assumes."""

SHARD_HOURS = 1.0
"""The time that a shard of a job is to take, by that share."""


@dataclass(frozen=True)
class PlannedPoints:
    """The points of one variant and length on a target. Numbers are estimates of one point.

    Attributes:
        expected: the points, and the engine.
        batch: flips of a block on each device.
        arguments: bytes on each device of the model, what flips share, and their table.
        temporary: bytes on each device of temporary memory.
        moved: bytes that the devices read and write at least, all together.
        seconds: the least time, by the rates of the devices; None for what the host computes.
        refusal: why it does not fit; empty if it does.
    """

    expected: ExpectedPoints
    batch: int
    arguments: int
    temporary: int
    moved: float
    seconds: float | None
    refusal: str


@dataclass(frozen=True)
class Plan:
    """A sweep on a target.

    Attributes:
        target: the devices.
        rows: its points, by variant and length.
        unmeasurable: the first point of each group that cannot be measured, and why.
    """

    target: Target
    rows: tuple[PlannedPoints, ...]
    unmeasurable: tuple[tuple[Point, str], ...]

    @property
    def fits(self) -> bool:
        """Whether every point can be measured within the memory."""
        return not self.unmeasurable and not any(row.refusal for row in self.rows)

    @property
    def least_seconds(self) -> float:
        """The least time of all points, without compilation."""
        return sum(len(row.expected.points) * (row.seconds or 0.0) for row in self.rows)

    @property
    def compiling(self) -> float:
        """The seconds of compilation, once for each program."""
        return sum({row.expected.programs: row.expected.run.compiling for row in self.rows}.values())

    @property
    def host_seconds(self) -> float:
        """The seconds in which a host like this machine does what it does: the points themselves and what tells their
        rounding, what needs float64 where the devices do not compute in it, and compilation."""
        own = (
            len(row.expected.points) * (POINT_SECONDS + row.expected.host_seconds(row.seconds is None))
            for row in self.rows
        )
        return sum(own) + self.compiling

    @property
    def device_hours(self) -> float:
        """The hours that all devices are held, at the share `REACHED` of their rates, with what the host does."""
        return self.target.count * (self.least_seconds / REACHED + self.host_seconds) / 3600

    @property
    def shards(self) -> int:
        """How many shards take about `SHARD_HOURS` each; no more than there are points."""
        points = sum(len(row.expected.points) for row in self.rows)
        hours = self.device_hours / self.target.count / SHARD_HOURS
        return max(1, min(points, math.ceil(hours)))

    @property
    def minutes(self) -> int:
        """A time limit for each shard, three times what it is expected to take, in whole tens. Each shard compiles what
        it measures, and starts."""
        times = (row.expected.run.compiling + (row.seconds or 0.0) / REACHED for row in self.rows)
        expected = self.device_hours * 3600 / self.target.count / self.shards + max(times, default=0.0)
        return 10 * math.ceil(3 * (expected + START_SECONDS) / 600)


def planned(points: Iterable[Point], target: Target, memory_budget: int | None) -> Plan:
    """Returns what points take, variant by variant and by rising n.

    Args:
        points: of a sweep.
        target: the devices.
        memory_budget: in bytes; None for the default one.
    """
    device, rows, unmeasurable = target.device, list[PlannedPoints](), list[tuple[Point, str]]()
    for one in expected_points(points, PLATFORMS[device.platform], unmeasurable):
        run, shared = one.run, one.run.arguments
        budget = memory_budget
        if budget is None:
            budget = run.platform.budget_beside(shared, device.memory)
        flips = -(-run.flips // target.count)
        batch = max(1, min(run.engine.preferred_batch(run.n, run.platform), flips))
        arguments, temporary = shared + 32 * flips, min(run.block_bytes(batch), budget)
        refusal = ""
        if arguments > budget:
            refusal = f"memory_budget = {budget} bytes: arguments take {arguments} bytes on each device"
        share = one.flips / max(1, run.flips)
        # What is given is read once at least, and what a block writes to temporary memory it reads again.
        moved = one.inputs * (shared + target.count * 2 * temporary * math.ceil(share * flips / batch))
        rate = device.rate("float64" if run.engine.wide else run.model.dtype)
        least = max(one.operations / rate, moved / device.bandwidth) / target.count if rate else None
        rows.append(PlannedPoints(one, batch, arguments, temporary, moved, least, refusal))
    return Plan(target, tuple(rows), tuple(unmeasurable))


_FOLDER = Path(__file__).parent
TEMPLATES: Mapping[str, str] = {
    ".slurm": "slurm_array.sbatch",
    ".sbatch": "slurm_array.sbatch",
    ".yaml": "kubernetes_indexed_job.yaml",
}
"""The file that each ending stands for."""


def job_file(plan: Plan, ending: str, config: Path, options: Sequence[str] = ()) -> str:
    """Returns the text of a job that measures the sweep of a config in as many shards as the plan suggests.

    Args:
        plan: the plan.
        ending: one of `TEMPLATES`.
        config: the config that was planned.
        options: further ones of `jaxsens plan` that `jaxsens sweep` needs too, such as --only.
    """
    target, text = plan.target, (_FOLDER / TEMPLATES[ending]).read_text("utf-8")
    gpu, count = target.device.platform == "gpu", target.count
    name = config.stem
    # What the job is for stands in the first comment: a limit of time and a number of shards hold for nothing else.
    points = sum(len(row.expected.points) for row in plan.rows)
    command = shlex.join(["jaxsens", "plan", str(config), "--on", target.name, *options])
    made_for = f"# For {points} points on {count} x {target.device.description}, by `{command}`.\n#\n"
    begin = text.index("# A sweep as")
    text = text[:begin] + made_for + text[begin:]
    if TEMPLATES[ending].endswith(".sbatch"):
        hours, minutes = divmod(plan.minutes, 60)
        text = _line(text, "#SBATCH --array=", f"0-{plan.shards - 1}")
        text = _line(text, "#SBATCH --time=", f"{hours:02}:{minutes:02}:00")
        if gpu:
            text = text.replace(
                "#SBATCH --cpus-per-task", f"#SBATCH --gpus-per-task={count}\n#SBATCH --cpus-per-task"
            )
        if options:
            text = text.replace('"${@:3}"', f'{shlex.join(options)} "${{@:3}}"')
        text = re.sub(r"config=\$\{1:\?.*\}", f"config=${{1:-{config}}}", text)
        return re.sub(r"out=\$\{2:\?.*\}", f"out=${{2:-results/{name}}}", text)
    for key in ("completions", "parallelism", "maxFailedIndexes"):
        text = _line(text, f"  {key}: ", str(plan.shards))
    text = text.replace("$(INDEX)/16", f"$(INDEX)/{plan.shards}").replace("configs/cluster.toml", str(config))
    text = text.replace("each of 16 pods", f"each of {plan.shards} pods")
    text = text.replace(
        "  completionMode:", f"  activeDeadlineSeconds: {60 * plan.minutes * 10}\n  completionMode:"
    )
    text = text.replace("image: jaxsens:latest", f"image: jaxsens:{'cuda13' if gpu else 'tpu'}")
    place = "            - --compilation-cache\n"
    text = text.replace(place, "".join(f"            - {json.dumps(word)}\n" for word in options) + place)
    if gpu:
        return re.sub(r'# (nvidia\.com/gpu: )"1"', rf'\1"{count}"', text)
    tpu = plan.target.device.tpu
    if tpu is None or plan.target.slice is None:
        raise TypeError(f"{plan.target.name}: a device of no platform")
    text = re.sub(r'# (google\.com/tpu: )"4"', rf'\1"{count}"', text)
    text = re.sub(r"^( +)# ((?:nodeSelector:|  cloud\.google).*)$", r"\1\2", text, flags=re.MULTILINE)
    text = text.replace("tpu-v5-lite-podslice", tpu.kubernetes)
    return text.replace("gke-tpu-topology: 2x2", f"gke-tpu-topology: {tpu.slices[plan.target.slice]}")


def _line(text: str, begin: str, value: str) -> str:
    """Replaces what follows the one line that begins so, up to its comment."""
    changed, count = re.subn(rf"^{re.escape(begin)}[^\s]+", begin + value, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{count} lines begin with {begin!r}")
    return changed
