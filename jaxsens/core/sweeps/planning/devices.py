"""The devices that a measurement is planned for: one TOML file each, and one's own in the same form."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from jaxsens.core.base.errors import InputError, collecting
from jaxsens.core.base.strict import Positive, config, did_you_mean, read_table, read_toml

_FOLDER = Path(__file__).parent / "devices"

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
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def target_called(name: str) -> Target:
    """Returns the devices of a name: "h100", "h100x8", "v6e-8", or the path of a TOML file, with "x8" after it.

    The number after a TPU's name is that of its slice, as Google Cloud counts: v5p-8 has four chips.

    Raises:
        InputError: naming all errors, for a device that is not known, a file with errors, or a slice there is none of.
    """
    match = re.fullmatch(r"(?P<device>.+?)(?:[x-](?P<number>\d+))?", name)
    word, number = (match["device"], match["number"]) if match else (name, None)
    file = Path(word) if word.endswith(".toml") else _FOLDER / f"{word}.toml"
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
