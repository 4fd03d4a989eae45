"""A checkpoint is read only if every byte is as it was written; what is wrong is named; training falls back."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxsens import InputError, Transformer
from jaxsens.core.base.files import takes_no_more
from jaxsens.core.base.sealed import write_sealed
from jaxsens.training import LSTM, storage
from jaxsens.training.checkpoints import FOLDER, check_directory, load_checkpoint
from jaxsens.training.events import Note
from jaxsens.training.loop import train
from jaxsens.training.storage import DamagedCheckpoint
from tests.disks import files_of_at_most
from tests.refusals import refusal, refused
from tests.training.tiny import Heard, tiny

NEWEST, OLDER = "step-00000012", "step-00000008"


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
def test_a_checkpoint_that_cannot_be_written_is_one_error_without_a_log_and_the_older_ones_stay(
    copy, caplog, capfd, monkeypatch, reserved
):
    if not reserved:  # The disk fills up meanwhile.
        monkeypatch.setattr(storage, "_reserve", lambda place, size: None)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    arrays = {".parameters['a']": np.random.default_rng(0).normal(size=100_000)}
    with pytest.raises(OSError, match="File too large") as failed, files_of_at_most(200_000):
        storage.write(copy / FOLDER, 13, arrays, {}, {}, {})
    assert failed.value.filename == str(copy / FOLDER / "step-00000013")
    assert takes_no_more(failed.value)
    assert caplog.records == []
    assert "Traceback" not in capfd.readouterr().err
    assert before == {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert list((copy / FOLDER).glob(".*")) == []


def test_the_newest_checkpoint_is_loaded_or_the_one_that_is_named(trained):
    model, directory = trained
    assert sorted(path.name for path in (directory / FOLDER).iterdir()) == [OLDER, NEWEST]
    newest = load_checkpoint(directory)
    assert (newest.step, newest.fingerprint, newest.directory) == (12, model.fingerprint, model.directory)
    assert (newest.config, newest.language) == (tiny(), tiny().language)
    assert equal(newest.model, model.model)
    for older in (directory / FOLDER / OLDER, str(directory / FOLDER / OLDER)):
        loaded = load_checkpoint(older)
        assert loaded.step == 8
        assert not equal(loaded.model, model.model)
        assert loaded.fingerprint != model.fingerprint


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
    again = train(tiny(evaluation={"every": 0}, checkpoint={"every": 2}), tmp_path / "again")
    assert again.fingerprint == trained[0].fingerprint
    assert train(tiny(seed=1), tmp_path / "other").fingerprint != again.fingerprint


def test_a_flipped_bit_in_any_file_is_noticed_and_the_file_named(trained, copy):
    files = files_of(copy)
    assert len(files) > 5
    for file in files:
        sound = file.read_bytes()
        for place in {0, len(sound) // 2, len(sound) - 1}:
            damaged = bytearray(sound)
            damaged[place] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(DamagedCheckpoint) as caught:
                load_checkpoint(copy)
            assert file.relative_to(copy / FOLDER / NEWEST).as_posix() in str(caught.value)
            assert str(copy / FOLDER / NEWEST) in str(caught.value)
        file.write_bytes(sound)
    assert load_checkpoint(copy).fingerprint == trained[0].fingerprint


def test_truncated_missing_and_additional_files_are_named_all_at_once(copy):
    data = [file for file in files_of(copy) if file.parent.name == "d"]
    short = data[0].read_bytes()[:-1]
    data[0].write_bytes(short)
    data[1].unlink()
    (copy / FOLDER / NEWEST / "state" / "new").write_text("x")
    with pytest.raises(DamagedCheckpoint, match="3 errors") as caught:
        load_checkpoint(copy)
    names = [file.relative_to(copy / FOLDER / NEWEST).as_posix() for file in data]
    assert f"{names[0]}: {len(short)} bytes, but {len(short) + 1} were written" in str(caught.value)
    assert f"{names[1]}: missing" in str(caught.value)
    assert "state/new: not one of the files" in str(caught.value)
    assert str(caught.value).endswith(f"train again, or name {copy / FOLDER / OLDER}")
    shutil.rmtree(copy / FOLDER / OLDER)
    with pytest.raises(DamagedCheckpoint) as caught:
        load_checkpoint(copy)
    assert "older" not in str(caught.value)


def edit(path: Path, sealed: bool, **changes) -> None:
    """Changes the manifest; `sealed` gives it the checksum that belongs to the change."""
    file = path / storage.MANIFEST
    manifest = json.loads(file.read_text())
    content = {**manifest["content"], **changes}
    if sealed:
        write_sealed(file, storage.KIND, content)
    else:
        file.write_text(json.dumps({**manifest, "content": content}))


def test_a_manifest_that_was_edited_cut_or_removed_is_refused(copy):
    path = copy / FOLDER / NEWEST
    table = tiny(model={"width": 5}).table()
    for message, damage in (
        ("checksum", lambda: edit(path, sealed=False, config=table)),
        ("the arrays restored from it, or the config", lambda: edit(path, sealed=True)),
        ("of step 11", lambda: edit(path, sealed=True, step=11)),
        ("format 99", lambda: edit(path, sealed=True, format=99)),
        ("manifest.json: not written", lambda: (path / storage.MANIFEST).write_text("{}")),
        ("manifest.json: JSONDecodeError", lambda: (path / storage.MANIFEST).write_text('{"format": 1, ')),
    ):
        damage()
        with pytest.raises(InputError) as caught:
            load_checkpoint(copy)
        assert isinstance(caught.value, DamagedCheckpoint) == ("format" not in message)
        assert message in str(caught.value)


def test_a_named_checkpoint_without_its_manifest_is_damaged_and_the_file_is_named(copy):
    path = copy / FOLDER / NEWEST
    (path / storage.MANIFEST).unlink()
    moved = copy / "best"
    for given in (path, moved):
        if given is moved:
            shutil.move(path, moved)
        with pytest.raises(DamagedCheckpoint, match=rf"{given.name}: manifest\.json: missing"):
            load_checkpoint(given)
    assert load_checkpoint(copy).step == 8
    for given in (copy / FOLDER / "step-00000099", copy / "nowhere"):
        with pytest.raises(InputError, match="there is none") as caught:
            load_checkpoint(given)
        assert not isinstance(caught.value, DamagedCheckpoint)


def test_a_training_may_be_named_like_a_checkpoint(copy, tmp_path):
    shutil.move(copy, tmp_path / NEWEST)
    assert load_checkpoint(tmp_path / NEWEST).step == 12


def test_a_directory_may_be_relative(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "deeper/run"):
        assert train(tiny(), name).fingerprint == trained[0].fingerprint
        assert load_checkpoint(name).fingerprint == trained[0].fingerprint
    monkeypatch.chdir(tmp_path / "run" / FOLDER / NEWEST)
    assert load_checkpoint(".").fingerprint == trained[0].fingerprint


def test_arrays_that_do_not_belong_to_the_config_are_refused_by_name(tmp_path):
    table = tiny().table()
    arrays = {".parameters.embedding": np.zeros((3, 5), np.float32), ".parameters.head": np.zeros((4, 3))}
    storage.write(tmp_path, 2, arrays, table, {})
    with pytest.raises(DamagedCheckpoint) as caught:
        load_checkpoint(tmp_path)
    text = str(caught.value)
    assert ".parameters.embedding: float32 of shape (3, 5), its config needs float32 of shape (3, 4)" in text
    assert ".parameters.head: float64 of shape (4, 3), its config needs float32 of shape (4, 3)" in text
    assert ".parameters.layers[0].bias: missing" in text
    assert ".optimiser" not in text


def test_weights_that_were_damaged_before_their_hash_was_taken_are_refused(copy):
    """What Orbax would not notice: another number in an array, with hashes of the files to match."""
    path = copy / FOLDER / NEWEST
    manifest, arrays = storage.read(path)
    arrays[".parameters.head"] = arrays[".parameters.head"] + 1
    other = storage.write(copy / "other", 12, arrays, manifest["config"], manifest["versions"])
    shutil.rmtree(path / "state")
    shutil.copytree(other / "state", path / "state")
    edit(path, sealed=True, files=json.loads((other / storage.MANIFEST).read_text())["content"]["files"])
    with pytest.raises(DamagedCheckpoint, match="the arrays restored from it"):
        load_checkpoint(copy)


def test_training_falls_back_to_the_newest_sound_checkpoint_and_says_so(trained, copy):
    file = files_of(copy)[-1]
    file.write_bytes(file.read_bytes()[:-1])
    heard = Heard()
    again = train(tiny(), copy, heard)
    notes = [note.text for note in heard.of(Note)]
    assert len(notes) == 2
    assert str(file.relative_to(copy / FOLDER / NEWEST)) in notes[0]
    assert "set aside as damaged-step-00000012" in notes[0]
    assert notes[1] == "goes on from step 8"
    assert again.fingerprint == trained[0].fingerprint
    names = sorted(path.name for path in (copy / FOLDER).iterdir())
    assert [name[:21] for name in names] == ["damaged-step-00000012", OLDER, NEWEST]
    for name in ("metrics.csv", "evaluation.csv"):
        assert (copy / name).read_bytes() == (trained[1] / name).read_bytes()


def test_without_any_sound_checkpoint_training_begins_anew(trained, copy):
    for step in (OLDER, NEWEST):
        (copy / FOLDER / step / storage.MANIFEST).unlink()
    heard = Heard()
    assert train(tiny(), copy, heard).fingerprint == trained[0].fingerprint
    assert [note.text.split(" set aside")[0][-30:] for note in heard.of(Note)] != []
    assert len(heard.of(Note)) == 2
    assert (copy / "metrics.csv").read_bytes() == (trained[1] / "metrics.csv").read_bytes()


def test_a_directory_of_another_training_is_refused_with_the_differences(copy):
    other = tiny(seed=3, language={"end_probability": 0.2}, model={"width": 5}, checkpoint={"keep": 1})
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.name != ".lock"}
    names = "language.end_probability model.width seed"
    message = refused(names, check_directory, copy, other)
    assert refused(names, train, other, copy) == message
    assert f"{copy / FOLDER / NEWEST}, of another training" in message
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.name != ".lock"} == before


def test_a_directory_of_the_same_training_or_of_none_is_not_refused(copy, tmp_path):
    check_directory(tmp_path / "nowhere", tiny())
    check_directory(copy, tiny(evaluation={"every": 2}))
    (copy / FOLDER / NEWEST / storage.MANIFEST).write_text("{")
    check_directory(copy, tiny())
    refused("seed", check_directory, copy, tiny(seed=1))


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    train(tiny(checkpoint={"every": 2, "keep": 3}), tmp_path)
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert names == ["step-00000008", "step-00000010", "step-00000012"]


def test_what_killed_processes_left_is_removed(copy):
    left = copy / FOLDER / ".step-00000016.1-ab.tmp" / "state"
    left.mkdir(parents=True)
    (left / "file").write_text("half")
    train(tiny(), copy)
    assert sorted(path.name for path in (copy / FOLDER).iterdir()) == [OLDER, NEWEST]


def test_file_systems_without_locks_are_refused(tmp_path, monkeypatch):
    def refused(file, operation):
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(storage.fcntl, "flock", refused)
    with (
        refusal("directory"),
        storage.lock(tmp_path),
    ):
        pass
    monkeypatch.setattr(storage, "_NO_LOCKS", ())
    with pytest.raises(OSError, match="no locks here"), storage.lock(tmp_path):
        pass


def test_two_trainings_in_one_directory_at_once_are_refused(tmp_path):
    with storage.lock(tmp_path), refusal("directory"):
        train(tiny(), tmp_path)
    assert train(tiny(), tmp_path).step == 12
