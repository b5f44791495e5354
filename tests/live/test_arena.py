"""The laws of the shared-memory allocator, and what an arena promises to processes that attach it."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.live.tensors.arena import ALIGN_BYTES, BIG_BYTES, KEEP_QUICK_BYTES, QUICK_BYTES, Arena, ArenaFull

SMALL_ARENA = 16 * mmap.PAGESIZE
MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(7, 64 * MIB) as created:
        yield created


def block_bytes(nbytes: int) -> int:
    return max(-(-nbytes // ALIGN_BYTES), 1) * ALIGN_BYTES


def resident_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


# A positive number asks for a block of that many bytes; otherwise the live block of that index is freed.
steps = st.lists(
    st.one_of(st.integers(1, 3_000), st.integers(1, SMALL_ARENA + 1), st.integers(-50, 0), st.integers(-50, 0)),
    max_size=120,
)


@settings(deadline=None)
@given(steps=steps, keep_bytes=st.sampled_from([0, 8192, SMALL_ARENA]))
def test_blocks_never_overlap_and_full_means_no_gap_is_large_enough(steps: list[int], keep_bytes: int) -> None:
    with Arena.create(1, SMALL_ARENA, keep_bytes=keep_bytes) as arena:
        live: dict[int, int] = {}
        for step in steps:
            if step > 0:
                try:
                    offset = arena.alloc(step)
                except ArenaFull:
                    edges = [
                        0,
                        *(edge for start in sorted(live) for edge in (start, start + live[start])),
                        arena.size,
                    ]
                    assert all(edges[i + 1] - edges[i] < step for i in range(0, len(edges), 2))
                    continue
                assert offset not in live
                assert offset % ALIGN_BYTES == 0
                live[offset] = block_bytes(step)
                assert offset + live[offset] <= arena.size
            elif live:
                offset = sorted(live)[step % len(live)]
                arena.free(offset)
                del live[offset]
            arena.validate()  # live blocks and holes tile the arena: none overlap, none lie outside
            assert arena.used_bytes == sum(live.values())
            assert arena.blocks == len(live)
        for offset in live:
            arena.free(offset)
        assert arena.used_bytes == arena.blocks == 0
        assert arena.alloc(arena.size) == 0  # everything freed: the whole arena fits in one block again
        arena.validate()


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=12), seed=st.integers(0, 2**32))
def test_what_is_written_stays_until_it_is_freed(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    with Arena.create(1, 32 * mmap.PAGESIZE, keep_bytes=0) as arena:
        written: dict[int, bytes] = {}
        for size in sizes * 3:
            if len(written) > 4:
                offset = rng.choice(sorted(written))
                assert arena.view(offset, len(written[offset])) == written.pop(offset)
                arena.free(offset)
            offset = arena.alloc(size)
            written[offset] = rng.randbytes(size)
            arena.view(offset, size)[:] = written[offset]
        for offset, data in written.items():
            assert arena.view(offset, len(data)) == data


def test_changing_sizes_do_not_fragment_the_arena() -> None:
    rng = random.Random(0)
    with Arena.create(1, 64 * MIB) as arena:
        live: list[int] = []
        for largest in (1_000, 100_000, MIB, 10_000):  # a load that drifts while some of its blocks always live
            for _ in range(1_500):
                live.append(arena.alloc(rng.randrange(largest)))
                while arena.used_bytes > arena.size // 2:
                    arena.free(live.pop(rng.randrange(len(live))))
        arena.validate()


def test_a_freed_block_is_used_again_at_once(arena: Arena) -> None:
    first = arena.alloc(602_112)
    arena.alloc(64)
    arena.free(first)
    assert arena.alloc(602_112) == first


def test_an_empty_block_has_an_offset_of_its_own(arena: Arena) -> None:
    assert arena.alloc(0) != arena.alloc(0)
    assert arena.used_bytes == 2 * ALIGN_BYTES


def test_full_names_what_was_asked_and_what_is_free(arena: Arena) -> None:
    arena.alloc(60 * MIB)
    with pytest.raises(ArenaFull, match=f"arena 7 has no room for {5 * MIB} bytes: {4 * MIB} of its {64 * MIB}"):
        arena.alloc(5 * MIB)
    assert issubclass(ArenaFull, DovetailError)


def test_a_double_or_unknown_free_is_refused(arena: Arena) -> None:
    offset = arena.alloc(100)
    arena.free(offset)
    for wrong in (offset, offset + 64, 12_345_678, -1):
        with pytest.raises(ValueError, match=f"offset {wrong};"):
            arena.free(wrong)
    arena.validate()


def test_impossible_sizes_are_refused(arena: Arena) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        arena.alloc(-1)
    with pytest.raises(ArenaFull):
        arena.alloc(1 << 60)
    with pytest.raises(ValueError, match="positive"):
        Arena.create(1, 0)
    with Arena.create(1, 1) as tiny:
        assert tiny.size == mmap.PAGESIZE


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 4), (0, -1), (64 * MIB, 1), (0, 64 * MIB + 1), (1 << 70, 1)])
def test_a_view_outside_the_arena_is_refused(arena: Arena, offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="arena 7 has"):
        arena.view(offset, nbytes)


def test_others_read_what_the_owner_writes_and_cannot_write(arena: Arena) -> None:
    offset = arena.alloc(5)
    with Arena.attach(7, os.dup(arena.fd)) as other:
        arena.view(offset, 5)[:] = b"hello"
        assert other.size == arena.size
        assert bytes(other.view(offset, 5)) == b"hello"
        assert other.view(offset, 5).readonly
        with pytest.raises(RuntimeError, match="arena 7 belongs to another process"):
            other.alloc(1)
        with pytest.raises(RuntimeError, match="arena 7 belongs to another process"):
            other.free(offset)
        other.validate()


def test_nobody_can_truncate_an_arena(arena: Arena) -> None:
    for size in (arena.size // 2, arena.size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)


def test_an_unsealed_memfd_is_not_attached() -> None:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, mmap.PAGESIZE)
    with pytest.raises(ValueError, match="not sealed"):
        Arena.attach(1, fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.fcntl(fd, fcntl.F_GETFD)  # taken over, so closed


def test_a_new_arena_takes_no_memory_and_a_burst_gives_its_memory_back() -> None:
    with Arena.create(1, 256 * MIB, keep_bytes=4 * MIB) as arena:
        assert resident_bytes(arena) == 0
        kept = arena.alloc(100)
        arena.view(kept, 100)[:] = bytes(range(100))
        burst = [arena.alloc(BIG_BYTES) for _ in range(24)]
        for offset in burst:
            arena.view(offset, BIG_BYTES)[:] = b"x" * BIG_BYTES
        assert resident_bytes(arena) >= 24 * BIG_BYTES
        for offset in burst:
            arena.free(offset)
        assert resident_bytes(arena) <= 5 * MIB
        assert bytes(arena.view(kept, 100)) == bytes(range(100))  # a neighbour of the pages given back


def test_a_steady_load_keeps_its_pages() -> None:
    with Arena.create(1, 64 * MIB) as arena:
        for _ in range(100):
            offset = arena.alloc(2 * MIB)
            arena.view(offset, 2 * MIB)[:] = b"x" * (2 * MIB)
            arena.free(offset)
        assert resident_bytes(arena) == 2 * MIB


def test_views_outlive_close() -> None:
    arena = Arena.create(1, MIB)
    first = np.frombuffer(arena.view(arena.alloc(800), 800), np.float64)
    second = np.ndarray(100, np.float64, arena.view(arena.alloc(800), 800))
    first[:] = second[:] = 1.5
    arena.close()
    arena.close()  # a second time does nothing
    assert arena.fd == -1
    assert first.sum() == second.sum() == 150.0
    with pytest.raises(RuntimeError, match="arena 1 is closed"):
        arena.alloc(1)
    with pytest.raises(ValueError, match="released"):
        arena.view(0, 1)


def test_the_last_view_gives_back_the_descriptors_and_the_memory() -> None:
    maps = Path("/proc/self/maps")
    before = set(os.listdir("/proc/self/fd"))
    arena = Arena.create(918_273, MIB)
    array = np.ndarray(8, np.uint8, arena.view(arena.alloc(8), 8))
    arena.close()
    assert "dovetail-918273" in maps.read_text()
    del array
    assert "dovetail-918273" not in maps.read_text()
    assert set(os.listdir("/proc/self/fd")) == before


def test_free_pages_are_given_back_when_asked_and_blocks_in_use_stay(arena: Arena) -> None:
    kept, read = arena.alloc(3 * MIB), arena.alloc(5 * MIB)
    arena.view(kept, 3 * MIB)[:] = b"k" * (3 * MIB)
    arena.view(read, 5 * MIB)[:] = b"r" * (5 * MIB)
    arena.free(read)
    assert resident_bytes(arena) >= 8 * MIB, "what was freed stays hot"
    arena.give_back()
    arena.validate()
    assert 3 * MIB <= resident_bytes(arena) < 4 * MIB
    assert bytes(arena.view(kept, 3 * MIB)) == b"k" * (3 * MIB)
    assert arena.alloc(5 * MIB) == read, "and can be had again"


def test_small_blocks_are_kept_for_the_next_of_their_size_and_joined_before_anything_is_refused(arena: Arena) -> None:
    one, other, last = (arena.alloc(ALIGN_BYTES) for _ in range(3))
    for offset in (one, other, last):
        arena.free(offset)
    arena.validate()
    assert [arena.alloc(ALIGN_BYTES) for _ in range(3)] == [last, other, one], "the newest is in the cache"
    for offset in (one, other, last):
        arena.free(offset)
    assert arena.alloc(arena.size) == 0, "nothing is refused that has room between blocks in use"
    arena.validate()


def test_no_more_small_blocks_are_kept_apart_than_is_said_and_their_pages_are_given_back(arena: Arena) -> None:
    count = 2 * KEEP_QUICK_BYTES // QUICK_BYTES
    blocks = [arena.alloc(QUICK_BYTES) for _ in range(count)]
    for offset in blocks:
        arena.view(offset, QUICK_BYTES)[:] = b"x" * QUICK_BYTES
    for offset in blocks:
        arena.free(offset)
    arena.validate()
    assert arena.alloc(count * QUICK_BYTES // 2) == KEEP_QUICK_BYTES, "half of them were joined at once"
    arena.free(KEEP_QUICK_BYTES)
    arena.give_back()
    arena.validate()
    assert resident_bytes(arena) == 0
