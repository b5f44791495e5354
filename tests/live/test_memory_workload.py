"""Four workflows of real models on two workers, each with memory for less than half of them; the client is Triton's.

Laws: no request is lost, every answer is right, no worker passes its budget as seen from outside, and placement that
knows what is where loads less than placement by hash. So it is if models are run kernel by kernel, too.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from bench.memory import Run, measure, some_requests
from examples.shelf import app

from dovetail.profile.kernels import Cut
from dovetail.profile.machine import this_machine
from dovetail.profile.store import ProfileStore
from dovetail.record.kernels import decode_records
from dovetail.units import parse_bytes

pytestmark = pytest.mark.cpu
MEMORY = "80MB"
REQUESTS = 40
#: Medians are compared with this much to spare: the machine may be busy with one of the two runs and not the other.
WIDE = 1.5


#: Where models of `moderate`, whose class is not the highest, are cut: known, so that nobody has to find out.
CUTS = {
    "nudity": (((1, 224, 224, 3),), (15, 30, 45)),
    "page_way": (((1, 3, 224, 224),), (12, 24, 36)),
    "file_kind": (((1, 2048),), (24, 48, 72)),
}


def store_of_cuts(path: Path) -> Path:
    """A profile store that knows where these models are cut."""
    models = {spec.name: spec.model for spec in app.specs}
    cuts = [Cut(models[name], item, 1, (at,)) for name, (item, at) in CUTS.items()]
    ProfileStore(path).put_kernels([], this_machine(), cuts=cuts)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workload")


@pytest.fixture(scope="module")
def runs(scratch: Path) -> dict[str, Run]:
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

    store = store_of_cuts(scratch / "cuts.sqlite")
    # With weights of their own: a load from the copy that workers share is so short that placement hardly matters.
    whole = ("--kernels", "never", "--weights", "own", "--store", str(scratch / "none.sqlite"))
    kernels = ("--store", str(store), "--kernel-log", str(scratch / "kernels.jsonl"))
    return {
        "place": measure("place", requests, memory=MEMORY, check=check, options=whole),
        "hash": measure("hash", requests, memory=MEMORY, check=check, options=whole),
        "kernels": measure("place", requests, memory=MEMORY, check=check, options=kernels),
    }


@pytest.mark.parametrize("policy", ["place", "hash", "kernels"])
def test_no_request_is_lost_and_every_answer_is_right(runs, policy):
    assert runs[policy].problems == []
    assert all(runs[policy].latencies_s)


@pytest.mark.parametrize("policy", ["place", "hash", "kernels"])
def test_no_worker_ever_passes_its_budget_as_seen_from_outside(runs, policy):
    run = runs[policy]
    assert run.samples > 100
    assert max(run.peak_bytes) <= parse_bytes(MEMORY)
    assert min(run.peak_bytes) > parse_bytes(MEMORY) // 4, "it was those workers that were watched"
    assert run.counts["evictions"] > 0, "memory was scarce"


def test_models_were_run_kernel_by_kernel_meanwhile(runs, scratch):
    assert not runs["kernels"].problems
    with (scratch / "kernels.jsonl").open("rb") as lines:
        records = list(decode_records(lines))
    cut = {record.name for record in records if record.kernel > 0}
    assert cut & set(CUTS), "as they were known to be cut"
    assert {record.client for record in records} == {"cpu-0", "cpu-1"}


def test_placement_that_knows_what_is_where_finds_more_and_loads_less_than_by_hash(runs):
    place, by_hash = runs["place"], runs["hash"]
    assert place.hit_rate > by_hash.hit_rate
    assert place.counts["loads"] < by_hash.counts["loads"]
    assert statistics.median(place.latencies_s) < WIDE * statistics.median(by_hash.latencies_s)
