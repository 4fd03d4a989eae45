"""Devices that are planned for: those that are shipped, and one's own."""

from __future__ import annotations

import pytest

from jaxsens.core.sweeps.planning import topology
from jaxsens.core.sweeps.planning.devices import known_devices, target_called
from tests.refusals import refused

OWN = """
platform = "gpu"
description = "a small one"
memory = 16_000_000_000
bandwidth = 3e11
float32 = 8e12
float64 = 2.5e11

[gpu]
compute_capability = "7.5"
accelerated = false
cores = 40
units_per_core = 64
clock_ghz = 1.59
cache = 4_194_304
shared_memory_per_core = 65_536
shared_memory_per_block = 65_536
"""


@pytest.mark.parametrize("name", known_devices())
def test_every_shipped_device_reads_and_has_the_rates_of_its_platform(name):
    target = target_called(name)
    device = target.device
    assert (device.gpu is None, device.tpu is None) == (device.platform == "tpu", device.platform == "gpu")
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
    path.write_text(OWN.replace("bandwidth", "bandwith").replace('"7.5"', "7.5"), "utf-8")
    refused("bandwidth bandwith gpu.compute_capability", target_called, str(path))
    path.write_text(OWN.split("[gpu]")[0], "utf-8")
    refused("platform", target_called, str(path))


def test_without_the_extra_nothing_is_compiled_and_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    for name, extra in (("v5e", "tpu"), ("h100x8", "cuda12")):
        assert f"jaxsens[{extra}]" in refused("--on", topology.mesh_of, target_called(name))
