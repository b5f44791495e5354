"""What is known of kernels while a server runs: read from the store at the start, told to workers, and written back.

Rules of this file
- Workers report what they have seen since their last report. It is added to what is known, by sequence, here for
  workers that are started again and in the store for the next server.
- To unpack and to write takes milliseconds: a thread of its own does it, one report after the other.
- The store is of use, not of need. If it cannot be read or written, that is said once and serving goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from ...errors import ProfileError
from ...predict.kernel_times import MOST_SEQUENCES
from ...profile.kernelrows import pack, unpack_cut, unpack_stats
from ...profile.kernels import Cut, KernelStats
from ...profile.machine import Identity
from ...profile.store import ProfileStore
from ..links.wire import Learned

__all__ = ["KernelStore"]

#: What a worker is told of kernels at most; the newest comes first.
MOST_BYTES = 16 << 20


class KernelStore:
    """What is known of the kernels of some models on this machine."""

    def __init__(
        self,
        store: ProfileStore | None,
        identity: Identity,
        models: Collection[str],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._identity = identity
        self._say = say
        self._models = set(models)
        self._known: dict[str, KernelStats] = {}
        #: The same, packed, as workers get it.
        self._packed: dict[str, bytes] = {}
        self._cuts: dict[str, Cut] = {}
        self._said: set[str] = set()
        self._writer = ThreadPoolExecutor(1, "kernels")
        self._loop = asyncio.get_running_loop()
        if store is not None:
            try:
                self._read(store)
            except ProfileError as error:
                self._say(f"{error}; what is known of kernels begins with nothing")

    def _read(self, store: ProfileStore) -> None:
        others = Counter[str]()
        for status in store.kernel_status(self._identity):
            begin = status.key.model
            if not begin or not any(model.startswith(begin) for model in self._models):
                continue
            if status.stats is None or status.reasons:
                others[f"{status.state}: {'; '.join(status.reasons)}"] += 1
            else:
                self._known.setdefault(status.key.stage, status.stats)
        self._packed = {name: pack(stats) for name, stats in self._known.items()}
        self._cuts = {model: cut for model, cut in store.cuts(self._identity).items() if model in self._models}
        for why, count in others.items():
            self._say(f"what {store.path} has of the kernels of {count} sequence(s) is not used, {why}")
        if self._known:
            self._say(f"the kernels of {len(self._known)} sequence(s) are known from {store.path}")
        else:
            self._say(f"nothing is known of kernels yet; what is learned goes to {store.path}")

    def known(self) -> tuple[list[bytes], list[Cut]]:
        """What a worker is told at its start."""
        rows, left = [], MOST_BYTES
        for row in list(self._packed.values())[:MOST_SEQUENCES]:
            left -= len(row)
            if left < 0:
                break
            rows.append(row)
        return rows, list(self._cuts.values())

    def take(self, message: Learned) -> None:
        """A worker has learned something. Called by the event loop; returns at once."""
        self._writer.submit(self._add, message)

    async def close(self) -> None:
        """Wait until all that was taken is written."""
        await self._loop.run_in_executor(None, self._writer.shutdown)

    def _add(self, message: Learned) -> None:
        try:
            news = [unpack_stats(row) for row in message.kernels]
            cuts = [unpack_cut(row) for row in message.cuts]
            for stats in news:
                known = self._known.setdefault(stats.name, stats)
                if known is not stats:
                    known.merge(stats)
                self._packed[stats.name] = pack(known)
            for cut in cuts:
                before = self._cuts.get(cut.model)
                self._cuts[cut.model] = cut if before is None else before.joined(cut)
            if self._store is not None:
                self._store.put_kernels(news, self._identity, cuts=cuts)
        except Exception as error:  # a full disk, say, or a worker that is wrong: neither is a reason to stop serving
            self._loop.call_soon_threadsafe(self._say_once, f"{error}; what is learned of kernels may be forgotten")

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 10:
            self._said.add(text)
            self._say(text)
