"""The whole server over HTTP: the examples' answers, every way a request can end, faults and draining."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from functools import partial

import numpy as np
import pytest
from examples.cascade import careful_line
from examples.document import document
from examples.moderation import moderate
from examples.quickstart import which_way_up
from tests.live import apps
from tests.serve.live_support import LiveServer, at_once, item_request, triton_inputs
from tests.serve.support import Wire, until

from dovetail.errors import DovetailError
from dovetail.wiring import PolicySpec
from examples import pages

pytestmark = pytest.mark.cpu
#: Numbers of gates from here on are used in this file; those of the tests of the live system are below.
GATE = 1000


@pytest.fixture
def serve():
    """Starts servers that are stopped at the end of the test."""
    started = []

    def start(*args, **kwargs):
        started.append(LiveServer(*args, **kwargs))
        return started[-1]

    yield start
    for server in started:
        server.stop()


# -- the examples -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examples():
    server = LiveServer("tests.serve.examples_together:app")
    yield server
    server.stop()


def same(answer, expected, tolerance=1e-5):
    """Whether outputs over HTTP are those of `workflow.local`."""
    for name, value in expected.items():
        got = answer.as_numpy(name)
        if isinstance(value, str):
            assert got.tolist() == [value.encode()], name
        elif isinstance(value, list):
            assert [text.decode() for text in got.tolist()] == value, name
        elif np.issubdtype(got.dtype, np.floating):
            np.testing.assert_allclose(got, value, rtol=0, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(got, value, err_msg=name)


CASES = [
    *((document, {"page": pages.page(seed).pixels}) for seed in (0, 1, 2)),
    (document, {"page": np.full((480, 640, 3), 250, np.uint8)}),  # nothing to read: an empty fan-out
    *((moderate, {"file": pages.poster(seed).file}) for seed in (0, 1)),
    (moderate, {"file": b"%PDF-1.4 not a picture at all" * 40}),
    # Lines of which the small reader is surely sure, or surely not: see PADDED.
    *((careful_line, {"line": pages.text_line(seed).pixels}) for seed in (2, 3, 4, 6, 9, 14)),
    *((which_way_up, {"image": pages.page(2, turned_deg=turned).pixels}) for turned in (0, 90)),
]


#: In a batch a line is filled up to the longest, which moves the reader's confidence a little (docs/models.md).
PADDED = 0.02


def infer(server, workflow, inputs):
    with server.client() as client:
        return client.infer(workflow.name, triton_inputs(inputs))


@pytest.mark.parametrize(("workflow", "inputs"), CASES)
def test_an_example_gives_what_it_gives_without_a_server(examples, workflow, inputs):
    same(infer(examples, workflow, inputs), workflow.local(**inputs))
    until(examples.clean)


def test_all_examples_at_once_give_what_they_give_alone(examples):
    answers = at_once([partial(infer, examples, workflow, inputs) for workflow, inputs in CASES])
    for (workflow, inputs), answer in zip(CASES, answers, strict=True):
        same(answer, workflow.local(**inputs), PADDED)
        assert answer.get_response()["parameters"]["dovetail_outcome"] in ("ok", "late")
    read_by = {answer.as_numpy("model")[0] for answer in answers if answer.as_numpy("model") is not None}
    assert read_by == {b"tiny", b"small"}, "the condition went both ways"
    stats = {s["name"]: s for s in examples.client().get_inference_statistics()["model_stats"]}
    assert any(entry["batch_size"] > 1 for entry in stats["document"]["batch_stats"]), "lines were batched"
    until(examples.clean)


def test_a_workflow_is_a_model_to_clients(examples):
    with examples.client() as client:
        assert client.is_server_ready()
        assert client.is_model_ready("document")
        metadata = client.get_model_metadata("document")
        assert metadata["inputs"] == [{"name": "page", "datatype": "UINT8", "shape": [-1, -1, 3]}]
        assert [o["name"] for o in metadata["outputs"]] == ["text", "boxes"]
        assert client.get_model_config("moderate")["parameters"]["slo_ms"]["string_value"] == "500"


def test_no_request_is_lost_when_workers_are_killed_under_load(examples):
    line, page = pages.text_line(2).pixels, pages.page(1).pixels
    expected = careful_line.local(line=line), document.local(page=page)
    calls = [partial(infer, examples, careful_line, {"line": line})] * 8
    calls += [partial(infer, examples, document, {"page": page})] * 4

    def murder():
        for name in ("cpu-0", "host-0"):

            def at_work(name=name):
                workers = examples.system.fleet.workers
                busy = {r.action.worker for r in examples.system.batches.running.values()}
                return next((w.pid for w in workers.values() if w.spec.name == name and w.ident in busy), 0)

            until(lambda: examples.call(at_work))
            pid = examples.call(at_work)
            if pid:
                os.kill(pid, signal.SIGKILL)

    answers = at_once([*calls, murder])
    for answer in answers[:8]:
        same(answer, expected[0], PADDED)
    for answer in answers[8:12]:
        same(answer, expected[1], PADDED)
    assert sum("killed by signal 9" in line for line in examples.said) >= 1
    until(examples.clean)
    with examples.client() as client:
        until(client.is_server_ready)


# -- how requests end ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_toy():
    server = LiveServer("tests.live.apps:app", device="cpu:1", max_body_bytes=1 << 20, log=None)
    yield server
    server.stop()


@pytest.fixture
def toy(shared_toy):
    yield shared_toy
    until(shared_toy.clean)


def test_an_answer_says_how_it_ended(toy):
    reply = toy.ask("plain", 3)
    assert reply.status == 200
    assert reply.json["outputs"][0]["data"] == [6, 6, 6]
    assert reply.json["parameters"]["dovetail_outcome"] in ("ok", "late")
    assert reply.json["parameters"]["dovetail_request"] > 0
    late = toy.ask("heavy", 3, parameters={"slo_ms": 0.001})
    assert (late.status, late.json["parameters"]["dovetail_outcome"]) == (200, "late")


@pytest.mark.parametrize(
    ("model", "first", "said"),
    [
        ("breakable", apps.SEVEN, "stage 'fragile' raised ValueError: seven is not allowed"),
        ("too_short", 1, "returned a list of 0; a stage takes lists and returns a list of the same length"),
        ("too_strange", 1, "value is of type object"),
        ("breakable", apps.POISON, "exited with status 3"),
    ],
)
def test_a_stage_that_fails_is_500_with_its_own_words(toy, model, first, said):
    reply = toy.ask(model, first)
    assert reply.status == 500
    assert said in reply.error
    assert toy.ask("breakable", 1).status == 200


def test_a_deadline_that_passes_is_504(toy):
    reply = toy.ask("gated", GATE + 1, parameters={"timeout": 20_000})
    assert reply.status == 504
    assert "deadline" in reply.error
    apps.open_gate(GATE + 1)


def test_a_body_beyond_the_limit_is_413(toy):
    with Wire(toy.port) as wire:
        wire.send(b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n")
        assert wire.reply().status == 413


def test_a_client_that_goes_away_cancels_its_request(toy):
    before = toy.outcomes().get("cancelled", 0)
    with Wire(toy.port) as wire:
        wire.send(item_request("gated", GATE + 2))
        until(toy.open_requests)
    until(lambda: toy.outcomes().get("cancelled", 0) == before + 1)
    assert toy.open_requests() == 0
    apps.open_gate(GATE + 2)


def test_a_priority_out_of_range_is_400(toy):
    assert toy.ask("plain", 1, parameters={"priority": 11}).status == 400
    assert toy.ask("plain", 1, parameters={"priority": 10}).status == 200


def test_too_many_requests_are_429_with_retry_after(serve):
    server = serve("tests.live.apps:hosted", device="cpu:1", policy=PolicySpec("by-class", max_open=4))
    calls = [partial(server.ask, "gated", GATE + 3)] * 4

    def more():
        until(lambda: server.open_requests() == 4)
        replies = [server.ask("gated", GATE + 3) for _ in range(3)]
        apps.open_gate(GATE + 3)
        return replies

    *admitted, refused = at_once([*calls, more])
    assert [r.status for r in admitted] == [200] * 4
    for reply in refused:
        assert reply.status == 429
        assert "4 requests are open" in reply.error
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["retry-after-ms"] == "1000"
    assert server.outcomes()["shed"] == 3


def test_a_body_that_finds_no_memory_is_503_with_retry_after(serve):
    server = serve("tests.live.apps:hosted", device="cpu:1", arena_bytes=1 << 20)
    front = server.system.memory.front
    held = server.call(lambda: front.alloc(700_000))
    with Wire(server.port) as wire:
        reply = wire.ask("POST", "/v2/models/big/infer", bytes(400_000))
    server.call(lambda: front.free(held))
    assert reply.status == 503
    assert "no memory for a body" in reply.error
    assert reply.headers["retry-after"] == "1"
    assert reply.json["dovetail_request"] == 1
    assert server.outcomes()["shed"] == 1
    assert server.ask("breakable", 1).status == 200


# -- the end of the server ----------------------------------------------------------------------------------------


def test_draining_answers_what_was_admitted_and_refuses_the_rest(serve):
    server = serve("tests.live.apps:hosted", device="cpu:1")
    calls = [partial(server.ask, "gated", GATE + 4)] * 5

    def stop():
        until(lambda: server.open_requests() == 5)
        with Wire(server.port) as wire:  # was connected before
            draining = server.submit(server.served.stop(30.0))
            until(lambda: server.call(lambda: server.system.controller.draining))
            refused = wire.send(item_request("gated", GATE + 4)).reply()
            assert wire.ended(), "it was told so"
        with Wire(server.port) as wire:
            ready = wire.ask("GET", "/v2/health/ready")
        apps.open_gate(GATE + 4)
        server._stopped = True
        return refused, ready, draining.result(60)

    *admitted, (refused, ready, clean) = at_once([*calls, stop])
    server._end()
    assert [r.status for r in admitted] == [200] * 5
    assert clean is True
    assert refused.status == 503
    assert refused.error == "the server is draining"
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["connection"] == "close"
    assert ready.status == 503


def test_in_a_hurry_what_is_open_is_given_up_with_a_reason(serve):
    server = serve("tests.live.apps:hosted", device="cpu:1")

    async def hurry():
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, event.set)
        return await server.served.stop(60.0, event)

    def stop():
        until(lambda: server.open_requests() == 3)
        server._stopped = True
        return server.run(hurry())

    *replies, clean = at_once([*[partial(server.ask, "gated", GATE + 5)] * 3, stop])
    server._end()
    apps.open_gate(GATE + 5)
    assert clean is False
    assert Counter(r.status for r in replies) == {503: 3}
    assert {r.error for r in replies} == {"the server stopped before it was done"}
    assert all(r.headers["retry-after"] == "1" for r in replies)


def test_a_port_that_is_taken_is_told(serve):
    first = serve("tests.live.apps:hosted", device="cpu:1")
    with pytest.raises(DovetailError, match=rf"cannot listen on 127\.0\.0\.1:{first.port}: .*in use"):
        from dovetail.serve.launch import Options, launch
        from dovetail.workflow.app import load_target

        options = Options(device="cpu:1", port=first.port)
        asyncio.run(launch(load_target("tests.live.apps:hosted"), "tests.live.apps:hosted", options))


# -- emulated devices ---------------------------------------------------------------------------------------------


def test_every_answer_of_an_emulated_device_is_labelled(serve):
    server = serve("tests.live.apps:small", device="emulated:v100x4")
    replies = at_once([partial(server.ask, model, 1) for model in ("plain", "heavy") for _ in range(6)])
    assert {r.status for r in replies} == {200}
    assert {r.json["parameters"]["dovetail_device"] for r in replies} == {"emulated:v100x4"}
    with server.client() as client:
        config = client.get_model_config("plain")
    assert config["parameters"]["device"]["string_value"] == "emulated:v100x4"
    workers = server.call(lambda: sorted(w.spec.name for w in server.system.fleet.workers.values()))
    assert workers == ["host-0", "v100-0", "v100-1", "v100-2", "v100-3"]
