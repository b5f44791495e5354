"""The dashboard's paths against a whole server: what is told, to whom, and that nothing is while nobody watches."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.serve.live_support import PATIENCE_SECONDS, LiveServer
from tests.serve.support import HOST, Reply, Wire, until

from dovetail.cli import main
from dovetail.cli.top import events
from dovetail.errors import DovetailError
from dovetail.record.sight import Banner, Tick
from dovetail.serve import watch
from dovetail.wiring import PolicySpec

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    started = LiveServer("tests.live.apps:app", policy=PolicySpec("dovetail", goal="time"))
    yield started
    started.stop()


class Viewer:
    """Somebody who watches, in a thread."""

    def __init__(self, port: int) -> None:
        self.banner: Banner | None = None
        self.ticks: list[Tick] = []
        self.gone = ""
        self._leave = False
        self._thread = threading.Thread(target=self._look, args=(port,))
        self._thread.start()

    def _look(self, port: int) -> None:
        for kind, data in events(HOST, port, {}):
            if kind == "banner":
                self.banner = msgspec.convert(msgspec.json.decode(data)["banner"], Banner)
            elif kind == "tick":
                self.ticks.append(msgspec.json.decode(data, type=Tick))
            elif kind == "gone":
                self.gone = msgspec.json.decode(data)
            if self._leave or self.gone:
                return

    def wait(self, condition: Callable[[Tick], object]) -> Tick:
        """The first tick of which it is true."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            for tick in list(self.ticks):
                if condition(tick):
                    return tick
            time.sleep(0.02)
        raise AssertionError("no such tick")

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave = True
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


def get(port: int, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Reply:
    with Wire(port) as wire:
        wire.socket.settimeout(PATIENCE_SECONDS)
        return wire.ask(method, path, body, **headers)


def calm(server: LiveServer, model: str, first: float, **more: Any) -> Reply:
    """A request that has all the time there is: machines that run tests are slow."""
    return server.ask(model, first, parameters={"slo_ms": 60_000}, **more)


def ended(tick: Tick, workflow: str) -> int:
    return sum(sum((c.totals.ok, c.totals.late, c.totals.shed)) for c in tick.classes if c.workflow == workflow)


def test_a_viewer_sees_what_happens(server: LiveServer) -> None:
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)
        assert viewer.banner is not None
        before = ended(viewer.ticks[-1], "fan")
        for _ in range(3):
            assert calm(server, "fan", 3.0).status == 200
        assert calm(server, "plain", 1.0, id="mine").status == 200
        tick = viewer.wait(lambda tick: ended(tick, "fan") == before + 3 and tick.ended)
        names = [stage.name for stage in viewer.banner.stages]
        workflow = next(w for w in viewer.banner.workflows if w.name == "fan")
        stages = {node.stage for node in workflow.nodes}
        viewer.wait(lambda _: stages <= {names[s.stage] for t in list(viewer.ticks) for s in t.spans})
        workers = {worker.name: worker for worker in tick.workers}
        assert {"cpu-0", "host-0"} <= set(workers)
        assert {held.weights for held in workers["cpu-0"].models} >= {
            s.weights for s in viewer.banner.stages if s.name == "double"
        }
        assert any(e.workflow == "fan" and e.outcome == "ok" for e in tick.ended)
        assert next(s for s in tick.stages if s.name == "split").run_ms > 0
    once = get(server.port, "/dashboard/state")
    assert once.status == 200 and ended(msgspec.json.decode(once.body, type=Tick), "fan") == before + 3


def test_the_story_of_a_request_by_number_and_by_the_clients_id(server: LiveServer) -> None:
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)
        answer = calm(server, "fan", 2.0, id="of a client")
        number = answer.json["parameters"]["dovetail_request"]
        told = get(server.port, f"/dashboard/requests/{number}").json
        assert told["outcome"] == "ok" and told["workflow"] == "fan" and told["request"] == number
        assert any("split" in moment["text"] for moment in told["moments"])
        assert get(server.port, "/dashboard/requests/of%20a%20client").json == told
        refused = get(server.port, "/dashboard/requests/999999")
        assert refused.status == 404 and "no request 999999" in refused.error


def test_what_if_answers_from_the_present(server: LiveServer) -> None:
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)
        for _ in range(12):
            assert calm(server, "plain", 1.0).status == 200
            assert calm(server, "fan", 2.0).status == 200

        def ask(question: Any) -> Reply:
            return get(server.port, "/dashboard/what-if", "POST", json.dumps(question).encode())

        told = ask({"rate": 2.0, "devices": {"cpu": 2}}).json
        assert told["devices"]["cpu"] == 1 and told["other_devices"]["cpu"] == 2
        assert told["other_rate_per_s"] == pytest.approx(2 * told["rate_per_s"])
        same = {row["workflow"]: row["requests"] for row in told["same"]}
        other = {row["workflow"]: row["requests"] for row in told["other"]}
        assert set(same) >= {"plain", "fan"} and sum(other.values()) > 1.5 * sum(same.values())
        assert all(sum(row["outcomes"].values()) == row["requests"] for row in told["other"])
        assert "above 0" in ask({"rate": 0}).error
        assert "no device of kind 'tpu'" in ask({"devices": {"tpu": 1}}).error
        assert ask({"rte": 2}).status == 400
        assert ask([1]).status == 400


def test_nothing_is_told_while_nobody_watches(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LINGER_SECONDS", 0.05)
    seen = server.served.watch
    assert seen is not None
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)
        assert server.call(lambda: seen.watched and server.system.tap.step is not None)
    until(lambda: not server.call(lambda: seen.watched))
    assert server.call(lambda: server.system.tap.step) is None
    assert calm(server, "plain", 1.0).status == 200
    assert get(server.port, "/metrics").status == 200
    assert server.call(lambda: seen.watched) is False
    assert not watchers()
    refused = get(server.port, "/dashboard/what-if", "POST", b"{}")
    assert refused.status == 409 and "open /dashboard" in refused.error


def watchers() -> list[int]:
    """Processes of ours that watch."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    threads = [Path(t / "children").read_text().split() for t in Path("/proc/self/task").iterdir()]
    pids = {int(pid) for each in (children, *threads) for pid in each}
    return [p for p in pids if b"dovetail.tools.watch" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_a_watcher_that_dies_is_told_and_started_again(server: LiveServer) -> None:
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)
        (pid,) = watchers()
        os.kill(pid, signal.SIGKILL)
        until(lambda: viewer.gone)
    assert "has ended" in viewer.gone
    assert calm(server, "plain", 1.0).status == 200
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)


def test_the_number_of_viewers_is_bounded(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_VIEWERS", 1)
    with Viewer(server.port) as viewer:
        viewer.wait(lambda tick: tick.workers)
        refused = get(server.port, "/dashboard/events")
        assert refused.status == 503 and "Retry-After".lower() in refused.headers


def test_the_page_is_ours_alone(server: LiveServer) -> None:
    to = get(server.port, "/")
    assert (to.status, to.headers["location"]) == (307, "/dashboard")
    page = get(server.port, "/dashboard")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    found = set(re.findall(r'(?:src|href)="(/[^"]+)"', page.body.decode()))
    assert {"/dashboard/app.js", "/dashboard/style.css"} <= found
    todo, texts = list(found), [page.body.decode()]
    while todo:
        part = get(server.port, todo.pop())
        assert part.status == 200 and part.headers["content-type"].endswith("; charset=utf-8")
        text = part.body.decode()
        texts.append(text)
        for name in re.findall(r'from "\./(\w+\.js)"', text):
            path = f"/dashboard/{name}"
            if path not in found:
                found.add(path)
                todo.append(path)
    for text in texts:
        elsewhere = re.findall(r"https?://[\w./]+", text)
        assert set(elsewhere) <= {"http://www.w3.org/2000/svg"}  # a name, and no address
        assert "innerHTML" not in text and ' style="' not in text


@pytest.mark.parametrize(
    "path", ["/dashboard/..%2flaunch.py", "/dashboard/watch.py", "/dashboard/a/b", "/dashboard/.x"]
)
def test_other_files_are_not_served(server: LiveServer, path: str) -> None:
    assert get(server.port, path).status == 404


def test_other_sites_and_methods_are_refused(server: LiveServer) -> None:
    foreign = get(server.port, "/dashboard/what-if", "POST", b"{}", Origin="http://evil.example")
    assert foreign.status == 403
    assert get(server.port, "/dashboard", "POST", b"{}").status == 405
    assert get(server.port, "/dashboard/what-if").status == 405


def test_kernels_are_told_while_somebody_watches() -> None:
    server = LiveServer("tests.live.long_app:app", kernels="always")
    try:
        assert calm(server, "lengthy", 1.0).status == 200
        with Viewer(server.port) as viewer:
            viewer.wait(lambda tick: tick.workers)
            until(lambda: calm(server, "lengthy", 1.0).status == 200 and any(t.kernels for t in list(viewer.ticks)))
            tick = viewer.wait(lambda tick: tick.kernels)
            assert all(k.begin_ns <= k.end_ns and k.why in ("turn", "fill", "beside", "aged") for k in tick.kernels)
    finally:
        server.stop()


def test_top_prints_one_picture(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert calm(server, "plain", 1.0).status == 200
    assert main(["top", "--url", f"http://{HOST}:{server.port}", "--once", "--after", "0"]) == 0
    told = capsys.readouterr().out
    assert "plain" in told and "cpu-0" in told and "serving" in told and "double" in told
    assert main(["top", "--url", f"http://{HOST}:{server.port}", "--json", "--after", "0"]) == 0
    assert {w["name"] for w in json.loads(capsys.readouterr().out)["workers"]} >= {"cpu-0", "host-0"}


def test_top_says_when_there_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", f"http://{HOST}:1", "--once"]) == 2
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(DovetailError, match="no answer"):
        next(events(HOST, 1, {}))


def test_a_server_may_have_none() -> None:
    server = LiveServer("tests.live.apps:plain", dashboard=False)
    try:
        assert [get(server.port, path).status for path in ("/", "/dashboard", "/dashboard/events")] == [404] * 3
        assert server.served.watch is None and server.ask("plain", 1.0).status == 200
    finally:
        server.stop()
