"""What is known of kernels and of times while a server runs: read from the store at the start, and written back.

Rules of this file
- Workers report what they have seen of kernels since their last report. It is added to what is known, by sequence,
  here for workers that are started again and in the store for the next server.
- What the controller's predictor has learned of times and of neighbours is written every minute and at the end, in
  place of what was there: it began with that.
- To unpack and to write takes milliseconds: a thread of its own does it, one report after the other.
- The store is of use, not of need. If it cannot be read or written, that is said once and serving goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ...errors import ProfileError
from ...predict import EstimatorState, Predictor
from ...predict.kernel_times import MOST_SEQUENCES
from ...profile.kernelrows import pack, unpack_cut, unpack_stats
from ...profile.kernels import Cut, KernelStats
from ...profile.machine import Identity
from ...profile.record import FRESH
from ...profile.store import ProfileStore
from ...record.interference import NOTHING, state_of
from ...record.learned import judge_learned, known_state, rows_of
from ...workflow.graph import StageSpec
from ..links.wire import Learned

__all__ = ["KernelStore", "TimesStore"]

#: What a worker is told of kernels at most; the newest comes first.
MOST_BYTES = 16 << 20
#: How often what was learned of times is written: what a killed server forgets.
SAVE_SECONDS = 60.0
Say = Callable[[str], None]


class _Writer:
    """A thread that writes, one thing after the other. What goes wrong is said, each trouble once."""

    def __init__(self, what: str, say: Say) -> None:
        self._what = what
        self._say = say
        self._said: set[str] = set()
        self._thread = ThreadPoolExecutor(1, what)
        self._loop = asyncio.get_running_loop()

    def put(self, write: Callable[[], None]) -> None:
        """Called by the event loop; returns at once."""
        self._thread.submit(self._run, write)

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # a full disk, say, or a worker that is wrong: neither is a reason to stop serving
            text = f"{error}; what is learned of {self._what} may be forgotten"
            self._loop.call_soon_threadsafe(self._say_once, text)

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 10:
            self._said.add(text)
            self._say(text)

    async def close(self) -> None:
        """Wait until all is written."""
        await self._loop.run_in_executor(None, self._thread.shutdown)


class KernelStore:
    """What is known of the kernels of some models on this machine."""

    def __init__(
        self,
        store: ProfileStore | None,
        identity: Identity,
        models: Collection[str],
        say: Say = lambda _: None,
    ) -> None:
        self._store = store
        self._identity = identity
        self._say = say
        self._models = set(models)
        self._known: dict[str, KernelStats] = {}
        #: The same, packed, as workers get it.
        self._packed: dict[str, bytes] = {}
        self._cuts: dict[str, Cut] = {}
        self._writer = _Writer("kernels", say)
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
        self._writer.put(lambda: self._add(message))

    async def close(self) -> None:
        """Wait until all that was taken is written."""
        await self._writer.close()

    def _add(self, message: Learned) -> None:
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


class TimesStore:
    """What is known of the times of some stages on this machine."""

    def __init__(
        self,
        store: ProfileStore,
        identity: Identity,
        specs: Sequence[StageSpec],
        say: Say = lambda _: None,
        *,
        every_s: float = SAVE_SECONDS,
    ) -> None:
        self._store = store
        self._identity = identity
        self._specs = specs
        self._say = say
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._writer = _Writer("times", say)
        self._predictor: Predictor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._saved = EstimatorState()
        #: What was known at the start; None if that was nothing.
        self.known: EstimatorState | None = None
        try:
            self.known = self._read()
        except ProfileError as error:
            self._say(f"{error}; what is known of times begins with the profiles")

    def _read(self) -> EstimatorState | None:
        found = judge_learned(self._store.learned(), self._identity, self._specs)
        others = Counter(f"{s.state}: {'; '.join(s.reasons)}" for s in found if s.state != FRESH)
        for why, count in others.items():
            self._say(f"what {self._store.path} has of the times of {count} stage(s) or model(s) is not used, {why}")
        neighbours, why = state_of(self._store.learned(), self._identity)
        if neighbours is None and why != NOTHING:
            self._say(f"what {self._store.path} has of interference is not used: {why}")
        state = known_state(found)
        self._saved = state = msgspec.structs.replace(state, interference=neighbours or msgspec.UNSET)
        return state or None

    def keep(self, predictor: Predictor) -> None:
        """Write what this predictor learns, from now on."""
        self._predictor = predictor
        self._timer = self._loop.call_later(self._every_s, self._tick)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._tick)
        self._save()

    def _save(self) -> None:
        """Hand what was learned to the thread that writes, if that is more than before."""
        if self._predictor is None:
            return
        state = self._predictor.state()
        state = EstimatorState(runs=state.runs, loads=state.loads, interference=state.interference)
        if state != self._saved:
            self._saved = state
            self._writer.put(lambda: self._store.put_learned(rows_of(state, self._specs, self._identity)))

    async def close(self) -> None:
        """Write what was learned, and wait until it is written."""
        if self._timer is not None:
            self._timer.cancel()
        self._save()
        await self._writer.close()
