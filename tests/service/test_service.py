"""A service in its own process: what it answers is what the function returns, and it outlives what happens to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import product
from pathlib import Path

import httpx
import numpy as np
import pytest

import jaxsens
from tests.pretrained.folders import write_folder
from tests.refusals import refused
from tests.service.served import MODELS, SLOWLY, TOKEN, Served, free_port, serving, tiny

SERVED = {**MODELS, "hub": "org/cats"} | {name: f"tests.service.served:{name}" for name in ("panics", "huge")}
WORD = [0, 1, 2, 2, 1, 0, 1, 2]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    place = tmp_path_factory.mktemp("service")
    write_folder(place / "cats", "bert")
    cached = place / "hub" / "models--org--cats"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("revision")
    shutil.copytree(place / "cats", cached / "snapshots" / "revision")
    models = {**SERVED, "cats": str(place / "cats")}
    env = {"JAXSENS_TOKEN": TOKEN, "HF_HUB_CACHE": str(place / "hub")}
    with serving(place / "store", models, env=env) as served:
        yield served


@pytest.fixture
def client(service):
    with jaxsens.service.Client(service.address, TOKEN) as client:
        yield client


@pytest.mark.quick(0, 3)
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"flips": jaxsens.Substitute(2, sample=5, seed=3)},
        {"flips": "delete", "measure": "linf", "readout": "last"},
        {"measure": jaxsens.L2(outputs=[0, 3]), "engine": "vmap"},
        pytest.param({"engine": jaxsens.FirstOrder(verify=4)}, marks=pytest.mark.long),
        {"measure": "decision", "placement": jaxsens.Placement(batch_size=3)},
    ],
    ids=str,
)
def test_the_client_returns_what_the_function_returns_bit_for_bit(client, asked):
    found = client.flip_sensitivity("tiny", WORD, **asked, progress=False)
    wanted = jaxsens.flip_sensitivity(tiny(), WORD, **{**asked, "engine": found.asked.engine})
    named = jaxsens.flip_sensitivity(tiny(), WORD, **{"engine": found.engine.name, **asked})
    assert np.array_equal(found.values, wanted.values)
    assert np.array_equal(found.values, named.values)
    assert np.array_equal(found.resolution, wanted.resolution)
    run = {**wanted.description()["run"], "model": "tiny"}  # as it is served
    assert found.description() == wanted.description() | {"run": run}


@pytest.mark.long
def test_the_client_reads_the_token_of_the_environment_and_uses_no_proxy(service, monkeypatch):
    monkeypatch.setenv("JAXSENS_TOKEN", TOKEN)
    for proxy in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    with jaxsens.service.Client(service.address) as client:
        assert {one["name"] for one in client.models()} == {*SERVED, "cats"}
        assert httpx.get(client.page, trust_env=False).status_code == 303
    monkeypatch.delenv("JAXSENS_TOKEN")
    refused("token", jaxsens.service.Client, service.address)
    refused("timeout", jaxsens.service.Client, service.address, TOKEN, timeout=0.0)


def test_the_client_asks_again_where_too_much_waits_and_nowhere_else():
    statuses, asked = [429, 503, 413], []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(status := statuses[len(asked)])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *message: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        client = jaxsens.service.Client(f"http://127.0.0.1:{server.server_port}", TOKEN)
        with client, pytest.raises(jaxsens.service.ServiceError) as refused:
            client.flip_sensitivity("tiny", WORD)
        server.shutdown()
    assert (refused.value.status, asked) == (413, statuses)


def test_a_measurement_that_takes_longer_than_the_clients_timeout_goes_on(service):
    asked = {**SLOWLY, "tokens": [0, 1] * 30, "placement": jaxsens.Placement(batch_size=1)}
    with jaxsens.service.Client(service.address, TOKEN, timeout=0.5) as client:
        with pytest.raises(jaxsens.service.ServiceError, match=r"timeout = 0\.5"):
            client.flip_sensitivity(**asked)
        (job, *_) = client.measurements()
        assert job["state"] in ("queued", "running")
        client.cancel(job["id"])


@pytest.mark.long
def test_several_inputs_of_one_length_are_one_question(client):
    words = [WORD, WORD[::-1]]
    found, wanted = client.flip_sensitivity("tiny", words), jaxsens.flip_sensitivity(tiny(), words)
    assert np.array_equal(found.values, wanted.values)
    for several in (["a text", "another"], [WORD, WORD[:5]]):
        refused("tokens", client.flip_sensitivity, "tiny", several)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": [0, 1, 9]},
        {"tokens": [0, -1]},
        {"flips": "neighbors"},
        {"measure": {"kind": "l2", "outputs": [99]}},
        {"engine": {"kind": "first-order", "verify": 0}},
        {"engine": "first-order", "measure": "decision"},
        {"readout": 8},
        {"progress": 3},
    ],
    ids=json.dumps,
)
def test_an_unusable_field_is_refused_in_the_words_of_the_function(client, wrong):
    asked = {"tokens": WORD, **wrong}
    with pytest.raises(jaxsens.InputError) as there:
        jaxsens.flip_sensitivity(tiny(), **asked)
    with pytest.raises(jaxsens.InputError) as here:
        client.flip_sensitivity("tiny", **asked)
    field = "outputs" if "99" in str(wrong) else next(iter(wrong))
    assert field in str(here.value)
    told, own = (str(one.value).removeprefix("flip_sensitivity: ") for one in (here, there))
    assert told == own or "readout" in wrong or "tokens" in wrong


def test_the_same_question_is_the_same_job_and_is_answered_from_the_store(service):
    first = service.ask(model="tiny", tokens=[2, 2, 1, 0])
    service.ended(first.json()["id"])
    again = service.ask(model="tiny", tokens=[2, 2, 1, 0], measure={"kind": "l2"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["id"] == first.json()["id"]
    assert service.ask(model="tiny", tokens=[2, 2, 1, 0], measure="l1").json()["id"] != first.json()["id"]


@pytest.mark.long
def test_a_name_at_the_hub_is_the_model_in_its_local_cache(client):
    found, wanted = (client.flip_sensitivity(name, "the cat sat", "neighbours") for name in ("hub", "cats"))
    assert np.array_equal(found.values, wanted.values)


def test_no_refusal_names_a_path_of_the_server(service):
    for model, wrong in product(("cats", "hub"), ({"output": "labels"}, {"tokens": [10**6]})):
        answer = service.ask(**{"model": model, "tokens": "the cat", **wrong})
        assert answer.status_code == 400
        assert str(service.store.parent) not in answer.text
    assert "cats" in service.ask(model="cats", tokens="the cat", output="labels").json()["error"]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"PAR1")])
def test_a_lost_or_damaged_result_is_never_told_and_measured_again_when_asked(service, damage):
    question = {"model": "tiny", "tokens": [2, 2, 2, 0, 1], "flips": "delete"}
    job = service.ask(**question).json()["id"]
    assert service.ended(job)["state"] == "finished"
    whole = service.result(job)
    for first in ("ask", "read"):
        damage(service.store / "results" / f"{job}.parquet")
        if first == "read":
            answers = [service.http.get(f"/v1/measurements/{job}/{form}") for form in ("result.json", "page")]
            assert {one.status_code for one in answers} == {404}
            assert "ask again" in service.http.get(f"/v1/measurements/{job}").json()["message"]
        assert service.ask(**question).status_code == 202
        assert service.ended(job)["state"] == "finished"
        assert np.array_equal(service.result(job).values, whole.values)
    for aside in (service.store / "damaged").iterdir():
        assert aside.read_bytes() == b"PAR1"


def test_a_question_of_what_it_would_cost_measures_nothing(service):
    before = len(service.http.get("/v1/measurements").json())
    about = service.http.post("/v1/measurements?explain=1", json={"model": "tiny", "tokens": WORD}).json()
    assert (about["flips"], about["n"]) == (14, 8)
    assert len(service.http.get("/v1/measurements").json()) == before


def test_what_is_not_finite_is_null_and_warnings_of_libraries_stay_in_the_log(service):
    question = {"model": "huge", "tokens": [[0, 1, 0], [0, 0, 0], [0, 1, 1]], "flips": 2, "readout": None}
    job = service.ask(**question).json()["id"]
    service.ended(job)
    for form in ("", "/result.json"):
        told = service.http.get(f"/v1/measurements/{job}{form}").text
        table = json.loads(told, parse_constant=pytest.fail)
        if not form:
            assert (table["found"]["max"], table["found"]["warnings"]) == (1.5e308, [])


def test_the_metrics_count_questions_jobs_flips_and_seconds(service):
    def counts() -> dict[str, float]:
        lines = service.http.get("/metrics").text.splitlines()
        return {
            name: float(value) for name, _, value in (one.rpartition(" ") for one in lines) if name[0] != "#"
        }

    before, question = counts(), {"model": "tiny", "tokens": [2, 1, 0, 0, 1, 2]}
    service.ended(service.ask(**question).json()["id"])
    service.ask(**question)
    after = counts()
    grown = {
        'jaxsens_questions_total{how="new"}': 1,
        'jaxsens_questions_total{how="again"}': 1,
        'jaxsens_jobs_total{state="finished"}': 1,
        "jaxsens_answer_seconds_count": 1,
        "jaxsens_flips_total": 10,
    }
    assert {name: after[name] - before.get(name, 0) for name in grown} == grown
    assert (after["jaxsens_waiting"], after["jaxsens_ready"]) == (0, 1)


def test_every_form_of_a_result_is_there(service):
    job = service.ended(service.ask(model="tiny", tokens=WORD, flips={"kind": "delete"}).json()["id"])
    base = f"/v1/measurements/{job['id']}"
    table = service.http.get(f"{base}/result.json").json()
    assert len(table["flips"]["norm"]) == job["found"]["flips"] == 7
    assert max(table["flips"]["norm"]) == pytest.approx(job["found"]["max"])
    assert service.http.get(f"{base}/picture.svg").text.startswith("<?xml")
    assert "Model: tiny." in service.http.get(f"{base}/page").text  # the name that it is served under


def test_the_description_has_every_route_of_measurements(service):
    paths = service.http.get("/openapi.json").json()["paths"]
    assert {*paths["/v1/measurements"]} == {"get", "post"}
    assert {*paths["/v1/measurements/{id}"]} == {"parameters", "get", "delete"}
    assert {*paths} >= {f"/v1/measurements/{{id}}/{form}" for form in ("events", "result.parquet", "page")}
    assert all(method.get("summary", "-") for path in paths.values() for method in [*path.values()][-1:])


def test_events_tell_of_a_job_until_it_has_ended(service):
    job = service.ask(**SLOWLY, tokens=[0, 1, 2, 0]).json()["id"]
    with service.http.stream("GET", f"/v1/measurements/{job}/events") as stream:
        events = [line.removeprefix("event: ") for line in stream.iter_lines() if line.startswith("event: ")]
    assert events[-1] == "finished"
    assert {"queued", "running"} & {*events}


@pytest.mark.long
def test_a_cancelled_job_ends_its_step_and_is_measured_whole_when_it_is_asked_again(service):
    question = {**SLOWLY, "model": "slower", "tokens": [0, 1, 2, 0, 2] * 90}
    job = service.ask(**question).json()["id"]
    service.until(job, lambda one: one["done"] > 0)
    began = time.monotonic()
    assert service.http.delete(f"/v1/measurements/{job}").json()["state"] == "cancelled"
    assert time.monotonic() - began < 1
    assert service.http.get(f"/v1/measurements/{job}/result.parquet").status_code == 404
    assert service.http.get("/v1/measurements/nothing").status_code == 404
    other = service.ask(model="tiny", tokens=[1, 1, 0, 0]).json()["id"]
    # 900 flips take 270 s, divided by the cores
    assert service.ended(other, seconds=15)["state"] == "finished"
    again = service.ask(**question).json()
    assert (again["id"], again["done"]) == (job, 0)
    service.until(job, lambda one: one["state"] == "running" and one["done"] > 0)
    service.http.delete(f"/v1/measurements/{job}")


@pytest.mark.long
def test_a_worker_that_is_killed_is_started_again_and_its_job_ends(service):
    job = service.ask(**SLOWLY, tokens=[0, 2] * 12).json()["id"]
    service.until(job, lambda one: one["state"] == "running")
    (worker,) = service.workers()
    assert os.getsid(worker) == worker  # Ctrl-C in the server's terminal does not reach it
    os.kill(worker, signal.SIGKILL)
    assert service.ended(job)["state"] == "finished"
    assert service.process.poll() is None
    assert "jaxsens_worker_restarts_total 1.0" in service.http.get("/metrics").text


@pytest.mark.long
def test_what_is_too_long_and_what_is_too_much_are_refused(tmp_path):
    limits = ("--most-tokens", "100", "--most-queued", "1")
    with serving(tmp_path / "store", MODELS, *limits) as small:
        assert small.ended(small.ask(model="tiny", tokens=[0] * 100).json()["id"])["state"] == "finished"
        refused = small.ask(model="tiny", tokens=[0] * 101)
        assert refused.status_code == 400
        assert "at most 100" in refused.json()["error"]
        assert small.ask(**SLOWLY, tokens=[0, 1] * 40).status_code == 202
        waits = small.ask(model="tiny", tokens=WORD)
        assert waits.status_code == 429
        assert float(waits.headers["Retry-After"]) >= 1


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_and_the_next_measures_what_was_not_finished_with_the_same_weights(
    tmp_path, number
):
    store, question = tmp_path / "store", {**SLOWLY, "tokens": [0, 1, 2] * 20}
    with serving(store) as first:
        job = first.ask(**question).json()["id"]
        waiting = first.ask(model="tiny", tokens=WORD).json()["id"]
        first.until(job, lambda one: one["done"] > 2)
        began = time.monotonic()
        assert first.stop(number) == 128 + number
        assert time.monotonic() - began < 7
    assert list((store / "results").iterdir()) == []
    other = {"tiny": "tests.service.served:another_tiny"} if number == signal.SIGINT else {}
    with serving(store, {**MODELS, **other}) as second:
        told = second.ended(waiting)
        assert told["state"] == ("failed" if other else "finished")
        assert ("its weights, or jaxsens, are others" in told["message"]) == bool(other)
        assert second.ended(job)["state"] == "finished"
        whole = second.result(job)
    assert len(whole) == whole.population == 120


@pytest.mark.long
def test_a_worker_ends_with_its_server_also_where_it_is_stopped(tmp_path):
    with serving(tmp_path / "store") as served:
        job = served.ask(**SLOWLY, tokens=[0, 1, 2] * 10).json()["id"]
        served.until(job, lambda one: one["done"] > 2)
        (worker,) = served.workers()
        os.kill(worker, signal.SIGSTOP)
        served.stop(signal.SIGKILL)
        until, place = time.monotonic() + 10, Path(f"/proc/{worker}/cmdline")
        while place.exists() and place.read_bytes():  # a process that nobody has waited for has an empty one
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.long
def test_a_kill_at_any_moment_loses_no_accepted_job(tmp_path):
    """Rounds of kill -9, of the server or of a worker. `python -m tools.service_stress kills` does more of them."""
    from tools.service_stress import kills

    told = kills(tmp_path / "store", rounds=4, seed=0)
    assert told["lost"] == told["failed"] == 0


def test_only_its_owner_can_read_what_the_service_keeps_and_a_given_token_is_not_printed(service):
    assert service.address in service.log.read_text()
    assert TOKEN not in service.log.read_text()
    (worker,) = service.workers()
    assert TOKEN.encode() not in Path(f"/proc/{worker}/environ").read_bytes()
    job = service.ask(model="tiny", tokens=WORD).json()["id"]
    assert service.ended(job)["state"] == "finished"
    modes = {one: one.stat().st_mode & 0o777 for one in [service.store, *service.store.rglob("*")]}
    assert (service.store / "results" / f"{job}.parquet") in modes
    assert {mode for one, mode in modes.items() if one.is_dir()} == {0o700}
    assert {mode for one, mode in modes.items() if one.is_file()} == {0o600}


@pytest.mark.long
def test_a_token_that_nobody_gave_is_printed_once(tmp_path):
    served = Served(tmp_path / "store", free_port(), {"tiny": MODELS["tiny"]}, token=())
    try:
        served.until_ready()
        assert served.log.read_text().count("?token=") == 1
    finally:
        served.stop(signal.SIGKILL)


def test_a_link_in_place_of_a_result_fails_its_job_and_no_other(service):
    foreign, word = service.store.parent / "foreign", [2, 0, 1, 2, 1]
    foreign.write_text("theirs")
    job = service.ask(model="tiny", tokens=word).json()["id"]
    assert service.ended(job)["state"] == "finished"
    service.http.delete(f"/v1/measurements/{job}")
    place = service.store / "results" / f"{job}.parquet"
    place.symlink_to(foreign)
    assert service.ask(model="tiny", tokens=word).json()["id"] == job
    assert "a link is in the place" in service.ended(job)["message"]
    other = service.ask(model="tiny", tokens=word[1:]).json()["id"]
    assert service.ended(other)["state"] == "finished"
    assert (place.is_symlink(), foreign.read_text()) == (True, "theirs")
    place.unlink()


def test_a_panic_in_a_worker_is_an_answer_and_the_service_goes_on(service):
    before = service.workers()
    for _ in range(3):
        answer = service.ask(model="panics", tokens=[0, 1, 2], flips=3)
        assert answer.status_code >= 400
        assert "Panic: called `Option::unwrap()`" in answer.text
    assert service.ended(service.ask(model="tiny", tokens=[1, 1, 2]).json()["id"])["state"] == "finished"
    assert service.workers() == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "why"),
    [("nothing:make", "No module named 'tests.service.nothing'"), ("served:tiny", "Is a directory")],
)
def test_what_cannot_be_loaded_or_stored_ends_the_service_with_its_reason_and_escapes_its_name(
    tmp_path, function, why
):
    store = tmp_path / "\x1b[31mred"
    if function == "served:tiny":
        (store / "lock").mkdir(parents=True)  # which nothing but the system refuses
    served = Served(store, free_port(), {"one": f"tests.service.{function}"})
    assert served.process.wait(60) == 2
    served.stop()
    assert why in served.log.read_text()
    assert "\x1b" not in served.log.read_text()
