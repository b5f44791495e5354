"""A server outlives its own stderr: closed, full, or a pipe that nobody reads."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.test_serve import PROJECT, command
from tests.serve.live_support import item_request
from tests.serve.support import HOST, Wire, until

pytestmark = pytest.mark.cpu

TALKS = """
import sys
from dovetail import App, stage, tensor, workflow

@stage
def talk(items):
    for item in items:
        if item[0] == 2:
            sys.stderr.write("x" * 99 + chr(10))
            sys.stderr.write(("y" * 99 + chr(10)) * 20_000)  # 2 MB
            sys.stderr.flush()
    return items

@workflow(slo="60s")
def say(x: tensor("float32", 3)) -> tensor("float32", 3):
    return talk(x)

app = App(say)
"""


class Mute:
    """`dovetail serve` whose stderr is no use: what is known of it is what it answers."""

    def __init__(self, cwd: Path, stderr: object) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]
        words = command("serve", "talks:app", "--port", self.port)
        if stderr == "closed":
            words = ["sh", "-c", 'exec "$@" 2>&-', "sh", *words]
            stderr = None
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(cwd)])}
        self.process = subprocess.Popen(words, cwd=cwd, env=env, stderr=stderr)

    def ready(self) -> int:
        try:
            with Wire(self.port) as wire:
                return wire.ask("GET", "/v2/health/ready").status
        except OSError:
            return 0

    def infer(self, first: float) -> int:
        with Wire(self.port) as wire:
            wire.socket.settimeout(20)
            return wire.send(item_request("say", first)).reply("POST").status

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]


@pytest.fixture
def mute(tmp_path: Path) -> Iterator[Callable[[object], Mute]]:
    (tmp_path / "talks.py").write_text(TALKS)
    started: list[Mute] = []

    def start(stderr: object) -> Mute:
        started.append(Mute(tmp_path, stderr))
        until(lambda: started[-1].ready() == 200)
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait(20)


def serves_on(server: Mute) -> None:
    """It answers, and a worker that dies is replaced."""
    assert server.infer(1) == 200
    before = server.workers()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: server.ready() == 200 and not set(server.workers()) & set(before))
    assert server.infer(1) == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0


def test_with_stderr_closed(mute):
    serves_on(mute("closed"))


def test_with_a_full_disk_behind_stderr(mute):
    with Path("/dev/full").open("wb") as full:
        serves_on(mute(full))


def test_with_a_pipe_that_nobody_reads(mute):
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    try:
        server = mute(write)
        assert server.infer(2) == 200, "a stage that prints 2 MB"
        serves_on(server)
    finally:
        os.close(read)
        os.close(write)


def test_with_a_pipe_whose_reader_has_gone(mute):
    read, write = os.pipe()
    os.close(read)
    try:
        serves_on(mute(write))
    finally:
        os.close(write)
