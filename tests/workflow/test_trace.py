"""Declaring workflows: what the graph looks like, and that wrong use is refused when declared, with a remedy."""

import pytest

from dovetail import App, onnx, stage, tensor, workflow
from dovetail.errors import DeclarationError, ModelError
from dovetail.workflow.app import load_target
from dovetail.workflow.graph import Source


@stage
def double(xs):
    return [2 * x for x in xs]


@stage
def numbers(xs):
    return [list(range(x)) for x in xs]


@stage
def add(xs, ys):
    return [x + y for x, y in zip(xs, ys, strict=True)]


@stage
def total(lists):
    return [sum(values) for values in lists]


@stage(outputs=("half", "odd"))
def divide(xs):
    return [(x // 2, x % 2 == 1) for x in xs]


INT = tensor("int64")


def test_a_chain_becomes_nodes_in_order():
    @workflow(slo="100ms")
    def chain(x: INT):
        return double(double(x))

    assert [n.name for n in chain.graph.nodes] == ["double", "double#2"]
    assert chain.graph.nodes[1].args == (Source(0),)
    assert chain.graph.slo_ns == 100_000_000
    assert chain.local(3) == {"output": 12}


def test_map_of_map_is_element_wise_and_a_join_takes_the_whole_list():
    @workflow(slo="1s")
    def fan(x: INT):
        return total(double.map(double.map(numbers(x))))

    first, second, last = fan.graph.nodes[1:]
    assert first.args == (Source(0),) and first.mapped
    assert second.args == (Source(1, each=True),)
    assert last.args == (Source(2),) and not last.mapped
    assert fan.graph.counted(0) == (-1,)
    assert fan.local(4) == {"output": 24}
    assert fan.local(0) == {"output": 0}


def test_several_outputs_unpack_and_a_condition_chooses():
    @workflow(slo="1s")
    def choose(x: INT):
        half, odd = divide(x)
        return {"value": double.when(odd, otherwise=half)(x), "half": half}

    assert choose.local(7) == {"value": 14, "half": 3}
    assert choose.local(8) == {"value": 4, "half": 4}
    assert choose.graph.counted(0) == (1,)


def test_steps_that_no_output_needs_are_left_out():
    @workflow(slo="1s")
    def wasteful(x: INT):
        double(x)
        return numbers(x)

    assert [n.name for n in wasteful.graph.nodes] == ["numbers"]


def test_a_workflow_can_be_a_step_of_another():
    @workflow(slo="1s")
    def inner(x: INT):
        return double(x)

    @workflow(slo="1s")
    def outer(x: INT):
        return add(inner(x), inner(x))

    assert outer.local(5) == {"output": 20}


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        ("300 parsecs", "unknown unit 'parsecs'"),
        (300, "text with a unit"),
        ("fast", "is not a number with a unit"),
        ("0ms", "longer than nothing"),
        ("-5ms", "is not a number with a unit"),
    ],
)
def test_an_objective_without_a_known_unit_is_refused(slo, said):
    with pytest.raises(DeclarationError, match=said) as caught:

        @workflow(slo=slo)
        def hasty(x: INT):
            return double(x)

    assert "hasty" in str(caught.value)


def test_workflows_that_use_each_other_are_a_cycle():
    @workflow(slo="1s")
    def first(x: INT):
        return double(x)

    @workflow(slo="1s")
    def second(x: INT):
        return first(x)

    first.function = lambda x: second(x)
    with pytest.raises(DeclarationError, match=r"cycle: first -> second -> first"):

        @workflow(slo="1s")
        def top(x: INT):
            return first(x)


def test_an_output_list_of_another_length_is_refused():
    with pytest.raises(DeclarationError, match=r"'unpacks' unpacks .* 'divide' gives half, odd"):

        @workflow(slo="1s")
        def unpacks(x: INT):
            a, _b, _c = divide(x)
            return a

    with pytest.raises(DeclarationError, match=r"declares the outputs \['a', 'b'\] but returns \['a'\]"):
        outputs = {"a": INT, "b": INT}

        @workflow(slo="1s")
        def promises(x: INT) -> outputs:
            return {"a": double(x)}


def test_a_stage_that_breaks_its_promise_at_run_time_is_named():
    @stage
    def forgetful(xs):
        return xs[:-1]

    @stage(outputs=("a", "b"))
    def single(xs):
        return xs

    @workflow(slo="1s")
    def uses(x: INT):
        return forgetful(x)

    @workflow(slo="1s")
    def uses_single(x: INT):
        return single(x)

    with pytest.raises(Exception, match=r"stage 'forgetful' was given 1 item\(s\) and returned a list of 0"):
        uses.local(1)
    with pytest.raises(Exception, match=r"stage 'single' declares 2 outputs"):
        uses_single.local(1)


def test_two_stages_of_one_name_are_refused():
    @stage(name="double")
    def other(xs):
        return xs

    with pytest.raises(DeclarationError, match=r"two stages are named 'double'.*name="):

        @workflow(slo="1s")
        def clash(x: INT):
            return double(other(x))

    @workflow(slo="1s")
    def one(x: INT):
        return double(x)

    @workflow(slo="1s")
    def two(x: INT):
        return other(x)

    with pytest.raises(DeclarationError, match=r"two stages are named 'double' in this app"):
        App(one, two)


def test_handles_have_no_value_yet():
    for body, remedy in [
        (lambda x: double(x) if double(x) else x, r"stage\.when"),
        (lambda x: [double(v) for v in numbers(x)], r"stage\.map"),
        (lambda x: double(x) + 1, "inside a @stage"),
        (lambda x: double(len(x)), "inside a @stage"),
        (lambda x: divide(x)["third"], "its outputs are: half, odd"),
        (lambda x: double(x)[0], "outputs="),
        (lambda x: add(x, 5), "put constants inside the stage"),
        (lambda x: add(x), r"takes 2 argument\(s\)"),
        (lambda x: double.when(x).map(x), "filter the list"),
        (lambda x: 5, "return the result of a stage"),
        (lambda x: {}, "return the result of a stage"),
    ]:
        body.__annotations__ = {"x": INT}
        with pytest.raises(DeclarationError, match=remedy):
            workflow(slo="1s", name="wrong")(body)


def test_misuse_outside_a_workflow_says_what_to_do():
    with pytest.raises(DeclarationError, match=r"outside a workflow.*local"):
        double([1])

    @workflow(slo="1s")
    def direct(x: INT):
        return double(x)

    with pytest.raises(DeclarationError, match=r"direct\.local"):
        direct(1)


def test_inputs_need_a_known_type_and_priorities_a_range():
    with pytest.raises(DeclarationError, match=r"input 'x' is unknown; annotate it"):

        @workflow(slo="1s")
        def untyped(x):
            return double(x)

    with pytest.raises(DeclarationError, match="from 1"):

        @workflow(slo="1s", priority=0)
        def eager(x: INT):
            return double(x)

    with pytest.raises(DeclarationError, match="tensor type 'int63'"):
        tensor("int63")


def test_stages_are_checked_when_declared(tmp_path):
    with pytest.raises(DeclarationError, match="batch="):
        stage(batch=(0, 4), name="same")(lambda xs: xs)
    with pytest.raises(DeclarationError, match="not async"):

        @stage
        async def soon(xs):
            return xs

    with pytest.raises(DeclarationError, match="takes no argument"):

        @stage
        def nothing():
            return []

    with pytest.raises(ModelError, match=r"stage 'ghost'.*does not exist"):
        onnx(tmp_path / "ghost.onnx")
    for content in (b"", b"<html>not a model</html>", bytes(range(256)) * 40):
        path = tmp_path / "page.onnx"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"stage 'page'.*is not an ONNX model"):
            onnx(path)


def test_targets_are_found_or_the_error_says_how(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(
        "from dovetail import App, stage, tensor, workflow\n"
        "@stage\ndef same(xs):\n    return xs\n"
        "@workflow(slo='1s')\ndef flow(x: tensor('int64')):\n    return same(x)\n"
        "app = App(flow)\nnumber = 5\n"
    )
    monkeypatch.chdir(tmp_path)
    assert list(load_target("shop:app").workflows) == ["flow"]
    assert list(load_target("shop:flow").workflows) == ["flow"]
    for target, said in [
        ("shop", "module:attribute"),
        ("shop.py:app", "shop:app"),
        ("shop:ap", "it has: app, flow"),
        ("shop:number", "not an App"),
        ("nowhere:app", "no module 'nowhere'"),
    ]:
        with pytest.raises(DeclarationError, match=said):
            load_target(target)
