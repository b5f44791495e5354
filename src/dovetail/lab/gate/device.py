"""The process of a gated device: it runs kernels of several tasks, one at a time, as the Device machine says.

Rules of this file
- One thread reads the clients' sockets, asks the machine (`grants`) and runs kernels. Nobody has to be woken between
  two kernels and nobody competes for the interpreter lock; only models are made ready by threads of their own, on
  other cores.
- The sockets are looked at after every kernel, before the machine chooses the next: a launch of a higher class, a
  cancellation or a client that is gone waits for the kernel that runs and for nothing else. A kernel of a lower class
  is preceded by one look more, after the time that is written down as its beginning. If there is a message of a
  higher class, the kernel is taken back: none begins although a higher launch was in a socket (save if clients talk
  without end, see `MOST_MESSAGES`).
- A client whose socket is closed, who breaks the protocol, reads no answers or holds the device and launches nothing
  for longer than was declared is dropped: all its tasks are gone, in the machine too.
- A kernel cannot be interrupted. One that runs longer than the declared bound (and no later than a quarter after it)
  ends the process by SIGALRM, which needs no interpreter; whoever started the process starts another (`gate`).

Run as ``python -m dovetail.lab.gate.device FD``; the descriptor is the device's end of the control line.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from typing import Any

import msgspec

from .grants import Grants
from .programs import ProgramMaker
from .tasks import NEVER_NS, Broken, Client, Task, class_of, record_of
from .wire import (
    MAX_DETAIL_CHARS,
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
    ToDevice,
)

__all__ = ["GatedDevice", "main"]

#: Records kept for a report; the oldest go first.
MOST_RECORDS = 1_000_000
#: So many of one client are taken between two kernels: nobody keeps the device from running by talking.
MOST_MESSAGES = 8
#: Of the grants of a well-known program that is alone, one in so many is learned from.
LEARN_EVERY = 8
#: How often silent clients are looked for while there is work.
LOOK_NS = 10_000_000


class GatedDevice:
    """One device: `run` returns when the control line is closed."""

    def __init__(self, control: Line[ToDevice], hello: GateHello) -> None:
        self._hello = hello
        self._control = control
        self._grants = Grants(hello.policy, hello.stats, learn_every=LEARN_EVERY)
        self._clients: dict[int, Client] = {}
        self._last_task = 0
        self._look_ns = 0
        self._stopping = False
        #: Last looks that found something since the last kernel.
        self._looks = 0
        #: When the watchdog over kernels has to be set again; 0: it is not set.
        self._rearm_ns = 0
        #: What ran, as `record_of` reads it.
        self._records: deque[tuple[Any, ...]] = deque(maxlen=MOST_RECORDS)
        self._maker: ProgramMaker[Client] = ProgramMaker()
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)
        self._poll.register(self._maker.fileno(), select.EPOLLIN)
        control.setblocking(False)

    # -- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run kernels until the control line is closed."""
        grants = self._grants
        while not self._stopping:
            task = grants.ready
            if task is not None:
                self._start(task)
            else:
                grants.rest()
                self._listen(self._wait())
            now_ns = time.monotonic_ns()
            if now_ns >= grants.alarm_ns:
                grants.ring(now_ns)
            if now_ns >= self._look_ns:
                self._drop_the_silent(now_ns)

    def _listen(self, readable: list[tuple[int, int]]) -> None:
        """Take one message of each line that has any, those of the highest class first.

        What the machine grants on a message may be revoked for the next only if that is of a higher class.
        """
        messages: list[tuple[int, int, Client, ToDevice]] = []
        for fd, _ in readable:
            if fd == self._control.fileno():
                self._listen_to_control()
            elif fd == self._maker.fileno():
                self._take_made()
            elif (client := self._clients.get(fd)) is not None and (message := self._receive(client)) is not None:
                messages.append((class_of(client, message), len(messages), client, message))
        for _, _, client, message in sorted(messages) if len(messages) > 1 else messages:
            if self._clients.get(client.line.fileno()) is not client:
                continue  # dropped meanwhile
            try:
                self._take(client, message)
            except Broken as error:
                self._drop(client, str(error))

    def _wait(self) -> list[tuple[int, int]]:
        """What can be read, once there is something or a time has come."""
        if self._rearm_ns:
            self._rearm_ns = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._grants.tasks and self._hello.spin_ns:
            until_ns = min(time.monotonic_ns() + self._hello.spin_ns, self._grants.alarm_ns)
            while time.monotonic_ns() < until_ns:
                if found := self._poll.poll(0):
                    return found
        quiet_ns = min((t.quiet_ns for t in self._grants.tasks.values()), default=NEVER_NS)
        until_ns = min(self._grants.alarm_ns, quiet_ns + self._hello.patience_ns)
        # Not epoll, whose timeout is whole milliseconds: longer than most gaps.
        timeout_s = None if until_ns >= NEVER_NS else max(0, until_ns - time.monotonic_ns()) / 1e9
        select.select([self._poll.fileno()], (), (), timeout_s)
        return self._poll.poll(0)

    def _start(self, task: Task) -> None:
        """Run a task's next kernel, unless the last look finds messages: then whose turn it is is asked again."""
        begin_ns = time.monotonic_ns()
        # After the time of its beginning, so that whatever was there before that is found.
        if self._grants.yields(task) and self._looks < MOST_MESSAGES and (readable := self._poll.poll(0)):
            self._looks += 1
            self._listen(readable)
            return
        self._looks = 0
        self._run_kernels(task, begin_ns)

    def _run_kernels(self, task: Task, begin_ns: int) -> None:
        """Run a kernel, and if its grant goes to the end those that are launched after it, until there is a message.

        Between those there is one look and no machine. It comes after the time that is written down as the beginning
        of the next, as the last look before a kernel of a lower class does.
        """
        grants, kernels, position = self._grants, task.kernels, task.kernel
        assert task.grant is not None
        why = task.grant.why
        task.running = True
        while True:
            if begin_ns >= self._rearm_ns:
                # Not for every kernel: one that starts later has a quarter of the bound more.
                signal.setitimer(signal.ITIMER_REAL, 1.25e-9 * self._hello.kernel_bound_ns)
                self._rearm_ns = begin_ns + self._hello.kernel_bound_ns // 4
            try:
                kernels[position]()
            except Exception as error:
                self._end(task, "error", f"kernel {position}: {type(error).__name__}: {error}"[:MAX_DETAIL_CHARS])
                return
            end_ns = time.monotonic_ns()
            self._records.append((*task.told, position, begin_ns, end_ns, why))
            next_ns = time.monotonic_ns()
            readable = self._poll.poll(0)
            if readable or not grants.goes_on(task, begin_ns, end_ns):
                break
            position += 1
            begin_ns = next_ns
        # What came while it ran must be known before the machine chooses the next.
        for _ in range(MOST_MESSAGES):
            if not readable:
                break
            self._listen(readable)
            readable = self._poll.poll(0)
        if task.ident not in grants.tasks:
            return  # cancelled or dropped
        if position + 1 == task.launched:
            task.quiet_ns = end_ns
            if position + 1 == len(kernels):
                task.program.busy = False
                task.client.tasks.pop(task.number, None)
            # Before the machine is asked: a host waits for it. What it sends next is read after that.
            self._answer(task.client, Finished(task.number, position, begin_ns, end_ns))
        if task.ident in grants.tasks:
            now_ns = time.monotonic_ns()
            grants.ended(task, begin_ns, end_ns, now_ns)
            if position + 1 == len(kernels):
                self._follow(task.client, task.number, now_ns)

    # -- clients ------------------------------------------------------------------------------------------------

    def _receive(self, client: Client) -> ToDevice | None:
        """A client's next message; None if there is none, or if it is the client's end."""
        try:
            packet = client.line.receive()
        except BlockingIOError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._drop(client, f"{type(error).__name__}: {error}")
            return None
        if packet is None:
            self._drop(client, "")
            return None
        message, fds = packet
        for fd in fds:
            os.close(fd)
        return message

    def _take(self, client: Client, message: ToDevice) -> None:
        if isinstance(message, Launch):
            task = client.tasks.get(message.task)
            if task is not None:
                arrived_ns = client.line.arrived_ns(message.at_ns)
                task.launch(message.upto, message.at_ns, arrived_ns)
                self._grants.launch(task, arrived_ns)
            else:  # it waits; or it is over, and its client will read so
                client.launch_later(message)
        elif isinstance(message, Begin):
            if not client.put_off(message):
                self._begin(client, message, client.line.arrived_ns(message.at_ns))
        elif isinstance(message, Cancel):
            task = client.tasks.get(message.task)
            if task is not None:
                self._end(task, "cancelled", "")
            elif client.give_up(message.task):
                self._answer(client, Ended(message.task, "cancelled", ""))
        elif isinstance(message, Open):
            self._maker.make(client, message)
        elif isinstance(message, Close):
            program = client.programs.pop(message.program, None)
            if program is None or program.busy:
                raise Broken(f"program {message.program} was closed, but is not open or in use")
            program.close()
        else:
            raise Broken(f"{type(message).__name__} is no message of a client")

    def _follow(self, client: Client, number: int, now_ns: int) -> None:
        """A task is over: begin what its client has sent to be begun then."""
        message = client.waiting.pop(number, None)
        if message is not None:
            try:
                self._begin(client, message, now_ns)
            except Broken as error:
                self._drop(client, str(error))

    def _begin(self, client: Client, message: Begin, arrived_ns: int) -> None:
        program = client.programs.get(message.program)
        if program is None or program.busy or message.task in client.tasks:
            raise Broken(f"task {message.task} began on a program that is not open, or something is in use")
        self._last_task += 1
        try:
            task = Task(self._last_task, client, message, program, arrived_ns)
        except Exception as error:
            self._answer(client, Ended(message.task, "error", f"{type(error).__name__}: {error}"[:MAX_DETAIL_CHARS]))
            self._follow(client, message.task, arrived_ns)
            return
        task.launch(message.launch, message.at_ns, arrived_ns)
        program.busy = True
        client.tasks[message.task] = task
        self._grants.begin(task, arrived_ns)

    def _answer(self, client: Client, message: FromDevice, fds: tuple[int, ...] = ()) -> None:
        try:
            client.line.send(message, fds)
        except OSError:  # also a client that reads nothing: its socket is full
            self._drop(client, "it reads no answers")

    def _end(self, task: Task, reason: str, detail: str) -> None:
        """A task is over before its time: free what it held, then say so."""
        self._forget(task)
        self._answer(task.client, Ended(task.number, reason, detail))
        self._follow(task.client, task.number, time.monotonic_ns())

    def _forget(self, task: Task) -> None:
        if task.ident in self._grants.tasks:
            task.program.busy = False
            task.client.tasks.pop(task.number, None)
            self._grants.gone(task, time.monotonic_ns())

    def _drop(self, client: Client, why: str) -> None:
        if self._clients.pop(client.line.fileno(), None) is None:
            return
        if why:
            print(f"client {client.ident} was dropped: {why}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                client.line.send(Ended(-1, "dropped", why[:MAX_DETAIL_CHARS]))
        self._poll.unregister(client.line.fileno())
        client.line.close()
        client.waiting.clear()
        for task in list(client.tasks.values()):
            self._forget(task)
        for program in client.programs.values():
            program.close()

    def _drop_the_silent(self, now_ns: int) -> None:
        self._look_ns = now_ns + LOOK_NS
        patience_ns = self._hello.patience_ns
        for task in list(self._grants.tasks.values()):
            if now_ns - task.quiet_ns >= patience_ns and task.ident in self._grants.tasks:
                self._drop(
                    task.client,
                    f"task {task.number} of {task.program.name} launched nothing for {patience_ns / 1e6:g} ms",
                )

    # -- programs -----------------------------------------------------------------------------------------------

    def _take_made(self) -> None:
        for client, message, program in self._maker.taken():
            if isinstance(program, str):
                self._answer(client, OpenFailed(message.program, program))
                continue
            if self._clients.get(client.line.fileno()) is not client:
                program.close()
                continue
            client.programs[message.program] = program
            # A model lives as long as the process, most likely: keep the collector from walking it every time.
            gc.collect()
            gc.freeze()
            opened = Opened(message.program, list(program.idents), program.inputs, program.outputs)
            self._answer(client, opened, (program.fd,))

    # -- the control line ---------------------------------------------------------------------------------------

    def _listen_to_control(self) -> None:
        packet = self._control.receive()
        if packet is None:
            self._stopping = True
            return
        message, fds = packet
        if isinstance(message, Join):
            line: Line[ToDevice] = Line(socket.socket(fileno=fds[0]), ToDevice)
            line.setblocking(False)
            self._clients[line.fileno()] = Client(message.client, line)
            self._poll.register(line.fileno(), select.EPOLLIN)
        elif isinstance(message, GatePolicy):
            why = "the device has a new policy"
            for client in list(self._clients.values()):
                for waiting in [message.task for message in client.waiting.values()]:
                    client.give_up(waiting)
                    self._answer(client, Ended(waiting, "cancelled", why))
            for task in list(self._grants.tasks.values()):
                self._end(task, "cancelled", why)
            self._grants.set_policy(message)
        elif isinstance(message, Report):
            self._control.setblocking(True)
            stats = list(self._grants.stats())
            records = [record_of(self._records.popleft()) for _ in range(len(self._records))]
            self._control.send(Reported(records, stats, len(self._grants.tasks)))
            self._control.setblocking(False)


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sock = socket.socket(fileno=int(sys.argv[1]))
    control: Line[ToDevice] = Line(sock, ToDevice)
    try:
        first = control.receive()
        if first is not None:
            hello = first[0]
            assert isinstance(hello, GateHello)
            sys.path.extend(entry for entry in hello.module_path if entry not in sys.path)
            if hello.core >= 0:
                os.sched_setaffinity(0, {hello.core})
            gc.set_threshold(50_000)  # a collection takes as long as a kernel; what is thrown away here has no cycles
            GatedDevice(control, hello).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # whoever started this is gone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
