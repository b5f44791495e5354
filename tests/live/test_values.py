"""Which block is which argument, and when blocks are given back."""

from __future__ import annotations

import numpy as np
import pytest
from tests.live import apps

from dovetail.live.links.wire import Argument
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import encode
from dovetail.live.tensors.ref import Ref
from dovetail.live.tensors.values import LiveRequest, part
from dovetail.state import Request, compile_graphs
from dovetail.workflow.graph import Source


def ref(number: int) -> Ref:
    """A block that does not exist."""
    return Ref(7, number * 64, 64)


def request_of(workflow: str, inputs: int = 1) -> tuple[LiveRequest, list[Ref], list[str]]:
    """A request of one of the test workflows; where its freed blocks and the end of its inputs are noted."""
    graph = apps.app.workflows[workflow].graph
    (compiled,), _ = compile_graphs([graph], lambda _, node: node.stage)
    freed: list[Ref] = []
    ended: list[str] = []
    request = LiveRequest([ref(100 + i) for i in range(inputs)], freed.append, lambda: ended.append("inputs"))
    request.state = Request(1, compiled, 1, 0, 0, 0)
    return request, freed, ended


def node_of(request: LiveRequest, stage: str):
    assert request.state is not None
    return next(n for n in request.state.graph.nodes if n.node.stage == stage)


# -- memory -------------------------------------------------------------------------------------------------------


def test_blocks_are_freed_when_it_has_ended_and_nobody_reads():
    request, freed, ended = request_of("plain")
    request.hold()  # a batch
    request.values[0, 0] = ref(1)
    request.hold()  # the answer
    request.close()
    request.drop()
    assert (freed, ended) == ([], [])
    request.drop()
    assert (freed, ended) == ([ref(1)], ["inputs"])


def test_what_comes_after_the_end_is_freed_too():
    request, freed, ended = request_of("plain")
    request.hold()
    request.close()
    request.values[0, 0] = ref(1)
    request.drop()
    assert (freed, ended) == ([ref(1)], ["inputs"])


def test_without_readers_it_is_freed_at_once():
    request, freed, ended = request_of("plain")
    request.close()
    assert (freed, ended) == ([], ["inputs"])


def test_taken_bytes_are_told_by_kind_of_worker():
    request, _, _ = request_of("heavy")
    request.values = {(0, 0): Ref(1, 0, 100), (1, 0): Ref(2, 0, 10), (1, 1): Ref(3, 0, 1)}
    assert request.taken_bytes({1: "cpu", 2: "host", 3: "host"}) == {"cpu": 100, "host": 11}


# -- arguments ----------------------------------------------------------------------------------------------------


def test_inputs_and_results_are_arguments():
    request, _, _ = request_of("joined", inputs=2)
    add = node_of(request, "add").node
    request.values = {(0, 0): ref(1), (1, 0): ref(2)}
    assert [request.argument(add, s, 0) for s in add.args] == [Argument((ref(1),)), Argument((ref(2),))]
    double = node_of(request, "double").node
    assert request.argument(double, double.args[0], 0) == Argument((ref(100),))


def test_a_list_in_one_block_is_taken_apart_and_a_list_of_blocks_is_gathered():
    request, _, _ = request_of("fan")
    assert request.state is not None
    split, increase, double, total = (node_of(request, s) for s in ("split", "increase", "double", "total"))
    request.values = {(split.index, 0): ref(1)}
    request.state.sizes = {increase.index: 2, double.index: 2}
    (source,) = increase.node.args
    assert request.argument(increase.node, source, 1) == Argument((ref(1),), element=1)
    request.values |= {(increase.index, 0): ref(10), (increase.index, 1): ref(11)}
    (source,) = double.node.args
    assert source.each
    assert request.argument(double.node, source, 1) == Argument((ref(11),))
    request.values |= {(double.index, 0): ref(20), (double.index, 1): ref(21)}
    (source,) = total.node.args
    assert request.argument(total.node, source, 0) == Argument((ref(20), ref(21)), gather=True)


def test_a_skipped_step_stands_for_its_otherwise():
    request, _, _ = request_of("maybe_part")
    bounds, double = node_of(request, "bounds"), node_of(request, "double")
    request.values = {(bounds.index, 0): ref(1)}
    after = node_of(request, "positive").node
    # Nobody takes part 0 of it in this workflow, but somebody might: a part of a part.
    assert request.argument(after, Source(double.index), 0) == Argument((ref(1),), (1,))
    assert request.argument(after, Source(double.index, 0), 0) == Argument((ref(1),), (1, 0))
    request.values[double.index, 0] = ref(2)
    assert request.argument(after, Source(double.index), 0) == Argument((ref(2),))


@pytest.mark.parametrize(("path", "expected"), [((), ([1, 2], 3)), ((0,), [1, 2]), ((0, 1), 2)])
def test_a_part_is_an_output_or_an_output_of_that(path, expected):
    assert part(([1, 2], 3), path) == expected


def test_results_are_views_of_the_arena():
    request, _, _ = request_of("elements")
    assert request.state is not None
    double = node_of(request, "double")
    with Arena.create(7, 1 << 16) as arena:
        request.values = {(double.index, i): encode(np.full(3, i, np.float32), arena) for i in range(2)}
        request.state.sizes = {double.index: 2}
        outputs = request.results({7: arena})
        assert [a.tolist() for a in outputs["output"]] == [[0, 0, 0], [1, 1, 1]]
        assert not outputs["output"][0].flags.writeable
        del outputs
        request.state.sizes = {double.index: 0}
        assert request.results({7: arena}) == {"output": []}
