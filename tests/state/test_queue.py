"""The queue's laws, against a plain list: order, first come inside an order, loners, and requests that have ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.state import Item, Queue, Request, compile_graphs
from dovetail.workflow.graph import StageSpec, chain

STAGE = StageSpec("read", "model", (1, 4))
GRAPH = chain("flow", 1000, [STAGE])


def request(ident: int) -> Request:
    compiled, _ = compile_graphs([GRAPH], lambda _graph, node: node.stage)
    return Request(ident, compiled[0], 1, 0, 1000, 0)


def queue_with(*entries: tuple[int, int, bool]) -> tuple[Queue, dict[int, Request]]:
    """A queue of (order, request, alone)."""
    queue, requests = Queue("read", STAGE), {}
    for index, (order, ident, alone) in enumerate(entries):
        owner = requests.setdefault(ident, request(ident))
        queue.push(order, Item(owner, 0, index, 0, alone=alone))
    return queue, requests


def indices(items: list[Item]) -> list[int]:
    return [item.index for item in items]


def test_smaller_orders_come_first_and_equals_in_the_order_in_which_they_came() -> None:
    queue, _ = queue_with((2, 1, False), (1, 2, False), (2, 3, False), (1, 4, False))
    assert queue.head_order() == 1
    assert indices(queue.pop(4)) == [1, 3, 0, 2]
    assert queue.size == 0


def test_no_more_are_taken_than_were_asked_for_and_what_is_left_stays() -> None:
    queue, requests = queue_with((1, 1, False), (2, 1, False), (3, 1, False))
    assert indices(queue.pop(2)) == [0, 1]
    assert (queue.size, requests[1].waiting[queue]) == (1, 1)
    assert indices(queue.pop(2)) == [2]
    assert queue.pop(1) == []
    assert queue.head() is None


def test_one_that_must_run_alone_is_taken_alone_and_ends_a_batch_before_it() -> None:
    queue, _ = queue_with((1, 1, True), (2, 2, False), (3, 3, False), (4, 4, True), (5, 5, False))
    assert [indices(queue.pop(4)) for _ in range(4)] == [[0], [1, 2], [3], [4]]


def test_what_a_request_that_has_ended_had_waiting_neither_counts_nor_comes_up() -> None:
    queue, requests = queue_with((1, 1, False), (2, 2, False), (3, 1, False), (4, 2, False))
    requests[1].outcome = "cancelled"
    queue.forget(requests[1])
    assert queue.size == 2
    assert queue not in requests[1].waiting
    assert queue.head_order() == 2
    assert sorted(indices(queue.open_items())) == [1, 3]
    assert indices(queue.pop(4)) == [1, 3]
    queue.forget(requests[1])
    assert queue.size == 0, "forgotten once"


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 3), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("pop"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(1, 4)),
    ),
    max_size=40,
)


@given(steps)
def test_whatever_happens_it_is_the_sorted_list_of_what_is_open(done: list[tuple]) -> None:  # type: ignore[type-arg]
    queue = Queue("read", STAGE)
    requests = {ident: request(ident) for ident in range(1, 5)}
    model: list[tuple[int, int, Item]] = []
    for number, step in enumerate(done):
        if step[0] == "push":
            _, order, ident, alone = step
            if requests[ident].outcome:
                continue
            item = Item(requests[ident], 0, number, 0, alone=alone)
            queue.push(order, item)
            model.append((order, number, item))
            model.sort(key=lambda entry: entry[:2])
        elif step[0] == "end":
            ended = requests[step[1]]
            if not ended.outcome:
                ended.outcome = "cancelled"
                queue.forget(ended)
                model = [entry for entry in model if entry[2].request is not ended]
        else:
            expected: list[Item] = []
            for _, _, item in model[: step[1]]:
                if item.alone and expected:
                    break
                expected.append(item)
                if item.alone:
                    break
            assert queue.pop(step[1]) == expected
            model = model[len(expected) :]
        assert queue.size == len(model) == len(queue.open_items())
        assert queue.head() is (model[0][2] if model else None)
        for ident, owner in requests.items():
            mine = sum(entry[2].request.id == ident for entry in model)
            assert owner.waiting.get(queue, 0) == mine
