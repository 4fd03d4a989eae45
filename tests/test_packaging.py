"""The package as others get it: metadata, wheel, container image, licence."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tools import image
from tools.image import Stages

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


# What can be read from the image's recipe; `test_container.py` builds it.


@pytest.fixture(scope="module")
def stages() -> Stages:
    return image.stages((ROOT / "Dockerfile").read_text("utf-8"))


def test_the_image_is_built_in_stages_that_exist(stages):
    assert len(stages) >= 2
    names = list(stages)
    for position, name in enumerate(names):
        for instruction, arguments in stages[name]:
            if instruction == "COPY" and (source := re.match(r"--from=(\S+)", arguments)):
                assert source[1] in names[:position]


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
