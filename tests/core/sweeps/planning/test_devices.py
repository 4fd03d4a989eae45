"""Devices that are planned for: those that are shipped, and one's own."""

from __future__ import annotations

import pytest

from jaxsens.core.sweeps.planning.plan import known_devices, target_called
from tests.refusals import refused

OWN = """
platform = "gpu"
description = "a small one"
memory = 16_000_000_000
bandwidth = 3e11
float32 = 8e12
float64 = 2.5e11
"""


@pytest.mark.parametrize("name", known_devices())
def test_every_shipped_device_reads_and_has_the_rates_of_its_platform(name):
    target = target_called(name)
    device = target.device
    assert (device.tpu is None) == (device.platform == "gpu")
    assert (device.rate("float64") == 0) == (device.platform == "tpu")  # the host computes it
    assert target.count == 1
    assert 1e12 < device.rate("float32") < 1e15
    assert device.memory > 2**33


@pytest.mark.parametrize(
    ("name", "count"), [("h100x8", 8), ("a100-4", 4), ("v6e-8", 8), ("v5e-4", 4), ("v5p-8", 4), ("v5p-16", 8)]
)
def test_a_number_after_the_name_counts_gpus_or_names_the_slice_of_a_tpu(name, count):
    assert target_called(name).count == count


def test_a_device_that_is_not_known_is_refused_with_those_that_are():
    assert 'did you mean "h100"' in refused("--on", target_called, "h10")
    assert "4, 8, 16" in refused("--on", target_called, "v6e-7")
    refused("--on", target_called, "h100x0")
    refused("", target_called, "missing.toml")


def test_ones_own_device_is_read_from_a_file_and_all_its_errors_are_told(tmp_path):
    path = tmp_path / "small-2.toml"
    path.write_text(OWN, "utf-8")
    target = target_called(f"{path}x2")
    assert (target.count, target.device.float64) == (2, 2.5e11)
    path.write_text(OWN.replace("bandwidth", "bandwith").replace("8e12", '"8e12"'), "utf-8")
    refused("bandwidth bandwith float32", target_called, str(path))
    path.write_text(OWN.replace('"gpu"', '"tpu"'), "utf-8")
    refused("platform", target_called, str(path))
