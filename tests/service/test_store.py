"""The store: what is kept, in which order it is done, and what happens to it."""

from __future__ import annotations

import sqlite3

import pytest

import jaxsens
from jaxsens.service.store import Store, StoreFull
from tests.refusals import refusal, refused


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
    add(store, "long")  # asked again, it keeps its place
    assert store.next(()).id == "long"
    assert store.next(("long",)).id == "short"
    store.change("long", state="cancelled")
    add(store, "long")
    assert [store.next(taken).id for taken in ((), ("short",), ("short", "shorter"))] == [
        "short",
        "shorter",
        "long",
    ]
    assert store.waiting() == (3, pytest.approx(101.1))


def test_a_job_that_waits_or_is_finished_is_not_asked_twice_and_one_that_failed_is(store):
    add(store, "a")
    for state, then in {
        "running": "running",
        "finished": "finished",
        "failed": "queued",
        "cancelled": "queued",
    }.items():
        store.change("a", state=state)
        assert add(store, "a").state == then
    assert len(store.listed(10)) == 1


def test_what_had_begun_is_queued_when_the_store_is_opened_again(tmp_path):
    first = Store(tmp_path)
    for state in ("running", "finished", "failed", "cancelled", "queued"):
        add(first, state)
        first.change(state, state=state, crashes=1)
    first.close()
    second = Store(tmp_path)
    states = {job.id: job.state for job in second.listed(10)}
    crashes = {job.id for job in second.listed(10) if job.crashes}
    second.close()
    assert crashes == {"finished", "failed", "cancelled"}
    assert states == {
        "running": "queued",
        "queued": "queued",
        "finished": "finished",
        "failed": "failed",
        "cancelled": "cancelled",
    }


def test_a_store_that_another_service_has_is_refused(store, tmp_path):
    with refusal("--store"):
        Store(tmp_path)


@pytest.mark.parametrize("where", [0, 40, 3000])
def test_a_damaged_store_is_refused_and_stays_as_it_is(tmp_path, where):
    first = Store(tmp_path)
    for k in range(100):
        add(first, f"job {k}")
    first.close()
    path = tmp_path / "jobs.sqlite3"
    raw = bytearray(path.read_bytes())
    raw[where : where + 1000] = b"\xa5" * 1000
    path.write_bytes(raw)
    assert "is damaged" in refused("--store", Store, tmp_path)
    assert path.read_bytes() == bytes(raw)


def test_a_store_of_another_version_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as other:
        other.execute("PRAGMA user_version = 7")
    assert "of version 7" in refused("--store", Store, tmp_path)


@pytest.mark.parametrize("name", ["results", "other", "lock", "jobs.sqlite3", "jobs.sqlite3-wal"])
def test_a_link_in_the_store_is_refused_by_name_and_what_it_leads_to_stays_as_it_is(tmp_path, name):
    store, foreign = tmp_path / "store", tmp_path / "foreign"
    store.mkdir()
    foreign.write_bytes(b"foreign")
    (store / name).symlink_to(foreign)
    with pytest.raises(jaxsens.InputError, match=f"{name} is a link"):
        Store(store)
    assert foreign.read_bytes() == b"foreign"
    assert sorted(store.iterdir()) == [store / name]


def test_a_full_disk_is_one_clear_error_and_loses_nothing(store):
    add(store, "kept")
    (pages,) = store._rows.execute("PRAGMA page_count").fetchone()
    store._rows.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFull, match="the store takes no more"):
        store.add("more", {"text": "a" * 10**6}, {"seconds": 0.0})
    assert store.get("kept").state == "queued"


def test_a_result_is_forgotten_with_its_file(store):
    add(store, "a")
    store.result("a").write_bytes(b"result")
    store.forget("a")
    assert store.get("a") is None
    assert not store.result("a").exists()


def test_a_store_that_something_else_has_open_is_not_called_damaged(tmp_path):
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "cannot be used now" in refused("--store", Store, tmp_path)
        other.rollback()
    other.close()
    Store(tmp_path).close()


def test_a_folder_in_place_of_the_database_is_named(tmp_path):
    (tmp_path / "jobs.sqlite3").mkdir()
    assert "jobs.sqlite3 is no file" in refused("--store", Store, tmp_path)
