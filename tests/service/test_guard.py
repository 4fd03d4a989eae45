"""Strangers: no token, another one, foreign hosts and origins, and what a page may load."""

from __future__ import annotations

import dataclasses
from asyncio import run

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from jaxsens.cli.serve import ServeOptions
from jaxsens.core.base.errors import Problems
from jaxsens.service.guard import Guard

TOKEN, OURS = "tokenfortests", {"Authorization": "Bearer tokenfortests"}

NEARLY = ("t", TOKEN[:-1], TOKEN[1:], TOKEN + "s", TOKEN * 2, TOKEN.upper())
"""Beginnings, ends and the like of the token: none is the token."""


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{len(await request.body())} bytes")


def echoing() -> Starlette:
    places = ("/", "/v1/models", "/healthz", "/metrics")
    return Starlette(routes=[Route(path, echo, methods=["GET", "POST"]) for path in places])


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


@pytest.mark.parametrize("near", ["", *NEARLY])
def test_the_address_with_a_part_of_the_token_gives_nothing(http, near):
    answer = run(http.get(f"/?token={near}"))
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_address_with_the_token_gives_a_cookie_that_scripts_cannot_read_and_hides_the_token(http):
    answer = run(http.get(f"/?token={TOKEN}"))
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
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
