"""Which offers were weighed for the batches of a request: the log is decided again, and the scheduler is watched.

Rules of this file
- What is told is what the scheduler that decides now would weigh; so it is told only as far as the replay decides as
  the log says.
- A policy that makes one offer at a time has nothing to weigh, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..control import Action, Controller, RunBatch
from ..errors import LogError
from ..record.log import LogReader
from ..schedule.offers import Considered, Dovetail
from ..wiring import make_controller
from .replay import policy_spec

__all__ = ["Decision", "WeighedOffer", "decisions"]


class WeighedOffer(msgspec.Struct, frozen=True):
    """One way to run a batch, as it was weighed."""

    worker: str
    items: int
    cpus: int
    share_pct: int
    #: From the decision on: when it could start, what it fetches first, and when it should end.
    start_ns: int
    fetch_ns: int
    end_ns: int
    #: What an item would cost there.
    usd: float
    #: What it was compared by, in the unit of the decision: the least is taken.
    score: float
    note: str


class Decision(msgspec.Struct, frozen=True):
    """What was weighed for one batch; the first offer was taken."""

    step: int
    batch: int
    stage: str
    offers: tuple[WeighedOffer, ...]
    #: Unit of scores: "usd" of all that is still to come of a request, or "ns" per item.
    unit: str


def decisions(
    path: Path, request: int, until_ns: int, progress: Callable[[float, float], None] | None = None
) -> tuple[list[Decision], str]:
    """What was weighed for each batch of a request, in order; and why there is nothing (more) to tell, if so.

    Reading stops at `until_ns`: when the request had ended.
    """
    found: list[Decision] = []
    with LogReader(path) as log:
        header = log.header
        spec = policy_spec(header)
        controller = make_controller(
            header.graphs, spec, header.entries, header.cores, learned=header.learned, ingress=header.ingress
        )
        scheduler = controller.policy.scheduler
        if not isinstance(scheduler, Dovetail):
            return [], f"the policy {spec.name!r} makes one offer at a time"
        weighed: list[Considered] = []
        scheduler.watcher = weighed.append
        encode = msgspec.msgpack.encode
        try:
            for step in log:
                if step.event.at_ns > until_ns:
                    break
                if progress is not None and not log.steps % 2048:
                    progress(log.read_bytes, log.size_bytes)
                weighed.clear()
                actions = controller.step(step.event)
                if encode(actions) != encode(step.actions):
                    return found, f"this Dovetail decides step {controller.step_number} otherwise"
                found += _of(request, actions, weighed, controller)
        except LogError:
            raise
        except Exception as error:  # whatever it is, the recorded controller did not raise it
            return found, f"this Dovetail cannot decide it again: {type(error).__name__}: {error}"
    return found, ""


def _of(request: int, actions: list[Action], weighed: list[Considered], controller: Controller) -> list[Decision]:
    """The decisions of a step that concern a request."""
    found = []
    left = [c for c in weighed if c.offers]
    for action in actions:
        if type(action) is not RunBatch:
            continue
        for position, considered in enumerate(left):
            best = considered.offers[0]
            if best.worker.id == action.worker and controller.queues[considered.queue].stage.name == action.stage:
                del left[: position + 1]
                if any(item[0] == request for item in action.items):
                    found.append(_told(considered, action))
                break
    return found


def _told(considered: Considered, action: RunBatch) -> Decision:
    items = len(action.items)
    offers = []
    now_ns, taken = considered.at_ns, considered.offers[0].score
    for position, offer in enumerate(considered.offers):
        worker, config = offer.worker, offer.config
        size = min(considered.waiting, config.batch) if position else items
        if position == 0:
            note = f"taken: {offer.reason or 'the least score that a worker is ready for'}"
        elif offer.start_ns > now_ns:
            note = offer.reason or "no room yet"
        elif offer.fetch_ns:
            note = "would have to fetch the model"
        else:
            note = (
                "ready, too; its score is higher" if offer.score > taken else "ready, too; a smaller batch is enough"
            )
        begin_ns = offer.start_ns - now_ns
        offers.append(
            WeighedOffer(
                worker.spec.name,
                size,
                config.cpus,
                config.share_pct,
                begin_ns,
                offer.fetch_ns,
                begin_ns + offer.fetch_ns + offer.run_ns,
                worker.usd_per_ns(config) * offer.run_ns / max(1, size),
                offer.score,
                note,
            )
        )
    unit = "usd" if considered.goal == "cost" else "ns"
    return Decision(action.cause, action.batch, action.stage, tuple(offers), unit)
