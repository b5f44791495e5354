"""The worker process: it owns one device, its arena and its arbiter, and carries out what the front asks.

Rules of this file: the main thread reads the doorbell and the clock and never runs a model; models run in lanes
(threads; onnxruntime lets go of the interpreter lock while it computes). User Python runs in host workers, which are
this same process with one lane and no models, so that it never shares an interpreter with a device.

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

import msgspec

from .arena import Arena
from .executor import CpuExecutor, EmulatedExecutor, Executor
from .wire import (
    Attach,
    Detach,
    Evict,
    Free,
    FromWorker,
    Hello,
    Load,
    Ready,
    Run,
    Stop,
    ToWorker,
    receive,
    send,
)

__all__ = ["main", "serve_doorbell"]


def serve_doorbell(sock: socket.socket) -> None:
    """Introduce this worker, then do as the doorbell says until it says stop or its other end is gone."""
    decoder = msgspec.msgpack.Decoder(ToWorker)
    first = receive(sock, decoder)
    if first is None:
        return
    hello, fds = first
    assert isinstance(hello, Hello)
    own = Arena.create(hello.worker, hello.arena_bytes)
    arenas = {0: Arena.attach(0, fds[0]), hello.worker: own}
    lock = threading.Lock()
    answers: deque[FromWorker] = deque()
    alarm_r, alarm_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def answer(message: FromWorker) -> None:
        """Called from lanes: send at once; the main thread takes over if the doorbell is full."""
        with lock:
            if not answers:
                try:
                    send(sock, message)
                    return
                except BlockingIOError:
                    pass
            answers.append(message)
        with contextlib.suppress(BlockingIOError):
            os.write(alarm_w, b"!")

    def now_ns() -> int:
        return time.monotonic_ns() - hello.origin_ns

    wakes: list[tuple[int, int, object]] = []
    sequence = 0

    def wake_at(at_ns: int, payload: object) -> None:
        nonlocal sequence
        sequence += 1
        heappush(wakes, (at_ns, sequence, payload))

    executor: Executor
    if hello.spec.enforcement == "emulated":
        executor = EmulatedExecutor(hello, arenas, answer, wake_at)
    else:
        executor = CpuExecutor(hello, arenas, answer, wake_at, now_ns)
    send(sock, Ready(os.getpid()), [own.fd])
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.register(alarm_r, select.POLLIN)
    while True:
        timeout_ms = max(0, -(-(wakes[0][0] - now_ns()) // 1_000_000)) if wakes else None
        poll.modify(sock, select.POLLIN | select.POLLOUT if answers else select.POLLIN)
        for fd, bits in poll.poll(timeout_ms):
            if fd == alarm_r:
                with contextlib.suppress(BlockingIOError):
                    os.read(alarm_r, 4096)
            if fd == sock.fileno() and bits & select.POLLOUT:
                _flush(sock, answers, lock)
            if fd == sock.fileno() and bits & (select.POLLIN | select.POLLHUP | select.POLLERR):
                while True:
                    try:
                        packet = receive(sock, decoder)
                    except BlockingIOError:
                        break
                    if packet is None:
                        return
                    if not _take(packet[0], packet[1], executor, arenas, own, lock, now_ns()):
                        executor.close()
                        return
        while wakes and wakes[0][0] <= now_ns():
            executor.wake(heappop(wakes)[2], now_ns())


def _take(
    message: ToWorker,
    fds: list[int],
    executor: Executor,
    arenas: dict[int, Arena],
    own: Arena,
    lock: threading.Lock,
    now_ns: int,
) -> bool:
    """Carry out one message; False ends the worker."""
    if isinstance(message, Run):
        executor.run(message, now_ns)
    elif isinstance(message, Free):
        with executor.arena_lock:
            for offset in message.offsets:
                own.free(offset)
    elif isinstance(message, Load):
        executor.load(message, now_ns)
    elif isinstance(message, Evict):
        executor.evict(message.stage)
    elif isinstance(message, Attach):
        arenas[message.arena] = Arena.attach(message.arena, fds[0])
    elif isinstance(message, Detach):
        gone = arenas.pop(message.arena, None)
        if gone is not None:
            gone.close()
    else:
        return not isinstance(message, Stop)
    return True


def _flush(sock: socket.socket, answers: deque[FromWorker], lock: threading.Lock) -> None:
    with lock:
        while answers:
            try:
                send(sock, answers[0])
            except BlockingIOError:
                return
            answers.popleft()


def main() -> None:
    """Entry point of the process."""
    # The front decides when workers stop; a Ctrl-C in the terminal reaches the whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        serve_doorbell(sock)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the front is gone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # lanes may be inside a model: there is nothing to wait for


if __name__ == "__main__":
    main()
