"""People who watch a server: what they see is made by a process of its own, from the steps that the front tells it.

Rules of this file
- While nobody watches there is no such process, and no step is told. What goes on is one small sample of the books
  every few seconds, so that who comes sees how it was.
- While somebody watches, a step costs the front its encoding; ticks are handed on as they come, the same to all.
- The process is the front's to lose: if it dies, falls behind or hangs, viewers are told, and it is started again for
  the next. Nobody who is served notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from ..control import Action, Event
from ..errors import Overloaded
from ..live.front.system import LiveSystem
from ..live.links.wire import Kernels as RanThere
from ..record.log import Header, Step
from ..record.sight import Banner
from ..record.watching import Ask, Begin, Frames, Kernels, Kind, frame
from .framing import HttpError, HttpResponse
from .sampling import present_of, sample_of, totals_of

__all__ = ["Watch"]

#: The process; above this layer, and so started by name.
MODULE = "dovetail.tools.watch"
TICK_SECONDS = 0.5
#: How often steps are sent on while somebody watches.
SEND_SECONDS = 0.05
#: How long the process stays when nobody watches any more: who looks again finds the last minutes.
LINGER_SECONDS = 60.0
#: What may wait for the process before it counts as too slow.
MOST_WAITING_BYTES = 64 << 20
MOST_VIEWERS = 16
MOST_QUESTIONS = 8
#: How long a question may take.
ANSWER_SECONDS = 90.0
#: The books over time: every so often, and so many of them (an hour).
HISTORY_SECONDS, MOST_HISTORY = 5.0, 720

Push = Callable[[bytes], bool]
Done = Callable[[HttpResponse | Exception], None]


class Watch:
    """Viewers of one server."""

    def __init__(self, system: LiveSystem, banner: Banner, header: Header, say: Callable[[str], None]) -> None:
        self._system = system
        self._banner = banner
        self._header = header
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._viewers: set[Push] = set()
        #: Who waits for a single tick, and for answers.
        self._once: list[Done] = []
        self._questions: dict[int, tuple[Done, asyncio.TimerHandle]] = {}
        self._asked = 0
        self._outbox: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._leave: asyncio.TimerHandle | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        #: (when, totals)
        self.history: deque[tuple[int, object]] = deque(maxlen=MOST_HISTORY)
        self._remember()

    def _remember(self) -> None:
        self._timer = self._loop.call_later(HISTORY_SECONDS, self._remember)
        self.history.append((self._system.now_ns() // 1_000_000, totals_of(self._system)))

    @property
    def watched(self) -> bool:
        """Whether steps are told."""
        return self._task is not None

    # -- who watches --------------------------------------------------------------------------------------------

    def stream(self) -> HttpResponse:
        """Server-sent events: what does not change, then ticks."""
        if len(self._viewers) >= MOST_VIEWERS:
            raise HttpError(503, f"{MOST_VIEWERS} people are watching already", ("Retry-After", "10"))
        headers = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))
        return HttpResponse(200, [], headers, content_type="text/event-stream", stream=self._enter)

    def _enter(self, push: Push) -> Callable[[], None]:
        banner = {"banner": self._banner, "history": list(self.history)}
        push(b"retry: 2000\nevent: banner\ndata: " + msgspec.json.encode(banner) + b"\n\n")
        self._viewers.add(push)
        self._need()

        def left() -> None:
            self._viewers.discard(push)
            self._rest()

        return left

    def state(self, done: Done) -> Callable[[], None]:
        """The next tick, once."""
        self._once.append(done)
        self._need()

        def left() -> None:
            if done in self._once:
                self._once.remove(done)
                done(HttpError(499, "the client went away"))

        return left

    def ask(self, what: Literal["story", "what-if"], body: bytes, done: Done) -> Callable[[], None]:
        """Put a question to the process."""
        if len(self._questions) >= MOST_QUESTIONS:
            raise HttpError(503, "too many questions at once", ("Retry-After", "2"))
        if what == "what-if" and not self.watched:
            raise HttpError(409, "the simulator repeats what it has seen: open /dashboard, send requests, then ask")
        self._asked = number = self._asked + 1
        timer = self._loop.call_later(ANSWER_SECONDS, self._answered, number, HttpError(504, "no answer in time"))
        self._questions[number] = (done, timer)
        learned = self._system.controller.policy.predictor.state() if what == "what-if" else None
        self._need()
        self._put(Kind.ASK, self._encode(Ask(number, what, body, learned)))

        def left() -> None:
            self._answered(number, HttpError(499, "the client went away"))

        return left

    def _answered(self, number: int, answer: HttpResponse | Exception) -> None:
        if number in self._questions:
            done, timer = self._questions.pop(number)
            timer.cancel()
            done(answer)
            self._rest()

    # -- the process --------------------------------------------------------------------------------------------

    def _need(self) -> None:
        """There has to be a process."""
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None
        if self._task is None:
            self._outbox.clear()
            begin = Begin(self._banner, self._header, present_of(self._system))
            self._put(Kind.BEGIN, self._encode(begin))
            self._system.tap.open(self._system.fleet.workers.values(), self._stepped, self._ran)
            self._task = self._loop.create_task(self._run())

    def _rest(self) -> None:
        """Somebody has gone; with the last the process goes, after a while."""
        if not self._viewers and not self._once and not self._questions and self._task is not None:
            if self._leave is not None:
                self._leave.cancel()
            self._leave = self._loop.call_later(LINGER_SECONDS, self._end)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def switch(self, system: LiveSystem, banner: Banner, header: Header) -> None:
        """Another system serves from now on: who watches is told to look anew, and the process is another one."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self._system, self._banner, self._header = system, banner, header

    async def close(self) -> None:
        """Nobody may watch any longer."""
        self._timer.cancel()
        if self._leave is not None:
            self._leave.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _put(self, kind: Kind, body: bytes) -> None:
        self._outbox.append(frame(kind, body))

    def _stepped(self, event: Event, actions: list[Action], note: str) -> None:
        self._put(Kind.STEP, self._encode(Step(event, actions, note)))

    def _ran(self, worker: int, told: RanThere) -> None:
        ran = [(worker, r.stage, r.priority, r.begin_ns, r.end_ns, r.task, r.why) for r in told.ran]
        self._put(Kind.KERNELS, self._encode(Kernels(ran)))

    async def _run(self) -> None:
        """The life of one process."""
        ours, theirs = socket.socketpair()
        process: subprocess.Popen[bytes] | None = None
        why = "the server stops watching"
        try:
            with theirs:
                process = await asyncio.to_thread(_start, theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
            sending = self._loop.create_task(self._send(writer))
            try:
                await self._receive(reader)
                why = "the process that watches has ended"
            finally:
                sending.cancel()
                writer.transport.abort()
            if sending.done() and not sending.cancelled() and sending.exception() is not None:
                why = str(sending.exception())
            self._say(f"dashboard: {why}; it is started again when somebody looks")
        except OSError as error:
            why = f"the process that watches cannot be started: {error}"
            self._say(f"dashboard: {why}")
        finally:
            ours.close()
            self._task = None
            self._system.tap.close(self._system.fleet.workers.values())
            self._outbox.clear()
            for number in list(self._questions):
                self._answered(number, HttpError(503, why, ("Retry-After", "2")))
            once, self._once = self._once, []
            for done in once:
                done(HttpError(503, why, ("Retry-After", "2")))
            for push in list(self._viewers):
                push(b"event: gone\ndata: " + msgspec.json.encode(why) + b"\n\n")
            if process is not None:
                process.kill()
                await asyncio.to_thread(process.wait)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """Steps as they come, and a sample of the books for every tick."""
        ticked = 0.0
        while True:
            now = self._loop.time()
            if now - ticked >= TICK_SECONDS and (self._viewers or self._once):
                ticked = now
                self._put(Kind.SAMPLE, self._encode(sample_of(self._system)))
            if self._outbox:
                frames, self._outbox = self._outbox, []
                writer.write(b"".join(frames))
            if writer.transport.get_write_buffer_size() > MOST_WAITING_BYTES:
                writer.transport.abort()
                raise Overloaded("the process that watches is too slow for what goes on", 1000)
            await asyncio.sleep(SEND_SECONDS)

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        while data := await reader.read(1 << 18):
            for kind, body in frames.feed(data):
                if kind is Kind.TICK:
                    self._ticked(body)
                elif kind is Kind.ANSWER:
                    number, status = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:10], "little")
                    self._answered(number, HttpResponse(status, [body[10:]], (("Cache-Control", "no-store"),)))

    def _ticked(self, body: bytes) -> None:
        message = b"event: tick\ndata: " + body + b"\n\n"
        for push in list(self._viewers):
            push(message)
        once, self._once = self._once, []
        for done in once:
            done(HttpResponse(200, [body], (("Cache-Control", "no-store"),)))
        self._rest()


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    with contextlib.suppress(OSError):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return subprocess.Popen([sys.executable, "-m", MODULE], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
