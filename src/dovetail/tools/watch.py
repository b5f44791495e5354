"""The process behind the dashboard: follows the steps of a live run, and answers what people who watch ask.

The front starts it when somebody begins to watch, as `python -m dovetail.tools.watch`, and speaks with it over the
socket that is its standard input (`record.watching`). It ends with the front's end of that socket.

Rules of this file
- It is another process than the front, and nicer: following costs the front an encoding, and a question nothing.
- What may take long, a simulation, runs in a child that is forked for it, of which there is one at a time, with a
  bound on its processor time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
import traceback

import msgspec

from ..errors import DovetailError
from ..record.log import Step
from ..record.sight import Sample
from ..record.view import View
from ..record.watching import Ask, Begin, Frames, Kernels, Kind, frame
from ..record.window import Window
from .whatif import Question, WhatIf

__all__ = ["main"]

#: A simulation may take so much processor time, and so much time.
WHAT_IF_CPU_SECONDS, WHAT_IF_SECONDS = 20, 60.0
NICE = 10


class Watcher:
    """One run that is watched."""

    def __init__(self, front: socket.socket) -> None:
        self._front = front
        self._frames = Frames()
        self._view: View | None = None
        self._begin: Begin | None = None
        #: Of the simulation that runs: number of the question, process, where its answer comes, until when.
        self._asked: tuple[int, int, int, float] | None = None
        self._step = msgspec.msgpack.Decoder(Step).decode

    def run(self) -> None:
        """Until the front is gone."""
        while True:
            pipes = [] if self._asked is None else [self._asked[2]]
            ready, _, _ = select.select([self._front.fileno(), *pipes], [], [], 1.0)
            if pipes:
                self._look_at_child(pipes[0] in ready)
            if self._front.fileno() in ready:
                data = self._front.recv(1 << 20)
                if not data:
                    return
                for kind, body in self._frames.feed(data):
                    self._take(kind, body)

    def _take(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.BEGIN:
            self._begin = begin = msgspec.msgpack.decode(body, type=Begin)
            self._view = View(begin.banner, Window(begin.header.graphs, begin.present))
            return
        view = self._view
        assert view is not None, "it begins with Begin"
        if kind is Kind.STEP:
            view.add(self._step(body))
        elif kind is Kind.KERNELS:
            view.ran(msgspec.msgpack.decode(body, type=Kernels).ran)
        elif kind is Kind.SAMPLE:
            tick = view.tick(msgspec.msgpack.decode(body, type=Sample))
            self._send(Kind.TICK, msgspec.json.encode(tick))
        elif kind is Kind.ASK:
            self._ask(view, msgspec.msgpack.decode(body, type=Ask))

    def _send(self, kind: Kind, body: bytes) -> None:
        self._front.sendall(frame(kind, body))

    def _answer(self, number: int, status: int, body: object) -> None:
        head = number.to_bytes(8, "little") + status.to_bytes(2, "little")
        self._send(Kind.ANSWER, head + msgspec.json.encode(body))

    def _ask(self, view: View, ask: Ask) -> None:
        try:
            if ask.what == "story":
                name: int | str = int(ask.body) if ask.body.isdigit() else ask.body.decode()
                self._answer(ask.number, 200, view.window.story(name))
            else:
                self._simulate(view, ask)
        except (DovetailError, UnicodeDecodeError) as error:
            self._answer(ask.number, 404 if ask.what == "story" else 422, {"error": str(error)})
        except msgspec.DecodeError as error:
            self._answer(ask.number, 400, {"error": f"that is no question: {error}"})

    # -- simulations --------------------------------------------------------------------------------------------

    def _simulate(self, view: View, ask: Ask) -> None:
        question = msgspec.json.decode(ask.body or b"{}", type=Question)
        if self._asked is not None:
            self._answer(ask.number, 429, {"error": "another simulation is running; ask again when it has ended"})
            return
        assert self._begin is not None
        ours, theirs = os.pipe()
        child = os.fork()  # there are no threads here
        if not child:
            os.close(ours)
            self._front.close()
            _answer_in_child(self._begin, view.window, ask, question, theirs)
        os.close(theirs)
        self._asked = (ask.number, child, ours, time.monotonic() + WHAT_IF_SECONDS)

    def _look_at_child(self, speaks: bool) -> None:
        assert self._asked is not None
        number, child, pipe, until = self._asked
        if not speaks and time.monotonic() < until:
            return
        if not speaks:
            os.kill(child, signal.SIGKILL)
        with os.fdopen(pipe, "rb") as file:
            answer = file.read()
        os.waitpid(child, 0)
        self._asked = None
        if answer:
            self._send(Kind.ANSWER, number.to_bytes(8, "little") + answer)
        else:
            why = f"the simulation takes more than {WHAT_IF_CPU_SECONDS} s of processor time; ask for a lower rate"
            self._answer(number, 422, {"error": why})


def _answer_in_child(begin: Begin, window: Window, ask: Ask, question: Question, pipe: int) -> None:
    """Never returns."""
    status, body = 500, msgspec.json.encode({"error": "the simulation broke; the server's log has the cause"})
    try:
        os.nice(19 - NICE)
        resource.setrlimit(resource.RLIMIT_CPU, (WHAT_IF_CPU_SECONDS, WHAT_IF_CPU_SECONDS))
        status, body = 200, msgspec.json.encode(WhatIf(begin.header, window, ask.learned).ask(question))
    except DovetailError as error:
        status, body = 422, msgspec.json.encode({"error": str(error)})
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            data = status.to_bytes(2, "little") + body
            while data:
                data = data[os.write(pipe, data) :]
        os._exit(0)


def main() -> None:
    """Watch what the front on standard input tells."""
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as front, contextlib.suppress(ConnectionError):
        front.setblocking(True)
        Watcher(front).run()


if __name__ == "__main__":
    main()
