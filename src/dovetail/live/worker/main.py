"""The worker process: it owns one device, its arena and its Device machine, and carries out what its ingresses ask.

Rules of this file
- Its threads take turns. All of them wait at the doorbells, the kernel wakes one for each message, and whoever takes
  a batch that may start runs it at once and answers it. So nothing is handed from thread to thread between a message
  and its model: to wake a thread costs 30 µs, and 150 µs if it is on a processor that sleeps.
- There is one thread more than there are lanes, so that somebody listens while all lanes are busy.
- Messages are received and taken under one lock, in the order in which they were sent.
- The ingress that started the worker has its doorbell from the beginning, and the process ends with it. Others join
  at a socket (`Hello.listen`), and when one goes only what it asked for goes with it.
- User Python runs in host workers, which are this same process with one lane and no models, so that it never shares
  an interpreter with a device.

Run as ``python -m dovetail.live.worker FD``; the descriptor is the worker's end of the doorbell.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NoReturn

import msgspec

from ...state import NEVER_NS
from ...units import MS
from ...workflow.app import App, load_target
from ..links import wire
from ..links.doorbell import Doorbell, widen
from ..links.wire import MOST_INGRESSES, FromWorker, Hello, ToWorker, arena_of
from ..tensors.arena import Arena
from .device_executor import DeviceExecutor
from .emulated import EmulatedExecutor
from .executor import BadMessage, Values, Work, either, error_text
from .link import HEAR, Link, Orders

__all__ = ["Worker", "main"]

#: What is further away is waited for in whole milliseconds, and the last of them exactly.
FAR_NS, NEAR_NS = 5 * MS, 2 * MS


class Worker:
    """One worker: `run` never returns; the process ends when the doorbell says stop or its other end is gone."""

    def __init__(self, doorbell: Doorbell[ToWorker], hello: Hello, front_fd: int, app: App | None) -> None:
        self._poll = select.epoll()
        self._first = Link(doorbell, hello.ingress, self._poll)
        #: By descriptor, and by ingress once that is known.
        self._links: dict[int, Link] = {doorbell.fileno(): self._first}
        self._ingresses: dict[int, Link] = {hello.ingress: self._first}
        self._hello = hello
        self._own = Arena.create(hello.worker, hello.arena_bytes)
        self._arenas = {hello.worker: self._own}
        #: Arena of another process -> ingresses whose batches read it.
        self._readers: dict[int, set[int]] = {}
        self._attach(arena_of(hello.ingress), hello.ingress, [front_fd])
        self._values = Values(self._arenas, self._own, hello.ingress)
        self._orders = Orders(hello.stages)
        #: Held while messages, answers that waited and wakes are taken.
        self._turn = threading.Lock()
        self._in_turn = threading.get_ident()
        #: Work for a thread that has none, which the alarm wakes.
        self._todo: deque[Work] = deque()
        self._alarm_r, self._alarm_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakes: list[tuple[int, int, object]] = []
        self._wake_numbers = count()
        #: Thread that waits -> when it looks at the clock by itself.
        self._looks_ns: dict[int, int] = {}
        self._listener: socket.socket | None = None
        if hello.listen:
            self._listener = listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(hello.listen)
            listener.bind(hello.listen)
            os.chmod(hello.listen, 0o600)
            listener.listen(MOST_INGRESSES)
            listener.setblocking(False)
        self._executor: DeviceExecutor | EmulatedExecutor
        if hello.spec.enforcement == "emulated":
            self._executor = EmulatedExecutor(hello, self._values, self._answer, self._wake_at)
        else:
            self._executor = DeviceExecutor(
                hello, app, self._values, self._answer, self._wake_at, self._now_ns, self._hand
            )

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._hello.origin_ns

    def _wake_at(self, at_ns: int, payload: object) -> None:
        """Called from any thread: somebody looks at the clock then."""
        heappush(self._wakes, (at_ns, next(self._wake_numbers), payload))
        if self._in_turn != threading.get_ident():
            self._ring()  # whoever waits knows nothing of this

    def _hand(self, work: Work) -> None:
        """Called from any thread: let another one do this."""
        self._todo.append(work)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe rings loud enough
            os.write(self._alarm_w, b"!")

    def _answer(self, ingress: int, message: FromWorker) -> None:
        """Called from any thread: tell an ingress, unless it is gone."""
        link = self._ingresses.get(ingress)
        if link is not None:
            self._send(link, message)

    def _send(self, link: Link, message: FromWorker, fds: Sequence[int] = ()) -> None:
        try:
            link.send(message, fds)
        except OSError:
            if link is self._first:
                os._exit(0)  # the front is gone
            # Of others the doorbell will tell.

    def run(self) -> NoReturn:
        """Introduce this worker, then do as the doorbells say."""
        words, ready = self._executor.introduce()
        doorbell = self._first.doorbell
        for message in words:
            doorbell.send(message)
        doorbell.send(ready, [self._own.fd])
        doorbell.send(self._executor.state(self._now_ns()))
        doorbell.setblocking(False)
        self._poll.register(doorbell.fileno(), HEAR)
        self._poll.register(self._alarm_r, HEAR)
        if self._listener is not None:
            self._poll.register(self._listener.fileno(), HEAR)
        for _ in range(self._executor.lanes):
            threading.Thread(target=self._take_turns, daemon=True).start()
        self._take_turns()

    def _take_turns(self) -> NoReturn:
        try:
            while True:
                work = self._listen(*self._wait())
                if work is not None:
                    work()
                    del work  # it holds what it has read
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)  # the front is gone
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _wait(self) -> tuple[int, int]:
        """What has happened: a descriptor and its event, or two zeros when it is time to look at the clock."""
        try:
            first_ns = self._wakes[0][0]
        except IndexError:
            return self._poll.poll(None, 1)[0]
        ident = threading.get_ident()
        self._looks_ns[ident] = first_ns
        left_ns = first_ns - self._now_ns()
        if left_ns > FAR_NS:
            events = self._poll.poll((left_ns - NEAR_NS) / 1e9, 1)
        else:
            # Not epoll's own timeout, which is whole milliseconds: half of an emulated batch.
            select.select([self._poll], [], [], max(0, left_ns) / 1e9)
            events = self._poll.poll(0, 1)
        del self._looks_ns[ident]
        return events[0] if events else (0, 0)

    def _listen(self, fd: int, event: int) -> Work | None:
        """Take what has happened, and say what this thread is to do."""
        work = None
        with self._turn:
            self._in_turn = threading.get_ident()
            now_ns = self._now_ns()
            if fd == self._alarm_r:
                work = self._alarmed()
            elif self._listener is not None and fd == self._listener.fileno():
                self._accept(self._listener)
            elif fd and (link := self._links.get(fd)) is not None:
                if event & select.EPOLLOUT:
                    with contextlib.suppress(*() if link is self._first else (OSError,)):
                        link.flush()
                if event & ~select.EPOLLOUT:
                    work = self._receive(link, now_ns)
                else:
                    link.hear()
            wakes = self._wakes
            while wakes and wakes[0][0] <= now_ns:
                work = either(work, self._executor.wake(heappop(wakes)[2], now_ns), self._hand)
            if work is not None and wakes and min(self._looks_ns.values(), default=NEVER_NS) > wakes[0][0]:
                self._ring()  # another thread has to look at the clock now
            self._in_turn = 0
        return work

    def _alarmed(self) -> Work | None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._alarm_r, 4096)
        self._poll.modify(self._alarm_r, HEAR)
        work = self._todo.popleft() if self._todo else None
        if self._todo:
            self._ring()
        return work

    def _receive(self, link: Link, now_ns: int) -> Work | None:
        """Take the next message, if it is still there."""
        try:
            packet = link.doorbell.receive()
        except BlockingIOError:
            link.hear()
            return None
        except (OSError, msgspec.DecodeError):
            if link is self._first:
                raise
            return self._lose(link)
        if packet is None or type(packet[0]) is wire.Stop:
            if link is not self._first:
                return self._lose(link)
            self._executor.close()
            link.doorbell.setblocking(True)
            link.flush()
            os._exit(0)  # lanes may be inside a model: there is nothing to wait for
        message, fds = packet
        try:
            work = self._take(link, message, fds, now_ns)
        except BadMessage:
            if link is self._first:
                raise
            return self._lose(link)
        finally:
            for fd in fds:
                os.close(fd)
        if link.doorbell.fileno() in self._links:
            link.hear()
        return work

    def _take(self, link: Link, message: ToWorker, fds: list[int], now_ns: int) -> Work | None:
        ingress = link.ingress
        if isinstance(message, wire.Run):
            if message.batch.ingress != ingress:
                raise BadMessage("it speaks for somebody else")
            if message.free:
                self._values.free(message.free, ingress)
            return self._executor.run(message, now_ns)
        if ingress < 0 and not isinstance(message, wire.Join):
            raise BadMessage("it has not said who it is")
        if isinstance(message, wire.Free):
            self._values.free(message.offsets, ingress)
        elif isinstance(message, wire.Load):
            self._orders.check(message.stage)
            if message.keep:
                self._orders.keep(ingress, message.stage)
            return self._executor.load(message, ingress, now_ns)
        elif isinstance(message, wire.Evict):
            if self._orders.drop(ingress, message.stage):
                return self._executor.evict(message, ingress, now_ns)
        elif isinstance(message, wire.Recut | wire.Watch | wire.Standing):
            return self._executor.told(message, ingress, now_ns)
        elif isinstance(message, wire.Attach):
            self._attach(message.arena, ingress, fds)
        elif isinstance(message, wire.Detach):
            self._detach(message.arena, ingress)
        elif isinstance(message, wire.Join):
            self._join(link, message, fds)
        return None

    def _attach(self, number: int, ingress: int, fds: list[int]) -> None:
        """Batches of an ingress will read this arena; one mapping is enough for all of them."""
        if number == self._hello.worker:
            return
        if number not in self._arenas:
            try:
                self._arenas[number] = Arena.attach(number, fds.pop(0))
            except (IndexError, OSError, ValueError) as error:
                raise BadMessage(f"arena {number} cannot be read: {error}") from error
        self._readers.setdefault(number, set()).add(ingress)

    def _detach(self, number: int, ingress: int) -> None:
        """Batches of an ingress read this arena no more; it goes with the last. What still runs has its views."""
        readers = self._readers.get(number, set())
        readers.discard(ingress)
        if not readers and self._readers.pop(number, None) is not None:
            self._arenas.pop(number).close()

    # -- other ingresses ----------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        """Somebody wants to join; who it is, its first message says."""
        self._poll.modify(listener.fileno(), HEAR)
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if len(self._links) > MOST_INGRESSES:
            connection.close()
            return
        connection.setblocking(False)
        widen(connection)
        link = Link(Doorbell(connection, ToWorker), -1, self._poll)
        self._links[connection.fileno()] = link
        self._poll.register(connection.fileno(), HEAR)

    def _join(self, link: Link, message: wire.Join, fds: list[int]) -> None:
        """Another ingress: it reads this worker's arena, and this worker reads its own."""
        ingress = message.ingress
        if link.ingress >= 0 or ingress in self._ingresses or not 0 < ingress <= MOST_INGRESSES or not fds:
            self._send(link, wire.Refused(f"ingress {ingress} cannot join: that number is taken or none"))
            return
        if self._executor.owes(ingress):
            self._send(
                link, wire.Refused(f"ingress {ingress} cannot join yet: a batch of its predecessor still runs")
            )
            return
        self._attach(arena_of(ingress), ingress, fds)
        link.ingress = ingress
        self._values.join(ingress)
        _, ready = self._executor.introduce()
        hello = self._hello
        self._send(link, wire.Welcome(hello.worker, hello.spec, hello.origin_ns, ready), [self._own.fd])
        self._ingresses[ingress] = link
        self._executor.join(ingress)
        self._send(link, self._executor.state(self._now_ns()))

    def _lose(self, link: Link) -> Work | None:
        """An ingress is gone, and with it what it asked for, its results and its arenas."""
        del self._links[link.doorbell.fileno()]
        link.close()
        if link.ingress < 0:
            return None
        del self._ingresses[link.ingress]
        now_ns = self._now_ns()
        work = self._executor.leave(link.ingress, now_ns)
        for stage in self._orders.leave(link.ingress):
            evict = wire.Evict(stage, 0, "whoever wanted it is gone")
            work = either(work, self._executor.evict(evict, self._hello.ingress, now_ns), self._hand)
        self._values.leave(link.ingress)
        for number in list(self._readers):
            self._detach(number, link.ingress)
        return work


def _start(doorbell: Doorbell[ToWorker]) -> Worker | None:
    """The worker that the first message describes; None if it cannot be."""
    first = doorbell.receive()
    if first is None:
        return None
    hello, fds = first
    assert isinstance(hello, Hello)
    sys.path.extend(entry for entry in hello.module_path if entry not in sys.path)
    try:
        app = load_target(hello.target) if hello.target else None
    except BaseException as error:  # also a module that calls sys.exit
        traceback.print_exc()
        doorbell.send(
            wire.Refused(f"{hello.target} cannot be loaded in worker {hello.spec.name}: {error_text(error)}")
        )
        return None
    return Worker(doorbell, hello, fds[0], app)


_MAIN_PID = os.getpid()


def _not_for_workers(number: int, _frame: object) -> None:
    """Processes that a stage forks have this handler, too, and are ended as usual."""
    if os.getpid() != _MAIN_PID:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def main() -> None:
    """Entry point of the process."""
    # The front decides when workers stop. A Ctrl-C, the end of a terminal and a service manager reach all of them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _not_for_workers)
    # A low number of its own: `select` takes none above 1023, and the front may have many connections open.
    inherited = int(sys.argv[1])
    sock = socket.socket(fileno=os.dup(inherited))
    os.close(inherited)
    try:
        worker = _start(Doorbell(sock, ToWorker))
        if worker is not None:
            worker.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the front is gone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
