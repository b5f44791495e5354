"""The class of a request is known before its body, and decides who finds room when there is little."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from tests.serve.live_support import LiveServer, item_request
from tests.serve.support import Wire, infer, infer_body, until

from dovetail.serve.adapter import FOR_ALL

ARENA = 8 << 20


def test_the_class_comes_as_a_header_or_a_parameter_and_the_header_wins(make_server):
    server = make_server()
    with server.wire() as wire:
        for headers, parameters in (({"X_Dovetail_Priority": "2"}, {"priority": 5}), ({}, {"priority": 5}), ({}, {})):
            body = infer_body(parameters=parameters)
            assert wire.send(infer("late", body, **headers)).reply("POST").status == 200
        assert [call.priority for call in server.backend.calls] == [2, 5, 0]
        assert server.backend.classes == [2, 0, 0], "the JSON is not looked at unless it matters"
        server.backend.is_crowded = True
        assert wire.send(infer("late", infer_body(parameters={"priority": 5}))).reply("POST").status == 200
        assert server.backend.classes[-1] == 5
        assert wire.send(infer("late", b"not JSON")).reply("POST").status == 400
        assert server.backend.classes[-1] == 0
        for wrong in ("first", "-1", "1.5", "99"):
            assert wire.send(infer("late", X_Dovetail_Priority=wrong)).reply("POST").status == 400


@pytest.fixture
def live():
    server = LiveServer("tests.live.apps:hosted", device="cpu:1", arena_bytes=ARENA)
    yield server
    server.stop()


def books(server: LiveServer) -> dict[int, int]:
    """Class -> how many were shed."""
    return {line.priority: line.outcomes["shed"] for line in server.call(server.system.ledger.summary)}


@pytest.mark.cpu
def test_the_last_memory_for_bodies_is_for_class_1_and_refusals_are_booked_under_their_class(live):
    held = live.call(lambda: live.system.memory.front.alloc(int(ARENA * FOR_ALL)))
    try:
        with ExitStack() as stack:
            wire = stack.enter_context(Wire(live.port))
            wire.socket.settimeout(60)

            def ask(**claim: object) -> int:
                headers = {k: str(v) for k, v in claim.items() if k != "priority"}
                more = {"parameters": {"priority": claim["priority"]}} if "priority" in claim else {}
                request = item_request("gated", 0, **more)
                for name, value in headers.items():
                    request = request.replace(b"\r\n", f"\r\n{name.replace('_', '-')}: {value}\r\n".encode(), 1)
                return wire.send(request).reply("POST").status

            assert ask(X_Dovetail_Priority=1) == 200
            assert ask(priority=1) == 200, "it is in the JSON, which is read first when room is short"
            assert ask() == 503, "the workflow's own class is 2"
            assert ask(X_Dovetail_Priority=3) == 503
            assert ask(priority=4) == 503
        until(lambda: books(live) == {1: 0, 2: 1, 3: 1, 4: 1})
    finally:
        live.call(lambda: live.system.memory.front.free(held))


@pytest.mark.cpu
def test_the_last_memory_for_results_is_for_class_1(live):
    memory = live.system.memory
    ident = next(iter(memory.used_bytes))
    live.call(lambda: memory.used_bytes.__setitem__(ident, int(memory.arenas[ident].size * 0.7)))
    assert live.ask("gated", 0).status == 503
    assert live.ask("gated", 0, parameters={"priority": 1}).status == 200
    live.call(lambda: memory.used_bytes.__setitem__(ident, int(memory.arenas[ident].size * 0.8)))
    assert live.ask("gated", 0, parameters={"priority": 1}).status == 503
    live.call(lambda: memory.used_bytes.__setitem__(ident, 0))
