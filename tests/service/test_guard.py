"""Strangers: tokens, hosts, origins, pages, and connections that say nothing or half of something.

What a request may ask, and that everything else is refused by name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import socket
from asyncio import run
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.server import ServerState

import jaxsens
from jaxsens.cli.serve import ServeOptions
from jaxsens.core.base.errors import Problems
from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure
from jaxsens.service import guard
from jaxsens.service.guard import Connection, Guard
from jaxsens.service.question import read_json, read_question
from jaxsens.service.routes import openapi
from tests.refusals import refused
from tests.service.malformed import SOUND, malformed

pytestmark = pytest.mark.anyio
TOKEN, OURS = "tokenfortests", {"Authorization": "Bearer tokenfortests"}

NEARLY = ("t", TOKEN[:-1], TOKEN[1:], TOKEN + "s", TOKEN * 2, TOKEN.upper())
"""Beginnings, ends and the like of the token: none is the token."""


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


async def late(request: Request) -> PlainTextResponse:
    """Answers after 2.2 seconds, and listens in the meantime whether the client goes, as a stream of events does."""
    await request.body()
    with suppress(TimeoutError):
        async with asyncio.timeout(2.2):
            await request.receive()
    return PlainTextResponse("late")


def echoing() -> Starlette:
    places = ("/", "/v1/models", "/healthz", "/metrics")
    routes = [Route(path, echo, methods=["GET", "POST"]) for path in places]
    return Starlette(routes=[*routes, Route("/late", late)])


@pytest.fixture
def http():
    transport = httpx.ASGITransport(Guard(echoing(), TOKEN, ["127.0.0.1", "localhost", "::1"], 8321))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer"}, {"Authorization": "Bearer other"}, {"Authorization": f"Basic {TOKEN}"},
     {"Authorization": "Bearer tökenfortests".encode()}, {"Cookie": "jaxsens_8321="},
     {"Cookie": f"jaxsens_8321={TOKEN}"}, {"Cookie": "\x00;;=;"},
     *({"Authorization": f"Bearer {near}"} for near in NEARLY)],
    ids=repr,
)  # fmt: skip
def test_without_the_token_nothing_is_answered_but_the_health(http, headers):
    for path in ("/", "/v1/models", "/metrics", "/nothing"):
        answer = run(http.get(path, headers=headers))
        assert answer.status_code == 401
        assert TOKEN not in answer.text
    assert run(http.get("/healthz", headers=headers)).status_code == 200


def test_the_address_with_the_token_gives_a_cookie_that_scripts_cannot_read_and_hides_the_token(http):
    for near in ("", *NEARLY):
        answer = run(http.get(f"/?token={near}"))
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    answer = run(http.get(f"/?token={TOKEN}"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert "Secure" not in cookie
    assert "Secure" in run(http.get(f"https://127.0.0.1:8321/?token={TOKEN}")).headers["set-cookie"]
    pair = cookie.partition(";")[0]
    assert run(http.get("/v1/models", headers={"Cookie": pair})).status_code == 200
    for wrong in (pair[:-1], pair + "0", pair.replace("8321", "8322")):
        assert run(http.get("/v1/models", headers={"Cookie": wrong})).status_code == 401
    session = pair.partition("=")[2]
    assert run(http.get("/v1/models", headers={"Authorization": f"Bearer {session}"})).status_code == 401


def test_its_own_names_are_accepted_and_a_host_that_it_is_not_called_is_refused(http):
    strangers = ("evil.example", "evil.example:8321", "127.0.0.1.evil.example", "", "[::1", "0.0.0.0")
    for host in (*strangers, "127.0.0.1:8321", "localhost", "LOCALHOST:8321", "[::1]:8321"):
        status = run(http.get("/v1/models", headers={**OURS, "Host": host})).status_code
        assert status == (421 if host in strangers else 200), host


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1:8321.evil.example"]
)
def test_a_page_of_another_origin_is_refused_even_with_the_cookie(http, origin):
    cookie = run(http.get(f"/?token={TOKEN}")).headers["set-cookie"].partition(";")[0]
    headers = {"Cookie": cookie, "Origin": origin}
    assert run(http.post("/v1/models", headers=headers)).status_code == 403
    own = {**headers, "Origin": "http://127.0.0.1:8321"}
    assert run(http.post("/v1/models", headers=own)).status_code == 200


def test_a_long_body_is_refused_whether_or_not_its_length_is_said(http):
    async def in_parts():
        for _ in range(20):
            yield b"a" * 100_000

    assert run(http.post("/", headers=OURS, content=b"a" * (2**20 + 1))).status_code == 413
    assert run(http.post("/", headers=OURS, content=in_parts())).status_code == 413
    assert run(http.post("/", headers=OURS, content=b"a" * 2**20)).text == "1048576 bytes"


def test_pages_run_no_script_but_the_services_own(http):
    for path in ("/healthz", "/v1/models"):
        policy = run(http.get(path, headers=OURS)).headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("how", ["option", "environment"])
def test_others_than_this_machine_need_a_token_from_an_option_or_the_environment(monkeypatch, how):
    options = ServeOptions(model=("a=b:c",), host="0.0.0.0")
    said = Problems("serve")
    options.check(said)
    assert [one.path for one in said] == [("--host",)]
    for token, wrong in (("tokenfortests", 0), ("brief", 1), ("with spaces in it", 1)):
        if how == "environment":
            monkeypatch.setenv("JAXSENS_TOKEN", token)
        given = dataclasses.replace(options, token=token) if how == "option" else options
        said = Problems("serve")
        given.check(said)
        assert len(said) == wrong
        assert all(token not in str(one) for one in said)


WHOLE = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tokenfortests\r\nContent-Length: 9\r\n\r\n"
)
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[], Awaitable[Pair]]]:
    """Opens a connection to a guarded service of one route."""
    app = Guard(echoing(), TOKEN, ["localhost"], 1)
    config, state = uvicorn.Config(app, log_config=None, lifespan="off", http=Connection), ServerState()
    config.load()
    made = lambda: Connection(config=config, server_state=state, app_state={})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    place = server.sockets[0].getsockname()
    pairs: list[Pair] = []

    async def one() -> Pair:
        pairs.append(await asyncio.open_connection(*place))
        return pairs[-1]

    yield one
    server.close()
    for _, writer in pairs:
        writer.close()
    async with asyncio.timeout(10):
        while state.connections:
            await asyncio.sleep(0.01)


async def answered(pair: Pair, said: bytes) -> bytes:
    pair[1].write(said)
    async with asyncio.timeout(60):
        return await pair[0].read(1000)


@pytest.mark.parametrize("said", [b"", b"POST / HTTP/1.1\r\nHost: loc", WHOLE + b"123456789"])
async def test_a_connection_without_a_whole_head_is_closed_also_after_an_answer(opened, monkeypatch, said):
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.5)
    reader, writer = await opened()
    writer.write(said)
    async with asyncio.timeout(60):
        assert (b"9 bytes" in await reader.read()) == said.startswith(WHOLE)  # until it is closed


async def test_half_a_body_is_not_waited_for(opened, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    assert b"408" in await answered(await opened(), WHOLE + b"1234")


async def test_an_answer_may_take_its_time_and_the_connection_is_kept_after_it(opened, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(guard, "HEAD_SECONDS", 1.5)
    pair = await opened()
    assert b"late" in await answered(pair, WHOLE.replace(b"POST /", b"GET /late").replace(b"9\r", b"0\r"))
    await asyncio.sleep(1.1)  # in which it is looked at
    assert b"9 bytes" in await answered(pair, WHOLE + b"123456789")


async def test_a_head_that_never_ends_is_not_read_on(opened):
    assert b"400" in await answered(await opened(), b"POST / HTTP/1.1\r\nHost: " + b"a" * 2**18)


async def test_many_silent_connections_close_the_oldest_of_them_and_no_other(opened, monkeypatch):
    monkeypatch.setattr(guard.Connection, "most", 5)
    monkeypatch.setattr(guard, "HEAD_SECONDS", 1e9)
    slow = await opened()
    slow[1].write(WHOLE)  # its head is whole
    await asyncio.sleep(0.2)
    silent = [await opened() for _ in range(20)]
    assert b"9 bytes" in await answered(await opened(), WHOLE + b"123456789")
    assert b"9 bytes" in await answered(slow, b"123456789")
    async with asyncio.timeout(5):
        with suppress(ConnectionError):
            assert await silent[0][0].read() == b""


def test_small_answers_are_sent_at_once():
    """Without TCP_NODELAY every answer on a kept connection waits 40 ms for an acknowledgement."""
    from jaxsens.service.server import _listening

    with (
        _listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()[:2]),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def asked(raw: bytes):
    return read_question(read_json(raw), ["tiny"])


def test_a_question_is_written_as_it_is_read_and_a_log_probability_reads_logits():
    question = asked(json.dumps(SOUND).encode())
    assert read_question(question.table(), ["tiny"]) == question
    assert question.flips == jaxsens.Substitute(3)
    assert asked(b'{"model": "tiny", "tokens": "a text"}').table() == {
        "model": "tiny",
        "tokens": "a text",
        "measure": {"kind": "l2"},
        "engine": {"kind": "auto"},
    }
    question = read_question(
        {"model": "tiny", "tokens": "a", "measure": {"kind": "log-probability", "token": 3}}, ["tiny"]
    )
    assert question.reads == "logits"


def test_many_malformed_bodies_are_refused_with_the_name_of_the_field():
    draw, refused = random.Random(1), 0
    for _ in range(1000):
        raw, field = malformed(draw)
        said = ""
        try:
            asked(raw)
        except jaxsens.InputError as error:
            said = str(error)
        refused += bool(said)
        assert not said or field in said, raw
    assert refused > 700


def test_a_question_has_at_most_1024_inputs():
    assert len(read_question({"model": "tiny", "tokens": [[0]] * 1024}, ["tiny"]).tokens) == 1024
    refused("tokens", read_question, {"model": "tiny", "tokens": [[0]] * 1025}, ["tiny"])


def test_the_description_has_every_kind_that_json_can_ask_for_and_their_fields():
    schemas = openapi([], ["tiny"])["components"]["schemas"]["Measurement"]["properties"]
    for base in (Flips, Measure, AskedEngine):
        listed = {one["properties"]["kind"]["const"]: one for one in schemas[base.argument]["anyOf"][1:]}
        assert {*listed} == {*base.kinds} - {"function", "comparison"}
        for name, schema in listed.items():
            if not {*schema["required"]} - {"kind"} and name != "pairs":  # nothing but its kind is sound
                read_question({**SOUND, base.argument: {"kind": name}}, ["tiny"])
            wrong = {"kind": name, "nothing": 3}
            with pytest.raises(jaxsens.InputError, match=r"nothing: unknown key"):
                read_question({**SOUND, base.argument: wrong}, ["tiny"])
