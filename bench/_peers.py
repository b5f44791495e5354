"""Servers that others have written, each in a virtual environment of its own, started as its documents say.

All get the same models (`peer_apps/shared.py`), one core, one thread per session, batches of up to 8 or 5 ms with
their own batching, and where a server can refuse what it cannot do in time, a bound on what may wait.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from _models import make_model, picture

APPS = Path(__file__).resolve().parent / "peer_apps"
START_SECONDS = 120.0
PORT = 18300
#: (channels, stride) of the layers of each model; `clean` gives a picture again.
LAYERS = {
    "one": ((32, 2), (64, 2), *((128, 1),) * 5),
    "clean": ((16, 1), (3, 1)),
    "kind": ((32, 2), (64, 2), (128, 1), (128, 1)),
    "grade": ((32, 2), (64, 2), (128, 1), (128, 1)),
}
MODELS = {"one": ("one",), "three": ("clean", "kind", "grade")}
#: Objective, in times of what the models take by themselves: all get the same room for batches and queues, however
#: fast a machine is.
OBJECTIVE = {"one": 40, "three": 70}

OURS = """
from dovetail import App, onnx, workflow
one = onnx("one.onnx", batch=(1, 2, 4, 8), name="one_model")
clean = onnx("clean.onnx", batch=(1, 2, 4, 8))
kind = onnx("kind.onnx", batch=(1, 2, 4, 8))
grade = onnx("grade.onnx", batch=(1, 2, 4, 8))

@workflow(slo="SLO")
def one_workflow(x):
    return one(x)

@workflow(slo="SLO")
def three(x):
    cleaned = clean(x)
    return {"kind": kind(cleaned), "grade": grade(cleaned)}

one_app, three_app = App(one_workflow), App(three)
"""


@dataclass(frozen=True)
class Peer:
    """A server: what it is installed from, how it is started and asked."""

    name: str
    packages: tuple[str, ...]
    command: Callable[[Path, int, str], list[str]]
    path: str
    settings: str
    environment: tuple[tuple[str, str], ...] = ()
    body: Callable[[bytes], bytes] = bytes
    content_type: str = "application/octet-stream"


def _json_body(raw: bytes) -> bytes:
    return json.dumps({"x": base64.b64encode(raw).decode()}).encode()


def _mlserver_body(raw: bytes) -> bytes:
    data = [base64.b64encode(raw).decode()]
    return json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": data}]}).encode()


RUNTIME = ("onnxruntime==1.31.1", "numpy")
PEERS = (
    Peer(
        "Ray Serve",
        ("ray[serve]==2.60.0",),
        lambda venv, _port, _app: [str(venv / "bin/python"), str(APPS / "rayserve.py")],
        "/",
        "throughput-optimised, HAProxy, @serve.batch(8, 5 ms), a deployment per model, max_queued_requests",
        (
            ("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1"),
            ("RAY_SERVE_ENABLE_HA_PROXY", "1"),
            ("RAY_DISABLE_IMPORT_WARNING", "1"),
        ),
    ),
    Peer(
        "LitServe",
        ("litserve==0.2.19",),
        lambda venv, _port, _app: [str(venv / "bin/python"), str(APPS / "lit.py")],
        "/predict",
        "max_batch_size=8, batch_timeout 5 ms, one worker that runs every model; nothing bounds its queue",
        body=_json_body,
        content_type="application/json",
    ),
    Peer(
        "BentoML",
        ("bentoml==1.4.39", "fastapi"),
        lambda venv, port, _app: [
            str(venv / "bin/bentoml"),
            "serve",
            "bento:Front",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        "/ask",
        "batchable, max_batch_size=8, max_latency_ms = the objective, a service per model, max_concurrency",
        (("BENTOML_DO_NOT_TRACK", "True"),),
    ),
    Peer(
        "MLServer",
        ("mlserver==1.7.1", "uvloop<0.22"),
        lambda venv, _port, _app: [str(venv / "bin/mlserver"), "start", "."],
        "/v2/models/m/infer",
        "max_batch_size=8, max_batch_time 5 ms, parallel_workers=0, one runtime for all; nothing bounds its queue",
        body=_mlserver_body,
        content_type="application/json",
    ),
)
OWN = "Dovetail"


def install(venvs: Path, peer: Peer) -> Path:
    """The virtual environment of a peer, made if it is not there."""
    venv = venvs / peer.name.lower().replace(" ", "-")
    done = venv / "installed"
    if not done.exists():
        print(f"installing {peer.name} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin/pip"), "install", "-q", *peer.packages, *RUNTIME], check=True)
        done.touch()
    return venv


def make_models(directory: Path) -> None:
    """The models of all applications."""
    for name, layers in LAYERS.items():
        make_model(directory / f"{name}.onnx", layers, size=(128, 128), pooled=name != "clean")


@dataclass
class Server:
    """A server that answers."""

    port: int
    path: str
    headers: dict[str, str]
    body: bytes
    mark: str
    #: Its first process: nothing while it runs.
    ended: Callable[[], int | None]

    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        total = 0.0
        for pid in processes(self.mark):
            with suppress(OSError, ValueError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / ticks
        return total


def processes(mark: str) -> list[int]:
    """Those that have the mark in their environment: a server's, wherever it put them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


@contextmanager
def peer_server(peer: Peer, venv: Path, app: str, models: Path, core: int, slo_ms: float) -> Iterator[Server]:
    """A peer that serves an application with this objective, on one core."""
    with tempfile.TemporaryDirectory(prefix="dovetail-peer-") as scratch:
        port = PORT
        if peer.name == "MLServer":
            _mlserver_settings(Path(scratch), port)
        environment = {"PEER_APP": app, "PEER_PORT": str(port), "PEER_MODELS": str(models), "PYTHONPATH": str(APPS)}
        environment["PEER_SLO_MS"] = f"{slo_ms:.0f}"
        cwd = APPS if peer.name == "BentoML" else Path(scratch)
        command = peer.command(venv, port, app)
        headers = {"Content-Type": peer.content_type}
        body = peer.body(picture().tobytes())
        with _started(command, cwd, {**environment, **dict(peer.environment)}, core) as (mark, ended):
            yield _answering(Server(port, peer.path, headers, body, mark, ended))


@contextmanager
def our_server(app: str, models: Path, core: int, slo_ms: float) -> Iterator[Server]:
    """`dovetail serve`, without a flag but its port, that has never run before."""
    with tempfile.TemporaryDirectory(prefix="dovetail-ours-") as scratch:
        (Path(scratch) / "ours.py").write_text(OURS.replace("SLO", f"{slo_ms:.0f}ms"))
        command = [sys.executable, "-m", "dovetail", "serve", f"ours:{app}_app", "--port", str(PORT)]
        environment = {"PYTHONPATH": scratch}
        for name in (*LAYERS,):
            os.symlink(models / f"{name}.onnx", Path(scratch) / f"{name}.onnx")
        raw = picture()
        tensor = {"name": "x", "datatype": "FP32", "shape": raw.shape, "parameters": {"binary_data_size": raw.nbytes}}
        header = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
        path = f"/v2/models/{'one_workflow' if app == 'one' else 'three'}/infer"
        with _started(command, Path(scratch), environment, core) as (mark, ended):
            yield _answering(Server(PORT, path, headers, header + raw.tobytes(), mark, ended))


def _mlserver_settings(directory: Path, port: int) -> None:
    settings = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2, "host": "127.0.0.1"}
    settings |= {"parallel_workers": 0, "debug": False}
    (directory / "settings.json").write_text(json.dumps(settings))
    model = {"name": "m", "implementation": "mls.Runtime", "max_batch_size": 8, "max_batch_time": 0.005}
    (directory / "model-settings.json").write_text(json.dumps(model))


@contextmanager
def _started(
    command: Sequence[str], cwd: Path, environment: dict[str, str], core: int
) -> Iterator[tuple[str, Callable[[], int | None]]]:
    mark = f"PEER_MARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        cwd=cwd,
        env={**os.environ, **environment, name: value},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield mark, process.poll
    except BaseException:
        log.seek(0)
        print(log.read()[-3000:].decode(errors="replace"), file=sys.stderr)
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in processes(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.5)
        process.wait()
        log.close()


def _answering(server: Server) -> Server:
    """Wait until it gives a right answer."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            address = f"http://127.0.0.1:{server.port}{server.path}"
            request = urllib.request.Request(address, server.body, server.headers)
            with urllib.request.urlopen(request, timeout=10) as answer:
                told = json.loads(answer.read())
            break
        except (OSError, ValueError) as error:
            if time.monotonic() > until or server.ended() is not None:
                raise RuntimeError(f"no answer: {error}") from error
            time.sleep(0.3)
    flat = _numbers(told)
    if len(flat) not in (128, 256) or not all(np.isfinite(flat)):
        raise RuntimeError(f"not an answer: {str(told)[:300]}")
    return server


def _numbers(told: object) -> list[float]:
    if isinstance(told, dict):
        outputs = told.get("outputs", [])
        return [value for output in outputs for value in _numbers(output["data"])]
    if isinstance(told, list):
        return [value for each in told for value in (_numbers(each) if isinstance(each, list) else [float(each)])]
    return []
