"""What is known of kernels from one server to the next: told, added up, written, and never a reason to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import onnx_models
from tests.live.in_process import InProcess

from dovetail.live.front.stores import KernelStore
from dovetail.live.front.system import Result
from dovetail.live.links.wire import Learned
from dovetail.live.tensors.arena import Arena
from dovetail.profile import kernels
from dovetail.profile.kernelrows import pack, unpack_cut, unpack_stats
from dovetail.profile.kernels import Cut, KernelStats, sequence_name
from dovetail.profile.machine import Identity, this_machine
from dovetail.profile.store import ProfileStore
from dovetail.record.kernels import decode_records
from dovetail.serve.launch import Options, Served, launch
from dovetail.units import MS
from dovetail.workflow.app import load_target

HERE = Identity("Xeon", 2, {"onnxruntime": "1.30.0", "numpy": "2.4.6", "python": "3.12"})
MODEL = "b5bb9d8014a0f9b1d61e21e796d78dcc"
NAME = sequence_name("read", [(1, 3)], MODEL, "3c9d1f02")
TARGET = "tests.live.apps:small"
PATIENCE_SECONDS = 60.0


def learned(name: str = NAME, runs: int = 6) -> KernelStats:
    stats = KernelStats.empty(name, ["a", "b"])
    for _ in range(runs):
        stats.observe(0, MS)
        stats.observe(1, 2 * MS)
    return stats


def in_book(store: ProfileStore | None, use: Callable[[KernelStore], None], **options: Any) -> KernelStore:
    """A book that something was done with, closed."""

    async def main() -> KernelStore:
        book = KernelStore(store, HERE, [MODEL], **options)
        use(book)
        await book.close()
        await asyncio.sleep(0)  # for what is still to be said
        return book

    return asyncio.run(main())


def told(book: KernelStore) -> dict[str, KernelStats]:
    return {stats.name: stats for stats in map(unpack_stats, book.known()[0])}


def test_reports_add_up_for_workers_that_start_again_and_in_the_store(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite")
    cut = Cut(MODEL, ((1, 3),), 1, ((2,),))
    for expected in (7, 14):

        def report(book: KernelStore) -> None:
            book.take(Learned([pack(learned(runs=3))], [pack(cut)]))
            book.take(Learned([pack(learned(runs=4))], []))

        book = in_book(store, report)
        assert told(book)[NAME].seen == store.kernels(HERE)[NAME].seen == expected
        assert book.known()[1] == [cut] == list(store.cuts(HERE).values())


def test_only_what_holds_and_is_of_the_models_that_are_served_is_told(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite")
    other = sequence_name("read", [(1, 3)], "another", "3c9d1f02")
    store.put_kernels([learned(), learned(other), learned("by hand")], HERE)
    stale = sequence_name("read", [(2, 3)], MODEL, "3c9d1f02")
    store.put_kernels([learned(stale)], Identity("EPYC", 2, HERE.libraries))
    said: list[str] = []
    book = in_book(store, lambda _: None, say=said.append)
    assert list(told(book)) == [NAME]
    assert len(said) == 2
    assert "1 sequence(s) is not used, stale: machine EPYC, 2 cores → Xeon, 2 cores" in said[0]
    assert "the kernels of 1 sequence(s) are known" in said[1]


@pytest.mark.parametrize("where", ["none/p.sqlite", ".", "text"])
def test_a_store_that_cannot_be_used_is_named_once_and_all_goes_on(where: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, and long enough to be sure of it" * 20)
    said: list[str] = []

    def report(book: KernelStore) -> None:
        for _ in range(3):
            book.take(Learned([pack(learned(runs=2))], []))

    book = in_book(ProfileStore(tmp_path / where), report, say=said.append)
    assert told(book)[NAME].seen == 6, "workers that start again know it all the same"
    assert sum("may be forgotten" in line for line in said) == 1
    assert len(said) <= 2


def test_a_report_that_cannot_be_read_is_named_and_others_are_taken() -> None:
    said: list[str] = []

    def report(book: KernelStore) -> None:
        book.take(Learned([b"junk"], []))
        book.take(Learned([pack(learned())], []))

    book = in_book(None, report, say=said.append)
    assert list(told(book)) == [NAME]
    assert len(said) == 1 and "not statistics of kernels" in said[0]


def test_what_a_worker_is_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.live.front.stores.MOST_BYTES", 5 * len(pack(learned())))
    names = [sequence_name("read", [(i, 3)], MODEL, "3c9d1f02") for i in range(1, 9)]
    book = in_book(None, lambda book: book.take(Learned([pack(learned(name)) for name in names], [])))
    assert len(told(book)) == 5


# -- a worker --------------------------------------------------------------------------------------------------------


@pytest.fixture
def make_worker(tmp_path: Path) -> Iterator[Callable[..., InProcess]]:
    path = onnx_models.slow(tmp_path / "long.onnx", products=16, side=512)
    with Arena.create(1, 1 << 20) as arena:
        yield lambda known=(), cuts=(): InProcess(path, arena, list(known), list(cuts))


@pytest.mark.cpu
def test_a_worker_tells_what_it_saw_and_the_next_begins_with_that(make_worker: Callable[..., InProcess]) -> None:
    worker = make_worker()
    worker.run(3)
    worker.tell()
    first = worker.wait(Learned)
    (stats,) = map(unpack_stats, first.kernels)
    (cut,) = map(unpack_cut, first.cuts)
    assert stats.seen == 3 and cut.model == worker.stage.model
    worker.tell()
    worker.run()
    worker.executor.close()
    last = worker.wait(Learned)
    assert [unpack_stats(row).seen for row in last.kernels] == [1]
    assert last.cuts == [], "it was told before"
    assert not any(isinstance(a, Learned) for a in worker.answers), "where there is no news, nothing is said"

    second = make_worker(first.kernels, [cut])
    second.run()
    known = second.executor._predictor.kernels
    assert {name: s.seen for name, s in known.items()} == {stats.name: 4}
    second.executor.close()
    assert [unpack_stats(row).seen for row in second.wait(Learned).kernels] == [1]


@pytest.mark.cpu
def test_what_a_worker_is_told_wrongly_is_passed_over(
    make_worker: Callable[..., InProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    worker = make_worker([b"junk"], [Cut("another", ((1, 3),), 1, ((4000,),))])
    worker.run()
    assert "passed over: not statistics of kernels" in capsys.readouterr().err


# -- servers ---------------------------------------------------------------------------------------------------------


@contextmanager
def serving(
    store: ProfileStore, said: list[str], target: str = TARGET, **options: Any
) -> Iterator[Callable[..., list[Result]]]:
    """A server that cuts every model; the function puts requests to it, all at once, and waits for the answers."""
    loop = asyncio.new_event_loop()

    def wait(work: Any) -> Any:
        return loop.run_until_complete(asyncio.wait_for(work, PATIENCE_SECONDS))

    chosen = Options(device="cpu:1", port=0, kernels="always", arena_bytes=1 << 26, **options)
    served: Served = wait(launch(load_target(target), target, chosen, store=store, say=said.append))

    async def ask(*requests: tuple[str, int]) -> list[Result]:
        futures = []
        for workflow, priority in requests:
            future = loop.create_future()
            served.system.submit(
                workflow, [np.ones(3, np.float32)], lambda _, r, f=future: f.set_result(r), priority=priority
            )
            futures.append(future)
        results = await asyncio.gather(*futures)
        for result in results:
            result.release()
        return results

    try:
        yield lambda *requests: wait(ask(*requests))
        assert wait(served.stop())
    finally:
        loop.close()


@pytest.mark.cpu
def test_a_second_server_knows_the_kernels_that_the_first_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kernel of microseconds may take twice as long on a busy machine, which would start its count again.
    monkeypatch.setattr(kernels, "DRIFT_FACTOR", 1e9)
    store, here = ProfileStore(tmp_path / "p.sqlite"), this_machine()
    found: list[dict[str, int]] = []
    said: list[str] = []
    for _ in range(2):
        with serving(store, said) as ask:
            for _ in range(6):
                for request in (("plain", 1), ("plain", 2), ("heavy", 2)):
                    assert ask(request)[0].outcome in ("ok", "late")
        found.append({name: stats.seen for name, stats in store.kernels(here).items()})
    assert {name.partition("[")[0] for name in found[0]} == {"double", "slow"}
    assert found[0] == dict.fromkeys(found[0], 6), "of the highest class nothing is learned: nobody asks"
    assert found[1] == dict.fromkeys(found[0], 12), "the same kernels once more, and no others"
    assert [line for line in said if "are known" in line] == [
        f"the kernels of 2 sequence(s) are known from {store.path}"
    ]


@pytest.mark.cpu
def test_ageing_is_handed_through_to_the_workers(tmp_path: Path) -> None:
    store, log = ProfileStore(tmp_path / "none" / "p.sqlite"), tmp_path / "kernels.jsonl"
    said: list[str] = []
    with serving(store, said, "tests.live.long_app:app", ageing_ns=MS, kernel_log=log) as ask:
        ask(("lengthy", 4), *[("lengthy", 1)] * 8)
    with log.open("rb") as lines:
        why = {(r.priority, r.why) for r in decode_records(lines)}
    assert (4, "aged") in why and (1, "aged") not in why
    assert [line for line in said if "does not exist" in line], "that it could not be kept is said"
