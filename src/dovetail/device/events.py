"""What a device is told, and what it answers: the whole vocabulary of the Device machine.

Rules of this file
- Data only. Time is not part of an event: it comes in with the step (`Device.step(event, now_ns)`), so that the
  controller's own actions (`RunBatch`) are events of the device as they are.
- Everything starts by a `Grant`, and only by that: a whole batch, all kernels of a task that is alone, one kernel in
  somebody's gap, a few of them until a quota ends. What was granted ends once, by `GrantEnded`. `Revoke` takes back
  what has not begun; kernels that run are never interrupted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..state.run_batch import NEVER_NS, RunBatch

__all__ = [
    "NOBODY", "TO_THE_END", "AlarmRang", "BatchWithdrawn", "BudgetChanged", "DeviceAction", "DeviceEvent", "Evict",
    "Grant", "GrantEnded", "KernelsLaunched", "Load", "LoadBroke", "LoadDone", "ModelDropped", "ModelHinted",
    "ModelOrdered", "PlannedBatch", "QuotaChanged", "Refuse", "Revoke", "SetAlarm", "TaskPlanned",
]  # fmt: skip

#: `task` of a load or an eviction that no batch asked for.
NOBODY: Final = -1
#: `Grant.last` of a grant over all kernels that are left, as they are launched.
TO_THE_END: Final = -1


class TaskPlanned(msgspec.Struct, frozen=True, gc=False):
    """The kernels of a batch are known: they are `kernels` many, and statistics are kept under `sequence`.

    Told before its first grant or not at all; a batch that nothing is known of is one kernel. `launched` is how many
    of them could start now: all, unless a host launches them one by one (`KernelsLaunched`).
    """

    task: int
    sequence: str
    idents: tuple[str, ...]
    launched: int


class PlannedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch has come whose kernels are known already: `RunBatch` and `TaskPlanned` in one."""

    run: RunBatch
    sequence: str
    idents: tuple[str, ...]
    launched: int


class KernelsLaunched(msgspec.Struct, frozen=True, gc=False):
    """The host of a task has launched its kernels up to this one, this one not included."""

    task: int
    upto: int


class GrantEnded(msgspec.Struct, frozen=True, gc=False):
    """What was granted has ended: carried out, stopped by `Revoke` or by its time, or failed.

    `upto` is the first kernel that has not run. `spans` are begin and end of those that have, as far as they were
    measured; empty: they began with the grant and end now.
    """

    task: int
    upto: int
    #: The batch is over, well or not.
    over: bool = True
    spans: tuple[tuple[int, int], ...] = ()
    #: How long after the end of each of these its host launched the next, as far as it has; below nought: before.
    #: Empty where no host launches them one by one.
    gaps: tuple[int, ...] = ()


class BatchWithdrawn(msgspec.Struct, frozen=True, gc=False):
    """Nobody wants the batch any more. If it runs, whoever runs it has stopped it."""

    task: int


class ModelHinted(msgspec.Struct, frozen=True, gc=False):
    """The model is going to be needed. It waits for room, and lapses; with prefetching off it is ignored."""

    weights: str
    nbytes: int


class ModelOrdered(msgspec.Struct, frozen=True, gc=False):
    """The ingress wants the model here, and kept until it says otherwise (`ModelDropped`)."""

    weights: str
    nbytes: int


class ModelDropped(msgspec.Struct, frozen=True, gc=False):
    """Somebody wants the model gone: it goes if no batch runs on it or waits for it, else when none does."""

    weights: str
    reason: str


class LoadDone(msgspec.Struct, frozen=True, gc=False):
    """A load has ended well."""

    weights: str


class LoadBroke(msgspec.Struct, frozen=True, gc=False):
    """A load has failed, and so has what waited for it; whoever asks next tries again."""

    weights: str
    detail: str


class BudgetChanged(msgspec.Struct, frozen=True, gc=False):
    """Models may take so many bytes from now on."""

    usable_bytes: int
    reason: str


class QuotaChanged(msgspec.Struct, frozen=True, gc=False):
    """From now on this client asks for so much of the device's time, and may use so much of it.

    What it used, owes and is behind with is kept, and what runs goes on. A request of 0: nobody asks for anything for
    it any more.
    """

    client: str
    request_pct: int
    #: 0: as the account's mode has it.
    limit_pct: int = 0
    #: It has moved here from another device (`TokenAccount.standing`), with what it had saved there (below nought:
    #: used too much), and with the time that it was behind of others.
    moved: bool = False
    saved_ns: int = 0
    behind_ns: int = 0
    #: There its batches said what it asks for, and so they do here.
    by_batch: bool = False


class AlarmRang(msgspec.Struct, frozen=True, gc=False):
    """A time that was asked for has come. One too many does no harm."""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Run kernels `first` to `last` of a task, both included, and say when that has ended.

    Kernels begin while `until_ns` has not passed and the grant is not revoked. The first one begins whatever the time
    is. A grant to the end of a task whose host launches one by one may be kept while the host launches nothing; what
    was launched meanwhile is told (`KernelsLaunched`) before another task comes, or before the grant ends.
    """

    task: int
    first: int = 0
    last: int = TO_THE_END
    until_ns: int = NEVER_NS
    #: Why it may: "turn" it is its turn; "fill" it fits into a gap of a higher class; "beside" its share is free
    #: beside the higher class; "back-fill" whose turn it is waits for more share; "aged" it waited too long.
    why: str = "turn"
    #: Its model was there when the device was free for it.
    hit: bool = True
    #: It begins when so much time has gone by: evicted models are copied out first (`Rules.fetch_blocks` only).
    wait_ns: int = 0


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """Begin no further kernel of the task's grant; `GrantEnded` says how far it came."""

    task: int


class Load(msgspec.Struct, frozen=True, gc=False):
    """Bring a model into the device's memory, from host memory ("host") or from outside ("absent")."""

    weights: str
    tier: str
    #: The batch that needs it, or `NOBODY`.
    task: int


class Evict(msgspec.Struct, frozen=True, gc=False):
    """Let a model go; `reason` is for people."""

    weights: str
    nbytes: int
    reason: str
    #: The batch that needs the room, or `NOBODY`.
    task: int
    #: The model that comes in its place; empty if somebody merely wanted it gone.
    newcomer: str = ""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """The batch is not going to run here. `reason` is one of those of `control.BatchFailed`."""

    task: int
    reason: str
    detail: str


class SetAlarm(msgspec.Struct, frozen=True, gc=False):
    """Send `AlarmRang` at this time. Several may be open."""

    at_ns: int


DeviceEvent = (
    RunBatch | PlannedBatch | TaskPlanned | KernelsLaunched | GrantEnded | BatchWithdrawn
    | ModelHinted | ModelOrdered | ModelDropped | LoadDone | LoadBroke | BudgetChanged | QuotaChanged | AlarmRang
)  # fmt: skip
DeviceAction = Grant | Revoke | Load | Evict | Refuse | SetAlarm
