"""No device idles beside work that could run (promise 4): the exact actions of every step, as in `test_actions`.

The planner here is restless: what it offers of a stage depends on the time and on how many batches have started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.golden.test_actions import SLO_NS, TIMES_MS, arrived, play, run, stage, with_worker
from tests.schedule.almost_first_come import AlmostFirstCome

from dovetail.control import Controller, Policy, RequestArrived, RequestCancelled, SetTimer, TimerFired
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import Hold, Offer
from dovetail.state import Batch, Cluster, Config, Queue
from dovetail.units import MS
from dovetail.workflow.graph import chain

#: (stage, now in ms, batches that have started) -> share in per cent, or a hold until then in ms.
Mood = Callable[[str, int, int], int | Hold]


class Moody(AlmostFirstCome):
    """Offers what its mood says."""

    restless = True

    def __init__(self, mood: Mood) -> None:
        super().__init__()
        self._mood = mood
        self._started = 0

    def bind(self, cluster: Cluster) -> None:
        self.plain.bind(cluster)
        self._workers = cluster.workers

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        wish = self._mood(queue.stage.name, now_ns // MS, self._started)
        if isinstance(wish, Hold):
            return wish
        config = Config(1, 1, wish)
        return [Offer(worker, config, now_ns) for worker in self._workers.values() if worker.fits(config)]

    def started(self, batch: Batch, now_ns: int) -> None:
        self._started += 1


def moody(mood: Mood) -> Controller:
    """Two workflows of one stage each, a and b, on one worker that holds both: three steps."""
    points = tuple(Point(batch, 1, ms * MS, 0.0, 1) for batch, ms in TIMES_MS.items())
    table = ProfileTable([Entry(name, "gpu", points=points) for name in "ab"])
    graphs = [chain(name, SLO_NS, [stage(name)]) for name in "ab"]
    policy = Policy(Moody(mood), LoadEverything(), Estimator(table))
    return with_worker(Controller(graphs, policy))


def b_arrived(at_ms: int, request: int) -> RequestArrived:
    return RequestArrived(at_ms * MS, 0, request, 1)


def test_what_found_no_room_is_asked_again_when_another_start_has_changed_the_offer() -> None:
    def mood(name: str, now_ms: int, started: int) -> int:
        return 30 if name == "b" else 80 if started < 2 else 40

    play(
        moody(mood),
        [
            (b_arrived(0, 1), [run(4, 1, "b", [(1, 0, 0)], 0, share_pct=30)]),
            (arrived(1, 2), []),
            # a comes first and finds no room for 80 %; b starts, and then 40 % are free and enough.
            (
                b_arrived(2, 3),
                [
                    run(6, 2, "b", [(3, 0, 0)], 2, due_ms=102, share_pct=30),
                    run(6, 3, "a", [(2, 0, 0)], 2, due_ms=101, share_pct=40),
                ],
            ),
        ],
    )


def test_two_holds_that_are_over_end_together_whosever_timer_is_heard_first() -> None:
    ends_ms = {"a": 5, "b": 6}

    def mood(name: str, now_ms: int, started: int) -> int | Hold:
        return 50 if now_ms >= ends_ms[name] else Hold(ends_ms[name] * MS, "not yet")

    play(
        moody(mood),
        [
            (arrived(0, 1), [SetTimer(4, 1, 5 * MS, "not yet")]),
            (b_arrived(1, 2), [SetTimer(5, 2, 6 * MS, "not yet")]),
            (
                TimerFired(7 * MS, 4, 1),
                [
                    run(6, 1, "a", [(1, 0, 0)], 7, share_pct=50),
                    run(6, 2, "b", [(2, 0, 0)], 7, due_ms=101, share_pct=50),
                ],
            ),
            (TimerFired(7 * MS, 5, 2), []),
        ],
    )


def test_what_found_no_room_is_asked_again_whatever_happens_next() -> None:
    def mood(name: str, now_ms: int, started: int) -> int:
        return 60 if now_ms < 4 else 30

    play(
        moody(mood),
        [
            (arrived(0, 1), [run(4, 1, "a", [(1, 0, 0)], 0, share_pct=60)]),
            (arrived(1, 2), []),
            (RequestCancelled(3 * MS, 0, 99), []),
            (RequestCancelled(4 * MS, 0, 99), [run(7, 2, "a", [(2, 0, 0)], 4, due_ms=101, share_pct=30)]),
        ],
    )
