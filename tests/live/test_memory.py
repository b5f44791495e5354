"""Models come and go within a budget of bytes, behind a whole server: counts, logs, faults, bad settings."""

from __future__ import annotations

import errno
import os
import signal
from functools import partial

import pytest
from tests.live import memory_apps
from tests.serve.live_support import LiveServer, at_once, item_request
from tests.serve.support import Wire, until

from dovetail.cli import main
from dovetail.control import ModelEvicted, ModelLoaded
from dovetail.errors import DeclarationError, DovetailError
from dovetail.record.log import LogReader
from dovetail.wiring import PolicySpec

pytestmark = pytest.mark.cpu
TARGET = "tests.live.memory_apps:app"
#: Two of the three models fit.
MEMORY_BYTES = 40_000_000


@pytest.fixture
def serve():
    """Starts servers that are stopped at the end of the test; no model file stays away."""
    started = []

    def start(policy="place", **options):
        options = {"device": "cpu:1", "memory_bytes": MEMORY_BYTES, **options}
        started.append(LiveServer(TARGET, policy=PolicySpec(policy), **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()
    for name in "abc":
        file = memory_apps.file_of(name)
        hidden = file.with_suffix(".hidden")
        if hidden.exists():
            hidden.replace(file)


def hide(name, pipe=False):
    """The model's file is gone, or there is a pipe in its place, from which nothing ever comes."""
    file = memory_apps.file_of(name)
    file.rename(file.with_suffix(".hidden"))
    if pipe:
        os.mkfifo(file)


def reader_of(name):
    """Holds the writing end of the pipe as soon as somebody reads it: a list of its descriptor, else an empty one."""
    try:
        return [os.open(memory_apps.file_of(name), os.O_WRONLY | os.O_NONBLOCK)]
    except OSError as error:
        assert error.errno == errno.ENXIO
        return []


def bring_back(name):
    file = memory_apps.file_of(name)
    file.with_suffix(".hidden").replace(file)


def answer(server, workflow, first=1.0):
    """Status and what is said, whatever it is."""
    reply = server.ask(workflow, first)
    return reply.status, reply.json


def memory(server):
    with server.client() as client:
        return client.get_inference_statistics("use_a")["model_stats"][0]["dovetail_memory"]


def batches_of(counts):
    return counts["hits"] + counts["misses"]


def counted(server, worker, **least):
    """Counts of a worker once they have come to these: it tells them ten times a second."""
    until(lambda: all(memory(server)[worker][name] >= value for name, value in least.items()))
    return memory(server)[worker]


def loading(server):
    return server.call(lambda: dict(server.system.watchdog.loading))


def test_models_come_and_go_answers_are_right_and_everything_is_counted_and_logged(serve, tmp_path, capsys):
    log = tmp_path / "run.log"
    server = serve(log=log)
    asked = ["use_a", "use_b", "use_c", "use_a", "use_a_twice", "use_c"]
    for first, workflow in enumerate(asked):
        status, said = answer(server, workflow, float(first))
        assert status == 200
        assert said["outputs"][0]["data"] == [(4 if workflow == "use_a_twice" else 2) * first] * 3
    until(lambda: batches_of(memory(server)["cpu-0"]) >= len(asked) + 1)
    counts = memory(server)["cpu-0"]
    assert batches_of(counts) == len(asked) + 1, "a_again is a batch of its own"
    assert counts["misses"] >= 4
    assert counts["loads"] >= 4, "a had to go for c, and came again"
    assert 0 < counts["held_bytes"] <= counts["usable_bytes"] < MEMORY_BYTES
    assert server.stop()
    with LogReader(log) as reader:
        events = [step.event for step in reader]
    loaded = [e for e in events if isinstance(e, ModelLoaded)]
    evicted = [e for e in events if isinstance(e, ModelEvicted)]
    assert len(loaded) == counts["loads"]
    assert len(evicted) == counts["evictions"] == len(loaded) - 2
    assert all(memory_apps.HEAVY_BYTES * 0.99 <= e.nbytes <= 2 * memory_apps.HEAVY_BYTES for e in loaded)
    assert all("room for" in e.reason for e in evicted)
    assert main(["explain", "3", "--log", str(log)]) == 0
    assert "cpu-0 has loaded the model of c" in capsys.readouterr().out
    assert main(["replay", str(log)]) == 0


@pytest.mark.parametrize("policy", ["compass", "heft", "jit", "hash", "by-class", "dovetail"])
def test_every_policy_serves_more_models_than_fit(serve, policy):
    """Those that send ahead leave models to the workers; so do the others where not all models fit at once."""
    server = serve(policy, device="cpu", workers=2)
    for first, workflow in enumerate(["use_a", "use_b", "use_c", "use_a"]):
        assert answer(server, workflow, float(first))[1]["outputs"][0]["data"] == [2 * first] * 3
    until(lambda: sum(counts["loads"] for counts in memory(server).values()) >= 3)
    until(server.clean)


def test_emulated_devices_have_a_budget_too(serve):
    server = serve(device="emulated:v100x2", memory_bytes=16_000_000)
    for workflow in ("use_a", "use_b", "use_c", "use_a", "use_slow"):
        assert answer(server, workflow)[0] == 200
    until(lambda: sum(counts["loads"] for counts in memory(server).values()) >= 4)
    assert all(c["held_bytes"] <= c["usable_bytes"] == 16_000_000 for c in memory(server).values())
    until(server.clean)


def test_a_model_whose_file_is_gone_fails_its_requests_and_no_others(serve):
    server = serve(weights="own")
    hide("b")
    status, said = answer(server, "use_b")
    assert status == 500
    assert "not_loaded" in said["error"] and "heavy-b.onnx" in said["error"]
    assert answer(server, "use_a")[0] == 200
    bring_back("b")
    assert answer(server, "use_b")[0] == 200
    until(server.clean)


def test_a_model_of_which_there_is_a_copy_needs_its_file_no_more(serve):
    server = serve()
    hide("b")
    assert answer(server, "use_b", 2.0)[1]["outputs"][0]["data"] == [4.0] * 3
    bring_back("b")


def test_a_worker_that_dies_while_it_loads_loses_no_request(serve):
    server = serve(device="cpu", workers=2, weights="own")
    hide("b", pipe=True)
    with Wire(server.port) as wire:
        wire.send(item_request("use_b", 3.0))
        until(lambda: loading(server))
        ((ident, stage),) = loading(server)
        assert stage == "b"
        bring_back("b")
        pid = server.call(lambda: server.system.fleet.workers[ident].pid)
        os.kill(pid, signal.SIGKILL)
        reply = wire.reply()
    assert reply.status == 200
    assert reply.json["outputs"][0]["data"] == [6.0] * 3
    until(server.clean)


def test_a_load_that_hangs_is_ended_by_the_watchdog(serve):
    server = serve(hang_s=1.0, weights="own")
    hide("b", pipe=True)
    with Wire(server.port) as wire:
        wire.socket.settimeout(60)
        wire.send(item_request("use_b", 3.0))
        pipe = []
        until(lambda: pipe or pipe.extend(reader_of("b")))
        bring_back("b")  # whoever hangs at the pipe does so for ever; the next one finds the file
        reply = wire.reply()
    os.close(pipe[0])
    assert reply.status == 200
    assert any("was not loaded within 1 s" in line for line in server.said)
    assert answer(server, "use_a")[0] == 200


def test_a_drain_answers_what_is_queued_in_workers(serve):
    server = serve()
    with Wire(server.port) as first, Wire(server.port) as second:
        for wire in (first, second):
            wire.socket.settimeout(60)
        first.send(item_request("use_slow", 1.0))
        second.send(item_request("use_c", 2.0))
        until(lambda: server.open_requests() == 2)
        assert server.stop()
        assert [wire.reply().status for wire in (first, second)] == [200, 200]


def test_a_request_whose_client_is_gone_leaves_nothing_behind(serve):
    server = serve()
    for workflow in ("use_slow", "use_c", "use_slow"):
        with Wire(server.port) as wire:
            wire.send(item_request(workflow, 1.0))
            until(lambda: server.open_requests() > 0)
    until(server.clean)
    assert answer(server, "use_c")[0] == 200
    assert server.outcomes().get("cancelled", 0) > 0


def test_many_requests_at_once_for_more_than_fits(serve):
    server = serve(device="cpu", workers=2)
    calls = [partial(answer, server, f"use_{name}", float(i)) for i, name in enumerate("abcabcabcabc")]
    for i, (status, said) in enumerate(at_once(calls)):
        assert status == 200
        assert said["outputs"][0]["data"] == [2.0 * i] * 3
    until(server.clean)


# -- settings that cannot be ---------------------------------------------------------------------------------------


def test_a_model_file_larger_than_the_budget_is_named_before_anything_starts(serve):
    with pytest.raises(DeclarationError, match=r"stage '[abc]' has 6\.0 MB, more than the 5\.0 MB.*--memory"):
        serve(memory_bytes=5_000_000)


def test_a_model_that_does_not_fit_beside_the_reserve_is_named_with_a_remedy(serve):
    with pytest.raises(
        DovetailError, match=r"stage 'a' takes 6\.\d MB, but of a budget of 12\.0 MB .* --memory \d+MB"
    ):
        serve(memory_bytes=12_000_000)


def test_without_a_budget_there_is_a_generous_one(serve):
    server = serve(memory_bytes=None)
    for workflow in ("use_a", "use_b", "use_c", "use_a"):
        assert answer(server, workflow)[0] == 200
    counts = counted(server, "cpu-0", loads=3, hits=1)
    assert (counts["loads"], counts["evictions"]) == (3, 0)
