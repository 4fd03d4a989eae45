"""`jaxsens plan`: what a sweep takes on devices that need not be at hand, one TOML file each: bytes and the least time,
point by point; and the job that runs it, as a file for Slurm or Kubernetes: the files in cluster/, with the plan's
numbers.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

from jaxsens.cli.shared import Config, Flag, NewFile, Only, Text, check_output, default, write_output
from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.files import write_text
from jaxsens.core.base.strict import Positive, config, did_you_mean, read_table, read_toml
from jaxsens.core.base.text import duration, in_words, print_text

if TYPE_CHECKING:
    from jaxsens.core.sweeps.distributed import ExpectedPoints
    from jaxsens.core.sweeps.points import Point

PLANNING = Path(__file__).parent / "planning"
DEVICES = {path.stem: path for path in sorted((PLANNING / "devices").glob("*.toml"))}
"""The files of the devices that jaxsens describes, by name."""

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

    def __post_init__(self) -> None:
        form = re.compile(r"[1-9]\d{0,5}=[1-9]\d{0,5}(x[1-9]\d{0,5})*", re.ASCII)
        if not self.slices or not all(form.fullmatch("=".join(one)) for one in self.slices.items()):
            remedy = 'topologies such as "2x4" by numbers such as "8"'
            raise InputError.of("slices", self.slices, remedy, subject="Tpu")


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
    bandwidth: Annotated[float, Field(gt=0)]
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
    """So many devices of one kind that work together. The name is that of the request, such as "h100x8" or "v6e-8";
    the slice is the number in the name of a TPU's, and None for a GPU."""

    name: str
    device: Device
    count: int
    slice: str | None = None


def target_called(name: str) -> Target:
    """Returns the devices of a name: "h100", "h100x8", "v6e-8", or the path of a TOML file, with "x8" after it.

    The number after a TPU's name is that of its slice, as Google Cloud counts: v5p-8 has four chips. Raises InputError,
    naming all errors, for a device that is not known, a file with errors, or a slice that there is none of.
    """
    match = re.fullmatch(r"(?P<device>.+?)(?:[x-](?P<number>[0-9]{1,9}))?", name)
    word, number = (match["device"], match["number"]) if match else (name, None)
    if not word.endswith(".toml") and word not in DEVICES:
        remedy = "no such device; describe it in a TOML file, as docs/planning.md shows, and give its path"
        raise InputError.of("--on", name, remedy + did_you_mean(word, DEVICES))
    _, table = read_toml(DEVICES.get(word, word), "--on")
    with collecting(word) as problems:
        device: Any = read_table(Device, table, "", problems)
    if device.tpu is None:
        if not int(number or 1):
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
        memory: bytes on each device of the model, what flips share, their table, and what is temporary.
        moved: bytes that the devices read and write at least, all together.
        seconds: the least time, by the rates of the devices; None for what the host computes.
        refusal: why it does not fit; empty if it does.
    """

    expected: ExpectedPoints
    batch: int
    memory: int
    moved: float
    seconds: float | None
    refusal: str


@dataclass(frozen=True)
class Plan:
    """A sweep on a target: its points by variant and length, and the first point of each group that cannot be
    measured, with the reason."""

    target: Target
    rows: tuple[PlannedPoints, ...]
    unmeasurable: tuple[tuple[Point, str], ...]

    @property
    def least_seconds(self) -> float:
        """The least time of all points, without compilation."""
        return sum(len(row.expected.points) * (row.seconds or 0.0) for row in self.rows)

    @property
    def compiling(self) -> float:
        """The seconds of compilation, once for each program."""
        return sum({row.expected.programs: row.expected.run.compiling for row in self.rows}.values())

    @property
    def device_hours(self) -> float:
        """The hours that all devices are held, at the share `REACHED` of their rates. With what a host like this
        machine does: the points themselves and what tells their rounding, what needs float64 where the devices do not
        compute in it, and compilation."""
        from jaxsens.core.sweeps.distributed import POINT_SECONDS

        own = (
            len(row.expected.points) * (POINT_SECONDS + row.expected.host_seconds(row.seconds is None))
            for row in self.rows
        )
        return self.target.count * (self.least_seconds / REACHED + (sum(own) + self.compiling)) / 3600

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
        from jaxsens.core.sweeps.distributed import START_SECONDS

        times = (row.expected.run.compiling + (row.seconds or 0.0) / REACHED for row in self.rows)
        expected = self.device_hours * 3600 / self.target.count / self.shards + max(times, default=0.0)
        return 10 * math.ceil(3 * (expected + START_SECONDS) / 600)


def planned(points: Iterable[Point], target: Target, memory_budget: int | None) -> Plan:
    """Returns what points take, variant by variant and by rising n. A memory budget of None is the default one."""
    from jaxsens.core.base.programs import PLATFORMS
    from jaxsens.core.sweeps.distributed import expected_points

    rows: list[PlannedPoints] = []
    unmeasurable: list[tuple[Point, str]] = []
    device = target.device
    for one in expected_points(points, PLATFORMS[device.platform], unmeasurable):
        run, shared, budget = one.run, one.run.arguments, memory_budget
        if budget is None:
            budget = run.platform.budget_beside(shared, device.memory)
        flips = -(-run.flips // target.count)
        batch = max(1, min(run.engine.preferred_batch(run.n, run.platform), flips))
        arguments, temporary = shared + 32 * flips, min(run.block_bytes(batch), budget)
        refusal = f"memory_budget = {budget} bytes: arguments take {arguments} bytes on each device"
        share = one.flips / max(1, run.flips)
        # What is given is read once at least, and what a block writes to temporary memory it reads again.
        moved = one.inputs * (shared + target.count * 2 * temporary * math.ceil(share * flips / batch))
        rate = device.rate("float64" if run.engine.wide else run.model.dtype)
        least = max(one.operations / rate, moved / device.bandwidth) / target.count if rate else None
        refusal *= arguments > budget
        rows.append(PlannedPoints(one, batch, arguments + temporary, moved, least, refusal))
    return Plan(target, tuple(rows), tuple(unmeasurable))


TEMPLATES = {
    ".slurm": "slurm_array.sbatch",
    ".sbatch": "slurm_array.sbatch",
    ".yaml": "kubernetes_indexed_job.yaml",
}
"""The file that each ending stands for."""


SHARDS = (
    r"(?<=completions: )16|(?<=parallelism: )16|(?<=maxFailedIndexes: )16|(?<=\(INDEX\)/)16|(?<=each of )16"
)
"""Where a job for Kubernetes has the number of shards."""

SELECTOR = r"(?<=^      )# (?=nodeSelector:|  cloud\.google)"
"""What such a job keeps as a comment unless it is for a TPU."""

SEVERAL = {SHARDS: 5, SELECTOR: 3}
"""How often a template has what it does not have once."""


def job_file(plan: Plan, path: Path, config: Path, options: Sequence[str] = ()) -> str:
    """Returns the text of a job that measures the sweep of a config in as many shards as the plan suggests.

    The path ends as in `TEMPLATES`; `options` are those of `jaxsens plan` that `jaxsens sweep` needs too, as --only.
    """
    template, name = TEMPLATES[path.suffix], shlex.quote(str(path))
    target, text = plan.target, (PLANNING / template).read_text("utf-8")
    tpu, count, shards = target.device.tpu, target.count, plan.shards
    hours, minutes = divmod(plan.minutes, 60)
    if template.endswith(".sbatch"):
        changes = {
            r"(?<=^#   )sbatch cluster.*\n#   sbatch --array.*": f"sbatch {name}",
            r"SHARDS=16 .*": f"SHARDS={shards} sbatch --array={shards - 1} {name}",
            r"(?<=^#SBATCH --array=)\S+": f"0-{shards - 1}",
            r"(?<=^#SBATCH --time=)\S+": f"{hours:02}:{minutes:02}:00",
            r"^(?=#SBATCH --cpus-per-task)": "" if tpu else f"#SBATCH --gpus-per-task={count}\n",
            r'(?="\$\{@:3\}")': "".join(f"{shlex.quote(word)} " for word in options),
            r"(?<=^config=\$\{1:)\?.*(?=\})": f"-{config}",
            r"(?<=^out=\$\{2:)\?.*(?=\})": f"-results/{config.stem}",
        }
    else:
        lines = (f"{12 * ' '}- {json.dumps(word)}\n" for word in options)
        changes = {
            SHARDS: f"{shards}",
            r"cluster/kubernetes_indexed_job\.yaml": name,
            r"configs/cluster\.toml": f"{config}",
            r"^(?=  completionMode:)": f"  activeDeadlineSeconds: {600 * plan.minutes}\n",
            r"(?<=image: jaxsens:)latest": "tpu" if tpu else "cuda13",
            r"^(?= +- --compilation-cache$)": "".join(lines),
        }
        if tpu is None:
            changes[r'# nvidia\.com/gpu: "1"'] = f'nvidia.com/gpu: "{count}"'
        else:
            changes |= {
                r'# google\.com/tpu: "4"': f'google.com/tpu: "{count}"',
                SELECTOR: "",
                r"tpu-v5-lite-podslice": tpu.kubernetes,
                r"(?<=gke-tpu-topology: )2x2": tpu.slices[target.slice or ""],
            }
    # What the job is for stands in the first comment: a limit of time and a number of shards hold for nothing else.
    points = sum(len(row.expected.points) for row in plan.rows)
    command = shlex.join(["jaxsens", "plan", str(config), "--on", target.name, *options])
    made_for = f"# For {points} points on {count} x {target.device.description}, by `{command}`.\n#\n"
    for pattern, new in (changes | {r"^(?=# A sweep as)": made_for}).items():
        text, found = re.subn(pattern, lambda _, new=new: new, text, flags=re.MULTILINE)
        if found != SEVERAL.get(pattern, 1):
            raise ValueError(f"{template} has {found} times {pattern}")
    return text


def plan(
    config: Config,
    /,
    *,
    on: Annotated[Text, default("", "DEVICES")] = None,
    only: Only = (),
    allow_code: Flag = False,
    write: NewFile = None,
) -> int:
    """Estimate what a sweep takes on devices that you do not have.

    Prints memory and the least time, and writes a job. Exit code 1: something does not fit.

    For example: jaxsens plan configs/gpu.toml --on h100 --write job.slurm

    Args:
        config: A TOML file of a sweep; see configs/.
        on: The devices: a100, b200, h100, h200, v5e, v5p, v6e, with their number, as h100x8 or v6e-8; or a TOML
            file that describes one, as docs/planning.md shows.
        only: Plan only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        allow_code: Import and call the functions that the config names.
        write: Write the job that is suggested: NAME.slurm or NAME.yaml.
    """
    from jaxsens.core.sweeps.config import load_sweep_config
    from jaxsens.core.sweeps.points import select

    with collecting("plan") as problems:
        if on is None:
            problems.add("--on", None, f"devices, such as {', '.join(DEVICES)}, h100x8 or v6e-8")
        if write is not None and write.suffix not in TEMPLATES:
            problems.add("--write", str(write), f"a name with one of these endings: {', '.join(TEMPLATES)}")
        check_output("--write", write, problems)
    target = target_called(on or "")
    sweep = load_sweep_config(config, allow_code)
    console = Console()
    with console.status("planning"):
        plan = planned(select(sweep.points, only), target, sweep.placement.memory_budget)
    for part in _report(plan):
        console.print(part, highlight=False, markup=False)
    code = int(bool(plan.unmeasurable) or any(row.refusal for row in plan.rows))
    if write is not None:
        words = [word for value in only for word in ("--only", value)]
        words += ["--allow-code"] * allow_code
        text, done = job_file(plan, write, config, words), "replaced" if write.exists() else "wrote"
        if write_output("--write", write, lambda: write_text(write, text), text):
            return 1
        submit = "kubectl apply -f" if write.suffix == ".yaml" else "sbatch"
        print_text(Console(stderr=True), f"{done} {write}; submit it by: {submit} {shlex.quote(str(write))}")
    return code


def _number(value: float) -> str:
    """The number in seven characters at most."""
    return f"{value:.{3 if 1 <= value < 1000 else 2}g}"


_COLUMNS: dict[str, tuple[int, Callable[[PlannedPoints], object]]] = {
    "n": (7, lambda row: row.expected.run.n),
    "points": (6, lambda row: len(row.expected.points)),
    "engine": (11, lambda row: row.expected.run.choice.name),
    "batch": (7, lambda row: row.batch),
    "memory": (9, lambda row: "too large" if row.refusal else in_words(row.memory)),
    "Gop": (7, lambda row: _number(row.expected.operations / 1e9)),
    "GB": (7, lambda row: _number(row.moved / 1e9)),
    "least": (9, lambda row: "on host" if row.seconds is None else duration(row.seconds)),
    "compile": (7, lambda row: duration(row.expected.run.compiling)),
}
"""The columns of the table: their widths, together within a terminal of 80 columns, and what they hold."""


def _report(plan: Plan) -> Iterator[Table | str]:
    """Yields what is printed: variants whose numbers are the same stand above one part of the table."""
    yield f"{plan.target.name}: {plan.target.count} x {plan.target.device.description}"
    parts: dict[str, list[tuple[str, ...]]] = {}
    for row in plan.rows:
        cells = tuple(str(cell(row)) for _, cell in _COLUMNS.values())
        parts.setdefault(row.expected.points[0].variant, []).append(cells)
    for k, rows in enumerate(dict.fromkeys(map(tuple, parts.values()))):
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=not k)
        for name, (width, _) in _COLUMNS.items():
            table.add_column(name, justify="left" if name == "engine" else "right", width=width, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        yield f"\n{', '.join(name for name, own in parts.items() if tuple(own) == rows)}"
        yield table
    yield ""
    yield from (f"{point}: {reason}" for point, reason in plan.unmeasurable)
    yield from (f"{row.expected.points[0]}: {row.refusal}" for row in plan.rows if row.refusal)
    yield (
        f"All points: at least {duration(plan.least_seconds)} by the rates of the devices, and about "
        f"{duration(plan.compiling)} to compile, once"
    )
    yield (
        f"Suggested: {plan.shards} shard{'s' if plan.shards > 1 else ''} of at most {plan.minutes} minutes, if a "
        f"tenth of the rates is reached: {plan.device_hours:.2g} device-hours in all. A shard that runs out of time "
        "goes on where it was"
    )
