"""An objective is the client's: part of it is kept for the way in and the way back, and a slow sender pays little."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.serve.live_support import LiveServer, item_body
from tests.serve.support import Wire, request

from dovetail.control import RequestArrived
from dovetail.serve.adapter import LEAST_SPENT, MOST_SPENT
from dovetail.units import MS

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    started = LiveServer("tests.live.apps:plain")
    yield started
    started.stop()


def left_ns(server: LiveServer, pause_s: float, **more: object) -> int:
    """What is left of the objective of a request whose body came so long after its head."""
    arrived: list[RequestArrived] = []

    def take(event: object, *_: object) -> None:
        if isinstance(event, RequestArrived):
            arrived.append(event)

    server.call(lambda: server.system.tap.open((), take, lambda *_: None))
    try:
        with Wire(server.port) as wire:
            body = item_body(1.0, **more)
            data = request("POST", "/v2/models/plain/infer", body)
            wire.send(data[: -len(body)])
            time.sleep(pause_s)
            assert wire.send(body).reply().status == 200
    finally:
        server.call(lambda: server.system.tap.close(()))
    (event,) = arrived
    return event.objective_ns - event.at_ns


def test_the_way_is_part_of_the_objective(server: LiveServer) -> None:
    whole_ns = 1000 * MS
    assert whole_ns * (1 - MOST_SPENT) <= left_ns(server, 0.0) <= whole_ns * (1 - LEAST_SPENT)
    given_ns = 20_000 * MS
    left = left_ns(server, 0.0, parameters={"slo_ms": 20_000})
    assert given_ns * (1 - MOST_SPENT) <= left <= given_ns * (1 - LEAST_SPENT)


def test_who_sends_slowly_pays_a_small_part(server: LiveServer) -> None:
    assert left_ns(server, 0.3) == round(1000 * MS * (1 - MOST_SPENT))
