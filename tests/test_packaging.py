"""The package as others get it: metadata, wheel, container image, job files for clusters."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import jaxsens
from tools import image
from tools.image import Image, Stages, build, context, left_over, megabytes

ROOT = Path(__file__).resolve().parents[1]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = METADATA["project"]
EXTRAS = PROJECT["optional-dependencies"]
ACCELERATORS = {"cuda12", "cuda13", "tpu"}


def distribution(requirement: str) -> str:
    """'orbax-checkpoint>=0.11' -> 'orbax-checkpoint'."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def third_party_imports(folder: Path) -> set[str]:
    """Top-level names, neither of the standard library nor of this source tree, that the folder's files import."""
    found: set[str] = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"jaxsens", "benchmarks", "tests", "tools"}


def undeclared(folder: Path, requirements: list[str]) -> set[str]:
    provided_by = importlib.metadata.packages_distributions()
    declared = {distribution(requirement) for requirement in requirements}
    return {
        name
        for name in third_party_imports(folder)
        if not {distribution(owner) for owner in provided_by.get(name, [name])} & declared
    }


def test_what_the_package_imports_is_a_declared_dependency():
    users = {"torch"}  # imported for a PyTorch module that is given, whose owner has it
    assert (
        undeclared(ROOT / "jaxsens", PROJECT["dependencies"] + EXTRAS["pretrained"] + EXTRAS["service"])
        == users
    )


@pytest.mark.parametrize("extra", ["pretrained", "service"])
def test_what_an_extra_brings_is_imported_by_its_own_folder_alone(extra):
    names = {distribution(one).replace("-", "_") for one in EXTRAS[extra]} - {"jaxsens"}
    importers = {
        file.relative_to(ROOT / "jaxsens").parts[0]
        for file in (ROOT / "jaxsens").rglob("*.py")
        if any(
            f"import {name}" in (text := file.read_text("utf-8")) or f"from {name}" in text for name in names
        )
    }
    assert importers == {extra}


def test_what_the_tests_import_is_a_dependency_or_in_the_test_extra():
    extras = EXTRAS["test"] + EXTRAS["service"] + EXTRAS["pretrained"] + EXTRAS["test-browser"]
    assert "jaxsens[service]" in EXTRAS["test"]
    assert "jaxsens[pretrained]" in EXTRAS["service"]
    assert undeclared(ROOT / "tests", PROJECT["dependencies"] + extras) == set()


def test_the_accelerator_extras_ask_for_the_same_jax_as_the_package():
    (bound,) = [text for text in PROJECT["dependencies"] if distribution(text) == "jax"]
    assert {name: EXTRAS[name] for name in ACCELERATORS} == {
        name: [bound.replace("jax", f"jax[{name}]")] for name in ACCELERATORS
    }


def test_one_version_everywhere():
    import jaxsens

    version = PROJECT["version"]
    assert jaxsens.__version__ == version
    assert re.search(rf"(?m)^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text("utf-8"))
    assert re.search(rf"(?m)^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    assert f"version = {{{version}}}" in (ROOT / "docs" / "citing.md").read_text("utf-8")


def test_the_licence_is_apache_2_in_full():
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert all(f"\n   {section}. " in text for section in range(1, 10))
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        check=True,
        capture_output=True,
        cwd=ROOT,
        timeout=120,
    )
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.mark.long
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "jaxsens").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == source
    assert "jaxsens/py.typed" in packed


def test_the_wheel_declares_command_licence_and_python(wheel):
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert metadata["Requires-Python"] == PROJECT["requires-python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "jaxsens = jaxsens.cli:run" in wheel.read(f"{info}/entry_points.txt").decode()
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


# What can be read from the image's recipe; the last tests build it.


@pytest.fixture(scope="module")
def stages() -> Stages:
    return image.stages((ROOT / "Dockerfile").read_text("utf-8"))


def test_the_image_runs_the_jaxsens_command_as_an_ordinary_user(stages):
    last = list(stages.values())[-1]
    users = [arguments for instruction, arguments in last if instruction == "USER"]
    assert users == ["1000"]
    assert any(instruction == "RUN" and "useradd --uid 1000" in text for instruction, text in last)
    (entry,) = [arguments for instruction, arguments in last if instruction == "ENTRYPOINT"]
    assert json.loads(entry) == ["jaxsens"]
    assert "jaxsens" in PROJECT["scripts"]


def test_what_the_image_copies_exists_and_is_not_ignored(stages):
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")
    }
    for steps in stages.values():
        for instruction, arguments in steps:
            if instruction == "COPY" and not arguments.startswith("--from"):
                for source in arguments.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    assert source.removeprefix("./") in kept, source


def install_step(stages: Stages, accelerator: str, folder: Path):
    """Runs the image's installing step with `echo` in pip's place."""
    (step,) = [
        text for steps in stages.values() for name, text in steps if name == "RUN" and "ACCELERATOR" in text
    ]
    (folder / "jaxsens-0-py3-none-any.whl").touch()
    script = step.replace("/opt/jaxsens/bin/pip", "echo").replace("/wheels", str(folder))
    return subprocess.run(
        ["sh", "-c", script],
        env={"PATH": "/usr/bin:/bin", "ACCELERATOR": accelerator},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("accelerator", ["cpu", *sorted(ACCELERATORS)])
def test_the_image_installs_the_extra_of_the_accelerator(stages, tmp_path, accelerator):
    ran = install_step(stages, accelerator, tmp_path)
    assert ran.returncode == 0
    extras = "service" if accelerator == "cpu" else f"service,{accelerator}"
    assert ran.stdout.strip().endswith(f".whl[{extras}]")


def test_the_image_refuses_an_unknown_accelerator(stages, tmp_path):
    ran = install_step(stages, "cuda11", tmp_path)
    assert ran.returncode == 2
    assert "ACCELERATOR=cuda11: must be" in ran.stderr


CLUSTER = ROOT / "cluster"
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


LACKING = [name for name in ("debootstrap", "unshare", "chroot") if not shutil.which(name)]
LACKING += ["the rights of root"] * (os.geteuid() != 0)
MOST_MEGABYTES = 1500  # 1336 with jax 0.12.0
KEPT = ("--compilation-cache", "compiled")
SWEEP = ("sweep", "/opt/configs/quickstart.toml", "--out", "results", "--only", "n=32", "--only", "seed=0")

needs_root = pytest.mark.skipif(
    bool(LACKING), reason=f"an image without an engine needs {', '.join(LACKING)}"
)


@pytest.fixture(scope="module")
def built() -> Iterator[Image]:
    # Not in pytest's folder, which is kept for three runs: this takes gigabytes.
    with tempfile.TemporaryDirectory(prefix="jaxsens-image-") as folder:
        yield build((ROOT / "Dockerfile").read_text("utf-8"), Path(folder))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The one folder that can be written to: the image's user's."""
    os.chown(tmp_path, 1000, 1000)
    return tmp_path


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_an_image_is_built_of_what_is_not_ignored(tmp_path):
    (tmp_path / "here").mkdir()
    found = context((ROOT / ".dockerignore").read_text("utf-8"), tmp_path / "here")
    assert {one.name for one in found.iterdir()} == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "jaxsens",
        "configs",
    }
    assert (found / "jaxsens/cli/__init__.py").is_file()
    assert not [*found.rglob("__pycache__")]


@pytest.mark.slow
@needs_root
def test_the_image_holds_no_compiler_and_nothing_that_only_building_it_needs(built, capsys):
    assert left_over(built.root) == []
    whole, own = megabytes(built.root), megabytes(built.root / "opt/jaxsens")
    with capsys.disabled():
        print(f"\nthe image takes {whole:.0f} MB, of which /opt/jaxsens {own:.0f} MB")
    assert own < whole < MOST_MEGABYTES


@pytest.mark.slow
@needs_root
def test_the_image_s_command_says_its_version_to_its_user(built, data):
    ran = run(built.command(data, *built.entry, "--version"))
    assert (ran.returncode, ran.stdout) == (0, f"jaxsens {jaxsens.__version__}\n"), ran.stderr
    assert built.user == "1000"


@pytest.mark.slow
@needs_root
def test_a_user_without_rights_writes_to_the_folder_of_data_and_to_tmp_alone(built, data):
    ran = run(built.command(data, "grep", "-E", "^(Uid|Cap...|NoNewPrivs):", "/proc/self/status"))
    told = {
        name: set(values.split())
        for name, _, values in (line.partition(":") for line in ran.stdout.splitlines())
    }
    assert (told.pop("Uid"), told.pop("NoNewPrivs")) == ({"1000"}, {"1"})
    assert len(told) == 5
    assert set.union(*told.values()) == {"0" * 16}
    find = r"find / -path /proc -prune -o \( -type d -o -type f \) -writable -print 2>&1 | grep -v 'Permission denied'"
    assert set(run(built.command(data, "sh", "-c", find)).stdout.split()) == {"/data", "/tmp"}


@pytest.mark.slow
@needs_root
def test_a_sweep_in_the_image_that_is_stopped_goes_on_where_it_was(built, data):
    command = built.command(data, *built.entry, *SWEEP, *KEPT)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        while not [*data.glob("results/points/**/*.parquet")]:
            assert running.poll() is None, running.communicate()[1]
            time.sleep(0.1)
        (first,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)  # to process 1, as `docker stop`, which kills 10 seconds later
        _, told = running.communicate(timeout=10)
    assert running.returncode == 128 + signal.SIGTERM, told
    done = len([*data.glob("results/points/**/*.parquet")])
    again, after = run(command), run(command)
    assert (again.returncode, after.returncode) == (0, 0), again.stderr + after.stderr
    assert f"{done} of 7 were done before" in again.stderr
    assert "7 of 7 were done before" in after.stderr
    assert (data / "results/report.html").stat().st_uid == 1000
    assert [*data.glob("compiled/jaxlib-*-cpu-*/*-cache")]


@pytest.mark.slow
@needs_root
def test_a_user_whom_the_image_does_not_know_measures_and_is_told_what_is_not_kept(built, data):
    os.chown(data, 4321, 4321)
    ran = run(built.command(data, *built.entry, *SWEEP, "--only", "variant=softmax", user="4321"))
    assert ran.returncode == 0, ran.stderr
    assert "compiled programs are not kept: /.cache/jaxsens/compiled cannot be written to" in ran.stderr
    assert (data / "results/report.html").stat().st_uid == 4321
