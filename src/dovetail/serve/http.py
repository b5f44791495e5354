"""The HTTP server: who may connect, for how long, and the end. A connection's own life is `connection`.

Rule of this file: the number of connections and the time that each may take for a step are bounded.
"""

from __future__ import annotations

import asyncio
import logging
from email.utils import formatdate

from .connection import Application, Connection
from .framing import DEFAULT_LIMITS, Heads, Limits

__all__ = ["HttpServer", "serve"]

_LOG = logging.getLogger(__name__)


class HttpServer:
    """A listening socket and its connections."""

    def __init__(self, application: Application, limits: Limits) -> None:
        self.application = application
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.chunked_bytes = 0
        self.heads = Heads()
        self.port = 0
        self.handling: set[Connection] = set()  # also those whose clients are gone
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._listener: asyncio.Server | None = None
        times = (limits.head_timeout_s, limits.body_timeout_s, limits.send_timeout_s, limits.idle_timeout_s)
        self._sweep_s = min(1.0, limits.linger_s, *times) / 2  # how late a timeout may be noticed

    async def listen(self, host: str, port: int) -> None:
        """Starts to accept; port 0 takes a free one."""
        self._listener = await self.loop.create_server(lambda: Connection(self), host, port, backlog=512)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sweep()

    async def drain(self, grace_s: float = 30.0) -> None:
        """Accepts no more, lets requests that have begun finish within `grace_s`, then closes."""
        self._stop_listening()
        for connection in list(self._connections):
            connection.close_if_idle()
        if self._connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), grace_s)
            except TimeoutError:
                _LOG.warning("%d connections did not finish within %.0f s", len(self._connections), grace_s)
        await self.close()

    async def close(self) -> None:
        """Closes everything at once; requests being handled are cancelled."""
        self._stop_listening()
        self._timer.cancel()
        for connection in list(self._connections):
            connection.abort()
        if self._connections or self.handling:
            self._empty.clear()
            await self._empty.wait()

    def admit(self, connection: Connection) -> int:
        """Counts the connections, with this one."""
        self._connections.add(connection)
        return len(self._connections)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._connections.discard(connection)
        self.check_empty()

    def check_empty(self) -> None:
        """Called when a connection was closed or a request ended."""
        if not self._connections and not self.handling:
            self._empty.set()

    def _stop_listening(self) -> None:
        self.draining = True
        if self._listener is not None:
            self._listener.close()

    def _sweep(self) -> None:
        """One timer for all connections: a timer for each step of each request would cost more than the step."""
        now = self.loop.time()
        self.date = formatdate(usegmt=True)
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.expire()
        self._timer = self.loop.call_later(self._sweep_s, self._sweep)


async def serve(application: Application, host: str, port: int, limits: Limits = DEFAULT_LIMITS) -> HttpServer:
    """Serves `application` until the server is drained or closed."""
    server = HttpServer(application, limits)
    await server.listen(host, port)
    return server
