"""`dovetail serve` as a user starts it: a process of its own, ended by signals, judged by its exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from tests.live import apps
from tests.serve.live_support import at_once, item_request, triton, triton_inputs
from tests.serve.support import HOST, Wire, until

from dovetail.cli import main
from dovetail.profile.machine import this_machine
from dovetail.profile.record import Key, Measured
from dovetail.profile.store import ProfileStore
from dovetail.tools.replay import replay
from dovetail.units import MS
from dovetail.workflow.app import load_target
from examples import pages

pytestmark = pytest.mark.cpu
PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
#: Gates of this file.
GATE = 2000


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "dovetail", *map(str, words)]


class Serving:
    """A running `dovetail serve`; what it says is collected as it comes."""

    def __init__(self, *words: object, cwd: Path = PROJECT, descriptors: int = 0) -> None:
        """`descriptors` bounds how many it may have open; 0 leaves that as it is."""
        self.said: list[str] = []
        bound = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"] if descriptors else []
        self.process = subprocess.Popen(
            bound + command("serve", *words, "--port", 0),
            cwd=cwd,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: self.ready_line() or self.process.poll() is not None)
        line = self.ready_line()
        assert line, self.said
        self.ready = json.loads(line)
        self.port: int = self.ready["port"]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())

    def ready_line(self) -> str:
        return next((line for line in self.said if line.startswith('{"ready": true')), "")

    def infer(self, model: str, first: float) -> int:
        """The status of one request."""
        with Wire(self.port) as wire:
            wire.socket.settimeout(PATIENCE_SECONDS)
            return wire.send(item_request(model, first)).reply("POST").status

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stderr is not None and self.process.stdout is not None
        self.process.stderr.close()
        self.process.stdout.close()


@pytest.fixture
def serve() -> Iterator[object]:
    started: list[Serving] = []

    def start(*words: object, **options: object) -> Serving:
        started.append(Serving(*words, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for serving in started:
        serving.close()


def failing(*words: object, cwd: Path = PROJECT) -> str:
    """What a start that must fail with exit code 2 says, without a traceback of ours."""
    done = subprocess.run(
        command("serve", *words), cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_ageing_needs_kernels_and_a_time():
    said = failing("tests.live.apps:small", "--kernels", "never", "--ageing", "5ms")
    assert "--ageing lets waiting kernels of lower classes start, and --kernels never runs none" in said
    assert "--ageing: duration 'soon'" in failing("tests.live.apps:small", "--ageing", "soon")


@pytest.mark.parametrize(
    "flag",
    [
        ("--device", "cpu"),
        ("--workers", 1),
        ("--memory", "1GB"),
        ("--arena", "1GB"),
        ("--kernels", "auto"),
        ("--kernel-log", "kernels.log"),
        ("--ageing", "5ms"),
    ],
)
def test_what_the_server_that_shares_its_workers_has_decided_is_not_for_one_that_joins(flag, tmp_path, capsys):
    assert main(["serve", "tests.live.apps:small", "--join", str(tmp_path), *map(str, flag)]) == 2
    assert f"{flag[0]} is not for a server that joins another" in capsys.readouterr().err


def test_a_server_joins_only_where_workers_are_shared_and_shares_none_that_it_has_joined(tmp_path, capsys):
    assert main(["serve", "tests.live.apps:small", "--join", str(tmp_path)]) == 2
    assert "nobody shares workers there" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["serve", "tests.live.apps:small", "--join", "a", "--share-workers", "b"])
    assert ended.value.code == 2


def worker_pids(serving: Serving) -> list[int]:
    children = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_the_quickstart_is_served_recorded_and_explained(serve, tmp_path):
    log = tmp_path / "run.log"
    serving = serve("examples.quickstart:app", "--log", log)
    assert serving.ready["models"] == ["which_way_up"]
    assert serving.ready["pid"] == serving.process.pid
    assert (serving.ready["host"], serving.ready["device"]) == (HOST, "cpu")
    with triton.InferenceServerClient(f"{HOST}:{serving.port}") as client:
        inputs = triton_inputs({"image": pages.page(2, turned_deg=180).pixels})
        answer = client.infer("which_way_up", inputs, request_id="mine")
        assert answer.as_numpy("label").tolist() == [b"upside down"]

    def explained(request: str) -> bool:
        done = subprocess.run(
            command("explain", request, "--log", log), cwd=PROJECT, capture_output=True, text=True, check=False
        )
        return done.returncode == 0 and "classify" in done.stdout

    until(lambda: explained("mine"))  # while it serves: the log is flushed
    workers = worker_pids(serving)
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0
    assert serving.said[-1].endswith("Z dovetail: stopped")
    assert all(map(gone, workers))
    found = replay(log)
    assert found.same
    assert found.steps > 0
    assert serving.process.stdout.read() == "", "results only, and serving has none"


def sent(serving: Serving, first: float, count: int, stack: ExitStack) -> list[Wire]:
    """Connections on which a request has been sent and admitted."""
    wires = [stack.enter_context(Wire(serving.port)) for _ in range(count + 1)]
    for wire in wires[:count]:
        wire.socket.settimeout(PATIENCE_SECONDS)
        wire.send(item_request("gated", first))
    # What is asked after them is answered after they were taken.
    assert wires[count].ask("GET", "/v2/health/live").status == 200
    return wires


def test_a_drain_answers_what_was_admitted(serve):
    serving = serve("tests.live.apps:hosted", "--device", "cpu:1")
    with ExitStack() as stack:
        *admitted, other = sent(serving, GATE + 1, 4, stack)
        serving.signal(signal.SIGTERM)
        until(lambda: any("draining 4 open request(s)" in line for line in serving.said))
        refused = other.send(item_request("gated", GATE + 1)).reply("POST")
        apps.open_gate(GATE + 1)
        assert [wire.reply("POST").status for wire in admitted] == [200] * 4
    assert refused.status == 503
    assert refused.error == "the server is draining"
    assert "retry-after" in refused.headers
    assert serving.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(serve, number):
    serving = serve("tests.live.apps:hosted", "--device", "cpu:1")
    workers = worker_pids(serving)
    with ExitStack() as stack:
        waiting, _ = sent(serving, GATE + 2, 1, stack)
        serving.signal(number)
        until(lambda: any("draining" in line for line in serving.said))
        serving.signal(number)
        reply = waiting.reply("POST")
    assert (reply.status, reply.error) == (503, "the server stopped before it was done")
    assert serving.wait() == 1
    assert "some requests were not answered" in serving.said[-1]
    until(lambda: all(map(gone, workers)))


def test_the_end_of_a_terminal_does_not_end_the_server(serve):
    serving = serve("tests.live.apps:hosted", "--device", "cpu:1")
    workers = worker_pids(serving)
    for pid in (*workers, serving.process.pid):
        os.kill(pid, signal.SIGHUP)
    until(lambda: any("reloaded; serving" in line for line in serving.said))
    assert serving.infer("gated", 0) == 200
    assert worker_pids(serving) == workers


def test_a_service_manager_that_signals_every_process_does_not_disturb_a_drain(serve):
    serving = serve("tests.live.apps:hosted", "--device", "cpu:1")
    workers = worker_pids(serving)
    with ExitStack() as stack:
        *admitted, _ = sent(serving, GATE + 3, 2, stack)
        for pid in (*workers, serving.process.pid):
            os.kill(pid, signal.SIGTERM)
        until(lambda: any("draining 2 open request(s)" in line for line in serving.said))
        assert worker_pids(serving) == workers
        apps.open_gate(GATE + 3)
        assert [wire.reply("POST").status for wire in admitted] == [200] * 2
    assert serving.wait() == 0


def test_a_restart_keeps_the_log_of_the_run_before(serve, tmp_path):
    log = tmp_path / "run.log"
    for _ in range(3):
        serving = serve("tests.live.apps:hosted", "--device", "cpu:1", "--log", log)
        assert serving.infer("gated", 0) == 200
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 0
    assert any("run.log of an earlier run is kept as" in line for line in serving.said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.log", "run.log.1", "run.log.2"]
    assert all(replay(path).same for path in tmp_path.iterdir())


def test_workers_end_with_a_server_that_is_killed(serve):
    serving = serve("tests.live.apps:app", "--device", "cpu:1")
    workers = worker_pids(serving)
    assert len(workers) == 2
    serving.signal(signal.SIGKILL)
    serving.wait()
    until(lambda: all(map(gone, workers)))


def test_what_a_stage_prints_goes_to_stderr(serve, tmp_path):
    (tmp_path / "chatty.py").write_text(
        "from dovetail import App, stage, tensor, workflow\n"
        "@stage\ndef talk(items):\n    print('hello from the stage')\n    return items\n"
        "@workflow(slo='1s')\ndef say(x: tensor('float32', 3)):\n    return talk(x)\n"
        "app = App(say)\n"
    )
    serving = serve("chatty:app", cwd=tmp_path)
    assert serving.infer("say", 1) == 200
    until(lambda: any(line.endswith("worker host-0: hello from the stage") for line in serving.said))
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0
    assert serving.process.stdout.read() == ""


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        said = failing("tests.live.apps:hosted", "--device", "cpu:1", "--port", port)
    assert f"dovetail serve: cannot listen on {HOST}:{port}" in said
    assert "in use" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["examples.quickstart:missing"], "has no 'missing'; it has: app, which_way_up"),
        (["examples/quickstart.py:app"], "write it as a module: examples.quickstart:app"),
        (["examples.quickstart"], "must be module:attribute"),
        (["tests.live.apps:hosted", "--device", "gpu"], "device 'gpu' is not known"),
        (["tests.live.apps:hosted", "--device", "cpu:999"], "this machine has"),
        (["tests.live.apps:app", "--device", "emulated:v1000"], "no device 'v1000'"),
        (["tests.cli.without_like:app", "--device", "emulated:v100"], "say which catalogue model it is like"),
        (["tests.live.apps:hosted", "--hosts", "0"], "must be a whole number from 1 to 64"),
        (["tests.live.apps:hosted", "--hosts", "9999"], "must be a whole number from 1 to 64"),
        (["tests.live.apps:hosted", "--arena", "4KiB"], "--arena 4.1 KB is too small for anything"),
        (["tests.live.apps:hosted", "--arena", "64MiB", "--max-body", "64MiB"], "does not fit twice into --arena"),
        (["tests.live.apps:hosted", "--max-body", "0B"], "'0B' must be above 0"),
        (["tests.live.apps:hosted", "--hang", "0"], "must be above 0: no batch ends at once"),
        (["tests.live.apps:hosted", "--drain", "-1"], "must be a number of seconds"),
        (["tests.live.apps:hosted", "--port", "99999"], "must be a port from 0 to 65535"),
        (["tests.live.apps:hosted", "--max-fan-out", "0"], "must be a whole number from 1 on"),
        (["tests.live.apps:hosted", "--policy", "place", "--share", "50"], "does not look at it"),
        (["tests.live.apps:hosted", "--arena", "much"], "is not a number with a unit"),
        (["tests.live.apps:hosted", "--log", "/nowhere/run.log"], "cannot write the log /nowhere/run.log"),
        (["tests.live.apps:hosted", "--store", "pyproject.toml"], "that is not an SQLite file"),
        (["tests.live.broken:app"], "this module works only in the front"),
    ],
)
def test_what_cannot_be_served_is_told_and_ends_with_2(words, said, capfd):
    try:
        code = main(["serve", *words])
    except SystemExit as exit:  # argparse's way
        code = exit.code
    captured = capfd.readouterr()
    assert (code, captured.out) == (2, "")
    assert said in captured.err


def test_a_missing_model_is_told(tmp_path):
    (tmp_path / "missing.py").write_text("from dovetail import onnx\nread = onnx('no/such.onnx')\n")
    said = failing("missing:app", cwd=tmp_path)
    assert "dovetail serve: in missing: " in said
    assert "no/such.onnx" in said
    assert "Traceback" not in said


def test_a_module_that_raises_shows_where(tmp_path):
    (tmp_path / "faulty.py").write_text("numbers = [1]\nnumbers[3]\n")
    said = failing("faulty:app", cwd=tmp_path)
    assert 'faulty.py", line 2' in said
    assert "dovetail serve: faulty:app cannot be loaded: IndexError: list index out of range" in said


def test_a_document_is_read_on_an_emulated_cluster(serve):
    serving = serve("examples.document:app", "--device", "emulated:v100x4")
    assert any("EMULATED device emulated:v100x4" in line for line in serving.said)
    page = triton_inputs({"page": pages.page(1).pixels})

    def ask():
        with triton.InferenceServerClient(f"{HOST}:{serving.port}", network_timeout=PATIENCE_SECONDS) as client:
            # None of them is refused because this machine is busy.
            return client.infer("document", page, parameters={"slo_ms": 60_000})

    answers = at_once([ask] * 8)
    assert {a.get_response()["parameters"]["dovetail_device"] for a in answers} == {"emulated:v100x4"}
    lines = pages.page(1).lines
    for answer in answers:
        # As many lines as there are; but all read as the first one was.
        texts = [text.decode() for text in answer.as_numpy("text")]
        assert len(texts) == len(lines)
        assert set(texts) <= set(lines)
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0


def test_a_signal_while_it_loads_ends_it():
    process = subprocess.Popen(
        command("serve", "examples.document:app", "--port", 0), cwd=PROJECT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process.stderr:
        assert "loading" in process.stderr.readline()
        os.kill(process.pid, signal.SIGTERM)
        said = process.stderr.read()
    code = process.wait(PATIENCE_SECONDS)
    assert (code, "stopped" in said) in ((1, True), (0, True)), "unless it was ready already"


HURRIED = """
from dovetail import App, stage, tensor, workflow

@stage
def ponder(items):
    return items

@stage
def glance(items):
    return items

@workflow(slo="10ms")
def hurried(x: tensor("float32", 3)):
    return glance(ponder(x))

app = App(hurried)
"""


def test_it_says_what_it_knows_and_what_nobody_can_meet_with_the_store_beside_the_application(
    serve, tmp_path, monkeypatch
):
    package = tmp_path / "hurried_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "flow.py").write_text(HURRIED)
    monkeypatch.syspath_prepend(str(tmp_path))
    ponder = next(s for s in load_target("hurried_package.flow:app").specs if s.name == "ponder")
    points = [Measured(b, 1, 50 * b * MS, 0, 0, 0.1, 0.01, 9) for b in ponder.batch]
    ProfileStore(package / "profiles.sqlite").put(Key.of(ponder, this_machine()), points, 0)
    serving = serve("hurried_package.flow:app", cwd=tmp_path)
    store = Path("hurried_package", "profiles.sqlite")
    told = [line.partition(" ")[2] for line in serving.said]
    assert f"dovetail: profile store {store}, beside the application" in told
    assert "dovetail: how long stages take: of 2, 1 profiled, 1 not known yet (glance)" in told
    assert (
        "dovetail: nobody can meet the objective of 'hurried', 10 ms: the stages that are known take alone 50 ms on "
        "average on idle devices (profiled: ponder; unknown: glance)"
    ) in told
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0
    assert not (tmp_path / "profiles.sqlite").exists(), "what is learned goes to the same store"


def test_grpc_beside_http(serve):
    serving = serve("tests.live.apps:hosted", "--grpc-port", 0, "--shared-memory")
    port = serving.ready["grpc_port"]
    assert any(f"gRPC at 127.0.0.1:{port}" in line for line in serving.said)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        assert ask(b"", timeout=PATIENCE_SECONDS) == b"\x08\x01"  # field 1 is true
    assert f"--grpc-port {port}" in failing("tests.live.apps:hosted", "--port", 0, "--grpc-port", port)
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0
