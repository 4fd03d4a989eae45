"""The devices that a measurement is planned for: one TOML file each, and one's own in the same form."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.strict import Positive, config, did_you_mean, read_table, read_toml

_FOLDER = Path(__file__).parent / "devices"

Rate = Annotated[float, Field(ge=0)]


@config
class Gpu:
    """What XLA asks of a GPU that is not at hand.

    Args:
        compute_capability: as "9.0".
        accelerated: whether its own extensions are used, as of sm_90a.
        cores: streaming multiprocessors.
        units_per_core: float32 units of each.
        clock_ghz: the highest clock rate.
        cache: bytes of the second level.
        shared_memory_per_core, shared_memory_per_block: bytes; the latter is the most that a kernel can ask for.
    """

    compute_capability: str
    accelerated: bool
    cores: Positive
    units_per_core: Positive
    clock_ghz: Rate
    cache: Positive
    shared_memory_per_core: Positive
    shared_memory_per_block: Positive


@config
class Tpu:
    """What XLA asks of a TPU that is not at hand.

    Args:
        generation: its name in a topology, as "v5e".
        type: the word before the number in the name of a slice, as "v5litepod".
        kubernetes: the name of its nodes in Google Kubernetes Engine, as "tpu-v5-lite-podslice".
        slices: the topologies of one host and of several, as "2x4", by that number.
    """

    generation: str
    type: str
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
        gpu, tpu: what the compiler asks; the one of the platform.
    """

    platform: Literal["gpu", "tpu"]
    description: str
    memory: Positive
    bandwidth: Rate
    float32: Rate
    float64: Rate
    gpu: Gpu | None = None
    tpu: Tpu | None = None

    def __post_init__(self) -> None:
        for name in ("gpu", "tpu"):
            if (getattr(self, name) is not None) != (self.platform == name):
                raise InputError.of(
                    "platform", self.platform, f"give the table [{self.platform}] alone", subject="Device"
                )

    def rate(self, dtype: str) -> float:
        """Returns the operations per second in a dtype; 0 if the host computes it."""
        return self.float64 if dtype == "float64" else self.float32


@dataclass(frozen=True)
class Target:
    """Devices of one kind that work together.

    Attributes:
        name: as it was asked for, such as "h100x8" or "v6e-8".
        device: what each of them is.
        count: how many.
        slice: the number in the name of a TPU's slice whose compiler is asked; None for a GPU.
    """

    name: str
    device: Device
    count: int
    slice: str | None = None


def known_devices() -> tuple[str, ...]:
    """Returns the names of the devices that jaxsens describes."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def target_called(name: str) -> Target:
    """Returns the devices of a name: "h100", "h100x8", "v6e-8", or the path of a TOML file, with "x8" after it.

    The number after a TPU's name is that of its slice, as Google Cloud counts: v5p-8 has four chips.

    Raises:
        InputError: naming all errors, for a device that is not known, a file with errors, or a slice there is none of.
    """
    whole = re.fullmatch(r"(?P<device>.+?)(?:[x-](?P<number>\d+))?", name)
    word, number = (whole["device"], whole["number"]) if whole else (name, None)
    own = word.endswith(".toml")
    if not own and word not in known_devices():
        raise InputError.of(
            "--on",
            name,
            f"no such device{did_you_mean(word, known_devices())} Known are "
            f"{', '.join(known_devices())}; describe another in a TOML file, as "
            "docs/planning.md shows, and give its path",
        )
    _, table = read_toml(Path(word) if own else _FOLDER / f"{word}.toml", "--on")
    problems = Problems(word)
    device = read_table(Device, table, "", problems)
    problems.raise_if_any()
    if device is None:
        raise TypeError("no device without an error")
    if device.tpu is None:
        with collecting("plan") as problems:
            if number == "0":
                problems.add("--on", name, "at least one device")
        return Target(name, device, int(number or 1))
    return _slice(name, device, device.tpu.slices, number)


def _slice(name: str, device: Device, slices: dict[str, str], number: str | None) -> Target:
    """Returns the slice of a number. A single chip is asked of the smallest slice."""
    if number is None:
        return Target(name, device, 1, min(slices, key=int))
    if number not in slices:
        raise InputError.of("--on", name, f"no slice of that number; known: {', '.join(slices)}")
    return Target(name, device, math.prod(map(int, slices[number].split("x"))), number)
