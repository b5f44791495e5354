"""Who may ask: other names in Host, pages of other sites, and classes above one's own."""

from __future__ import annotations

import pytest
from tests.serve.live_support import LiveServer
from tests.serve.support import infer, request

from dovetail.serve.framing import HttpError, parse_head
from dovetail.serve.gate import Gate, is_loopback

OURS = [
    "127.0.0.1",
    "127.0.0.1:8000",
    "localhost",
    "LOCALHOST:80",
    "[::1]:8000",
    "10.0.0.7",
    "a.localhost",
    "me.example",
]
FOREIGN = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example:80",
    "evil.example:8000",
    "[::1",
    "a:b:c",
]


def ask(gate: Gate, **headers: str) -> int:
    """The status of a refusal, or 200."""
    try:
        gate.check(parse_head(request("GET", "/v2", **headers)))
    except HttpError as error:
        return error.status
    return 200


@pytest.mark.parametrize("host", OURS)
def test_names_of_ours(host):
    assert ask(Gate("127.0.0.1", ["me.example"]), Host=host) == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_names_of_others(host):
    assert ask(Gate("127.0.0.1", ["me.example"]), Host=host) == 421
    if ":" not in host.removeprefix("["):
        assert ask(Gate("127.0.0.1", ["*"]), Host=host) in (200, 421)
    assert ask(Gate("127.0.0.1", ["evil.example"]), Host="evil.example") == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, 200),
        ({"Origin": "http://localhost:9000", "Host": "localhost:8000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://friend.example"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({}, 200),
    ],
)
def test_sites(headers, status):
    assert ask(Gate("127.0.0.1", origins=["https://friend.example/"]), **headers) == status
    assert ask(Gate("127.0.0.1", origins=["*"]), **headers) == 200


def test_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.1.2.3", "", "box")] == [
        *[True] * 3,
        *[False] * 4,
    ]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_a_stranger_gets_no_results(server, headers):
    with server.wire() as wire:
        calls = len(server.backend.calls)
        assert wire.send(infer("late", **headers)).reply("POST").status in (403, 421)
        assert len(server.backend.calls) == calls


@pytest.mark.cpu
@pytest.mark.parametrize("trusts", [True, False])
def test_a_class_above_the_workflows_own_is_for_who_is_trusted(trusts):
    server = LiveServer("tests.live.apps:hosted", device="cpu:1", trust_priority=trusts)
    try:
        assert server.ask("gated", 0, parameters={"priority": 3}).status == 200, "a lower one is for everybody"
        reply = server.ask("gated", 0, parameters={"priority": 1})
        assert reply.status == (200 if trusts else 403)
        assert server.ask("breakable", 0, parameters={"priority": 1}).status == 200, "that is its own"
    finally:
        server.stop()
