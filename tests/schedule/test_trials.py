"""Who is let in to see whether a workflow is still too slow: one at a time, and ever more seldom."""

from dovetail.schedule.trials import MOST_PAUSE_NS, PAUSE, Trials
from dovetail.units import MS

FLOW, TAKES_NS = "flow", 100 * MS


def test_one_at_a_time_and_the_next_after_a_pause():
    trials = Trials()
    assert trials.due(FLOW, 0)
    trials.begin(1, FLOW, TAKES_NS)
    assert 1 in trials and not trials.due(FLOW, 10**12) and trials.due("other", 0)
    trials.ended(1, True, 7)
    assert 1 not in trials
    assert not trials.due(FLOW, 7 + PAUSE * TAKES_NS - 1) and trials.due(FLOW, 7 + PAUSE * TAKES_NS)


def test_a_late_one_doubles_the_pause_up_to_a_bound_and_one_in_time_ends_that():
    trials, at_ns = Trials(), 0
    pauses = []
    for request in range(12):
        trials.begin(request, FLOW, TAKES_NS)
        trials.ended(request, False, at_ns)
        pauses.append(trials._next[FLOW][0] - at_ns)
    assert pauses[:3] == [PAUSE * TAKES_NS, 2 * PAUSE * TAKES_NS, 4 * PAUSE * TAKES_NS]
    assert pauses[-1] == MOST_PAUSE_NS
    trials.begin(99, FLOW, TAKES_NS)
    trials.ended(99, True, 0)
    trials.begin(100, FLOW, TAKES_NS)
    trials.ended(100, False, 0)
    assert trials._next[FLOW][0] == PAUSE * TAKES_NS


def test_others_who_end_change_nothing():
    trials = Trials()
    trials.ended(5, False, 0)
    assert trials.due(FLOW, 0)
