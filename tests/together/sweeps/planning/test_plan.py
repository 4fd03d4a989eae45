"""`jaxsens plan`: devices, the table, the suggested job, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxsens.cli import main
from jaxsens.cli.plan import Plan, job_file, known_devices, planned, target_called
from jaxsens.core.sweeps.config import load_sweep_config
from tests.refusals import refused

CONFIG = """
title = "plan"
lengths = [8, 16]
seeds = 3
variants = ["softmax", "leftmost-hard"]
[model]
alphabet_size = 2
width = 8
layers = 2
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(CONFIG, "utf-8")
    return path


def plan_of(config: Path, name: str) -> Plan:
    made = planned(load_sweep_config(config).points, target_called(name), None)
    assert not made.unmeasurable
    return made


def test_eight_devices_take_an_eighth_of_the_least_time_of_one(config):
    one, eight = plan_of(config, "h100"), plan_of(config, "h100x8")
    assert len(one.rows) == 4
    for alone, shared in zip(one.rows, eight.rows, strict=True):
        # Operations and bytes are the same; batches are smaller, of whole flips.
        assert 8 * (shared.seconds or 0) == pytest.approx(alone.seconds, rel=0.2)
    assert eight.device_hours > one.device_hours  # all eight wait while the host compiles
    assert one.shards == 1


@pytest.mark.parametrize("name", ["h100x8", "v6e-8"])
def test_job_files_have_the_numbers_of_the_plan(config, name):
    yaml = pytest.importorskip("yaml")
    made = plan_of(config, name)
    only = ("--only", "variant=softmax,leftmost-hard")
    slurm = job_file(made, ".slurm", config, only)
    command = f"jaxsens plan {config} --on {name} {' '.join(only)}"
    made_for = f"# For 12 points on 8 x {made.target.device.description}, by `{command}`."
    assert slurm.splitlines()[1] == made_for
    assert f'/$shards" {" ".join(only)} "${{@:3}}" &' in slurm
    assert f"#SBATCH --array=0-{made.shards - 1}\n" in slurm
    # Programs take longest to compile for a TPU.
    assert f"#SBATCH --time=00:{30 if name.startswith('v6e') else 10}:00\n" in slurm
    assert made.minutes == (30 if name.startswith("v6e") else 10)
    assert ("#SBATCH --gpus-per-task=8\n" in slurm) == name.startswith("h100")
    assert f"config=${{1:-{config}}}" in slurm
    job = yaml.safe_load(job_file(made, ".yaml", config, only))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    kind = "nvidia.com/gpu" if name.startswith("h100") else "google.com/tpu"
    assert container["resources"]["limits"][kind] == "8"
    assert container["image"] == ("jaxsens:cuda13" if name.startswith("h100") else "jaxsens:tpu")
    assert container["args"][-4:-2] == [*only]
    assert f"$(INDEX)/{job['spec']['completions']}" in container["args"]
    selector = job["spec"]["template"]["spec"].get("nodeSelector", {})
    assert ("2x4" in selector.values()) == name.startswith("v6e")


def test_the_command_prints_the_plan_within_80_columns_and_writes_the_job(
    config, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    job = tmp_path / "job.slurm"
    assert main(["plan", str(config), "--on", "h100", "--only", "n=8,16", "--write", str(job)]) == 0
    output = capsys.readouterr().out
    assert all(len(line) <= 80 for line in output.splitlines())
    told = " ".join(output.split())
    assert "h100: 1 x NVIDIA H100 SXM, 80 GB" in told
    assert " 16 3 " in told  # the length and the points of a row
    assert "Suggested: 1 shard of at most 10 minutes" in told
    assert job.read_text("utf-8").startswith("#!/bin/bash")
    assert '/$shards" --only n=8,16 "${@:3}" &' in job.read_text("utf-8")


def test_what_does_not_fit_is_said_and_is_exit_code_1(config, capsys):
    config.write_text(CONFIG + "[placement]\nmemory_budget = 100\n", "utf-8")
    assert main(["plan", str(config), "--on", "h100"]) == 1
    assert "memory_budget = 100 bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ("words = 4\n[[model]]\nname = 'a'\n", "theorem6"),
        ("bins = [[2, 4]]\nwords = 4\n", "generalisation"),
        ("[language]\nname = 'parity'\n", "train"),
    ],
)
def test_a_config_of_a_command_that_trains_is_refused_with_its_name(config, capsys, keys, command):
    config.write_text(keys, "utf-8")
    assert main(["plan", str(config), "--on", "h100"]) == 2
    told = capsys.readouterr().err
    assert f"CONFIG = '{config}': a config of `jaxsens {command}`, which trains models" in told
    assert "unknown key" not in told


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
