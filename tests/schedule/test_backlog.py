"""The books of work that is open: what was added is taken off again, and a newcomer waits for what goes before it."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.schedule.backlog import MOST_OVERTAKING_NS, STEP_NS, WINDOW_NS, Backlog
from dovetail.units import MS, SECOND


def test_higher_classes_go_first_and_earlier_objectives_inside_a_class():
    backlog = Backlog()
    backlog.add(1, 1, 10 * STEP_NS, (100, 5), 0)
    backlog.add(2, 2, 10 * STEP_NS, (40, 0), 0)
    backlog.add(3, 1, 20 * STEP_NS, (7, 1), 0)
    backlog.add(4, 2, 30 * STEP_NS, (3, 0), 0)
    assert backlog.before(10 * STEP_NS, priority=1) == (100, 5), "lower classes and later objectives come after it"
    assert backlog.before(10 * STEP_NS, priority=2) == (147, 6), "of a higher class even those with later objectives"
    assert backlog.before(30 * STEP_NS, priority=2) == (150, 6)
    backlog.done(1, (60, 1))
    assert backlog.before(10 * STEP_NS, priority=1) == (40, 4)
    backlog.remove(1)
    assert backlog.before(20 * STEP_NS, priority=1) == (7, 1)
    assert 1 not in backlog and 3 in backlog


work = st.tuples(st.integers(0, 1000), st.integers(0, 50))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), work), max_size=30), st.data())
def test_nothing_is_left_when_all_have_ended(requests, data):
    backlog = Backlog()
    for ident, (priority, step, own) in enumerate(requests):
        backlog.add(ident, priority, step * STEP_NS, own, 0)
        if data.draw(st.booleans()):
            backlog.done(ident, data.draw(st.tuples(st.integers(0, 1500), st.integers(0, 80))))
    device, host = backlog.before(50 * STEP_NS, 3)
    assert 0 <= device <= sum(own[0] for _, _, own in requests)
    assert 0 <= host <= sum(own[1] for _, _, own in requests)
    for ident in range(len(requests)):
        backlog.remove(ident)
    assert backlog.before(1 << 60, 10) == (0, 0)


def busy_with(parts: dict[int, float], now_ns: int = WINDOW_NS) -> Backlog:
    """Each class has brought so much work of late, as a part of what two devices can do."""
    backlog = Backlog()
    for priority, part in parts.items():
        for step in range(20):
            at_ns = now_ns - WINDOW_NS + WINDOW_NS * step // 20
            backlog.add(1000 * priority + step, priority, SECOND, (round(part * 2 * 100 * WINDOW_NS / 20), 0), at_ns)
    return backlog


def test_whoever_waits_is_overtaken_by_higher_classes_that_come_meanwhile():
    backlog = busy_with({1: 0.25, 2: 0.25, 3: 0.5})
    now_ns = WINDOW_NS - 1
    wait = {level: backlog.overtaken_ns(level, 80 * MS, 2, 0, now_ns) for level in (1, 2, 3)}
    assert wait[1] == 80 * MS, "nobody is above it, and equals that come later have later objectives"
    assert abs(wait[2] - 80 * MS * 4 // 3) < MS, "a quarter of the time is for class 1"
    assert abs(wait[3] - 80 * MS * 2) < MS, "half of it is for classes 1 and 2"


def test_what_came_long_ago_overtakes_nobody_and_a_flood_leaves_a_little():
    backlog = busy_with({1: 0.5})
    soon, later = (backlog.overtaken_ns(2, 80 * MS, 2, 0, n * WINDOW_NS // 2) for n in (3, 4))
    assert 80 * MS < soon < 160 * MS, "half of the window is over"
    assert later == 80 * MS
    flood = busy_with({1: 7.0})
    most = 80 * MS * SECOND // (SECOND - MOST_OVERTAKING_NS)
    assert flood.overtaken_ns(2, 80 * MS, 2, 0, WINDOW_NS - 1) == most
