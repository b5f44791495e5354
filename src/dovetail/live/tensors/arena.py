"""Memory that processes share: one owner allocates in it, everybody else reads.

Rules of this file
- An arena is a sparse memfd. It has no name, so nothing is left behind after a SIGKILL, and its bytes stay
  readable as long as one process maps it, be its owner alive or dead.
- Only the owner allocates and frees, from one thread: no lock, neither between processes nor in one.
- Sizes are sealed: no process can make another die of SIGBUS by truncating what it has mapped.
- All bookkeeping is in the owner's heap, not in the arena: a stray write cannot corrupt the allocator.

The allocator keeps holes in bins of similar size (a power of two in four steps) and takes from the first bin
that fits: two-level segregated fit (Masmano et al., "TLSF", ECRTS 2004). A freed block is joined with its
neighbours at once, so sizes that change over days do not fragment the arena. A few small ones are kept apart for the
next block of their very size, as dlmalloc does with its fast bins: in a steady load that is the commonest case. They
are joined as the others before anything is refused for want of room. Holes are hot (their pages are in
memory) or cold (never touched, or given back). Hot ones are used first, and a hot and a cold neighbour are
joined only when nothing else fits, as jemalloc does with its dirty and retained extents.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

from ...errors import DovetailError

__all__ = ["ALIGN_BYTES", "Arena", "ArenaFull"]

ALIGN_BYTES = 64  # a cache line, and the widest vector register (AVX-512)
BIG_BYTES = 1 << 20  # holes from this size are worth a system call to give back
# Hot holes kept before pages go back: an eighth of the default arena, or 200 tensors of 0.6 MB. To write such a
# tensor takes 20 µs in hot pages and 400 µs in cold ones (2 cores, Linux 6.18): a steady load must stay hot.
KEEP_BYTES = 128 << 20

# Blocks up to this size are kept for the next of their size, and so many bytes of them in all.
QUICK_BYTES, KEEP_QUICK_BYTES = 64 << 10, 1 << 20

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class ArenaFull(DovetailError):
    """No hole is large enough; the caller sheds the request or waits for blocks to be freed."""


class Arena:
    """One memfd that its owner allocates in and others read."""

    def __init__(self, ident: int, fd: int, *, owned: bool, keep_bytes: int = KEEP_BYTES) -> None:
        """Maps `fd` and takes it over: `close` closes it. Use `create` or `attach`."""
        self.ident = ident
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.used_bytes = 0
        self._owned = owned
        self._keep_bytes = keep_bytes
        mapping = mmap.mmap(fd, self.size, access=mmap.ACCESS_WRITE if owned else mmap.ACCESS_READ)
        self._mapping: mmap.mmap | None = mapping
        self._memory = memoryview(mapping)
        self._live: dict[int, int] = {}  # start -> size of each allocated block
        self._quick: dict[int, list[int]] = {}  # size -> starts of freed blocks that were not joined
        self._quick_bytes = 0
        self._hot = _Holes(self.size)
        self._cold = _Holes(self.size)
        if owned:
            self._cold.add(0, self.size)

    @classmethod
    def create(cls, ident: int, size: int = 1 << 30, *, keep_bytes: int = KEEP_BYTES) -> Arena:
        """A new arena of `size` bytes (rounded up to pages) that this process owns.

        Pages cost memory only once written. Free pages beyond `keep_bytes` go back to the system.
        """
        if size <= 0:
            raise ValueError(f"an arena of {size} bytes holds nothing; give a positive size")
        fd = os.memfd_create(f"dovetail-{ident}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(ident, fd, owned=True, keep_bytes=keep_bytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, ident: int, fd: int) -> Arena:
        """Another process's arena, mapped read-only. Takes over `fd`, also when it refuses it."""
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError(f"arena {ident} is not sealed: its owner could truncate it under this process")
            return cls(ident, fd, owned=False)
        except BaseException:
            os.close(fd)
            raise

    @property
    def blocks(self) -> int:
        """Number of blocks allocated and not yet freed."""
        return len(self._live)

    def alloc(self, nbytes: int) -> int:
        """Offset of a new block of at least `nbytes`, aligned to 64 bytes; its content is undefined.

        `ArenaFull` is raised only when no gap between the live blocks is large enough; so after everything is
        freed, one block of the whole size fits again.
        """
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        size = (nbytes + ALIGN_BYTES - 1) & -ALIGN_BYTES or ALIGN_BYTES
        quick = self._quick.get(size)
        if quick:
            start = quick.pop()
            self._quick_bytes -= size
        else:
            start = self._take(size)
        self._live[start] = size
        self.used_bytes += size
        return start

    def _take(self, size: int) -> int:
        start = self._hot.take(size)
        if start is None:
            start = self._cold.take(size)
        return self._join_and_take(size) if start is None else start

    def free(self, offset: int) -> None:
        """Gives a block back. The caller knows that nobody reads it any more; a late reader sees other bytes.

        A `ValueError` names an offset where no block starts, as after a double free.
        """
        size = self._live.pop(offset, None)
        if size is None:
            self._require_owner()
            raise ValueError(f"arena {self.ident}: no block starts at offset {offset}; was it freed twice?")
        self.used_bytes -= size
        if size <= QUICK_BYTES and self._quick_bytes < KEEP_QUICK_BYTES:
            quick = self._quick.get(size)
            if quick is None:
                quick = self._quick[size] = []
            quick.append(offset)
            self._quick_bytes += size
            return
        self._hot.add(offset, size)
        if self._hot.nbytes > self._keep_bytes:
            # Down to half, so that the next frees do not each pay for a system call.
            self._cool(down_to=self._keep_bytes // 2, smallest=BIG_BYTES)

    def give_back(self) -> None:
        """Return all free pages to the system: whoever owns it has nothing to write for now."""
        self._require_owner()
        self._join_quick()
        self._cool(down_to=0, smallest=mmap.PAGESIZE)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of a range, writable for the owner; it stays mapped as long as the view lives."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ValueError(f"arena {self.ident} has {self.size} bytes, not {nbytes} at offset {offset}")
        return self._memory[offset : offset + nbytes]

    def close(self) -> None:
        """Closes the descriptor and lets go of the memory, which is unmapped with the last view of it.

        Never by `mmap.close`: `np.ndarray(buffer=...)` refers to the mapping without exporting a buffer of it,
        so that `mmap.close` would not notice the array and unmap its memory under it.
        """
        if self.fd < 0:
            return
        self._owned = False
        self._hot, self._cold = _Holes(self.size), _Holes(self.size)
        self._live.clear()
        self._quick.clear()
        self.used_bytes = self._quick_bytes = 0
        self._memory.release()
        self._mapping = None
        os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def validate(self) -> None:
        """For tests: blocks and holes tile the arena without gap or overlap, and the sums agree."""
        quick = [(start, size) for size, starts in self._quick.items() for start in starts]
        assert self._quick_bytes == sum([size for _, size in quick])
        ranges = sorted([*self._live.items(), *quick, *self._hot.size_at.items(), *self._cold.size_at.items()])
        end = 0
        for start, size in ranges:
            assert start == end and size > 0 and start % ALIGN_BYTES == 0, (start, end, size)
            end = start + size
        assert end == (self.size if self._owned else 0)
        assert self.used_bytes == sum(self._live.values())
        for holes in (self._hot, self._cold):
            holes.validate()

    def _join_and_take(self, size: int) -> int:
        """The last resort: makes every hole cold, so that hot and cold neighbours become one."""
        self._require_owner()
        free_bytes = self.size - self.used_bytes
        if free_bytes >= size:  # else not worth the pages
            self._join_quick()
            self._cool(down_to=0, smallest=0)
            start = self._cold.take(size)
            if start is not None:
                return start
        raise ArenaFull(
            f"arena {self.ident} has no room for {size} bytes: {free_bytes} of its {self.size} bytes are free, "
            f"but not enough in one piece"
        )

    def _join_quick(self) -> None:
        """Makes holes of the freed blocks that were kept for the next of their size."""
        for size, starts in self._quick.items():
            for start in starts:
                self._hot.add(start, size)
        self._quick.clear()
        self._quick_bytes = 0

    def _cool(self, *, down_to: int, smallest: int) -> None:
        """Returns the pages of hot holes to the system, the largest holes first."""
        while self._hot.nbytes > down_to and (hole := self._hot.pop_large(smallest)) is not None:
            start, size = hole
            first_page = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            whole_pages = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE - first_page
            if whole_pages > 0 and self._mapping is not None:
                with contextlib.suppress(OSError):  # a kernel that cannot punch holes keeps the pages: no harm
                    self._mapping.madvise(mmap.MADV_REMOVE, first_page, whole_pages)
            self._cold.add(start, size)

    def _require_owner(self) -> None:
        if not self._owned:
            state = "is closed" if self.fd < 0 else "belongs to another process"
            raise RuntimeError(f"arena {self.ident} {state}: only its owner allocates and frees in it")


def _bin_of(size: int) -> int:
    """Index of the bin for holes of this size; four bins to each power of two."""
    granules = size // ALIGN_BYTES
    shift = granules.bit_length() - 3
    return granules if shift <= 0 else (shift << 2) + (granules >> shift)


class _Holes:
    """Free ranges of one kind; no two touch. All in constant time but the last resort of `take`."""

    def __init__(self, arena_size: int) -> None:
        self.nbytes = 0
        self.size_at: dict[int, int] = {}  # start -> size
        self._start_of: dict[int, int] = {}  # end -> start
        self._bins: list[dict[int, int]] = [{} for _ in range(_bin_of(arena_size) + 1)]  # as size_at, newest last
        self._filled = 0  # bit i is set while bin i has holes

    def add(self, start: int, size: int) -> None:
        """Adds a range, joined with the holes that it touches."""
        if start + size in self.size_at:
            size += self._remove(start + size)
        before = self._start_of.get(start)
        if before is not None:
            size += self._remove(before)
            start = before
        self._insert(start, size)

    def take(self, size: int) -> int | None:
        """Start of a range cut from the front of a hole that is hardly larger; None when no hole fits."""
        index = _bin_of(size)
        if index >= len(self._bins):
            return None
        similar = self._bins[index]
        if similar:  # the newest is in the processor's cache, and in a steady load it has just this size
            newest = next(reversed(similar))
            if similar[newest] >= size:
                return self._cut(newest, size)
        wider = self._filled >> (index + 1)
        if wider:
            first = index + (wider & -wider).bit_length()
            return self._cut(next(reversed(self._bins[first])), size)
        fitting = [(hole_size, start) for start, hole_size in similar.items() if hole_size >= size]
        return self._cut(min(fitting)[1], size) if fitting else None

    def pop_large(self, smallest: int) -> tuple[int, int] | None:
        """Removes a hole of the highest bin, as (start, size); None when all are below `smallest`."""
        index = self._filled.bit_length() - 1
        if index < 0 or index < _bin_of(smallest):
            return None
        start = next(reversed(self._bins[index]))
        return start, self._remove(start)

    def validate(self) -> None:
        """For tests: the four ways to find a hole agree."""
        assert self.nbytes == sum(self.size_at.values())
        assert {start + size: start for start, size in self.size_at.items()} == self._start_of
        assert not self.size_at.keys() & self._start_of.keys(), "two holes touch"
        for index, holes in enumerate(self._bins):
            assert bool(holes) == bool(self._filled >> index & 1)
            assert all(_bin_of(size) == index and self.size_at[start] == size for start, size in holes.items())
        assert sum(map(len, self._bins)) == len(self.size_at)

    def _cut(self, start: int, size: int) -> int:
        rest = self._remove(start) - size
        if rest:
            self._insert(start + size, rest)
        return start

    def _insert(self, start: int, size: int) -> None:
        index = _bin_of(size)
        self._bins[index][start] = size
        self._filled |= 1 << index
        self.size_at[start] = size
        self._start_of[start + size] = start
        self.nbytes += size

    def _remove(self, start: int) -> int:
        size = self.size_at.pop(start)
        del self._start_of[start + size]
        index = _bin_of(size)
        holes = self._bins[index]
        del holes[start]
        if not holes:
            self._filled ^= 1 << index
        self.nbytes -= size
        return size
