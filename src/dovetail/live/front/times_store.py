"""What is known of run and load times while a server runs: read from the store at the start, and written back.

Rules of this file
- What the controller's predictor has learned is written every minute and at the end, in place of what was there: it
  began with that.
- To write takes milliseconds: a thread of its own does it.
- The store is of use, not of need. If it cannot be read or written, that is said once and serving goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ...errors import ProfileError
from ...predict import EstimatorState, Predictor
from ...profile.machine import Identity
from ...profile.record import FRESH
from ...profile.store import ProfileStore
from ...record.learned import judge_learned, known_state, rows_of
from ...workflow.graph import StageSpec

__all__ = ["TimesStore"]

#: How often what was learned is written: what a killed server forgets.
SAVE_SECONDS = 60.0


class TimesStore:
    """What is known of the times of some stages on this machine."""

    def __init__(
        self,
        store: ProfileStore,
        identity: Identity,
        specs: Sequence[StageSpec],
        say: Callable[[str], None] = lambda _: None,
        *,
        every_s: float = SAVE_SECONDS,
    ) -> None:
        self._store = store
        self._identity = identity
        self._specs = specs
        self._say = say
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, "times")
        self._predictor: Predictor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._saved = EstimatorState()
        self._failed = False
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
        self._saved = state = known_state(found)
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
        state = EstimatorState(runs=state.runs, loads=state.loads)
        if state != self._saved:
            self._saved = state
            self._writer.submit(self._write, state)

    async def close(self) -> None:
        """Write what was learned, and wait until it is written."""
        if self._timer is not None:
            self._timer.cancel()
        self._save()
        await self._loop.run_in_executor(None, self._writer.shutdown)

    def _write(self, state: EstimatorState) -> None:
        try:
            self._store.put_learned(rows_of(state, self._specs, self._identity))
        except Exception as error:  # a full disk, say: no reason to stop serving
            if not self._failed:
                self._failed = True
                self._loop.call_soon_threadsafe(self._say, f"{error}; what is learned of times may be forgotten")
