"""What one client used of a device: in the last window, too much, and for what it asked for.

Rules of this file
- Three measures of one use. `used_ns`: in the window that ends now. The level: a bucket that fills at the rate of
  the limit, up to one window's worth, and from which use is taken; below nought it is a debt. `virtual_ns`: use
  divided by what was asked for, by which clients are compared.
- Use is charged while it happens, and put right when its end is told: what was measured on the device counts.
- Times may come in a little out of order. A time before the last one changes nothing.
"""

from __future__ import annotations

from collections import deque

from ..state.run_batch import FULL_QUOTA

__all__ = ["Usage"]


class Usage:
    """The use of one client."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        #: What was declared; 0: nothing.
        self.request_pct = 0
        self.limit_pct = FULL_QUOTA
        #: It was declared by a batch, not by itself.
        self.by_batch = False
        #: Tasks of it that are here.
        self.tasks = 0
        #: Device that it moves to when they are gone; 0: it stays.
        self.moves_to = 0
        #: When one of them came or went last.
        self.seen_ns = 0
        self.virtual_ns = 0
        #: What it is reckoned to ask for.
        self._weight_pct = FULL_QUOTA
        #: Per cent of nanoseconds; `limit_pct * window_ns` at most.
        self._level = FULL_QUOTA * window_ns
        self._at_ns = 0
        #: Begin of each kernel that runs, and what was charged for it.
        self.runs: list[list[int]] = []
        self._ran: deque[tuple[int, int]] = deque()

    @property
    def request_ns(self) -> int:
        """What it asks for in a window."""
        return self._weight_pct * self.window_ns // FULL_QUOTA

    @property
    def limit_ns(self) -> int:
        """What it may use in a window."""
        return self.limit_pct * self.window_ns // FULL_QUOTA

    @property
    def saved_ns(self) -> int:
        """What it could use without getting into debt; below nought: used too much, and not repaid."""
        return self._level // FULL_QUOTA

    def resize(self, request_pct: int, limit_pct: int, now_ns: int) -> None:
        """Ask for another quota from now on; what was used was used."""
        self.advance(now_ns)
        self.request_pct, self.limit_pct = request_pct, limit_pct
        self._level = min(self._level, limit_pct * self.window_ns)

    def reckon(self, weight_pct: int, now_ns: int) -> None:
        """It is reckoned to ask for so much from now on."""
        self.advance(now_ns)
        self._weight_pct = weight_pct

    def bring(self, saved_ns: int, limit_pct: int) -> None:
        """It comes from elsewhere, with what it had saved or owed there: what it lacked there it lacks here, too."""
        self._level -= max(0, limit_pct * self.window_ns - saved_ns * FULL_QUOTA)

    # -- time and use ---------------------------------------------------------------------------------------------

    def advance(self, now_ns: int) -> None:
        """Time has passed: the bucket fills, and what runs is charged."""
        passed_ns = now_ns - self._at_ns
        if passed_ns <= 0:
            return
        self._at_ns = now_ns
        for run in self.runs:
            run[1] += passed_ns
        self._charge(passed_ns * len(self.runs), passed_ns * self.limit_pct)

    def _charge(self, used_ns: int, filled: int = 0) -> None:
        level = self._level + filled - used_ns * FULL_QUOTA
        self._level = min(level, self.limit_pct * self.window_ns)
        self.virtual_ns += used_ns * FULL_QUOTA // self._weight_pct

    def begin(self, now_ns: int) -> None:
        """A kernel runs."""
        self.advance(now_ns)
        self.runs.append([now_ns, self._at_ns - now_ns])
        if self._at_ns > now_ns:
            self._charge(self._at_ns - now_ns)

    def end(self, begin_ns: int, end_ns: int) -> None:
        """A kernel has run from then to then."""
        if not self.runs:
            return
        self.advance(end_ns)
        run = min(self.runs, key=lambda r: abs(r[0] - begin_ns))
        self.runs.remove(run)
        self._charge(max(0, end_ns - begin_ns) - run[1])
        if end_ns > begin_ns:
            self._ran.append((begin_ns, end_ns))

    def used_ns(self, now_ns: int) -> int:
        """Use of the window that ends now."""
        since_ns, ran = now_ns - self.window_ns, self._ran
        while ran and ran[0][1] <= since_ns:
            ran.popleft()
        used_ns = sum(min(end, now_ns) - max(begin, since_ns) for begin, end in ran if end > since_ns)
        return used_ns + sum(max(0, now_ns - max(begin, since_ns)) for begin, _ in self.runs)

    # -- limits -----------------------------------------------------------------------------------------------------

    def left_ns(self, now_ns: int) -> int:
        """How long it may run from now on: within the window's limit, and without getting into debt."""
        return min(self.limit_ns - self.used_ns(now_ns), self.saved_ns)

    def free_ns(self, least_ns: int, now_ns: int) -> int:
        """When it may run for so long, if it does not run before; `least_ns` is at most the limit of a window."""
        short = least_ns * FULL_QUOTA - self._level
        at_ns = now_ns + max(0, -(-short // self.limit_pct))
        over_ns = self.used_ns(now_ns) - (self.limit_ns - least_ns)
        since_ns = now_ns - self.window_ns
        for begin, end in self._ran:
            if over_ns <= 0:
                break
            inside_ns = max(0, end - max(begin, since_ns))
            gone_ns = min(over_ns, inside_ns)
            at_ns = max(at_ns, max(begin, since_ns) + gone_ns + self.window_ns)
            over_ns -= gone_ns
        return max(at_ns, now_ns + 1)

    def validate(self) -> None:
        """Check every invariant; for tests."""
        assert self._level <= self.limit_pct * self.window_ns, "no more than a window's worth is saved"
        assert all(begin < end for begin, end in self._ran), "what ran took time"
