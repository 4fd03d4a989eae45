"""A checkpoint is read only if every byte is as it was written; what is wrong is named; training falls back."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxsens import InputError, Transformer
from jaxsens.core.base.files import takes_no_more
from jaxsens.core.base.sealed import write_sealed
from jaxsens.training import LSTM, checkpoints
from jaxsens.training.checkpoints import FOLDER, DamagedCheckpoint, check_directory, load_checkpoint
from jaxsens.training.loop import Note, train
from tests.refusals import refused
from tests.several_processes import files_of_at_most
from tests.training.tiny import Heard, tiny

NEWEST, OLDER = "step_00000012", "step_00000008"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished training, not to be changed."""
    directory = tmp_path_factory.mktemp("trained")
    return train(tiny(), directory), directory


@pytest.fixture
def copy(trained, tmp_path):
    """The directory of a finished training, to be damaged."""
    return Path(shutil.copytree(trained[1], tmp_path / "copy"))


def equal(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a.parameters), jax.tree.leaves(b.parameters), strict=True)
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in pairs)


def files_of(directory: Path, step: str = NEWEST) -> list[Path]:
    return sorted(path for path in (directory / FOLDER / step).rglob("*") if path.is_file())


@pytest.mark.parametrize("reserved", [True, False])
def test_a_checkpoint_that_cannot_be_written_is_one_error_and_the_older_ones_stay(
    copy, caplog, monkeypatch, reserved
):
    if not reserved:  # The disk fills up meanwhile, and Orbax logs where.
        monkeypatch.setattr(checkpoints, "_reserve", lambda place, size: None)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    state: Any = {"a": np.random.default_rng(0).normal(size=100_000)}
    with pytest.raises(OSError, match="File too large") as failed, files_of_at_most(200_000):
        checkpoints.save(copy, tiny(), 13, state)
    assert failed.value.filename == str(copy / FOLDER / "step_00000013")
    assert takes_no_more(failed.value)
    assert caplog.records == [] or not reserved
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert list((copy / FOLDER).glob("*tmp*")) == []


def test_the_newest_checkpoint_is_loaded_or_the_one_that_is_named(trained):
    model, directory = trained
    assert sorted(path.name for path in (directory / FOLDER).iterdir()) == [OLDER, NEWEST]
    newest = load_checkpoint(directory)
    assert (newest.step, newest.fingerprint, newest.directory) == (12, model.fingerprint, model.directory)
    assert (newest.config, newest.language) == (tiny(), tiny().language)
    assert equal(newest.model, model.model)
    older = load_checkpoint(str(directory / FOLDER / OLDER))
    assert older.step == 8
    assert not equal(older.model, model.model)
    assert older.fingerprint != model.fingerprint


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"model": {"kind": "lstm", "dtype": "float64"}}, LSTM),
        (
            {"model": {"kind": "transformer", "heads": 2, "layer_norm": "pre", "positions": "index"}},
            Transformer,
        ),
        (
            {"task": "recognition", "model": {"kind": "transformer", "heads": 1, "feed_forward": 0}},
            Transformer,
        ),
    ],
)
def test_every_kind_of_model_comes_back_as_the_module_that_was_trained(changes, kind, tmp_path):
    config = tiny(**changes, optimiser={"steps": 4}, evaluation={"every": 0})
    trained = train(config, tmp_path)
    assert isinstance(trained.model, kind)
    assert trained.model.config == config.model
    assert equal(load_checkpoint(tmp_path).model, trained.model)
    start = kind(config.model, seed=config.seed)
    assert not equal(start, trained.model)
    assert str(jax.tree.leaves(trained.model.parameters)[0].dtype) == config.model.dtype


def test_the_fingerprint_is_that_of_the_training_and_not_of_the_files(trained, tmp_path):
    again = train(tiny(evaluation={"every": 0}, checkpoint={"every": 2, "keep": 3}), tmp_path / "again")
    names = sorted(path.name for path in (tmp_path / "again" / FOLDER).iterdir())
    assert names == [OLDER, "step_00000010", NEWEST]
    assert again.fingerprint == trained[0].fingerprint
    assert train(tiny(seed=1), tmp_path / "other").fingerprint != again.fingerprint


def test_a_change_of_any_file_is_noticed(trained, copy):
    files = files_of(copy)
    assert len(files) > 5
    for file in files:
        sound = file.read_bytes()
        flipped = [bytearray(sound) for _ in range(3 if sound else 0)]
        for k, one in enumerate(flipped):
            one[k * (len(sound) - 1) // 2] ^= 1
        for damaged in (*flipped, sound[:-2] if sound else b"x", None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            elif file.name == "manifest.json":  # as of a process that was killed before it wrote one
                assert load_checkpoint(copy).step == 8
                continue
            with pytest.raises(DamagedCheckpoint) as caught:
                load_checkpoint(copy)
            assert f"checkpoint {copy / FOLDER / NEWEST}: " in str(caught.value)
            assert str(caught.value).endswith(f"train again, or name {copy / FOLDER / OLDER}")
        file.write_bytes(sound)
    assert load_checkpoint(copy).fingerprint == trained[0].fingerprint
    (copy / FOLDER / NEWEST / "state" / "new").write_text("")
    with pytest.raises(DamagedCheckpoint, match="its files are not those that were written"):
        load_checkpoint(copy)
    shutil.rmtree(copy / FOLDER / OLDER)
    with pytest.raises(DamagedCheckpoint) as caught:
        load_checkpoint(copy)
    assert "older" not in str(caught.value)
    for given in (copy / FOLDER / "step_00000099", copy / "nowhere"):
        with pytest.raises(InputError, match="there is none") as missing:
            load_checkpoint(given)
        assert not isinstance(missing.value, DamagedCheckpoint)


def edit(path: Path, **changes) -> None:
    """Changes the manifest, and gives it the checksum that belongs to the change."""
    file = path / "manifest.json"
    stored = json.loads(file.read_text())
    write_sealed(file, stored["kind"], {**stored["content"], **changes})


def test_a_checkpoint_of_another_step_or_config_is_refused(copy):
    shutil.copytree(copy / FOLDER / NEWEST, copy / "best")
    assert load_checkpoint(copy / "best").step == 12
    edit(copy / "best", config=tiny(model={"width": 5}).table())
    with pytest.raises(DamagedCheckpoint, match="the arrays restored from it are not those that were saved"):
        load_checkpoint(copy / "best")
    (copy / "best" / "manifest.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"best: manifest\.json: missing"):
        load_checkpoint(copy / "best")
    shutil.move(copy / FOLDER / NEWEST, copy / FOLDER / "step_00000010")
    with pytest.raises(DamagedCheckpoint, match="of step 12, which is not the one in the name"):
        load_checkpoint(copy)


def test_a_directory_may_be_relative_and_named_like_a_checkpoint(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run", NEWEST):
        assert train(tiny(), name).fingerprint == trained[0].fingerprint
        assert load_checkpoint(name).fingerprint == trained[0].fingerprint
    monkeypatch.chdir(tmp_path / "run" / FOLDER / NEWEST)
    assert load_checkpoint(".").fingerprint == trained[0].fingerprint


@pytest.mark.parametrize(
    ("damaged", "notes"), [([NEWEST], ["goes on from step 8"]), ([NEWEST, OLDER], [])], ids=["one", "all"]
)
def test_damaged_checkpoints_are_set_aside_and_training_goes_on_from_a_sound_one_or_anew(
    trained, copy, damaged, notes
):
    manifest, older = (copy / FOLDER / step / "manifest.json" for step in (NEWEST, OLDER))
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    if OLDER in damaged:
        older.unlink()
    heard = Heard()
    again = train(tiny(), copy, heard)
    told = [note.text for note in heard.of(Note)]
    assert all(f"set aside as damaged-{step}" in text for step, text in zip(damaged, told, strict=False))
    assert told[len(damaged) :] == notes
    assert again.fingerprint == trained[0].fingerprint
    names = sorted(path.name[:21] for path in (copy / FOLDER).iterdir())
    assert names == [*(f"damaged-{step}"[:21] for step in sorted(damaged)), OLDER, NEWEST]
    for name in ("metrics.csv", "evaluation.csv"):
        assert (copy / name).read_bytes() == (trained[1] / name).read_bytes()


def test_a_directory_of_another_training_is_refused_with_the_differences(copy):
    other = tiny(seed=3, language={"end_probability": 0.2}, model={"width": 5}, checkpoint={"keep": 1})
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.name != ".lock"}
    names = "language.end_probability model.width seed"
    message = refused(names, check_directory, copy, other)
    assert refused(names, train, other, copy) == message
    assert f"{copy / FOLDER / NEWEST}, of another training" in message
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.name != ".lock"} == before
    check_directory(copy / "nowhere", other)
    check_directory(copy, tiny(evaluation={"every": 2}))
    (copy / FOLDER / NEWEST / "manifest.json").write_text("{")
    refused(names, check_directory, copy, other)


def test_what_killed_processes_left_is_removed_and_no_link_is_followed(copy, tmp_path):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "letter").write_text("of somebody else")
    left = copy / FOLDER / "step_00000016.orbax-checkpoint-tmp" / "state"
    left.mkdir(parents=True)
    (left / "file").write_text("half")
    (copy / FOLDER / "room-0123.orbax-checkpoint-tmp").write_text("reserved")
    (copy / FOLDER / "link.orbax-checkpoint-tmp").symlink_to(elsewhere)
    (copy / FOLDER / "step_00000000").symlink_to(elsewhere)
    train(tiny(), copy)
    assert sorted(path.name for path in (copy / FOLDER).iterdir()) == ["step_00000000", OLDER, NEWEST]
    train(tiny(evaluation={"every": 4}), copy)  # writes the manifest again, and removes what is beyond `keep`
    assert sorted(path.name for path in (copy / FOLDER).iterdir()) == [OLDER, NEWEST]
    assert (elsewhere / "letter").read_text() == "of somebody else"


def test_a_kill_before_or_while_a_manifest_is_written_leaves_the_checkpoints_that_were(trained, copy):
    (copy / FOLDER / NEWEST / ".manifest.json.0123456789abcdef.tmp").write_text("half")
    shutil.copytree(copy / FOLDER / OLDER / "state", copy / FOLDER / "step_00000016" / "state")
    assert load_checkpoint(copy).fingerprint == trained[0].fingerprint


def test_two_trainings_in_one_directory_and_file_systems_without_locks_are_refused(tmp_path, monkeypatch):
    with checkpoints.lock(tmp_path):
        refused("directory", train, tiny(), tmp_path)
    with checkpoints.lock(tmp_path):  # it is free again
        pass

    def without(file, operation):
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(checkpoints.fcntl, "flock", without)
    refused("directory", train, tiny(), tmp_path)
