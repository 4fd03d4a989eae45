"""The container image: built by the Dockerfile's steps without an engine, and run read-only without any rights."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxsens
from tools.image import ROOT, Image, build, context, left_over, megabytes

LACKING = [name for name in ("debootstrap", "unshare", "chroot") if not shutil.which(name)]
LACKING += ["the rights of root"] * (os.geteuid() != 0)
MOST_MEGABYTES = 1500  # 1336 with jax 0.12.0
KEPT = ("--compilation-cache", "compiled")
SWEEP = ("sweep", "/opt/configs/quickstart.toml", "--out", "results", "--only", "n=32", "--only", "seed=0")

needs_root = pytest.mark.skipif(
    bool(LACKING), reason=f"an image without an engine needs {', '.join(LACKING)}"
)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
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
def test_the_image_holds_no_compiler_and_nothing_that_only_building_it_needs(image, capsys):
    assert left_over(image.root) == []
    whole, own = megabytes(image.root), megabytes(image.root / "opt/jaxsens")
    with capsys.disabled():
        print(f"\nthe image takes {whole:.0f} MB, of which /opt/jaxsens {own:.0f} MB")
    assert own < whole < MOST_MEGABYTES


@pytest.mark.slow
@needs_root
def test_the_image_s_command_says_its_version_to_its_user(image, data):
    ran = run(image.command(data, *image.entry, "--version"))
    assert (ran.returncode, ran.stdout) == (0, f"jaxsens {jaxsens.__version__}\n"), ran.stderr
    assert image.user == "1000"


@pytest.mark.slow
@needs_root
def test_a_user_without_rights_writes_to_the_folder_of_data_and_to_tmp_alone(image, data):
    ran = run(image.command(data, "grep", "-E", "^(Uid|Cap...|NoNewPrivs):", "/proc/self/status"))
    told = {
        name: set(values.split())
        for name, _, values in (line.partition(":") for line in ran.stdout.splitlines())
    }
    assert (told.pop("Uid"), told.pop("NoNewPrivs")) == ({"1000"}, {"1"})
    assert len(told) == 5
    assert set.union(*told.values()) == {"0" * 16}
    find = r"find / -path /proc -prune -o \( -type d -o -type f \) -writable -print 2>&1 | grep -v 'Permission denied'"
    assert set(run(image.command(data, "sh", "-c", find)).stdout.split()) == {"/data", "/tmp"}


@pytest.mark.slow
@needs_root
def test_a_sweep_in_the_image_that_is_stopped_goes_on_where_it_was(image, data):
    command = image.command(data, *image.entry, *SWEEP, *KEPT)
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
def test_a_user_whom_the_image_does_not_know_measures_and_is_told_what_is_not_kept(image, data):
    os.chown(data, 4321, 4321)
    ran = run(image.command(data, *image.entry, *SWEEP, "--only", "variant=softmax", user="4321"))
    assert ran.returncode == 0, ran.stderr
    assert "compiled programs are not kept: /.cache/jaxsens/compiled cannot be written to" in ran.stderr
    assert (data / "results/report.html").stat().st_uid == 4321
