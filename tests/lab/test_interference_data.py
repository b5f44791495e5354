"""Public measurements of interference: how they are read, and that predictors are judged on what they did not see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dovetail.lab.experiment import Lab, data_dir
from dovetail.lab.experiments import interference_public as public
from dovetail.lab.experiments.interference_data import read_igniter, read_pitot
from dovetail.lab.rivals.interference.ours import Ours

SHARES, SIZES, MODELS = (40, 60), (2, 4), ("x", "y", "z")


def igniter_file(folder: Path) -> Path:
    """Three models; whoever is beside z takes 1.5 times as long, and 1.1 times beside the others."""

    def table(value: float) -> dict[str, dict[str, float]]:
        return {str(size): {str(share): value for share in SHARES} for size in SIZES}

    lines: list[object] = []
    for number, model in enumerate(MODELS):
        lines += [{model: {"latency": table(2.0)}}, {model: {"l2cache": table(10.0)}}]
        lines.append({model: {"dram": table(10.0 + 30 * (number == 2))}})
    pairs = [
        [one, two, b1, b2, 40, 2.0 * (1.5 if two == "z" else 1.1), 2.0 * 1.1]
        for one, two in (("x", "y"), ("x", "z"), ("y", "z"))
        for b1 in SIZES
        for b2 in SIZES
        for _ in range(5)
    ]
    lines.append({"interference": {"latency": pairs}})
    lines.append({"interference": {"std": [[0] * 7]}})
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_both_of_a_pair_are_victims_with_the_rest_of_the_device_for_the_other(tmp_path: Path) -> None:
    pairs = read_igniter(igniter_file(tmp_path))
    assert len(pairs) == 60
    one, two = pairs[20]
    assert (one.victim.model, one.known[0].load.model, two.victim.model) == ("x", "z", "z")
    assert (one.victim.share_pct, two.victim.share_pct) == (40, 60)
    assert (one.slowdown, two.slowdown) == (pytest.approx(1.5), pytest.approx(1.1))
    assert (one.victim.cache, one.victim.memory, two.victim.memory) == (0.1, 0.1, 0.4)


def test_what_is_left_out_was_not_seen(tmp_path: Path) -> None:
    path = str(igniter_file(tmp_path))
    pairs = read_igniter(Path(path))
    order = list(range(len(pairs)))
    folds = public._folds("pairs", pairs, order)
    assert [len(fold) for fold in folds] == [18]
    assert [len(fold) for fold in public._folds("pair of models", pairs, order)] == [20, 20, 20]
    by_model = public._folds("model", pairs, order)
    assert [len(fold) for fold in by_model] == [40, 40, 40]
    for name, fold in zip(MODELS, by_model, strict=True):
        assert all(name in {s.victim.model for s in pairs[n]} for n in fold)
    errors = {rival: public.held_out(public.Held(rival, "pairs", 1, path)) for rival in ("constant", "ours")}
    assert len(errors["ours"]) == 36
    assert max(errors["ours"]) < 3 < max(errors["constant"])


def test_a_prior_is_chosen_without_a_look_at_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(igniter_file(tmp_path))
    pairs = read_igniter(Path(path))
    for left_out in ("pair of models", "model"):
        for fold in public._folds(left_out, pairs, range(len(pairs))):
            kept = [n for n in range(len(pairs)) if n not in fold]
            unseen = [[] if n in fold else pair for n, pair in enumerate(pairs)]
            with_all, without = public._chosen(pairs, kept), public._chosen(unseen, kept)
            assert with_all.model.state() == without.model.state()
    errors = public.held_out(public.Held(public.NESTED, "pairs", 1, path))
    assert len(errors) == 36 and max(errors) < 3
    asked: list[tuple[set[int], int]] = []

    def chosen(pairs: public.Pairs, kept: Sequence[int]) -> Ours:
        asked.append((set(kept), len(pairs)))
        return Ours()

    monkeypatch.setattr(public, "_chosen", chosen)
    public.held_out(public.Held(public.NESTED, "model", 1, path))
    folds = public._folds("model", pairs, ())
    assert [set(range(count)) - kept for kept, count in asked] == folds, "it is given what is not left out"


def pitot_file(folder: Path) -> Path:
    """Twenty platforms on which a pair takes 1.5 times as long, whoever it is; one of the workloads is rougher."""
    rng = np.random.default_rng(1)
    platform, workload, beside, ns = [], [], [], []
    for p in range(20):
        for _ in range(120):
            v, a = rng.integers(0, 5, 2)
            platform.append(p)
            workload.append(v)
            beside.append(a)
            ns.append(1000.0 * (v + 1) * (2.0 if a == 0 else 1.5) * rng.lognormal(0, 0.02))
    path = folder / "pairs.npz"
    np.savez(
        path,
        pair_platform=np.array(platform), pair_workload=np.array(workload), pair_beside=np.array(beside),
        pair_t_ns=np.array(ns), solo_platform=np.repeat(np.arange(20), 5), solo_workload=np.tile(np.arange(5), 20),
        solo_t_ns=np.tile(1000.0 * np.arange(1, 6), 20), platform_names=np.array([f"r:h{p}" for p in range(20)]),
        workload_names=np.array([f"f/w{w}" for w in range(5)]),
    )  # fmt: skip
    return path


def test_pairs_on_platforms_are_learned_and_a_new_one_from_a_few(tmp_path: Path) -> None:
    path = pitot_file(tmp_path)
    pairs = read_pitot(path)
    first = pairs.sample(0)
    assert first.kind == "r:h0" and first.victim.family == "f" and 1.3 < first.slowdown < 2.3
    found = public.pitot_few(public.Few(1, str(path)))
    assert found["error"] < 4 < found["constant"]
    assert found["coverage"] == pytest.approx(95, abs=4)
    few = public.pitot_few(public.Few(1, str(path), unseen=True))
    assert few["100"] < few["0"]
    assert few["100"] < 4


@pytest.mark.data
def test_partial_overlap_on_three_servers() -> None:
    if not (data_dir() / "disb").exists():
        pytest.skip("DISB's results are not here")
    lab = Lab((1,), data=data_dir())
    public.disb(lab)
    assert len(lab.claims) == 3
    assert all(claim.holds for claim in lab.claims)
