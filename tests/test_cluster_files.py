"""The job files in cluster/: sound for their schedulers, and with options that the command has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CLUSTER = Path(__file__).resolve().parents[1] / "cluster"
SLURM = sorted(CLUSTER.glob("*.sbatch"))
KUBERNETES = sorted(CLUSTER.glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(path.read_text("utf-8")))


@pytest.mark.parametrize("path", [*SLURM, CLUSTER / "try_slurm.sh"], ids=lambda path: path.name)
def test_scripts_are_sound(path):
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", path], check=True)


@pytest.mark.parametrize("path", SLURM, ids=lambda path: path.name)
def test_slurm_options_come_before_the_first_command_and_the_warning_reaches_the_steps(path):
    lines = path.read_text("utf-8").splitlines()
    first = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line for line in lines if line.startswith("#SBATCH")]
    assert all(line in lines[:first] for line in options)
    assert "#SBATCH --signal=TERM@120" in options
    assert "#SBATCH --requeue" in options


def test_shards_are_as_many_as_pods():
    (job,) = documents(CLUSTER / "kubernetes_indexed_job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert f"$(INDEX)/{job['spec']['completions']}" in container["args"]
    assert job["spec"]["parallelism"] == job["spec"]["completions"]


def test_processes_are_as_many_as_pods():
    (jobset,) = documents(CLUSTER / "kubernetes_jobset.yaml")
    (hosts,) = jobset["spec"]["replicatedJobs"]
    spec = hosts["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    arguments = container["args"]
    assert arguments[arguments.index("--processes") + 1] == str(spec["completions"])
    name = f"{jobset['metadata']['name']}-{hosts['name']}-0-0.{jobset['spec']['network']['subdomain']}"
    coordinator = arguments[arguments.index("--coordinator") + 1]
    assert re.fullmatch(re.escape(name) + r":\d+", coordinator)


def with_accelerator(text: str, kind: str) -> str:
    """A file with the requests for a "gpu" or a "tpu", which stand there as comments, put in."""
    lines = {
        "gpu": r"nvidia\.com/gpu: .*",
        "tpu": r"google\.com/tpu: .*|nodeSelector:|  cloud\.google\.com/.*",
    }
    return re.sub(rf"^( *)# ({lines[kind]})$", r"\1\2", text, flags=re.MULTILINE)


def validate(document: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    if document["kind"] == "JobSet":  # no kind of Kubernetes itself, but its jobs are
        for hosts in document["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": hosts["name"]}}
            validator.validate({**job, **hosts["template"]}, validator.latest_version(), strict=True)
    else:
        validator.validate(document, validator.latest_version(), strict=True)


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_files_fit_the_official_schemas(path):
    for document in documents(path):
        validate(document)


@pytest.mark.parametrize("kind", ["gpu", "tpu"])
@pytest.mark.parametrize("name", ["kubernetes_indexed_job.yaml", "kubernetes_jobset.yaml"])
def test_the_requests_for_accelerators_are_sound_too(name, kind, tmp_path):
    changed = tmp_path / name
    changed.write_text(with_accelerator((CLUSTER / name).read_text("utf-8"), kind))
    (document,) = documents(changed)
    spec = document["spec"]
    while "containers" not in spec:
        spec = (spec["replicatedJobs"][0] if "replicatedJobs" in spec else spec)["template"]["spec"]
    (container,) = spec["containers"]
    resource = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}[kind]
    assert int(container["resources"]["limits"][resource]) >= 1
    assert len(spec.get("nodeSelector", {})) == {"gpu": 0, "tpu": 2}[kind]
    validate(document)
