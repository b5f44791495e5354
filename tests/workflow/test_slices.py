"""Declaring slices: what becomes of share= and quota=, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.onnx_models import double

from dovetail import App, onnx, stage, workflow
from dovetail.errors import DeclarationError
from dovetail.workflow.graph import StageSpec


def slice_of(spec: StageSpec) -> tuple[int, int, str]:
    return spec.share_pct, spec.quota_pct, spec.client


def test_a_stage_declares_its_slice_and_is_charged_itself(tmp_path: Path) -> None:
    model = onnx(double(tmp_path / "m.onnx"), share=50, quota=30)

    @stage(quota=20)
    def python(xs):  # type: ignore[no-untyped-def]
        return xs

    assert slice_of(model.spec) == (50, 30, "") and model.spec.sliced
    assert slice_of(python.spec) == (100, 20, ""), "of all of the device"


def test_a_workflow_declares_one_for_its_models_together_but_for_those_with_their_own(tmp_path: Path) -> None:
    first, second = onnx(double(tmp_path / "a.onnx")), onnx(double(tmp_path / "b.onnx"), quota=10)

    @stage
    def python(xs):  # type: ignore[no-untyped-def]
        return xs

    @workflow(slo="1s", share=50, quota=40)
    def both(x):  # type: ignore[no-untyped-def]
        return second(python(first(x)))

    found = {spec.name: slice_of(spec) for spec in both.graph.stages}
    assert found == {"a": (50, 40, "both"), "b": (100, 10, ""), "python": (0, 0, "")}
    assert {spec.name: slice_of(spec) for spec in App(both).specs} == found


def test_all_of_the_time_is_no_quota(tmp_path: Path) -> None:
    assert not onnx(double(tmp_path / "m.onnx"), quota=100).spec.sliced


def test_a_share_alone_is_charged_to_nobody_else(tmp_path: Path) -> None:
    first = onnx(double(tmp_path / "a.onnx"))

    @workflow(slo="1s", share=50)
    def one(x):  # type: ignore[no-untyped-def]
        return first(x)

    assert slice_of(one.graph.stages[0]) == (50, 0, "")


@pytest.mark.parametrize("pct", [0, 101, -1, 0.5, True, "50"])
def test_what_is_no_part_of_a_device_is_refused(tmp_path: Path, pct: object) -> None:
    model = double(tmp_path / "m.onnx")
    with pytest.raises(DeclarationError, match=r"stage 'm': share=.* whole per cents"):
        onnx(model, share=pct)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"stage 'python': quota=.* whole per cents"):
        stage(quota=pct, name="python")(lambda xs: xs)  # type: ignore[arg-type]
    first = onnx(model)
    with pytest.raises(DeclarationError, match=r"workflow 'w': quota=.* whole per cents"):
        workflow(slo="1s", quota=pct, name="w")(lambda x: first(x))  # type: ignore[arg-type]


def test_a_stage_of_two_workflows_has_one_slice(tmp_path: Path) -> None:
    first = onnx(double(tmp_path / "a.onnx"))
    one = workflow(slo="1s", quota=50, name="one")(lambda x: first(x))
    two = workflow(slo="1s", name="two")(lambda x: first(x))
    with pytest.raises(DeclarationError, match="declare share= and quota= at the stage"):
        App(one, two)
