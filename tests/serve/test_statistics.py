"""Statistics and the index as Triton's own clients read them."""

from __future__ import annotations

import time

import pytest
from tests.serve.live_support import LiveServer
from tests.serve.support import Wire

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def live():
    server = LiveServer("tests.live.apps:hosted", device="cpu:1")
    yield server
    server.stop()


def test_counts_agree_as_perf_analyzer_wants_them(live):
    before_ms = time.time_ns() // 1_000_000
    for _ in range(5):
        assert live.ask("big", 1).status == 200
    assert live.ask("breakable", 7).status == 500
    with live.client() as client:
        entry = client.get_inference_statistics("big")["model_stats"][0]
        stats = entry["inference_stats"]
        counts = {stats[part]["count"] for part in ("queue", "compute_input", "compute_infer", "compute_output")}
        assert counts == {5} == {stats["success"]["count"]} == {entry["inference_count"]}
        assert stats["compute_infer"]["ns"] > 0
        for batch in entry["batch_stats"]:
            assert len({batch[part]["count"] for part in ("compute_input", "compute_infer", "compute_output")}) == 1
        assert before_ms <= entry["last_inference"] <= time.time_ns() // 1_000_000
        failed = client.get_inference_statistics("breakable")["model_stats"][0]
        assert failed["inference_stats"]["fail"]["count"] == 1
        assert failed["dovetail_outcomes"]["1"]["failed"] == 1


def test_late_is_told_from_ok(live):
    assert live.ask("big", 1, parameters={"slo_ms": 1e-6}).status in (200, 429)
    with live.client() as client:
        outcomes = client.get_inference_statistics("big")["model_stats"][0]["dovetail_outcomes"]["1"]
    assert set(outcomes) == {"ok", "late", "shed", "expired", "failed", "cancelled"}
    assert outcomes["late"] + outcomes["shed"] >= 1


def test_the_index_lists_all_workflows(live):
    with live.client() as client:
        index = client.get_model_repository_index()
        assert [entry["name"] for entry in index] == ["gated", "breakable", "big"]
        assert {(entry["version"], entry["state"]) for entry in index} == {("1", "READY")}
    with Wire(live.port) as wire:
        assert len(wire.ask("POST", "/v2/repository/index", b'{"ready": true}').json) == 3
        assert wire.ask("POST", "/v2/repository/index", b'{"ready": 7}').status == 400
        assert wire.ask("GET", "/v2/repository/index").status == 405


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/repository/models/big/load", 400),
        ("GET", "/v2/trace/setting", 501),
        ("GET", "/v2/models/big/trace/setting", 501),
        ("GET", "/v2/systemsharedmemory/status", 501),
        ("GET", "/v2/logging", 501),
    ],
)
def test_what_is_not_supported_says_so(live, method, path, status):
    with Wire(live.port) as wire:
        assert wire.ask(method, path).status == status
