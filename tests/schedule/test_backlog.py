"""The books of work that is open: what was added is taken off again, and a newcomer waits for what goes before it."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.schedule.backlog import STEP_NS, Backlog


def test_higher_classes_go_first_and_earlier_objectives_inside_a_class():
    backlog = Backlog()
    backlog.add(1, 1, 10 * STEP_NS, (100, 5))
    backlog.add(2, 2, 10 * STEP_NS, (40, 0))
    backlog.add(3, 1, 20 * STEP_NS, (7, 1))
    backlog.add(4, 2, 30 * STEP_NS, (3, 0))
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
        backlog.add(ident, priority, step * STEP_NS, own)
        if data.draw(st.booleans()):
            backlog.done(ident, data.draw(st.tuples(st.integers(0, 1500), st.integers(0, 80))))
    device, host = backlog.before(50 * STEP_NS, 3)
    assert 0 <= device <= sum(own[0] for _, _, own in requests)
    assert 0 <= host <= sum(own[1] for _, _, own in requests)
    for ident in range(len(requests)):
        backlog.remove(ident)
    assert backlog.before(1 << 60, 10) == (0, 0)
