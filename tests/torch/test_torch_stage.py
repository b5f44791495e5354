"""Torch modules as stages: whole as they are, in kernels the same, and served by the one worker. Needs torch."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.live.test_kernels import Ask, expected, kernels, play

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from tests.torch import nets  # noqa: E402

from dovetail import tensor, torch_model  # noqa: E402
from dovetail.errors import ModelError  # noqa: E402
from dovetail.live.front.cutter import Cutter  # noqa: E402
from dovetail.live.kernels.cut_model import CutModel  # noqa: E402
from dovetail.live.kernels.cutting import Found, Wanted  # noqa: E402
from dovetail.live.kernels.torch_kernels import cut  # noqa: E402
from dovetail.live.links.wire import Hello  # noqa: E402
from dovetail.live.worker.models import Models  # noqa: E402
from dovetail.profile.kernels import Cut  # noqa: E402
from dovetail.profile.machine import this_machine  # noqa: E402
from dovetail.profile.store import ProfileStore  # noqa: E402
from dovetail.serve.launch import Options, Served  # noqa: E402
from dovetail.state import WorkerSpec  # noqa: E402
from dovetail.workflow.graph import StageSpec  # noqa: E402
from dovetail.workflow.runners import StageFailed, make_model  # noqa: E402

pytestmark = [pytest.mark.cpu, pytest.mark.torch]
APP = "tests.torch.app:app"
ITEM = tensor("float32", 3)
#: Operators of `nets.tower` at which it is cut where a test needs to know.
PLACES = ((8, 16, 24),)


def spec(name: str, **more: Any) -> StageSpec:
    options = {"inputs": {"x": ITEM}, "batch": (1, 2, 4)} | more
    return torch_model(f"tests.torch.nets:{name}", **options).spec


def items(count: int) -> list[list[np.ndarray]]:
    chance = np.random.default_rng(3)
    return [[chance.standard_normal(3).astype(np.float32) for _ in range(count)]]


def in_kernels(model: CutModel, columns: list[list[Any]]) -> tuple[list[Any], int]:
    run = model.plan(columns)
    for kernel in run.kernels:
        try:
            kernel()
        except Exception as error:
            run.rescue(error)
            break
    return run.values(), len(run.kernels)


# -- whole ----------------------------------------------------------------------------------------------------------


def test_a_whole_module_gives_what_it_gives_by_itself() -> None:
    columns = items(3)
    with torch.no_grad():
        want = nets.small()(torch.from_numpy(np.stack(columns[0]))).numpy()
    got = make_model(spec("small")).run(columns)
    np.testing.assert_allclose(np.stack(got), want, rtol=1e-6)


def test_inputs_have_their_types_outputs_their_order_and_what_was_given_is_not_changed() -> None:
    stage = torch_model(
        "tests.torch.nets:several",
        inputs={"x": ITEM, "times": tensor("int64")},
        outputs={"product": ITEM, "total": tensor("float32")},
    )
    assert stage.spec.outputs == ("product", "total")
    x = np.array([1, 2, 3], np.float32)
    ((product, total),) = make_model(stage.spec).run([[x], [5]])
    assert product.tolist() == [10, 15, 20] and total == 9
    assert x.tolist() == [1, 2, 3]


def test_weights_come_from_a_file_that_counts_for_size_and_identity(tmp_path: Path) -> None:
    file = tmp_path / "weights.npy"
    found = []
    for factor in (2, 3):
        np.save(file, np.full((1, 3), factor, np.float32))
        stage = spec("scaled", inputs={"input": ITEM}, weights=file)
        assert stage.weights_bytes == file.stat().st_size
        assert make_model(stage).run([[np.ones(3)]])[0] == 3 * factor
        found.append(stage.model)
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [("no_module", "must return a torch.nn.Module, not str"), ("broken", "OSError: the disk is gone")],
)
def test_a_function_that_makes_no_module_is_named(name: str, said: str) -> None:
    with pytest.raises(ModelError, match=f"stage '{name}'.*{said}"):
        make_model(spec(name))


def test_outputs_that_were_not_declared_are_refused() -> None:
    stage = spec("several", inputs={"x": ITEM, "times": tensor("float32")})
    with pytest.raises(StageFailed, match=r"declares 1 output\(s\), but its module gives 2"):
        make_model(stage).run([[np.ones(3)], [1.0]])


# -- in kernels -----------------------------------------------------------------------------------------------------


def test_in_kernels_it_gives_the_same_and_who_knows_the_cut_cuts_alike() -> None:
    stage = spec("tower")
    model = CutModel(stage)
    model.make_ready()
    cut = model.cut()
    assert cut is not None and cut.at
    again = CutModel(stage, cut)
    again.make_ready()
    for size in (1, 3, 4):
        columns = items(size)
        want = make_model(stage).run(columns)
        for one in (model, again):
            got, count = in_kernels(one, columns)
            assert count > 1
            np.testing.assert_allclose(np.stack(got), np.stack(want), rtol=1e-4, atol=1e-5)
        assert model.plan(columns).idents == again.plan(columns).idents
    assert model.plan(items(1)).name == again.plan(items(1)).name != ""
    assert again.cut() == cut


def test_a_batch_that_was_interrupted_goes_on_in_another_thread() -> None:
    model = CutModel(spec("tower"))
    model.cut_like(Cut(model.spec.model, ((1, 3),), 1, PLACES))
    columns = items(1)
    first, other = model.plan(columns), model.plan([[-column[0]] for column in columns])
    done: list[Any] = []

    def rest() -> None:
        for kernel in first.kernels[1:]:
            kernel()
        done.extend(first.values())

    first.kernels[0]()
    for kernel in other.kernels:
        kernel()
    thread = Thread(target=rest)
    thread.start()
    thread.join(60)
    whole = make_model(model.spec)
    np.testing.assert_allclose(done, whole.run(columns), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other.values(), whole.run([[-columns[0][0]]]), rtol=1e-4, atol=1e-5)


def test_modules_that_run_while_another_is_traced_are_not_disturbed() -> None:
    runner, columns = make_model(spec("small")), items(1)
    want = runner.run(columns)
    got: list[Any] = []

    class Meanwhile(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            thread = Thread(target=lambda: got.extend(runner.run(columns)))
            thread.start()
            thread.join(60)
            return x + 1

    cut(Meanwhile(), [{"x": (1, 3)}], segments=1)
    np.testing.assert_array_equal(got, want)


def test_what_cannot_be_traced_is_served_whole() -> None:
    model = CutModel(spec("choice"))
    model.make_ready()
    assert "control flow" in model.whole_because
    assert in_kernels(model, [[-np.ones(3)]])[0][0].tolist() == [1, 1, 1]


def test_a_module_whose_output_s_shape_depends_on_values_runs_whole_from_then_on() -> None:
    model = CutModel(spec("positives", batch=(2,)))
    model.cut_like(Cut(model.spec.model, ((1, 3),), 2, ((1,),)))
    for _ in range(2):
        got, _ = in_kernels(model, [[np.ones(3), np.ones(3)]])
        assert len(got) == 2
    with pytest.raises(StageFailed, match="first axis must be the batch"):
        in_kernels(model, [[np.ones(3), -np.ones(3)]])


def test_a_module_that_cannot_be_run_on_zeros_is_served_whole() -> None:
    model = CutModel(spec("picky", batch=(1,)))
    model.cut_like(Cut(model.spec.model, ((1, 3),), 1, ((1,),)))
    assert "singular" in model.whole_because and not model.ways[1]
    assert in_kernels(model, [[np.full(3, 2)]])[0][0].tolist() == [0.5, 0.5, 0.5]


def test_a_cut_that_does_not_fit_its_trace_is_not_taken() -> None:
    model = CutModel(spec("small"), Cut("", ((1, 3),), 1, ((400,),)))
    model.make_ready()
    assert not model.ways[1]


def test_a_worker_with_a_strict_budget_measures_a_module_and_cuts_it_without_files() -> None:
    stage = spec("tower", batch=(1,))
    cuts = [Cut(stage.model, ((1, 3),), 1, PLACES)]
    device = WorkerSpec("cpu-0", "cpu", ("onnx", "torch"), 1, memory_bytes=400 << 20, preempts=True)
    hello = Hello(1, device, "", [], [stage], [], (1,), 0, 1 << 20, kernels="always", strict=True, cuts=cuts)
    # A worker is a fresh process. Here pages that other tests have freed would be used again, and nothing would grow.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    models = Models(hello, None)
    assert models.nbytes(stage.weights) >= 16 * 512 * 512 * 4
    models.load(stage.weights)
    (model,) = models._loaded[stage.weights].values()
    assert isinstance(model, CutModel)
    assert in_kernels(model, items(1))[1] == 4


# -- served ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["always", "never"])
def test_it_is_served_in_kernels_or_as_a_whole(wanted: Any, tmp_path: Path) -> None:
    log = tmp_path / "kernels.jsonl" if wanted == "always" else None

    async def scene(_: Served, ask: Ask) -> None:
        for i in range(3):
            output = await ask("lengthy", i, 1)
            np.testing.assert_allclose(output, expected(APP, "lengthy", i), rtol=1e-4, atol=1e-5)

    play(APP, Options(device="cpu:1", port=0, kernels=wanted, kernel_log=log, arena_bytes=1 << 26), scene)
    if log is not None:
        found = kernels(log)
        assert {r.name for r in found} == {"tower"} and max(r.kernel for r in found) > 0


@pytest.mark.parametrize("memory_bytes", [None, 1 << 30])
def test_it_is_cut_while_it_is_served_and_what_is_learned_is_kept(
    memory_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, asked = tmp_path / "kernels.jsonl", []

    async def cut(_: Cutter, wanted: Wanted) -> Found:
        asked.append(wanted)
        return Found(Cut(wanted.stage.model, wanted.item, 1, PLACES))

    async def scene(_: Served, ask: Ask) -> None:
        for i in range(400):
            pair = await asyncio.gather(ask("lengthy", i, 4), ask("lengthy", -i, 1))
            for sign, output in zip((1, -1), pair, strict=True):
                np.testing.assert_allclose(output, expected(APP, "lengthy", sign * i), rtol=1e-4, atol=1e-5)
            if any(r.kernel for r in kernels(log)):
                break

    monkeypatch.setattr(Cutter, "_cut", cut)
    options = Options(device="cpu:1", port=0, kernel_log=log, arena_bytes=1 << 26, memory_bytes=memory_bytes)
    store = ProfileStore(tmp_path / "profile.sqlite")
    play(APP, options, scene, store)
    assert [(w.stage.name, w.item) for w in asked] == [("tower", ((1, 3),))]
    assert max(r.kernel for r in kernels(log)) > 0
    assert next(iter(store.cuts(this_machine()).values())).at == PLACES
    assert any(status.stats is not None for status in store.kernel_status(this_machine()))


def test_where_to_cut_it_is_found_out_in_a_process_of_its_own() -> None:
    found: list[Cut] = []
    said: list[str] = []

    async def find() -> None:
        cutter = Cutter(lambda _, each: found.append(each.cut), said.append)
        cutter.want(Wanted(spec("tower", batch=(1,)), ((1, 3),), 1, dear=True))
        async with asyncio.timeout(120):
            while cutter.busy:
                await asyncio.sleep(0.01)
        await cutter.close()

    asyncio.run(find())
    assert not said and len(found) == 1 and found[0].at
