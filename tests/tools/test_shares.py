"""`dovetail verify-shares`: real models in real workers. Nothing that is asserted depends on an idle machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from tests import onnx_models

from dovetail import App, onnx, tensor, workflow
from dovetail.cli import main, verify_shares
from dovetail.errors import DeclarationError
from dovetail.record.shares import ShareReport, ShareWindow
from dovetail.tools.plots import draw_shares
from dovetail.tools.shares import ShareOptions, ShareResult
from dovetail.tools.shares import verify_shares as run
from dovetail.units import SECOND


def app(tmp_path: Path, **quotas: int) -> App:
    model = onnx_models.slow(tmp_path / "slow.onnx", products=4, side=192)

    def flow(name: str, quota: int):  # type: ignore[no-untyped-def]
        stage = onnx(model, name=name, batch=1, quota=quota)

        def call(x):  # type: ignore[no-untyped-def]
            return stage(x)

        call.__annotations__["x"] = tensor("float32", 3)
        return workflow(slo="1s", name=f"flow_{name}")(call)

    return App(*(flow(name, quota) for name, quota in quotas.items()))


def test_real_models_are_served_and_every_window_is_judged(tmp_path: Path) -> None:
    options = ShareOptions(seconds=2.0, window_s=0.5, tolerance_pct=100.0, alone_s=1.0)
    result = asyncio.run(asyncio.wait_for(run(app(tmp_path, a=75, b=25), "tests:app", options), 120))
    assert result.asked_pct == {"a": 75, "b": 25} and result.holds
    assert {w.client for w in result.report.windows} == {"a", "b"}
    assert all(pct > 0 for pct in result.report.got_pct.values()), "both had the device"
    assert all(set(found) == {"ok"} for found in result.outcomes.values()) and len(result.outcomes) == 2
    assert result.of_alone and set(result.alone_per_s) == set(result.together_per_s) == {"flow_a", "flow_b"}


def test_without_a_quota_there_is_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="declares no quota"):
        asyncio.run(run(app(tmp_path, a=100), "tests:app", ShareOptions()))


WINDOWS = (ShareWindow(1, "a", 75, 70.0, 77.8, 90.0, True), ShareWindow(1, "b", 25, 20.0, 20.2, 90.0, False, "so"))
REPORT = ShareReport(2 * SECOND, WINDOWS, {"a": 70.0, "b": 20.0}, {"a": 77.8, "b": 22.2})


@pytest.mark.parametrize(("windows", "code"), [(WINDOWS, 1), (WINDOWS[:1], 0), ((), 1)])
def test_the_exit_code_says_whether_all_had_what_they_asked_for(
    windows: tuple[ShareWindow, ...], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = msgspec.structs.replace(REPORT, windows=windows)
    result = ShareResult("t:app", ShareOptions(), {"a": 75, "b": 25}, report, {"flow": {"ok": 3}})

    async def served(*_: object) -> ShareResult:
        return result

    monkeypatch.setattr(verify_shares, "verify_shares", served)
    monkeypatch.setattr(verify_shares, "load_target", lambda _: None)
    assert main(["verify-shares", "t:app"]) == code
    text = capsys.readouterr().out
    assert ("missed: so" in text) == (windows == WINDOWS) and ("nothing was judged" in text) == (not windows)
    assert main(["verify-shares", "t:app", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is (code == 0) and found["asked_pct"] == {"a": 75, "b": 25}
    assert len(found["report"]["windows"]) == len(windows)


def test_it_is_drawn(tmp_path: Path) -> None:
    draw_shares(REPORT, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 1000
