"""Connections of strangers: those that say nothing, half a head, half a body, and more than can be kept."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import uvicorn
from uvicorn.server import ServerState

from jaxsens.service import guard
from jaxsens.service.guard import Connection, Guard
from tests.service.test_guard import TOKEN, echoing

WHOLE = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tokenfortests\r\nContent-Length: 9\r\n\r\n"
)
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def listening(act: Callable[[Callable[[], Awaitable[Pair]]], Awaitable[None]]) -> None:
    """Calls `act` with what opens a connection to a guarded service of one route."""

    async def main() -> None:
        app = Guard(echoing(), TOKEN, ["localhost"], 1)
        config, state = uvicorn.Config(app, log_config=None, lifespan="off", http=Connection), ServerState()
        config.load()
        made = lambda: Connection(config=config, server_state=state, app_state={})  # noqa: E731
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        place = server.sockets[0].getsockname()
        pairs: list[Pair] = []

        async def opened() -> Pair:
            pairs.append(await asyncio.open_connection(*place))
            return pairs[-1]

        async with asyncio.timeout(60):
            await act(opened)
        server.close()
        for _, writer in pairs:
            writer.close()
        while state.connections:
            await asyncio.sleep(0.01)

    asyncio.run(main())


async def answered(pair: Pair, said: bytes) -> bytes:
    pair[1].write(said)
    return await pair[0].read(1000)


@pytest.mark.parametrize("said", [b"", b"POST / HTTP/1.1\r\nHost: loc", WHOLE + b"123456789"])
def test_a_connection_without_a_whole_head_is_closed_also_after_an_answer(monkeypatch, said):
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.5)

    async def act(opened):
        reader, writer = await opened()
        writer.write(said)
        assert (b"9 bytes" in await reader.read()) == said.startswith(WHOLE)  # until it is closed

    listening(act)


def test_half_a_body_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)

    async def act(opened):
        assert b"408" in await answered(await opened(), WHOLE + b"1234")

    listening(act)


def test_a_head_that_never_ends_is_not_read_on():
    async def act(opened):
        assert b"400" in await answered(await opened(), b"POST / HTTP/1.1\r\nHost: " + b"a" * 2**18)

    listening(act)


def test_many_silent_connections_close_the_oldest_of_them_and_no_other(monkeypatch):
    monkeypatch.setattr(Connection, "most", 5)
    monkeypatch.setattr(guard, "HEAD_SECONDS", 1e9)

    async def act(opened):
        slow = await opened()
        slow[1].write(WHOLE)  # its head is whole
        await asyncio.sleep(0.2)
        silent = [await opened() for _ in range(20)]
        assert b"9 bytes" in await answered(await opened(), WHOLE + b"123456789")
        assert b"9 bytes" in await answered(slow, b"123456789")
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                assert await silent[0][0].read() == b""

    listening(act)


def test_small_answers_are_sent_at_once():
    """Without TCP_NODELAY every answer on a kept connection waits 40 ms for an acknowledgement."""
    from jaxsens.service.server import _listening

    with (
        _listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()[:2]),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
