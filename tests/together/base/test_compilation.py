"""Compiled programs are kept between commands, whole, and only for the processor that they were compiled for."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens import InputError, Softmax
from jaxsens.cli.shared import programs_kept
from jaxsens.core.base import program_cache
from jaxsens.core.base.program_cache import processor
from jaxsens.core.models.parts.schedules import Schedule
from tests.core.sweeps.tiny import TINY
from tests.refusals import refused
from tests.small_models import small

SETTINGS: Any = jax.config  # pyright knows none of its settings
HIT = "/jax/compilation_cache/cache_hits"
COMPILED = r"Finished XLA compilation of jit\((\w+)\)"
ROOT = Path(__file__).resolve().parents[3]


def compiled(factor: float) -> float:
    """Compiles a program that no other test compiles, and runs it."""
    jax.clear_caches()
    return float(jax.jit(lambda x: jnp.sin(x) * factor)(jnp.float32(1.0)))


@pytest.fixture
def loads():
    """JAX's events: a hit is a program that is loaded instead of compiled."""
    events: list[str] = []
    append = lambda event, **more: events.append(event)  # noqa: E731
    jax.monitoring.register_event_listener(append)
    yield events
    jax.monitoring.unregister_event_listener(append)


def entries(base: Path) -> list[Path]:
    return sorted(base.rglob("*-cache"))


@pytest.fixture
def jax_cache():
    """Sets JAX's own folder of compiled programs for a test."""
    before = SETTINGS.jax_compilation_cache_dir
    yield partial(jax.config.update, "jax_compilation_cache_dir")
    jax.config.update("jax_compilation_cache_dir", before)


def test_what_one_command_compiled_the_next_one_loads(tmp_path, loads):
    with programs_kept(str(tmp_path)):
        value = compiled(0.731)
    assert loads.count(HIT) == 0
    with programs_kept(str(tmp_path)) as second:
        assert compiled(0.731) == value
    assert loads.count(HIT) == len(entries(tmp_path)) >= 1
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"jaxlib-{program_cache.version('jaxlib')}-cpu-{processor()}"
    assert str(second) == f"compiled programs are kept in {folder}"
    assert not [path for path in entries(tmp_path) if path.is_symlink()]


def test_code_for_another_processor_is_never_loaded(tmp_path, monkeypatch, loads):
    with programs_kept(str(tmp_path)):
        compiled(0.737)
    monkeypatch.setattr(program_cache, "processor", lambda: "0" * 12)
    with programs_kept(str(tmp_path)):
        compiled(0.737)
    assert loads.count(HIT) == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_the_processor_is_told_by_its_features(monkeypatch):
    def told(text: str) -> str:
        monkeypatch.setattr(Path, "read_text", lambda path, **options: text)
        return processor()

    plain = told("processor : 0\nvendor_id : X\nflags : sse avx\ncpu MHz : 1000\n")
    assert plain == told("processor : 0\nvendor_id : X\nflags : avx sse\ncpu MHz : 2000\nprocessor : 1\n")
    assert plain != told("processor : 0\nvendor_id : X\nflags : sse avx avx512f\n")


def test_settings_of_jax_are_as_before_and_off_changes_nothing(tmp_path):
    before = SETTINGS.jax_compilation_cache_dir
    with programs_kept("off") as none:
        assert SETTINGS.jax_compilation_cache_dir == before
    assert "off" in str(none)
    with programs_kept(str(tmp_path)):
        assert SETTINGS.jax_compilation_cache_dir not in (before, str(tmp_path))
    assert SETTINGS.jax_compilation_cache_dir == before


def test_jax_own_settings_are_respected(tmp_path, monkeypatch, jax_cache):
    jax_cache(str(tmp_path / "of jax"))
    with programs_kept(None) as kept:
        assert kept.folder is not None
        assert kept.folder.parent == tmp_path / "of jax"
    jax_cache(None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with programs_kept(None) as kept:
        assert kept.folder is not None
        assert kept.folder.parent == tmp_path / "jaxsens" / "compiled"


def test_a_folder_that_cannot_be_used_is_refused_if_it_was_given_and_else_done_without(
    tmp_path, monkeypatch, jax_cache
):
    (tmp_path / "file").write_text("")
    refused("--compilation-cache", programs_kept, str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    jax_cache(None)
    with programs_kept(None) as kept:
        assert compiled(0.739) > 0
    assert kept.folder is None
    assert "cannot be written to" in str(kept)


@pytest.mark.long
def test_a_call_at_the_top_of_a_script_holds_until_the_process_ends(tmp_path):
    script = "import jax, jaxsens\njaxsens.programs_kept(%r)\njax.jit(lambda x: x * 3.0)(2.0)"
    ran = subprocess.run(
        [sys.executable, "-c", script % str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    assert entries(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # nothing but the programs is left


def test_no_link_in_the_folder_is_followed_and_a_folder_that_was_deleted_is_not_made_again(tmp_path):
    with jaxsens.programs_kept(tmp_path / "one"):
        compiled(0.351)
    for k, entry in enumerate(entries(tmp_path / "one")):
        entry.unlink()
        entry.symlink_to(tmp_path / f"outside{k}")
    with jaxsens.programs_kept(tmp_path / "one"):
        compiled(0.351)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    kept = jaxsens.programs_kept(tmp_path / "one")
    compiled(0.352)
    shutil.rmtree(tmp_path / "one")
    kept.close()
    assert not (tmp_path / "one").exists()


def test_what_a_killed_process_left_is_removed_and_a_living_ones_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    name = f"jaxsens-compiled-{socket.gethostname()}-"
    for number in (ended.pid, os.getpid()):
        (tmp_path / f"{name}{number}-x").mkdir()
    jaxsens.programs_kept(tmp_path / "one").close()
    assert {path.name for path in tmp_path.iterdir()} == {"one", f"{name}{os.getpid()}-x"}


def test_one_folder_is_used_at_a_time(tmp_path, loads):
    before = SETTINGS.jax_compilation_cache_dir
    with jaxsens.programs_kept(tmp_path / "one") as one:
        own = SETTINGS.jax_compilation_cache_dir
        for given in (None, tmp_path / "one"):
            with jaxsens.programs_kept(given) as inner:
                value = compiled(0.743)
            assert inner.folder == one.folder
            assert SETTINGS.jax_compilation_cache_dir == own
        loaded = loads.count(HIT)
        with jaxsens.programs_kept(tmp_path / "other"):
            assert compiled(0.743) == value
        assert SETTINGS.jax_compilation_cache_dir == before
    assert loads.count(HIT) == loaded >= 1
    assert [path.name for path in entries(tmp_path / "other")] == [
        path.name for path in entries(tmp_path / "one")
    ]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775], ids=oct)
@pytest.mark.parametrize("which", ["the folder", "the folder in it"])
def test_programs_of_strangers_are_not_run(which, mode, tmp_path):
    with programs_kept(str(tmp_path)) as own:
        assert own.folder is not None
    folder = tmp_path if which == "the folder" else own.folder
    folder.chmod(mode)
    with pytest.raises(InputError, match=rf"(?s)others can write to {folder}, .*: .*chmod go-w {folder}$"):
        programs_kept(str(tmp_path))
    folder.chmod(mode & 0o755)
    with programs_kept(str(tmp_path)) as kept:
        assert kept.folder == own.folder


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    monkeypatch.setattr(program_cache, "_ROOT", -1)
    refused("--compilation-cache", programs_kept, str(tmp_path))


def test_where_nobody_chose_a_folder_that_others_can_write_to_it_is_warned_of(
    tmp_path, monkeypatch, jax_cache
):
    base = tmp_path / "jaxsens" / "compiled"
    base.mkdir(parents=True)
    base.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax_cache(None)
    with pytest.warns(UserWarning, match=f"chmod go-w {base}"), programs_kept(None) as kept:
        assert kept.folder is None
    assert "others can write" in str(kept)


def test_folders_are_made_so_that_others_cannot_write_to_them_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with programs_kept(str(tmp_path / "made")) as kept:
            assert kept.folder is not None
    finally:
        os.umask(before)


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize(
    ("engine", "programs"),
    [
        (
            "vmap",
            ["_prepared", "_outputs_of_transformer", "run"],
        ),  # in float64, which tells what rounding does
        ("incremental", ["_prepared", "_outputs_of_transformer", "run"]),
        ("difference", ["_prepare_in_float64", "run"]),
        ("first-order", ["_prepared", "run", "_prepared", "run"]),
    ],
)
def test_a_first_call_compiles_nothing_but_the_preparation_and_the_flips(engine, programs, caplog):
    # Programs of one operation, as a conversion or a maximum of an array is one, cost a first call 20 ms each.
    model = jaxsens.Transformer(small(alphabet_size=2, layers=2, dtype="float32"), seed=0)
    assert model.parameters
    jax.clear_caches()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        jaxsens.flip_sensitivity(model, [0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1], engine=engine)
    assert re.findall(COMPILED, caplog.text) == programs


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize("engine", ["incremental", "difference", "vmap", "first-order"])
def test_models_that_differ_in_temperature_and_positions_alone_share_their_programs(engine, caplog):
    word, found = [0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1], []
    variants = ({}, {"weighting": Softmax(Schedule(coefficient=1.5))}, {"positions": ("learned", "fraction")})
    for changes in variants:
        model = jaxsens.Transformer(small(alphabet_size=2, layers=2, **changes), seed=0)
        with jax.log_compiles(), caplog.at_level("WARNING"):
            caplog.clear()
            found.append(jaxsens.flip_sensitivity(model, word, engine=engine).norms)
        compiled = re.findall(COMPILED, caplog.text)
        assert compiled == [] if changes else compiled
        flipped = [np.bitwise_xor(word, np.arange(11) == i) for i in range(10)]
        exact = [np.linalg.norm(model(np.asarray(one)) - model(np.asarray(word))) for one in flipped]
        np.testing.assert_allclose(found[-1], exact, rtol=1e-9)
    assert np.abs(found[1] - found[0]).min() > 1e-9 < np.abs(found[2] - found[0]).min()


ONE_POINT = TINY.replace("seeds = 2", "seeds = 1").replace('["softmax", "leftmost-hard"]', '["softmax"]')


@pytest.mark.long
def test_a_sweep_loads_the_programs_of_another_and_its_numbers_are_the_same(tmp_path):
    (tmp_path / "tiny.toml").write_text(ONE_POINT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    kept = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "jaxsens", "sweep", str(tmp_path / "tiny.toml")]
        command += ["--out", str(tmp_path / name), "--compilation-cache", str(tmp_path / "kept")]
        command += ["--shard", "0/2"]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert f"compiled programs are kept in {tmp_path / 'kept'}" in ran.stderr
        kept.append([(path.name, path.stat().st_mtime_ns) for path in entries(tmp_path / "kept")])
    assert kept[0] == kept[1] != []
    first, second = (pd.read_parquet(tmp_path / name / "points")["value"] for name in ("first", "second"))
    assert len(first)
    assert first.tolist() == second.tolist()
