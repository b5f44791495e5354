"""The HTTP server: who may connect, for how long, and the end. A connection's own life is `connection`.

Rules of this file
- The number of connections and the time that each may take for a step are bounded.
- Connections are accepted here and not by asyncio: when there are no descriptors left, who rests gives way, and that
  is said once in a while. (asyncio 3.11 tries `backlog` times a second and logs a traceback each time.)
- A server that is about to end says so in every answer (`Connection: close`) before it closes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from time import monotonic

from .access_log import AccessLog
from .answering import Answering
from .application import Application
from .backend import Metric
from .bodies import Bodies
from .connection import Connection
from .crowd import Crowd
from .framing import DEFAULT_LIMITS, Heads, Limits
from .gate import Gate
from .voice import Seldom

__all__ = ["HttpServer", "serve"]

_LOG = logging.getLogger(__name__)
BACKLOG = 512
#: Connections that are accepted in one turn of the event loop.
ACCEPTS_PER_TURN = 64
#: When nothing can be accepted, for want of descriptors, say, it is tried again after this [our choice].
ACCEPT_AGAIN_SECONDS = 0.1
#: Handshakes of TLS at once [our choice: half of the connections].
MAX_HANDSHAKES = 512
#: How long connections that rest stay open once the listener is closed: what is on its way is still answered.
FAREWELL_SECONDS = 0.25


class HttpServer:
    """Listening sockets and their connections."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        gate: Gate | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self.gate = gate or Gate()
        self.application = application
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.chunked_bytes = self.answers = 0
        self.heads = Heads(self.gate.check)
        self.port = 0
        self.access_log: AccessLog | None = None
        self.more_metrics: Callable[[], list[Metric]] = list  # of whoever serves beside us
        self.handling: set[Answering] = set()  # also those whose clients are gone
        self.crowd = Crowd(limits.max_connections, limits.max_client_connections)
        self.bodies = Bodies(limits.max_unreceived_bytes, limits.max_unreceived_bytes // 2)
        self._connections: set[Connection] = set()
        self._entering: set[asyncio.Task[object]] = set()
        self._empty = asyncio.Event()
        self._listeners: list[socket.socket] = []
        self._timer: asyncio.TimerHandle | None = None
        self._complain = Seldom(_LOG.warning)
        times = (limits.head_timeout_s, limits.body_timeout_s, limits.send_timeout_s, limits.idle_timeout_s)
        self._sweep_s = min(1.0, limits.linger_s, limits.body_grace_s, *times) / 2  # how late a timeout is noticed

    async def listen(self, host: str, port: int) -> None:
        """Starts to accept; port 0 takes a free one."""
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._listeners.append(listener := socket.socket(family, kind, protocol))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(address)
                listener.listen(BACKLOG)
                listener.setblocking(False)
        except OSError:
            self._stop_listening()
            raise
        self.port = self._listeners[0].getsockname()[1]
        for listener in self._listeners:
            self.loop.add_reader(listener, self._accept, listener)
        self._sweep()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._complain(f"no connection can be accepted: {error.strerror}; who rests gives way")
                self.crowd.make_room()
                self.loop.remove_reader(listener)
                self.loop.call_later(ACCEPT_AGAIN_SECONDS, self._accept_again, listener)
                return
            if self.tls is not None and len(self._entering) >= MAX_HANDSHAKES:
                sock.close()  # whoever shakes hands slowly must not shut out the others by their number
                continue
            sock.setblocking(False)
            task = self.loop.create_task(self._enter(sock, str(address[0]) if address else ""))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self.loop.add_reader(listener, self._accept, listener)

    async def _enter(self, sock: socket.socket, client: str) -> None:
        try:
            await self.loop.connect_accepted_socket(
                lambda: Connection(self, client),
                sock,
                ssl=self.tls,
                ssl_handshake_timeout=None if self.tls is None else self.limits.head_timeout_s,
            )
        except OSError:
            sock.close()  # it is gone already, or does not speak TLS

    def retire(self) -> None:
        """From now on every answer is the last of its connection; connections are still accepted."""
        self.draining = True

    async def drain(self, grace_s: float = 30.0) -> None:
        """Accepts no more, lets requests that have begun finish within `grace_s`, then closes."""
        self.retire()
        for listener in self._listeners:
            self._accept(listener)  # closing would reset who waits there
        self._stop_listening()
        if self._connections or self._entering:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), min(grace_s, FAREWELL_SECONDS))
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
        if self._timer is not None:
            self._timer.cancel()
        if self._entering:
            await asyncio.wait(self._entering)
        for connection in list(self._connections):
            connection.abort()
        if self._connections or self.handling:
            self._empty.clear()
            await self._empty.wait()

    def metrics(self) -> list[Metric]:
        """How it is."""
        return [
            ("dovetail_http_connections", "gauge", "Open connections.", len(self._connections)),
            ("dovetail_http_requests_total", "counter", "Answers of any status.", self.answers),
            ("dovetail_http_handling", "gauge", "Requests that are being handled.", len(self.handling)),
            (
                "dovetail_http_unreceived_bytes",
                "gauge",
                "Bytes of bodies that have room and have not arrived.",
                self.bodies.unreceived_bytes,
            ),
            ("dovetail_http_chunked_bytes", "gauge", "Bytes of chunked bodies on the heap.", self.chunked_bytes),
            *self.more_metrics(),
        ]

    def came(self, connection: Connection) -> None:
        """There is a connection."""
        self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self.crowd.forget(connection)
        self._connections.discard(connection)
        self.check_empty()

    def check_empty(self) -> None:
        """Called when a connection was closed or a request ended."""
        if not self._connections and not self.handling:
            self._empty.set()

    def _stop_listening(self) -> None:
        self.draining = True
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()

    def _sweep(self) -> None:
        """One timer for all connections: a timer for each step of each request would cost more than the step."""
        now = monotonic()
        self.date = formatdate(usegmt=True)
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.expire()
        self._timer = self.loop.call_later(self._sweep_s, self._sweep)


async def serve(
    application: Application,
    host: str,
    port: int,
    limits: Limits = DEFAULT_LIMITS,
    gate: Gate | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    """Serves `application` until the server is drained or closed; `gate` says who may ask, `tls` how it is read."""
    server = HttpServer(application, limits, gate or Gate(host), tls)
    await server.listen(host, port)
    return server
