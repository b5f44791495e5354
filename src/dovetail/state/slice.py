"""A slice: a part of a worker, in share and in time, that a stage declares or that the scaler has given to it.

Rules of this file
- The controller opens, resizes and closes slices; policies only look.
- The scaler's slice has one batch at a time, so that what comes meanwhile goes together in the next one. Where its
  quota is a limit, batches wait at the ingress until the quota allows them: whoever comes meanwhile goes with them.
- A declared slice has two: one that runs and one that waits for its tokens at the device. Its quota may be that of a
  workflow, for all its stages together, and only the device's account knows what the others had.
- A slice that is closing takes nothing new, and is gone when its batch has ended: a slice that is resized, moved or
  removed loses no work.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ..units import MS
from ..workflow.graph import StageSpec
from .run_batch import FULL_QUOTA

__all__ = ["DECLARED_AT_ONCE", "QUOTA_WINDOW_NS", "Slice", "declared_slice", "slice_cpus"]

#: The window over which quotas are kept, here and in the account of a device. FaST-GShare had 10 s (2023) and 40 ms
#: (2024). 100 ms holds some kernels of a CPU [our choice].
QUOTA_WINDOW_NS: Final = 100 * MS
#: What has to be left of a quota for a batch to start: a token's least length in the account of a device.
_LEAST_NS: Final = MS
#: Batches that a declared slice has at once: one that runs and one that waits [our choice].
DECLARED_AT_ONCE: Final = 2


def slice_cpus(cores: int, share_pct: int) -> int:
    """Cores that a share of a device is; of a device that has none it is one of the host's."""
    return max(1, (cores * share_pct + FULL_QUOTA // 2) // FULL_QUOTA) if cores else 1


class Slice:
    """A slice of a worker."""

    __slots__ = (
        "at_once",
        "batch",
        "client",
        "closing",
        "declared",
        "id",
        "idle_ns",
        "limits",
        "paid_ns",
        "quota_pct",
        "ran",
        "running",
        "share_pct",
        "stage",
        "worker",
    )

    def __init__(
        self,
        ident: int,
        stage: str,
        worker: int,
        share_pct: int,
        quota_pct: int,
        batch: int,
        limits: bool = True,
        declared: bool = False,
        client: str | None = None,
    ) -> None:
        self.id = ident
        self.stage = stage
        self.worker = worker
        #: Per cent of the device, and of its time.
        self.share_pct = share_pct
        self.quota_pct = quota_pct
        #: Largest batch that is in time here.
        self.batch = batch
        #: It never has more than that; otherwise it may use what nobody else does.
        self.limits = limits
        #: A stage has declared it. Else it is the scaler's to set.
        self.declared = declared
        #: So many batches at the most, and those that are there.
        self.at_once = DECLARED_AT_ONCE if declared else 1
        self.running: list[int] = []
        #: Who is charged at the device; empty: the stage itself.
        self.client = f"{stage}#{ident}" if client is None else client
        #: Since when it runs none.
        self.idle_ns = 0
        #: When its quota will have paid for all that it ran, if it runs no more.
        self.paid_ns = 0
        #: What it ran in the last window.
        self.ran: deque[tuple[int, int]] = deque()
        #: It goes as soon as it is idle.
        self.closing = False

    @property
    def area(self) -> int:
        """What it takes of a device, in hundredths of a per cent."""
        return self.share_pct * self.quota_pct

    def has_room(self) -> bool:
        """Whether a batch could go there."""
        return len(self.running) < self.at_once and not self.closing and 0 < self.quota_pct <= FULL_QUOTA

    def ready_ns(self) -> int:
        """When its quota allows another batch: as the account of its device reckons it (`device.usage`).

        What it ran is paid for in the long run, and no window has more than its quota.
        """
        if self.quota_pct >= FULL_QUOTA or not self.limits:
            return 0
        limit_ns = self.quota_pct * QUOTA_WINDOW_NS // FULL_QUOTA
        least_ns = min(_LEAST_NS, limit_ns // 2)
        at_ns = self.paid_ns - QUOTA_WINDOW_NS - -least_ns * FULL_QUOTA // self.quota_pct
        over_ns = sum(end_ns - begin_ns for begin_ns, end_ns in self.ran) - (limit_ns - least_ns)
        for begin_ns, end_ns in self.ran:
            if over_ns <= 0:
                break
            gone_ns = min(over_ns, end_ns - begin_ns)
            at_ns = max(at_ns, begin_ns + gone_ns + QUOTA_WINDOW_NS)
            over_ns -= gone_ns
        return at_ns

    def charge(self, begin_ns: int, end_ns: int) -> None:
        """A batch had the device from then to then."""
        self.paid_ns = max(self.paid_ns, begin_ns) - (begin_ns - end_ns) * FULL_QUOTA // self.quota_pct
        while self.ran and self.ran[0][1] <= end_ns - QUOTA_WINDOW_NS:
            self.ran.popleft()
        self.ran.append((begin_ns, end_ns))


def declared_slice(stage: StageSpec, worker: int) -> Slice:
    """What a stage with a quota has of a worker that holds its model. It may use what nobody else does.

    In strict mode its limit is kept by the device's account.
    """
    return Slice(
        worker,
        stage.name,
        worker,
        stage.share_pct or FULL_QUOTA,
        stage.quota_pct,
        stage.batch[-1],
        limits=False,
        declared=True,
        client=stage.client,
    )
