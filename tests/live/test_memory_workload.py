"""Four workflows of real models on two workers, each with memory for less than half of them; the client is Triton's.

Laws: no request is lost, every answer is right, no worker passes its budget as seen from outside, and placement that
knows what is where loads less than placement by hash.
"""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from bench.memory import Run, measure, some_requests
from examples.shelf import app

from dovetail.units import parse_bytes

pytestmark = pytest.mark.cpu
MEMORY = "80MB"
REQUESTS = 40
#: Medians are compared with this much to spare: the machine may be busy with one of the two runs and not the other.
WIDE = 1.5


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    expected: dict[tuple[str, bytes], dict] = {}

    def key(workflow, inputs):
        (value,) = inputs.values()
        return workflow, bytes(value) if isinstance(value, bytes) else value.tobytes()

    requests = some_requests(REQUESTS)
    for workflow, inputs in requests:
        if key(workflow, inputs) not in expected:
            expected[key(workflow, inputs)] = app.workflows[workflow].local(**inputs)

    def check(workflow, inputs, answer):
        outcome = answer.get_response()["parameters"]["dovetail_outcome"]
        if outcome not in ("ok", "late"):
            return f"it was {outcome}"
        for name, value in expected[key(workflow, inputs)].items():
            got = answer.as_numpy(name)
            if isinstance(value, str):
                right = got.tolist() == [value.encode()]
            elif isinstance(value, list):
                right = [text.decode() for text in got.tolist()] == value
            elif np.issubdtype(got.dtype, np.floating):
                right = np.allclose(got, value, rtol=0, atol=1e-5)
            else:
                right = np.array_equal(got, value)
            if not right:
                return f"{name} is {got}, not {value}"
        return ""

    return {policy: measure(policy, requests, memory=MEMORY, check=check) for policy in ("place", "hash")}


@pytest.mark.parametrize("policy", ["place", "hash"])
def test_no_request_is_lost_and_every_answer_is_right(runs, policy):
    assert runs[policy].problems == []
    assert all(runs[policy].latencies_s)


@pytest.mark.parametrize("policy", ["place", "hash"])
def test_no_worker_ever_passes_its_budget_as_seen_from_outside(runs, policy):
    run = runs[policy]
    assert run.samples > 100
    assert max(run.peak_bytes) <= parse_bytes(MEMORY)
    assert min(run.peak_bytes) > parse_bytes(MEMORY) // 4, "it was those workers that were watched"
    assert run.counts["evictions"] > 0, "memory was scarce"


def test_placement_that_knows_what_is_where_finds_more_and_loads_less_than_by_hash(runs):
    place, by_hash = runs["place"], runs["hash"]
    assert place.hit_rate > by_hash.hit_rate
    assert place.counts["loads"] < by_hash.counts["loads"]
    assert statistics.median(place.latencies_s) < WIDE * statistics.median(by_hash.latencies_s)
