"""The knobs of both views of workers: of those of our own (`own`), and of those that are shared (`shared`)."""

from __future__ import annotations

import msgspec

from ..units import MS, SECOND

__all__ = ["LOCAL_OWN", "OwnSettings", "RouterSettings"]


class RouterSettings(msgspec.Struct, frozen=True):
    """How work goes to shared workers; the defaults are the product, everything else is an ablation."""

    #: Tell workers on arrival which models a request will need of them.
    hints: bool = True
    #: Estimate fetches beside the wait; otherwise behind it, as Compass does.
    overlap: bool = True
    #: Decide afresh at hand-over; otherwise the plan stands.
    afresh: bool = True
    #: Count what was sent and is in no row yet.
    corrections: bool = True
    #: Take one of the free workers by hash; otherwise the one that the index has first.
    spread: bool = True
    #: Refusals that an item may meet; the route after them has no window. 0 is no window at all. The controller
    #: itself allows four.
    bounces: int = 4
    #: A worker may start an item this much later than expected before it refuses, and by a tenth of its run time.
    tolerance_ns: int = 20 * MS
    #: If even the best worker should start an item later than 30 ms after its inputs are there, holders of its
    #: model are asked around: the first may start it within the first of these parts (per cent) of the longest run
    #: known, the second within the second, and so on. Only a worker knows whom an item would overtake there and when
    #: what runs now will end; a row gives sums. Empty asks nobody.
    ask_pct: tuple[int, ...] = (15, 25, 35, 50)
    #: A planned worker is kept if another is not better by more than this.
    keep_ns: int = 5 * MS
    #: A request may be overtaken by one whose rest is shorter by d, if that arrived at most `favour` times d later. 0
    #: is first come, first served; the larger, the nearer to shortest rest first. Nobody waits for ever at any value.
    favour: int = 20
    #: What an eviction is charged beside its time when workers are compared, in per cent of the fetch: it takes a
    #: model from others. Without it a fetch beside a long wait looks free, and scarce memory is turned over all the
    #: time; with more, work queues at few holders when all are busy.
    toll_pct: int = 100
    #: Holders of a model that should be free beside those in use, where idle memory allows; 0 makes no copies.
    spares: int = 1
    #: Least time between two copies of one model that one controller asks for.
    copy_every_ns: int = 100 * MS
    #: A fetch that was asked for and is in no row this long after its time is not believed any more.
    doubt_ns: int = 1 * SECOND


class OwnSettings(msgspec.Struct, frozen=True):
    """How memory is weighed; the defaults are the product, everything else is an ablation."""

    #: What an eviction is charged, in per cent of the load that makes it necessary.
    toll_pct: int = 500
    #: Look at what workers hold.
    memory: bool = True
    #: Models are fetched beside batches.
    beside: bool = True
    #: Weigh a fetch for all that wait in a queue, not only for the first.
    queues: bool = True
    #: Where all holders of a model are busy and memory is free, have it fetched before anybody waits for it, once in
    #: this time at most; 0: not.
    copy_every_ns: int = 100 * MS
    #: Have models fetched for later stages when a request is let in, where memory is free.
    hints: bool = True


#: On one machine a load keeps a core from batches, so turning memory over is charged for what it does to others, and
#: nothing is fetched ahead (`local_delays`).
LOCAL_OWN = OwnSettings(toll_pct=400, hints=False, copy_every_ns=0, beside=False)
