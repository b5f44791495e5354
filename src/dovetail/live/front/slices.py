"""Slices of a running system: what every client with a quota has, and how somebody changes that.

Those that the scaler sets are told as well, and nobody else changes them. What else the scaler wants is carried out
here: workers come and go. A change is an event of the Controller (`control.slicing`), so that the log has it and a
replay does the same.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...control import Controller, SetSlice, SliceChanged, StartWorker, StopWorker
from ...errors import BadRequest
from ...record.scaling import told
from ...state.run_batch import FULL_QUOTA
from ...state.worker import FULL_SHARE
from ..links.wire import Standing
from .fleet import Fleet

__all__ = ["Slice", "Slices"]


class Slice(msgspec.Struct, frozen=True):
    """What a client has of each device, or of one."""

    client: str
    share_pct: int
    quota_pct: int
    #: Name of the worker that its batches go to; empty: any.
    worker: str = ""


class Slices:
    """Tells and changes them; `post` takes an event to the Controller."""

    def __init__(
        self,
        controller: Controller,
        fleet: Fleet,
        post: Callable[[SliceChanged], None],
        now_ns: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self._controller = controller
        self._fleet = fleet
        self._workers = fleet.workers
        self._post = post
        self._now_ns = now_ns
        self._say = say

    def carry_out(self, action: SetSlice | StartWorker | StopWorker) -> None:
        """What the scaler has decided; or only say it. Slices are what the next batches say."""
        if action.dry:
            self._say(told(action, self._name_of))
        elif isinstance(action, StartWorker):
            self._fleet.grow(action.reason)
        elif isinstance(action, StopWorker):
            self._fleet.shrink(action.worker, action.reason)

    def _name_of(self, ident: int) -> str:
        worker = self._workers.get(ident)
        return str(ident) if worker is None else worker.spec.name

    def all(self) -> list[Slice]:
        """What every client with a quota has now, those first that declare it."""
        found = list(self._declared().values())
        cluster = self._controller.cluster
        dry = self._controller.policy.scaler.dry  # those that are only said are nobody's
        for pieces in () if dry else cluster.slices.values():
            found += [Slice(p.client, p.share_pct, p.quota_pct, self._name_of(p.worker)) for p in pieces.values()]
        return found

    def _declared(self) -> dict[str, Slice]:
        """Those that can be changed, by client."""
        found = {}
        for stage in self._controller.stages.values():
            if stage.sliced:
                home = self._workers.get(self._controller.homes.get(stage.name, 0))
                client, name = stage.client or stage.name, "" if home is None else home.spec.name
                found[client] = Slice(client, stage.share_pct, stage.quota_pct, name)
        return found

    def change(self, client: str, share_pct: int = 0, quota_pct: int = 0, worker: str | None = None) -> Slice:
        """Give a client another slice from now on; what is not said stays. No worker (empty): any."""
        known = self._declared()
        if (now := known.get(client)) is None:
            some = ", ".join(known) or "none"
            raise BadRequest(f"client {client!r} declares no quota that could be changed; those that do: {some}")
        share_pct, quota_pct = share_pct or now.share_pct, quota_pct or now.quota_pct
        if not (1 <= share_pct <= FULL_SHARE and 1 <= quota_pct <= FULL_QUOTA):
            raise BadRequest(f"a share of {share_pct} % for {quota_pct} % of the time is none; give 1 to 100")
        idents = {w.spec.name: ident for ident, w in self._workers.items() if not w.spec.on_host}
        home = now.worker if worker is None else worker
        if home and home not in idents:
            raise BadRequest(f"there is no worker {home!r}; there are: {', '.join(idents)}")
        self._post(SliceChanged(self._now_ns(), 0, client, share_pct, quota_pct, idents[home] if home else 0))
        if home != now.worker and home:
            for ident in idents.values():
                if ident != idents[home]:  # what it owes there, if anything, is not forgiven
                    self._workers[ident].send(Standing(client, idents[home]))
        return Slice(client, share_pct, quota_pct, home)
