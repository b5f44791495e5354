"""The arenas of one system as the front sees them: what is in use in each, and how blocks go back to their owners.

Every worker writes results into its own arena; everybody reads them in place. The front alone knows when a block is
of no use any more. It says so with the next batch for that worker, or after a moment if there is none: freeing costs
no packet of its own and wakes no worker out of its work.

An arena outlives its worker for as long as values in it are inputs of open requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DovetailError, Overloaded
from ..links.wire import Attach, Detach, Free
from ..tensors.arena import Arena, ArenaFull
from ..tensors.codec import encode
from ..tensors.ref import Ref
from .link import WorkerLink

__all__ = ["Memory"]

#: How long a freed block may wait for a batch to ride with: longer than most batches take, so that most do.
FREE_SECONDS = 0.05
#: Share of a worker's arena in use above which nothing new is admitted, of class 1 and of lower ones; the rest is for
#: what is under way.
FULL_ABOVE, FULL_ABOVE_FOR_LOWER = 0.75, 0.6


class Memory:
    """Arenas by number; `number` is that of the front's own."""

    def __init__(self, arena_bytes: int, workers: dict[int, WorkerLink], number: int = 0) -> None:
        self.front = Arena.create(number, arena_bytes)
        self.arenas: dict[int, Arena] = {number: self.front}
        #: Blocks and bytes of ours in each worker's arena, and bytes of other fronts as the worker last said.
        self.blocks: dict[int, int] = {}
        self.used_bytes: dict[int, int] = {}
        self._others_bytes: dict[int, int] = {}
        #: Kind of the worker that each arena is or was of.
        self.kinds: dict[int, str] = {}
        self._workers = workers
        self._to_free: dict[int, list[int]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, worker: WorkerLink) -> None:
        """Let everybody read a new worker's arena, and let it read theirs."""
        assert worker.arena is not None
        for other in self._workers.values():
            if other is not worker and other.arena is not None:
                other.send(Attach(worker.ident), [worker.arena.fd])
        # Those of lost workers, too: what they left behind may be an input of what this one will run.
        for ident, arena in self.arenas.items():
            if arena is not self.front:
                worker.send(Attach(ident), [arena.fd])
        self.arenas[worker.ident] = worker.arena
        self.blocks[worker.ident] = self.used_bytes[worker.ident] = self._others_bytes[worker.ident] = 0
        self.kinds[worker.ident] = worker.spec.kind

    def lose(self, ident: int) -> None:
        """A worker is gone; its arena goes as soon as nothing in it is of use."""
        if ident not in self.arenas:
            return  # it never introduced itself
        self._to_free.pop(ident, None)
        if not self.blocks[ident]:
            self._let_go(ident)

    def heard(self, ident: int, arena_bytes: int) -> None:
        """A worker that other fronts share has said how much of its arena is in use."""
        if ident in self.used_bytes:
            self._others_bytes[ident] = max(0, arena_bytes - self.used_bytes[ident])

    def full(self, priority: int = 1) -> int:
        """The number of a worker whose arena is too full for new requests of a class; 0 if there is none."""
        above = FULL_ABOVE if priority <= 1 else FULL_ABOVE_FOR_LOWER
        for ident, used in self.used_bytes.items():
            if used + self._others_bytes[ident] > self.arenas[ident].size * above:
                return ident
        return 0

    def place(self, inputs: Sequence[Ref | Any]) -> tuple[list[Ref], list[Ref]]:
        """Inputs of a request in the front's arena: blocks of all, and those of them that were made here."""
        refs: list[Ref] = []
        made: list[Ref] = []
        try:
            for value in inputs:
                if not isinstance(value, Ref):
                    value = encode(value, self.front)
                    made.append(value)
                refs.append(value)
        except DovetailError as error:
            self.displace(made)
            if isinstance(error, ArenaFull):
                raise Overloaded(str(error), retry_after_ms=1000) from error
            raise
        return refs, made

    def displace(self, made: list[Ref], then: Callable[[], None] | None = None) -> None:
        """Nobody reads these inputs any more; `then` is called after that."""
        if not self.closed:
            for ref in made:
                self.front.free(ref.offset)
        if then is not None:
            then()

    def keep(self, ref: Ref) -> None:
        """A worker has written a block."""
        self.blocks[ref.arena] += 1
        self.used_bytes[ref.arena] += ref.nbytes

    def free(self, ref: Ref) -> None:
        """Nobody reads this block any more."""
        if self.closed:
            return
        ident = ref.arena
        self.blocks[ident] -= 1
        self.used_bytes[ident] -= ref.nbytes
        if ident not in self._workers:
            if not self.blocks[ident]:
                self._let_go(ident)
            return
        if ident in self._to_free:
            self._to_free[ident].append(ref.offset)
        else:
            self._to_free[ident] = [ref.offset]
        if self._timer is None:
            self._timer = self._loop.call_later(FREE_SECONDS, self._flush)

    def to_free(self, ident: int) -> list[int]:
        """What a worker is to be told with the message that is about to go to it."""
        return self._to_free.pop(ident, [])

    def _flush(self) -> None:
        self._timer = None
        for ident in list(self._to_free):
            self._workers[ident].send(Free(self._to_free.pop(ident)))

    def _let_go(self, ident: int) -> None:
        for worker in self._workers.values():
            if worker.arena is not None:
                worker.send(Detach(ident))
        self.arenas.pop(ident).close()
        del self.blocks[ident], self.used_bytes[ident], self._others_bytes[ident], self.kinds[ident]

    @property
    def closed(self) -> bool:
        """Whether everything was let go."""
        return self.front.fd < 0

    def close(self) -> None:
        """Let go of everything; what is freed later is of no interest."""
        if self._timer is not None:
            self._timer.cancel()
        for arena in self.arenas.values():
            arena.close()
