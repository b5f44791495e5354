"""The books of work that is due: what was added is taken off again, and a bound counts what it should."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.plan.demand import STEP_NS, Demand


def test_work_counts_by_deadline_and_class():
    demand = Demand()
    demand.add(1, 1, 10 * STEP_NS, 100)
    demand.add(2, 2, 10 * STEP_NS, 40)
    demand.add(3, 1, 20 * STEP_NS, 7)
    assert demand.due_by(10 * STEP_NS, priority=1) == 100, "lower classes and later deadlines do not count"
    assert demand.due_by(10 * STEP_NS, priority=2) == 140
    assert demand.due_by(20 * STEP_NS, priority=2) == 147
    demand.done(1, 60)
    assert demand.due_by(10 * STEP_NS, priority=1) == 40
    demand.remove(1)
    assert demand.due_by(20 * STEP_NS, priority=1) == 7
    assert 1 not in demand and 3 in demand


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(0, 1000)), max_size=30), st.data())
def test_nothing_is_left_when_all_have_ended(requests, data):
    demand = Demand()
    for ident, (priority, step, work) in enumerate(requests):
        demand.add(ident, priority, step * STEP_NS, work)
        if data.draw(st.booleans()):
            demand.done(ident, data.draw(st.integers(0, 1500)))
    assert demand.due_by(50 * STEP_NS, 3) <= sum(work for _, _, work in requests)
    for ident in range(len(requests)):
        demand.remove(ident)
    assert demand.due_by(1 << 60, 10) == 0
