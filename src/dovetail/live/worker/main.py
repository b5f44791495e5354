"""The worker process: it owns one device, its arena and its arbiter, and carries out what the front asks.

Rules of this file
- Its threads take turns. All of them wait at the doorbell, the kernel wakes one for each message, and whoever takes a
  batch that may start runs it at once and answers it. So nothing is handed from thread to thread between a message
  and its model: to wake a thread costs 30 µs, and 150 µs if it is on a processor that sleeps.
- There is one thread more than there are lanes (`cpu`), so that somebody listens while all lanes are busy.
- Messages are received and taken under one lock, in the order in which they were sent.
- User Python runs in host workers, which are this same process with one lane and no models, so that it never shares
  an interpreter with a device.

Run as ``python -m dovetail.live.worker.main FD``; the descriptor is the worker's end of the doorbell.
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
from heapq import heappop, heappush
from itertools import count
from typing import NoReturn

from ...workflow.app import App, load_target
from ..links.wire import (
    Attach,
    Detach,
    Doorbell,
    Evict,
    Free,
    FromWorker,
    Hello,
    Load,
    Ready,
    Refused,
    Run,
    Stop,
    ToWorker,
)
from ..tensors.arena import Arena
from .cpu import CpuExecutor
from .emulated import EmulatedExecutor
from .executor import MAX_DETAIL_CHARS, Executor, Values, Work
from .kept import KeptExecutor
from .kernel_executor import KernelledExecutor

__all__ = ["Worker", "main"]


#: A thread that is woken for a descriptor has it for itself until `_listen_on` says otherwise.
_HEAR = select.EPOLLIN | select.EPOLLONESHOT


class Worker:
    """One worker: `run` never returns; the process ends when the doorbell says stop or its other end is gone."""

    def __init__(self, doorbell: Doorbell[ToWorker], hello: Hello, front_fd: int, app: App | None) -> None:
        self._doorbell = doorbell
        self._hello = hello
        self._own = Arena.create(hello.worker, hello.arena_bytes)
        self._arenas = {0: Arena.attach(0, front_fd), hello.worker: self._own}
        self._values = Values(self._arenas, self._own)
        #: Held while messages, answers that waited and wakes are taken.
        self._turn = threading.Lock()
        #: Answers that the doorbell had no room for.
        self._answers: deque[FromWorker] = deque()
        self._answers_lock = threading.Lock()
        #: Work for a thread that has none, which the alarm wakes.
        self._todo: deque[Work] = deque()
        self._alarm_r, self._alarm_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakes: list[tuple[int, int, object]] = []
        self._wake_numbers = count()
        self._poll = select.epoll()
        self._executor: Executor
        #: Threads beside this one.
        self._helpers = 0
        #: What goes before the introduction, if this worker keeps its own memory.
        self._first_words: list[FromWorker] = []
        if hello.spec.enforcement == "emulated":
            self._executor = EmulatedExecutor(hello, self._values, self._answer, self._wake_at)
        elif hello.spec.keeps_queue:
            kept = KeptExecutor(hello, self._values, self._answer, self._wake_at, self._now_ns, self._hand)
            self._executor, self._helpers = kept, kept.lanes
            self._first_words = kept.first_words
        elif hello.spec.preempts and app is None:
            kernelled = KernelledExecutor(hello, self._values, self._answer, self._wake_at, self._now_ns)
            self._executor, self._helpers = kernelled, kernelled.lanes
        else:
            cpu = CpuExecutor(hello, app, self._values, self._answer, self._wake_at, self._now_ns, self._hand)
            self._executor, self._helpers = cpu, cpu.lanes

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._hello.origin_ns

    def _wake_at(self, at_ns: int, payload: object) -> None:
        # One step each, so that a thread may do this out of turn if it goes on to `_wait` itself.
        heappush(self._wakes, (at_ns, next(self._wake_numbers), payload))

    def _hand(self, work: Work) -> None:
        """Called from any thread: let another one do this."""
        self._todo.append(work)
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe rings loud enough
            os.write(self._alarm_w, b"!")

    def _answer(self, message: FromWorker) -> None:
        """Called from any thread: send at once; whoever listens takes over if the doorbell is full."""
        with self._answers_lock:
            if not self._answers:
                try:
                    self._doorbell.send(message)
                    return
                except BlockingIOError:
                    pass
                except OSError:
                    os._exit(0)  # the front is gone
            self._answers.append(message)
        self._hear()

    def _hear(self) -> None:
        """Let a thread be woken by the doorbell again."""
        with self._answers_lock:
            blocked = select.EPOLLOUT if self._answers else 0
            self._poll.modify(self._doorbell.fileno(), _HEAR | blocked)

    def run(self) -> NoReturn:
        """Introduce this worker, then do as the doorbell says."""
        for message in self._first_words:
            self._doorbell.send(message)
        if isinstance(self._executor, KeptExecutor):
            self._doorbell.send(self._executor.introduce(), [self._own.fd])
            self._doorbell.send(self._executor.state(self._now_ns()))
        else:
            self._doorbell.send(Ready(os.getpid()), [self._own.fd])
        self._doorbell.setblocking(False)
        self._poll.register(self._doorbell.fileno(), _HEAR)
        self._poll.register(self._alarm_r, _HEAR)
        for _ in range(self._helpers):
            threading.Thread(target=self._take_turns, daemon=True).start()
        self._take_turns()

    def _take_turns(self) -> NoReturn:
        try:
            while True:
                work = self._listen(*self._wait())
                if work is not None:
                    work()
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)  # the front is gone
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _wait(self) -> tuple[int, int]:
        """What has happened: a descriptor and its event, or two zeros when a wake is due."""
        try:
            first_ns = self._wakes[0][0]
        except IndexError:
            return self._poll.poll(None, 1)[0]
        # Not epoll's own timeout, which is whole milliseconds: half of an emulated batch.
        select.select([self._poll], [], [], max(0, first_ns - self._now_ns()) / 1e9)
        events = self._poll.poll(0, 1)
        return events[0] if events else (0, 0)

    def _listen(self, fd: int, event: int) -> Work | None:
        """Take what has happened, and say what this thread is to do."""
        work = None
        with self._turn:
            if fd == self._alarm_r:
                work = self._alarmed()
            elif fd:
                if event & select.EPOLLOUT:
                    self._flush()
                if event & ~select.EPOLLOUT:
                    work = self._receive()
                else:
                    self._hear()
            wakes = self._wakes
            while wakes and wakes[0][0] <= (now_ns := self._now_ns()):
                more = self._executor.wake(heappop(wakes)[2], now_ns)
                if work is None:
                    work = more
                elif more is not None:
                    self._hand(more)
            if work is not None and wakes:
                self._ring()  # another thread has to look at the clock now
        return work

    def _alarmed(self) -> Work | None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._alarm_r, 4096)
        self._poll.modify(self._alarm_r, _HEAR)
        work = self._todo.popleft() if self._todo else None
        if self._todo:
            self._ring()
        return work

    def _receive(self) -> Work | None:
        """Take the next message, if it is still there."""
        try:
            packet = self._doorbell.receive()
        except BlockingIOError:
            self._hear()
            return None
        if packet is None or isinstance(packet[0], Stop):
            if isinstance(self._executor, KernelledExecutor):
                self._executor.close()
                self._doorbell.setblocking(True)
                self._flush()
            os._exit(0)  # lanes may be inside a model: there is nothing to wait for
        work = self._take(*packet)
        self._hear()
        return work

    def _take(self, message: ToWorker, fds: list[int]) -> Work | None:
        if isinstance(message, Run):
            if message.free:
                self._values.free(message.free)
            return self._executor.run(message, self._now_ns())
        if isinstance(message, Free):
            self._values.free(message.offsets)
        elif isinstance(message, Load):
            self._executor.load(message, self._now_ns())
        elif isinstance(message, Evict):
            self._executor.evict(message.stage)
        elif isinstance(message, Attach):
            self._arenas[message.arena] = Arena.attach(message.arena, fds[0])
        elif isinstance(message, Detach):
            gone = self._arenas.pop(message.arena, None)
            if gone is not None:
                gone.close()
        return None

    def _flush(self) -> None:
        with self._answers_lock:
            while self._answers:
                try:
                    self._doorbell.send(self._answers[0])
                except BlockingIOError:
                    return
                self._answers.popleft()


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
        detail = f"{hello.target} cannot be loaded in worker {hello.spec.name}: {type(error).__name__}: {error}"
        doorbell.send(Refused(detail[:MAX_DETAIL_CHARS]))
        return None
    return Worker(doorbell, hello, fds[0], app)


def main() -> None:
    """Entry point of the process."""
    # The front decides when workers stop; a Ctrl-C in the terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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


if __name__ == "__main__":
    main()
