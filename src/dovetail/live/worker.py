"""The worker process: it owns one device, its arena and its arbiter, and carries out what the front asks.

Rules of this file: the main thread reads the doorbell and the clock and never runs a model; models run in lanes
(`cpu`). User Python runs in host workers, which are this same process with one lane and no models, so that it never
shares an interpreter with a device.

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
from heapq import heappop, heappush

from ..workflow import App, load_target
from .arena import Arena
from .cpu import CpuExecutor
from .emulated import EmulatedExecutor
from .executor import MAX_DETAIL_CHARS, Executor, Values
from .wire import (
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

__all__ = ["Worker", "main"]


class Worker:
    """One worker: `run` returns when the doorbell says stop or its other end is gone."""

    def __init__(self, doorbell: Doorbell[ToWorker], hello: Hello, front_fd: int, app: App | None) -> None:
        self._doorbell = doorbell
        self._hello = hello
        self._own = Arena.create(hello.worker, hello.arena_bytes)
        self._arenas = {0: Arena.attach(0, front_fd), hello.worker: self._own}
        self._values = Values(self._arenas, self._own)
        #: Answers that the doorbell had no room for.
        self._answers: deque[FromWorker] = deque()
        self._answers_lock = threading.Lock()
        self._alarm_r, self._alarm_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakes: list[tuple[int, int, object]] = []
        self._wake_number = 0
        self._executor: Executor
        if hello.spec.enforcement == "emulated":
            self._executor = EmulatedExecutor(hello, self._values, self._answer, self._wake_at)
        else:
            self._executor = CpuExecutor(hello, app, self._values, self._answer, self._wake_at, self._now_ns)

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._hello.origin_ns

    def _wake_at(self, at_ns: int, payload: object) -> None:
        self._wake_number += 1
        heappush(self._wakes, (at_ns, self._wake_number, payload))

    def _answer(self, message: FromWorker) -> None:
        """Called from any thread: send at once; the main thread takes over if the doorbell is full."""
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
        with contextlib.suppress(BlockingIOError):
            os.write(self._alarm_w, b"!")

    def run(self) -> None:
        """Introduce this worker, then do as the doorbell says."""
        self._doorbell.send(Ready(os.getpid()), [self._own.fd])
        self._doorbell.setblocking(False)
        wakes, executor = self._wakes, self._executor
        doorbell, alarm = self._doorbell.fileno(), self._alarm_r
        while True:
            timeout_s = max(0, wakes[0][0] - self._now_ns()) / 1e9 if wakes else None
            # Not poll, whose timeout is whole milliseconds: half of an emulated batch.
            blocked = [doorbell] if self._answers else []
            readable, writable, _ = select.select([doorbell, alarm], blocked, [], timeout_s)
            if alarm in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(alarm, 4096)
            if writable:
                self._flush()
            # One message at a time: the lanes wait for the interpreter lock, and `select` lets go of it.
            if doorbell in readable and not self._listen():
                return
            while wakes and wakes[0][0] <= self._now_ns():
                executor.wake(heappop(wakes)[2], self._now_ns())

    def _listen(self) -> bool:
        """Carry out the next message; False ends the worker."""
        packet = self._doorbell.receive()
        if packet is None or isinstance(packet[0], Stop):
            return False
        self._take(*packet)
        return True

    def _take(self, message: ToWorker, fds: list[int]) -> None:
        if isinstance(message, Run):
            if message.free:
                self._values.free(message.free)
            self._executor.run(message, self._now_ns())
        elif isinstance(message, Free):
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
    os._exit(0)  # lanes may be inside a model: there is nothing to wait for


if __name__ == "__main__":
    main()
