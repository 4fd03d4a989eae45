"""The store: what is kept, in which order it is done, and what happens to it."""

from __future__ import annotations

import errno
import random

import pytest

import jaxsens
from jaxsens.service.store import Store
from tests.refusals import refused


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    yield store
    store.close()


def add(store, name, seconds=0.0):
    return store.add(name, {"model": name}, {"seconds": seconds, "flips": 1})


def test_jobs_are_done_in_the_order_in_which_they_were_asked_for(store):
    for name, seconds in (("long", 100), ("short", 1), ("shorter", 0.1)):
        add(store, name, seconds)
        store.change(name, asked=1e9 * seconds)  # a clock that goes backwards changes nothing
    add(store, "long")  # asked again, it keeps its place
    assert store.next(()).id == "long"
    assert store.next(("long",)).id == "short"
    store.change("long", state="cancelled")
    add(store, "long", 100)
    assert store.next(("short",)).id == "shorter"
    assert store.next(("short", "shorter")).id == "long"
    assert store.waiting() == (3, pytest.approx(101.1))


def test_a_job_that_waits_or_is_finished_is_not_asked_twice_and_one_that_failed_is(store):
    add(store, "a")
    for state in ("running", "finished", "failed", "cancelled"):
        store.change("a", state=state)
        assert add(store, "a").state == ("queued" if state in ("failed", "cancelled") else state)
    assert len(store.jobs) == 1


def test_what_had_begun_is_queued_when_the_store_is_opened_again(tmp_path):
    first = Store(tmp_path)
    states = ("running", "finished", "failed", "cancelled", "queued")
    for state in states:
        add(first, state)
        first.change(state, state=state, crashes=1)
    first.close()
    second = Store(tmp_path)
    jobs = second.jobs
    second.close()
    assert {name for name, job in jobs.items() if job.crashes} == {"finished", "failed", "cancelled"}
    assert {name: job.state for name, job in jobs.items()} == {one: one for one in states} | {
        "running": "queued"
    }


def test_a_store_that_another_service_has_is_refused(store, tmp_path):
    refused("--store", Store, tmp_path)


def test_a_damaged_job_is_told_set_aside_and_asked_for_again_and_no_other_is_lost(tmp_path, capsys):
    """Bits and cuts at random: what is read is as it was written, or not there."""
    first = Store(tmp_path)
    for name in ("a", "b"):
        add(first, name)
        first.change(name, state="finished", found={"mean": 1.25, "max": 3.5}, done=1, total=1)
    whole, other = first.jobs.get("a"), first.jobs.get("b")
    first.close()
    path, draw = tmp_path / "jobs" / "a.json", random.Random(0)
    sound = path.read_bytes()
    for k in range(200):
        raw = bytearray(sound)
        if k < 150:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        else:
            del raw[draw.randrange(len(raw)) :]
        path.write_bytes(raw)
        store = Store(tmp_path)
        assert store.jobs.get("b") == other
        if store.jobs.get("a") is None:
            (aside,) = (tmp_path / "damaged").iterdir()
            assert aside.read_bytes() == bytes(raw)
            assert str(path) in capsys.readouterr().err
            assert add(store, "a").state == "queued"
            aside.unlink()
        else:
            assert store.jobs.get("a") == whole
        store.close()


def test_a_sound_record_in_the_place_of_another_is_not_that_job(tmp_path, capsys):
    store = Store(tmp_path)
    add(store, "a")
    store.close()
    (tmp_path / "jobs" / "a.json").rename(tmp_path / "jobs" / "b.json")
    store = Store(tmp_path)
    assert store.jobs == {}
    store.close()
    assert "holds another job" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["results", "other", "lock", "jobs", "jobs/a.json", "results/a.parquet"])
def test_a_link_in_the_store_is_refused_by_name_and_what_it_leads_to_stays_as_it_is(tmp_path, name):
    store, foreign = tmp_path / "store", tmp_path / "foreign"
    (store / name).parent.mkdir(parents=True)
    foreign.write_bytes(b"foreign")
    (store / name).symlink_to(foreign)
    with pytest.raises(jaxsens.InputError, match=f"{name} is a link"):
        Store(store)
    assert foreign.read_bytes() == b"foreign"
    assert [one for one in store.rglob("*") if not one.is_dir()] == [store / name]


def test_a_link_that_comes_while_the_service_runs_is_not_followed(store, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"foreign")
    (tmp_path / "jobs" / "a.json").symlink_to(foreign)
    add(store, "a")
    assert foreign.read_bytes() == b"foreign"
    assert not (tmp_path / "jobs" / "a.json").is_symlink()
    (tmp_path / "jobs").rename(tmp_path / "away")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "jobs").symlink_to(tmp_path.parent)
    with pytest.raises(OSError, match="a link lies in it"):
        add(store, "b")
    assert store.jobs.get("b") is None
    assert not (tmp_path.parent / "b.json").exists()


def test_what_the_service_did_not_make_stays_in_its_folders(tmp_path):
    Store(tmp_path).close()
    for place in ("jobs/notes.txt", "jobs/.a.json.0123456789abcdef.tmp", "results/x", "damaged/x", "notes"):
        (tmp_path / place).write_text("theirs")
    Store(tmp_path).close()
    assert len([one for one in tmp_path.rglob("*") if one.is_file() and one.read_text() == "theirs"]) == 5


def test_a_full_disk_is_one_clear_error_and_loses_nothing(store, monkeypatch):
    add(store, "kept")

    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    for act in (lambda: add(store, "more"), lambda: store.change("kept", message="long")):
        with pytest.raises(OSError, match="the store takes no more") as refused:
            act()
        assert str(store.folder) not in str(refused.value)
    assert [(job.id, job.message) for job in store.jobs.values()] == [("kept", "")]
    assert len([*(store.folder / "jobs").iterdir()]) == 1


def test_a_result_is_forgotten_with_its_file(store):
    add(store, "a")
    store.result("a").write_bytes(b"result")
    store.forget("a")
    assert store.jobs.get("a") is None
    assert not store.result("a").exists()
    assert [*(store.folder / "jobs").iterdir()] == []
