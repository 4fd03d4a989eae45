"""Connections that a server keeps: not those that say nothing, nor more than it can bear."""

from __future__ import annotations

import asyncio
import resource
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""For which a connection may be without a whole head of a request."""

_MOST = 1000
_OTHER_FILES = 200
"""Beside connections: workers, results that are read, and connections that are accepted in one step."""


def most_connections() -> int:
    """Returns how many connections are kept, after raising the process's limit of open files as far as it may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST + _OTHER_FILES)
    soft = max(files, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, files - _OTHER_FILES)


class Connection(H11Protocol):
    """A connection that is closed where it waits for a head for too long, or for another that came later.

    h11 reads it, which bounds a head by 64 KiB.

    Attributes:
        most: connections that are kept.
    """

    most = _MOST

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
