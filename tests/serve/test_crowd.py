"""Many clients at once, and some that are no good: idle, silent, slow, and all from one place."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.support import HOST, Server, infer, request, until

from dovetail.serve import http
from dovetail.serve.bodies import RESERVE_FROM_BYTES, Bodies
from dovetail.serve.crowd import MAX_BEYOND, Crowd
from dovetail.serve.framing import Limits

LIVE = request("GET", "/v2/health/live")


def announce(nbytes: int) -> bytes:
    """The head of a request whose body of so many bytes does not come."""
    return infer("copy", b"x", Inference_Header_Content_Length="0", Content_Length=str(nbytes))[:-1]


# -- connections ----------------------------------------------------------------------------------------------------


def test_idle_connections_give_way(make_server):
    server = make_server(Limits(max_connections=20, max_client_connections=20))
    with ExitStack() as stack:
        idle = [stack.enter_context(server.wire()) for _ in range(20)]
        until(lambda: len(server.http.crowd) == 20)
        assert idle[0].send(LIVE).reply().status == 200  # it rests from now on: later than the others
        late = [stack.enter_context(server.wire()) for _ in range(5)]
        assert [wire.send(infer("late")).reply("POST").status for wire in late] == [200] * 5
        assert idle[1].ended()
        assert idle[0].send(LIVE).reply().status == 200


def test_half_a_head_is_no_work(make_server):
    server = make_server(Limits(max_connections=4))
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(server.wire()).send(LIVE[:10])
        assert stack.enter_context(server.wire()).send(LIVE).reply().status == 200


def test_health_is_told_when_every_place_is_taken(make_server):
    server = make_server(Limits(max_connections=3))
    with ExitStack() as stack:
        busy = [stack.enter_context(server.wire()).send(infer("wait")) for _ in range(3)]
        until(lambda: len(server.http.handling) == 3)
        other = stack.enter_context(server.wire())
        reply = other.send(LIVE).reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        other = stack.enter_context(server.wire())
        reply = other.send(infer("late")).reply("POST")
        assert (reply.status, reply.error, reply.headers["retry-after"]) == (503, "too many connections", "1")
        assert other.ended()
        server.open_gate()
        assert [wire.reply("POST").status for wire in busy] == [200] * 3


def test_one_client_cannot_take_every_place(make_server):
    server = make_server(Limits(max_connections=20, max_client_connections=4))
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(server.wire()).send(infer("wait"))
        until(lambda: len(server.http.handling) == 4)
        assert stack.enter_context(server.wire()).ended()
        elsewhere = stack.enter_context(socket.create_connection((HOST, server.port), 20, ("127.0.0.2", 0)))
        elsewhere.sendall(LIVE)
        assert elsewhere.recv(1000).startswith(b"HTTP/1.1 200")
        server.open_gate()


class Guest:
    def __init__(self, client: str) -> None:
        self.client = client
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def test_the_longest_resting_goes_first_whoever_it_is():
    crowd = Crowd(3, 3)
    guests = [Guest(client) for client in "abc"]
    assert [crowd.admit(guest) for guest in guests] == ["welcome"] * 3
    for guest in (guests[1], guests[2], guests[0]):
        crowd.rests(guest)
    crowd.works(guests[1])
    crowd.rests(guests[1])  # after its next request
    assert crowd.admit(Guest("d")) == "welcome"
    assert [guest.gone for guest in guests] == [False, False, True]


@given(
    st.lists(st.tuples(st.sampled_from(["in", "rest", "work", "out"]), st.integers(0, 99), st.sampled_from("abc")))
)
def test_no_more_than_allowed_and_no_worker_is_sent_away(steps):
    crowd = Crowd(5, 3)
    here: list[Guest] = []
    resting: set[Guest] = set()
    for what, number, client in steps:
        guest = here[number % len(here)] if here else None
        if what == "in":
            new = Guest(client)
            if crowd.admit(new) != "refused":
                here.append(new)
        elif guest is not None and what == "rest":
            crowd.rests(guest)
            resting.add(guest)
        elif guest is not None and what == "work":
            crowd.works(guest)
            resting.discard(guest)
        elif guest is not None:
            crowd.forget(guest)
            here.remove(guest)
        assert all(guest in resting for guest in here if guest.gone)
        here = [guest for guest in here if not guest.gone]
        assert len(crowd) == len(here) <= 5 + MAX_BEYOND
        assert all(sum(g.client == c for g in here) <= 3 for c in "abc")


def test_no_descriptors_left_is_said_once_and_survived(make_server, caplog):
    server = make_server(Limits(idle_timeout_s=60))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        first = stack.enter_context(server.wire())
        assert first.send(LIVE).reply().status == 200
        clients = [stack.enter_context(socket.socket()) for _ in range(40)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 4, hard))
            for client in clients:
                client.connect((HOST, server.port))
            until(lambda: "no connection can be accepted" in caplog.text)
            clients[-1].settimeout(20)
            clients[-1].sendall(LIVE)
            assert clients[-1].recv(1000).startswith(b"HTTP/1.1 200"), "who rests has given way"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caplog.text.count("no connection can be accepted") == 1
    assert "Traceback" not in caplog.text


# -- bodies ---------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_takes_no_memory(make_server):
    server = make_server(Limits(body_grace_s=30))
    with ExitStack() as stack:
        silent = [stack.enter_context(server.wire()).send(announce(60 << 20)) for _ in range(39)]
        with server.wire() as wire:
            assert wire.send(infer("late")).reply("POST").status == 200
        until(server.everything_returned)
        assert server.http.bodies.unreceived_bytes == 0
        silent[0].send(bytes(RESERVE_FROM_BYTES))
        until(lambda: len(server.backend.bodies) == 1)
        assert server.http.bodies.unreceived_bytes == (60 << 20) - RESERVE_FROM_BYTES
    until(server.everything_returned)
    assert server.http.bodies.unreceived_bytes == 0


def test_bodies_wait_for_each_other_and_all_are_answered(make_server):
    nbytes = 4 * RESERVE_FROM_BYTES
    server = make_server(Limits(max_unreceived_bytes=nbytes, body_grace_s=30))
    begun = announce(nbytes) + bytes(RESERVE_FROM_BYTES)
    with ExitStack() as stack:
        wires = [stack.enter_context(server.wire()).send(begun) for _ in range(4)]
        until(lambda: sum(c.waiting for c in server.http._connections) == 3)
        assert len(server.backend.bodies) == 1
        for wire in wires:
            wire.send(bytes(nbytes - RESERVE_FROM_BYTES))
        assert [wire.reply("POST").status for wire in wires] == [200] * 4
    until(server.everything_returned)
    assert server.http.bodies.unreceived_bytes == 0


def test_who_waits_too_long_for_room_is_told(make_server):
    nbytes = 4 * RESERVE_FROM_BYTES
    server = make_server(Limits(max_unreceived_bytes=nbytes, body_grace_s=0.05, body_timeout_s=1000))
    begun = announce(nbytes) + bytes(RESERVE_FROM_BYTES)
    with server.wire() as first, server.wire() as second:
        first.send(begun)
        until(lambda: server.backend.bodies)
        reply = second.send(begun).reply("POST")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert second.ended()


@pytest.mark.parametrize("sent", [0, 100, RESERVE_FROM_BYTES])
def test_a_body_that_stops_is_given_up_after_the_grace(make_server, sent):
    # A tenth of a percent of the body gives a second more.
    server = make_server(Limits(body_grace_s=0.05, body_timeout_s=1000, linger_s=0.05))
    with server.wire() as wire:
        reply = wire.send(announce(60 << 20) + bytes(sent)).reply("POST")
    assert reply.status == 408
    until(server.everything_returned)


def test_a_body_that_comes_steadily_may_take_its_time(make_server):
    server = make_server(Limits(body_grace_s=0.05, body_timeout_s=1000))
    data = bytes(50_000)
    whole = infer("copy", data, Inference_Header_Content_Length="0")
    with server.wire() as wire:
        wire.send(whole[:-100])
        until(lambda: server.backend.bodies)
        connection = next(iter(server.http._connections))
        # Nearly all of it is here, so nearly all of the time is allowed.
        assert connection.deadline - connection._began_s == pytest.approx(0.05 + 1000 * (50_000 - 100) / 50_000)
        assert wire.send(whole[-100:]).reply("POST").status == 200


def test_the_urgent_wait_less():
    class Waiter:
        waiting = False

        def __init__(self, client: str, got: list[str], name: str) -> None:
            self.client, self.got, self.name = client, got, name

        def room_found(self, nbytes: int) -> None:
            self.got.append(self.name)

    got: list[str] = []
    bodies = Bodies(100, 60)
    assert bodies.ask(Waiter("a", got, "first"), 60, 2)
    waiters = [Waiter("b", got, "low"), Waiter("c", got, "high"), Waiter("a", got, "same client")]
    for waiter, urgency in zip(waiters, (2, 1, 1), strict=True):
        assert not bodies.ask(waiter, 50, urgency)
    bodies.came("a", 30)
    assert got == ["high"], "the client of the first has its share"
    bodies.came("c", 50)
    assert got == ["high", "low"]
    waiters[2].waiting = False  # it is gone
    bodies.came("a", 30)
    bodies.came("b", 50)
    assert (got, bodies.unreceived_bytes) == (["high", "low"], 0)


def test_a_lone_body_may_be_as_large_as_it_likes():
    class Waiter:
        client, waiting = "a", False

        def room_found(self, nbytes: int) -> None: ...

    assert Bodies(10, 5).ask(Waiter(), 1000, 1)


# -- the end --------------------------------------------------------------------------------------------------------


def test_a_server_that_retires_says_so_and_resets_nobody(make_server):
    server = make_server()
    with server.wire() as old:
        assert "connection" not in old.send(LIVE).reply().headers
        server.call(server.http.retire)
        with server.wire() as new:
            for wire in (old, new):
                reply = wire.send(LIVE).reply()
                assert (reply.status, reply.headers["connection"]) == (200, "close")
                assert wire.ended()


def test_who_has_connected_before_the_end_is_answered(make_server, monkeypatch):
    # Who has said nothing by then is let go; on a busy machine the client is slower than that.
    monkeypatch.setattr(http, "FAREWELL_SECONDS", 20.0)
    server: Server = make_server()
    with server.wire() as wire:
        drained = server.submit(server.http.drain())
        until(lambda: server.http.draining)
        reply = wire.send(LIVE).reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        drained.result(20)
