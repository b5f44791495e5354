"""A gated device from outside: `Gate` keeps its process alive, `GateClient` runs models on it kernel by kernel.

    with Gate(GatePolicy("ours", learn=True), core=1) as gate:
        client = GateClient(gate.connect())
        program = client.open("reader", Source("onnx", "read.onnx"), {"x": (1, 3, 48, 320)})
        program.inputs["x"][...] = line
        client.run(program, priority=1)                  # all kernels at once, or with host work between them:
        task = client.begin(program, priority=1)
        for _ in program.kernels:
            task.launch(); task.wait(); host_work()

A client may be in another process: hand over the socket and close it here, so that the device notices at once when
that process dies. If the device is lost (a kernel beyond its bound, say) a new process takes its place; clients read
`DeviceLost` and connect again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import DovetailError
from ...live.links.doorbell import pair
from ...profile.kernels import KernelStats
from ...record.kernels import KernelRecord
from .source import Source
from .wire import (
    Begin,
    Cancel,
    Close,
    Ended,
    Finished,
    FromDevice,
    GateHello,
    GatePolicy,
    Join,
    Launch,
    Line,
    Open,
    Opened,
    OpenFailed,
    Report,
    Reported,
    Shape,
    stamp_arrivals,
    views,
)

__all__ = ["DeviceLost", "Gate", "GateClient", "GatePolicy", "GateProgram", "GateTask", "Source", "TaskEnded"]

#: A kernel that takes longer than this ends the device's process, unless told otherwise.
KERNEL_BOUND_SECONDS = 10.0
#: A task that launches nothing for this long is given up, unless told otherwise.
PATIENCE_SECONDS = 5.0
#: In a gap the device looks for launches for this long before it sleeps: to be woken takes 20 to 50 µs, and a core
#: that is a device has nothing else to do. Longer than the gaps that are filled.
SPIN_SECONDS = 0.002


class DeviceLost(DovetailError):
    """The device's process has ended, or has dropped this client."""


class TaskEnded(DovetailError):
    """A task was over before its time; `reason` is "error", "cancelled" or "dropped"."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Gate:
    """A device process, started again whenever it is lost. Close it, or use it in a `with`."""

    def __init__(
        self,
        policy: GatePolicy,
        *,
        core: int = -1,
        kernel_bound_s: float = KERNEL_BOUND_SECONDS,
        patience_s: float = PATIENCE_SECONDS,
        spin_s: float = SPIN_SECONDS,
        stats: Mapping[str, KernelStats] | None = None,
    ) -> None:
        self._settings = (round(kernel_bound_s * 1e9), round(patience_s * 1e9), round(spin_s * 1e9))
        self._core = core
        self._policy = policy
        #: Why processes were lost.
        self.losses: list[str] = []
        #: What is known of kernels by the name of their program: what was given, and after each `report` what it is.
        self.stats: dict[str, KernelStats] = dict(stats or {})
        self._lock = threading.Lock()
        self._clients = 0
        self._closing = False
        self._start()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the device."""
        return self._process.pid

    def _start(self) -> None:
        ours, theirs = pair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.lab.gate.device", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._control: Line[FromDevice] = Line(ours, FromDevice)
        self._control.send(GateHello(self._core, self._policy, list(self.stats.values()), *self._settings, sys.path))

    def _watch(self) -> None:
        while True:
            select.select([self._pidfd], (), ())
            with self._lock:
                code = self._process.wait()
                os.close(self._pidfd)
                self._control.close()
                if self._closing:
                    return
                if code == -signal.SIGALRM:
                    self.losses.append(f"a kernel ran for more than {self._settings[0] / 1e9:g} s")
                else:
                    self.losses.append(f"killed by signal {-code}" if code < 0 else f"exited with status {code}")
                self._start()

    def connect(self) -> socket.socket:
        """One end of a new client's line; whoever holds it last and closes it ends the client."""
        ours, theirs = pair()
        stamp_arrivals(theirs)
        with theirs, self._lock:
            self._clients += 1
            with contextlib.suppress(OSError):  # if it is just dying, the client will read so
                self._control.send(Join(self._clients), [theirs.fileno()])
        return ours

    def set_policy(self, policy: GatePolicy) -> None:
        """Let another arbiter decide; tasks that are there are cancelled."""
        with self._lock:
            self._policy = policy
            self._control.send(policy)

    def report(self) -> list[KernelRecord]:
        """What ran since the last report, in the order of its end. Also brings `stats` up to date."""
        return self._report().records

    def tasks(self) -> int:
        """How many tasks are on the device. Drops the records so far."""
        return self._report().tasks

    def _report(self) -> Reported:
        with self._lock:
            try:
                self._control.send(Report())
                packet = self._control.receive()
            except OSError:
                packet = None
            if packet is None:
                raise DeviceLost("the device's process has ended")
            message = packet[0]
            assert isinstance(message, Reported)
            self.stats = {s.name: s for s in message.stats}
            return message

    def run_delay_ns(self) -> int:
        """Time that the device's thread was ready to run and something else had its core, since it began."""
        with open(f"/proc/{self.pid}/schedstat", "rb") as file:
            return int(file.read().split()[1])

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._closing = True
            self._process.kill()
        self._watcher.join()


class GateProgram:
    """A model on the device for one shape: write `inputs`, run it, read `outputs`."""

    def __init__(self, number: int, name: str, message: Opened, fd: int) -> None:
        self.number = number
        self.name = name
        #: What each kernel is.
        self.kernels = message.kernels
        try:
            self._memory = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        self.inputs: dict[str, np.ndarray[Any, Any]] = views(self._memory, message.inputs)
        self.outputs: dict[str, np.ndarray[Any, Any]] = views(self._memory, message.outputs)


class GateTask:
    """One run of a program that is under way."""

    def __init__(self, client: GateClient, number: int, program: GateProgram, launched: int) -> None:
        self._client = client
        self.number = number
        self.program = program
        self.launched = launched

    def launch(self, kernels: int = 1) -> None:
        """Let the next kernel (or so many) start when the arbiter allows; returns at once."""
        self.launched += kernels
        self._client.send(Launch(self.number, self.launched, time.monotonic_ns()))

    def wait(self) -> Finished:
        """Until everything that was launched has run. Raises `TaskEnded` or `DeviceLost`."""
        while True:
            finished = self._client.answer(self.number, Finished)
            if finished.kernel == self.launched - 1:
                return finished

    def cancel(self) -> None:
        """Give it up and wait until it is; a kernel that runs runs out first."""
        self._client.send(Cancel(self.number))
        with contextlib.suppress(TaskEnded):
            while self._client.answer(self.number, Finished).kernel < len(self.program.kernels) - 1:
                pass


class GateClient:
    """One client, for one thread. Its tasks take turns in this thread; they need not be waited for in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._line: Line[FromDevice] = Line(sock, FromDevice)
        self._last = 0
        #: Answers that were read while another was waited for.
        self._early: dict[int, list[FromDevice]] = {}

    def __enter__(self) -> GateClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, name: str, source: Source, shapes: Mapping[str, Shape]) -> GateProgram:
        """A model with buffers for inputs of these shapes. `name` is what statistics are kept by."""
        self._last += 1
        number = self._last
        self.send(Open(number, name, source, dict(shapes)))
        fds: list[int] = []
        while True:
            message = self._receive(fds)
            if isinstance(message, Opened) and message.program == number:
                return GateProgram(number, name, message, fds.pop(0))
            if isinstance(message, OpenFailed) and message.program == number:
                raise DovetailError(f"{source.where} cannot be made ready: {message.detail}")
            self._keep(message)

    def close_program(self, program: GateProgram) -> None:
        """Let a program go that no task runs."""
        self.send(Close(program.number))

    def begin(
        self, program: GateProgram, *, priority: int, launch: int = 0, after: GateTask | None = None
    ) -> GateTask:
        """Begin a task; its first `launch` kernels are launched with it.

        With `after` it begins as soon as that task is over, so that the device need not wait for this host. It may be
        of the same program: then nobody may write the inputs between the two, nor count on the outputs of the first.
        """
        self._last += 1
        follows = 0 if after is None else after.number
        self.send(Begin(self._last, program.number, priority, launch, time.monotonic_ns(), follows))
        return GateTask(self, self._last, program, launch)

    def run(self, program: GateProgram, *, priority: int) -> int:
        """Run all kernels, launched at once; gives the time it took (ns)."""
        began_ns = time.monotonic_ns()
        self.begin(program, priority=priority, launch=len(program.kernels)).wait()
        return time.monotonic_ns() - began_ns

    def send(self, message: Any) -> None:
        """One message to the device."""
        try:
            self._line.send(message)
        except OSError as error:
            self._raise_last_words(error)

    def answer(self, task: int, kind: type[Finished]) -> Finished:
        """The next answer about a task."""
        early = self._early.get(task)
        while not early:
            self._keep(self._receive())
            early = self._early.get(task)
        message = early.pop(0)
        if not early:
            del self._early[task]
        if isinstance(message, Ended):
            raise TaskEnded(message.reason, message.detail)
        assert isinstance(message, kind)
        return message

    def _keep(self, message: FromDevice) -> None:
        if isinstance(message, Ended) and message.task < 0:
            raise DeviceLost(f"the device has dropped this client: {message.detail}")
        if isinstance(message, Finished | Ended):
            self._early.setdefault(message.task, []).append(message)

    def _receive(self, fds: list[int] | None = None) -> FromDevice:
        try:
            packet = self._line.receive()
        except ConnectionError:
            packet = None
        if packet is None:
            raise DeviceLost("the device's process has ended, or has closed this client's line")
        message, received = packet
        if fds is not None:
            fds.extend(received)
        return message

    def _raise_last_words(self, error: OSError) -> None:
        """The line is closed: say why, if the device did."""
        with contextlib.suppress(OSError, TypeError):
            while True:
                packet = self._line.receive()
                if packet is None:
                    break
                self._keep(packet[0])
        raise DeviceLost("the device's process has ended, or has closed this client's line") from error

    def close(self) -> None:
        """Leave: tasks and programs of this client are gone."""
        self._line.close()
