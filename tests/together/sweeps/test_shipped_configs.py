"""Every config in configs/ can be run as it is, and begins by saying what it is for; `jaxsens plan`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens.cli import main
from jaxsens.cli.plan import DEVICES, PLANNING, TEMPLATES, Plan, job_file, planned, target_called
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.training.theorem6.run import load_theorem6_config
from tests.core.sweeps.tiny import tiny_text
from tests.refusals import refused

CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.toml"))
ATLAS = sorted((CONFIGS[0].parent / "atlas").glob("*.toml"))
SWEEPS = [path for path in CONFIGS if not path.stem.startswith("theorem6")]
EXPERIMENTS = [path for path in CONFIGS if path not in SWEEPS]
SIX = ["softmax", "temperature-log", "temperature-linear", "unbounded", "leftmost-hard", "average-hard"]


def header(path: Path) -> dict[str, str]:
    """The comment a config begins with, by its headings."""
    comment = re.match(r"(?:#.*\n)+", path.read_text("utf-8"))
    assert comment, "a config begins with a comment"
    text = re.sub(r"(?m)^# ?", "", comment[0])
    parts = re.split(r"(?m)^(Claim|Command|Cost|Expect): *", text)
    return {name: " ".join(body.split()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_an_experiment_has_soft_attention_and_a_recurrent_network_for_both_languages(path):
    experiment = load_theorem6_config(path)
    assert len(experiment.lengths) >= 5
    assert len(experiment.seeds) >= 3
    assert sum(n >= experiment.fit_from for n in experiment.lengths) >= 3
    kinds = {
        (entry.language.name, type(entry.train and entry.train.model).__name__) for entry in experiment.model
    }
    assert {name for name, _ in kinds} == {"parity", "dyck"}
    assert ("parity", "NoneType") in kinds
    assert load_theorem6_config(path) == experiment


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_config_loads_and_has_what_a_fit_and_an_interval_need(path):
    sweep = load_sweep_config(path)
    assert len(sweep.lengths) >= 3
    assert len(sweep.seeds) >= 3
    assert {"mean", "max"} <= set(sweep.statistics)
    assert sweep.title
    assert sweep.claim
    assert len({point.key for point in sweep.points}) == len(sweep.points)


@pytest.mark.parametrize("name", ["asymptotic", "gpu", "cluster"])
def test_the_configs_of_random_weights_begin_with_the_same_six_variants(name):
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == name))
    assert [variant.name for variant in sweep.variants][:6] == SIX


def test_the_quickstart_shows_each_factor_by_itself_both_and_neither():
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == "quickstart"))
    assert {one.name for one in sweep.variants if one.source.weights == "random"} < set(SIX)
    planned = {one.name: one for one in sweep.plan.variants if one.weights == "constructed"}
    assert {name: (one.temperature, one.bounded) for name, one in planned.items()} == {
        "parity-temperature": ("1/n^3", True),
        "parity-embeddings": ("1", False),
        "parity-both": ("1/n", False),
        "parity-neither": ("1", True),
    }
    assert [one.source.temperature for one in sweep.variants[:4]] == ["1", "1/log n", "1", "hard"]


def test_the_quickstarts_control_differs_from_its_network_in_the_temperature_alone():
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == "quickstart"))
    network, control = (
        next(one.source for one in sweep.variants if one.name == name).example
        for name in ("parity-temperature", "parity-neither")
    )
    pairs = zip(jax.tree.leaves(network.parameters), jax.tree.leaves(control.parameters), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)
    assert replace(control.config, weighting=network.config.weighting) == network.config
    assert network.config.positions == control.config.positions
    assert control.config.weighting == jaxsens.Softmax()


def test_the_constructions_are_exact_at_every_length_that_is_measured():
    # Lengths for which float64 is not exact would show rounding, not the construction.
    sweep = load_sweep_config(next(path for path in CONFIGS if path.stem == "constructions"))
    sources = [variant.source for variant in sweep.variants if variant.source.weights == "constructed"]
    exact = [source.exact_length for source in sources if source.exact_length is not None]
    assert len(exact) >= 4  # the controls promise nothing
    assert min(exact) >= sweep.lengths[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "variant"), [("bhattamishra2023", "lstm"), ("profiles2026", "lstm-uniform")]
)
def test_the_decisions_of_lstms_with_large_weights_are_resolved(name, variant):
    sweep = load_sweep_config(next(path for path in ATLAS if path.stem == name))
    point = [one for one in sweep.points if one.variant == variant and one.n == sweep.lengths[-1]][4]
    result = point.measure.flip_sensitivity(point.model(), point.tokens()[:16], point.seed)
    assert result.resolved.all()  # in float32 some are not


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_begins_with_claim_command_cost_and_what_to_expect(path):
    parts = header(path)
    assert list(parts) == ["Claim", "Command", "Cost", "Expect"]
    assert all(parts.values())
    program, command, config, *_ = parts["Command"].split()
    wanted = "theorem6" if path in EXPERIMENTS else "sweep"
    assert (program, command, config) == ("jaxsens", wanted, f"configs/{path.name}")


@pytest.mark.parametrize("path", ATLAS, ids=lambda path: path.stem)
def test_a_config_of_the_atlas_names_its_paper_and_has_a_page(path):
    comment = re.match(r"(?:#.*\n)+", path.read_text("utf-8"))
    assert comment, "a config begins with a comment"
    for part in ("Paper:", "Claim:", "Command:", "Cost:"):
        assert part in comment[0]
    page = CONFIGS[0].parents[1] / "docs" / "atlas" / f"{path.stem.removesuffix('_gpu')}.md"
    assert f"configs/atlas/{path.name}" in page.read_text("utf-8")
    command = re.search(rf"(\S+) configs/atlas/{re.escape(path.name)} --out", comment[0])
    assert command, "it gives the command that runs this file"
    if command[1] == "sweep":
        assert load_sweep_config(path).title


CONFIG = tiny_text(lengths=[8, 16], seeds=3, width=8, heads=2, layers=2, feed_forward=32)


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
    slurm = job_file(made, Path("my job.slurm"), config, only)
    command = f"jaxsens plan {config} --on {name} {' '.join(only)}"
    made_for = f"# For 12 points on 8 x {made.target.device.description}, by `{command}`."
    assert slurm.splitlines()[1] == made_for
    told = [line.split("  ")[1].strip() for line in slurm.splitlines() if line.startswith("#   ")]
    again = f"SHARDS={made.shards} sbatch --array={made.shards - 1} 'my job.slurm'"
    assert told == ["sbatch 'my job.slurm'", again]
    assert f'/$shards" {" ".join(only)} "${{@:3}}" &' in slurm
    assert f"#SBATCH --array=0-{made.shards - 1}\n" in slurm
    # Programs take longest to compile for a TPU.
    assert f"#SBATCH --time=00:{30 if name.startswith('v6e') else 10}:00\n" in slurm
    assert made.minutes == (30 if name.startswith("v6e") else 10)
    assert ("#SBATCH --gpus-per-task=8\n" in slurm) == name.startswith("h100")
    assert f"config=${{1:-{config}}}" in slurm
    text = job_file(made, Path("job.yaml"), config, only)
    assert "#   kubectl apply -f cluster/kubernetes_storage.yaml -f job.yaml\n" in text
    job = yaml.safe_load(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    kind = "nvidia.com/gpu" if name.startswith("h100") else "google.com/tpu"
    assert container["resources"]["limits"][kind] == "8"
    assert container["image"] == ("jaxsens:cuda13" if name.startswith("h100") else "jaxsens:tpu")
    assert container["args"][-4:-2] == [*only]
    assert f"$(INDEX)/{job['spec']['completions']}" in container["args"]
    selector = job["spec"]["template"]["spec"].get("nodeSelector", {})
    assert ("2x4" in selector.values()) == name.startswith("v6e")


@pytest.mark.parametrize(
    ("ending", "old", "new"),
    [
        (".slurm", "#SBATCH --time=", "#SBATCH --time=1\n#SBATCH --time="),
        (".yaml", "parallelism: 16", "parallelism: 17"),
        (".yaml", "completions: 16", "completions: 16\n  other: each of 16"),
        (".yaml", "      # nodeSelector:", "      nodeSelector:"),
    ],
)
def test_a_template_without_a_place_or_with_one_twice_is_an_error(
    config, tmp_path, monkeypatch, ending, old, new
):
    made = plan_of(config, "v6e-8")
    for name in set(TEMPLATES.values()):
        text = (PLANNING / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace(old, new, 1), "utf-8")
    monkeypatch.setattr("jaxsens.cli.plan.PLANNING", tmp_path)
    with pytest.raises(ValueError, match="times"):
        job_file(made, Path(f"job{ending}"), config)


def test_the_command_prints_the_plan_within_80_columns_and_writes_the_job(
    config, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    job = tmp_path / "job.slurm"
    assert main(["plan", str(config), "--on", "h100", "--only", "n=8,16", "--write", str(job)]) == 0
    output, said = capsys.readouterr()
    assert said == f"wrote {job}; submit it by: sbatch {job}\n"
    assert all(len(line) <= 80 for line in output.splitlines())
    told = " ".join(output.split())
    assert "h100: 1 x NVIDIA H100 SXM, 80 GB" in told
    assert "…" not in told  # no number is cut
    assert " 16 3 " in told  # the length and the points of a row
    assert "Suggested: 1 shard of at most 10 minutes" in told
    assert job.read_text("utf-8").startswith("#!/bin/bash")
    assert '/$shards" --only n=8,16 "${@:3}" &' in job.read_text("utf-8")


def test_what_does_not_fit_is_said_and_is_exit_code_1(config, capsys):
    config.write_text(CONFIG + "[placement]\nmemory_budget = 100\n", "utf-8")
    assert main(["plan", str(config), "--on", "h100"]) == 1
    assert "memory_budget = 100 bytes" in capsys.readouterr().out
    job = config.with_suffix(".yaml")
    job.write_text("", "utf-8")
    assert main(["plan", str(config), "--on", "h100", "--write", str(job)]) == 1
    assert capsys.readouterr().err == f"replaced {job}; submit it by: kubectl apply -f {job}\n"
    assert job.read_text("utf-8")


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ("words = 4\n[[model]]\nname = 'a'\n", "jaxsens theorem6"),
        ("[language]\nname = 'parity'\n", "jaxsens train"),
        ("bins = [[1, 2]]\nwords = 4\n", "python examples/generalisation.py"),
    ],
)
def test_a_config_of_a_command_that_trains_is_refused_with_its_name(config, capsys, keys, command):
    config.write_text(keys, "utf-8")
    assert main(["plan", str(config), "--on", "h100"]) == 2
    told = capsys.readouterr().err
    assert f"CONFIG = '{config}': a config of `{command}`, which trains models" in told
    assert "unknown key" not in told


OWN = """
platform = "gpu"
description = "a small one"
memory = 16_000_000_000
bandwidth = 3e11
float32 = 8e12
float64 = 2.5e11
"""


@pytest.mark.parametrize("name", DEVICES)
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
    assert refused("--on", target_called, "cpu").count("a100, b200") == 1
    assert "4, 8, 16" in refused("--on", target_called, "v6e-7")
    refused("--on", target_called, "h100x0")
    refused("--on", target_called, "h100x00")
    refused("--on", target_called, f"h100x{'9' * 5000}")
    refused("", target_called, "missing.toml")


def test_ones_own_device_is_read_from_a_file_and_all_its_errors_are_told(tmp_path):
    path = tmp_path / "small-2.toml"
    path.write_text(OWN, "utf-8")
    target = target_called(f"{path}x2")
    assert (target.count, target.device.float64) == (2, 2.5e11)
    path.write_text(OWN.replace("bandwidth", "bandwith").replace("8e12", '"8e12"'), "utf-8")
    refused("bandwidth bandwith float32", target_called, str(path))
    path.write_text(OWN.replace("3e11", "0.0"), "utf-8")
    refused("bandwidth", target_called, str(path))
    path.write_text(OWN.replace('"gpu"', '"tpu"'), "utf-8")
    refused("platform", target_called, str(path))
    for slices in ('{"a" = "2x2"}', "{}", '{"4" = "2by2"}', '{"4" = "0x2"}'):
        path.write_text(
            path.read_text("utf-8").partition("[tpu]")[0] + f'[tpu]\nkubernetes = "x"\nslices = {slices}\n'
        )
        refused("tpu.slices", target_called, str(path))
