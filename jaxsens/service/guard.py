"""Who may ask: the token, where a request comes from, and what a page may load; and the connections that a server
keeps: not those that say nothing, nor more than it can bear.
"""

from __future__ import annotations

import asyncio
import re
import resource
import secrets
from collections.abc import Collection, Mapping
from typing import cast

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LOCAL = ("127.0.0.1", "localhost", "::1")
"""The names of this machine for itself."""

MOST_BYTES = 2**20
"""The bytes of the longest body that is read."""

BODY_SECONDS = 20.0
"""In which a body must come."""

_HEADERS = {
    # Pages run the script of the service and no other. Styles within a picture are its colours.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of every answer that does not bring its own."""


class Guard:
    """Lets requests through that have the token and come from the service's own pages, or from programs.

    A browser sends a cookie, which it gets at /?token=TOKEN and which is not the token. `Host` must be a known name: a
    page of a stranger whose name was made to point at this machine (DNS rebinding) has another. `Origin`, where a
    browser sends it, must be that host: a form on a stranger's page has another.

    Args:
        app, token: what is guarded; what clients need.
        hosts: names under which the service is called.
        port: where it listens; the name of the cookie has it, for cookies are the same for all ports of a host.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str], port: int) -> None:
        self._app, self._token, self._hosts = app, token, {one.lower() for one in hosts}
        self._cookie, self._session = f"jaxsens_{port}", secrets.token_hex(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        is_probe = scope["path"] in ("/healthz", "/readyz")  # which knows no token and calls by an address
        if not is_probe and (answer := self._answer(HTTPConnection(scope))) is not None:
            await answer(scope, receive, _with_headers(send))
        else:
            await self._app(scope, _limited(receive), _with_headers(send))

    def _answer(self, request: HTTPConnection) -> Response | None:
        """Returns the refusal of a request, or the cookie for one who gives the token; None for what is handed on."""
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        # Without the port, and what is around numbers of IPv6.
        name = re.sub(r":\d+$", "", host.lower()).strip("[]")
        if name not in self._hosts:
            why = f"Host = {host!r}: the service is not called that; start it with --name {name}"
            return refusal(421, why)
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            return refusal(403, f"Origin = {origin!r}: requests from pages of other hosts are refused")
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            return refusal(413, f"body: {size} bytes; at most {MOST_BYTES}")
        known = self._knows(request)
        if not known:
            which = "no token" if known is None else "another token"
            told = "give the one that the service has, or printed: Authorization: Bearer TOKEN, or open /?token=TOKEN"
            return refusal(401, f"Authorization: {which}; {told}", {"WWW-Authenticate": "Bearer"})
        if request.scope["path"] != "/" or "token" not in request.query_params:
            return None
        # Takes the token out of the address, where others may see it. The cookie is of this start of the server.
        response, secure = RedirectResponse("/", status_code=303), request.scope["scheme"] == "https"
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", secure=secure)
        return response

    def _knows(self, request: HTTPConnection) -> bool | None:
        """Returns whether a request has the token, or the cookie of one who gave it; None where it has neither."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        given, known = token.strip() if kind.lower() == "bearer" else None, self._token
        if given is None and request.scope["path"] == "/":
            given = request.query_params.get("token")
        if given is None:
            given, known = request.cookies.get(self._cookie, ""), self._session
        return secrets.compare_digest(given.encode("utf-8", "replace"), known.encode()) if given else None


def _limited(receive: Receive) -> Receive:
    """Stops reading a body that gets too long, or does not come."""
    read, whole, until = 0, False, asyncio.get_running_loop().time() + BODY_SECONDS

    async def limited() -> Message:
        nonlocal read, whole
        try:
            async with asyncio.timeout_at(None if whole else until):
                message = await receive()
        except TimeoutError as error:
            raise HTTPException(408, f"body: not whole after {BODY_SECONDS:.0f} s") from error
        read, whole = read + len(message.get("body", b"")), not message.get("more_body", False)
        if read > MOST_BYTES:
            raise HTTPException(413, f"body: more than {MOST_BYTES} bytes")
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the answer that says why there is no other."""
    return JSONResponse({"error": why}, status_code=status, headers=headers)


HEAD_SECONDS = 10.0
"""For which a connection may be without a whole head of a request."""

_MOST = 1000
_OTHER_FILES = 200
"""Beside connections: workers, results that are read, and connections that are accepted in one step."""


def most_connections() -> int:
    """Returns how many connections are kept, after raising the process's limit of open files as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST + _OTHER_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    return max(1, files - _OTHER_FILES)


class Connection(H11Protocol):
    """A connection that is closed where it waits for a head for too long, or for another that came later.

    h11 reads it, which bounds a head by 64 KiB.
    """

    most = _MOST  # connections that are kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes a connection; where there are too many, for the one that has said nothing for the longest time."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._idle_since = self.loop.time()
        self._look()
        if len(self.connections) > self.most:
            kept = [one for one in self.connections if isinstance(one, Connection) and not one._answering]
            min(kept, key=lambda one: one._idle_since, default=self).transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self._answering:
            self._idle_since = self.loop.time()
        elif self.loop.time() - self._idle_since > HEAD_SECONDS:
            self.transport.abort()
            return
        self.loop.call_later(1.0, self._look)
