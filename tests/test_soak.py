"""`make soak` tells a server that drifts from a machine that slows down."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/soak.py"
COUNT = 9


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak"]


def windows(soak, slower=lambda i: 1.0, server=lambda i: 1.0, refused=lambda i: 0):
    """Windows on a machine that is so many times slower, of a server that takes so many times longer."""
    found = []
    for i in range(COUNT):
        ms = [latency * slower(i) * server(i) for latency in range(10, 110)]
        capacity = 100 / slower(i) / server(i)
        statuses = Counter({200: 100 - refused(i), 429: refused(i)})
        found.append(soak.Window(5.0 * slower(i), capacity, 0.7 * capacity, ms, statuses))
    return found


def samples(front=lambda i: 30 << 20, descriptors=lambda i: 40):
    return [{"descriptors": descriptors(i), "front": front(i), "worker 1": 80 << 20} for i in range(30)]


def late(value, otherwise):
    """One value in the last third, and another before."""
    return lambda i: value if i >= COUNT * 2 // 3 else otherwise


def test_a_machine_that_slows_down_is_no_drift(soak):
    rows, drifted = soak.judge(windows(soak, slower=late(3.0, 1.0)), samples())
    assert drifted == []
    assert "| bare loop, ms | 5.0 | 5.0 | 15.0 |" in rows
    assert "| requests per second | 70 | 70 | 23 |" in rows


def test_a_server_that_slows_down_is_one(soak):
    _, drifted = soak.judge(windows(soak, server=late(1.5, 1.0)), samples())
    assert len(drifted) == 3, drifted
    assert drifted[0] == "an answer took 2.00 bare loops, then 3.00"
    assert drifted[1].startswith("latency p50 grew from 11.90 to 17.85 bare loops")


def test_a_server_that_slows_down_is_found_also_while_the_machine_becomes_faster(soak):
    _, drifted = soak.judge(windows(soak, slower=late(0.5, 1.0), server=late(2.0, 1.0)), samples())
    assert len(drifted) == 3, drifted


def test_what_was_so_from_the_beginning_is_warming_up(soak):
    first = soak.judge(windows(soak, server=lambda i: 3.0 if i < COUNT // 3 else 1.0), samples())
    assert first[1] == []


def test_refusals_that_become_more_are_told(soak):
    assert soak.judge(windows(soak, refused=late(2, 1)), samples())[1] == []
    _, drifted = soak.judge(windows(soak, refused=late(3, 1)), samples())
    assert drifted == ["1.0% were refused, then 3.0%"]


def test_memory_and_descriptors(soak):
    grows = samples(front=lambda i: (30 + i) << 20)
    assert soak.judge(windows(soak), grows)[1] == [], "10 MiB from one third to the next are within what is allowed"
    grows = samples(front=lambda i: (30 + 2 * i) << 20)
    assert soak.judge(windows(soak), grows)[1] == ["front grew from 59.0 to 79.0 memory, MiB"]
    assert soak.judge(windows(soak), samples(descriptors=lambda i: 40 + i // 10))[1] == []
    grows = samples(descriptors=lambda i: 40 + i)
    assert soak.judge(windows(soak), grows)[1] == ["descriptors grew from 54.5 to 64.5"]


def test_parts_are_of_about_the_same_length(soak):
    assert soak.thirds([1, 2, 3, 4, 5, 6, 7]) == [[1, 2], [3, 4, 5], [6, 7]]
