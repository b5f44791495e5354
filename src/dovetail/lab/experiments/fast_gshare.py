"""`dovetail reproduce fast-gshare`: the simulated device against FaST-GShare's measurements, packing, and its claims.

What is here: the throughput tables, throughput by replicas, the three headline figures, packing, and ParvaGPU's
scenarios. What needs a scaler is in `scaling`.
"""

from __future__ import annotations

import math
import statistics
from itertools import permutations
from pathlib import Path

from ...scale.packing import Packing, Room, Slice, best_area_fit
from ...scale.partition import Demand, lower_bound, plan_devices
from ..experiment import Goal, Lab
from .fast_gshare_pods import Pod, Pods, fit_beside, fit_pod, fitted_half, read_cells, read_replicas, simulated_per_s
from .parva_data import PUBLISHED_GPUS, demands, present
from .rapp import fit_surface, halves, launches_ms, read_surfaces
from .scaling import scaling

__all__ = ["QUICK_SEEDS", "SEEDS", "run"]

#: Arrivals of the scaler's loads are by seed; all else is the same.
SEEDS: tuple[int, ...] = (1, 2)
QUICK_SEEDS: tuple[int, ...] = (1,)

DATA = "YukioZzz/FaST, post-processing (V100)"
SLIDES = "FaST-GShare, slides of ICPP '23"
PARVA = "MunQ-Lee/ParvaGPU_SC24"
FOLDER = "fast_gshare_raw"
#: Name of a model in the files -> its own.
MODELS = {"rsnt": "ResNet", "rnnt": "RNNT", "gnmt": "GNMT"}
#: The first headline figure: throughput is higher by so many times.
PUBLISHED_GAIN = 3.15
#: Eight pods: utilisation and SM occupancy of four GPUs with time sharing, and of the one with FaST-GShare, per cent.
#: [slides p. 18, avg_util_sm of YukioZzz/FaST]
FOUR = ((28.90, 3.11), (31.72, 3.35), (43.31, 8.61), (47.48, 9.39))
ONE = (88.64, 25.30)
#: The authors' example of packing (Model_Share.ipynb), quota in thousandths by share in per cent; where each goes.
EXAMPLE = ((400, 12), (400, 24), (600, 12), (200, 12), (400, 24), (600, 12), (400, 12), (400, 48))
PLACED = ((0, 0), (400, 0), (0, 24), (0, 12), (600, 24), (0, 36), (0, 48), (400, 48))
#: The mix of the paper: four ResNet, two RNNT, two BERT. [slides p. 18]
MIX = ((400, 12),) * 4 + ((400, 24),) * 2 + ((600, 50),) * 2


def run(lab: Lab) -> None:
    """All claims."""
    pods = tables(lab)
    replicas(lab, pods)
    headlines(lab, pods)
    packing(lab)
    parva(lab)
    scaling(lab)
    rapp(lab)


def _absent(lab: Lab, ident: str, what: str) -> None:
    why = "of the public measurements, which are not part of the project; set DOVETAIL_DATA"
    lab.leave_out(ident, f"needs {what} {why}")


def _file(lab: Lab, name: str) -> Path | None:
    return lab.data(FOLDER, name)


# -- tables ---------------------------------------------------------------------------------------------------------


def tables(lab: Lab) -> dict[str, Pod]:
    """Requests per second by share and quota: errors of the simulated device on cells that nothing was fitted on."""
    pods: dict[str, Pod] = {}
    for short, name in MODELS.items():
        path = _file(lab, f"gcloud48-prf-{short}.csv")
        ident = f"table.{name.lower()}"
        if path is None:
            _absent(lab, ident, f"{FOLDER}/gcloud48-prf-{short}.csv")
            continue
        fitted, others = fitted_half(read_cells(path))
        pods[short] = pod = fit_pod(fitted)
        jobs = [Pods(pod, share, quota) for share, quota in others]
        found = lab.map(simulated_per_s, jobs, f"{name} by share and quota")
        errors = sorted(100 * abs(got / per_s - 1) for got, per_s in zip(found, others.values(), strict=True))
        cells = f"{len(errors)} cells, three numbers fitted on the {len(fitted)} others"
        lab.claim(
            f"{ident}.median",
            f"{name} by share and quota, simulated: median error of {cells}",
            source=DATA,
            goal=Goal("at most", 10.0, "%"),
            measured=statistics.median(errors),
        )
        lab.claim(
            f"{ident}.p95",
            f"{name} by share and quota, simulated: 95th percentile of the error of the same cells",
            source=DATA,
            goal=Goal("at most", 20.0, "%"),
            measured=errors[math.ceil(0.95 * len(errors)) - 1],
        )
    return pods


def replicas(lab: Lab, pods: dict[str, Pod]) -> None:
    """Several pods on one GPU: 3 and 7 replicas, what a neighbour costs fitted on 1, 5 and 9."""
    errors: list[float] = []
    for short, pod in pods.items():
        for share in (12, 24):
            path = _file(lab, f"mps-gcloud48-mps-{short}-{share}.csv")
            if path is None:
                continue
            measured = read_replicas(path)
            beside = fit_beside(pod, share, {n: measured[n] for n in (1, 5, 9)})
            for n in (3, 7):
                got = simulated_per_s(Pods(beside, share, 1.0, n))
                errors.append(100 * abs(got / measured[n] - 1))
    if not errors:
        _absent(lab, "replicas", f"{FOLDER}/mps-gcloud48-mps-*.csv")
        return
    lab.claim(
        "replicas",
        f"3 and 7 replicas of 12 and 24 % on one GPU, simulated: largest error of {len(errors)} cells; one number by "
        "model and share, what a neighbour costs, fitted on 1, 5 and 9",
        source=DATA,
        goal=Goal("at most", 20.0, "%"),
        measured=max(errors),
    )


def rapp(lab: Lab) -> None:
    """RaPP's times by batch, share and quota: errors of the simulated device on cells that nothing was fitted on."""
    path = lab.data("rapp", "latency_ms_by_batch_sm_quota.csv")
    if path is None:
        _absent(lab, "rapp", "rapp/latency_ms_by_batch_sm_quota.csv")
        return
    split = {model: halves(cells) for model, cells in read_surfaces(path).items()}
    surfaces = dict(
        zip(split, lab.map(fit_surface, [fitted for fitted, _ in split.values()], "RaPP's models"), strict=True)
    )
    asked = [(model, quota) for model, surface in surfaces.items() for quota in surface.launches_ms]
    jobs = [(surfaces[model].launches_ms[quota], quota) for model, quota in asked]
    launches = dict(zip(asked, lab.map(launches_ms, jobs, "launches under quotas"), strict=True))
    errors = sorted(
        100 * abs(max(launches[model, c.quota_pct], surfaces[model].device_ms(c.batch, c.share_pct)) / c.ms - 1)
        for model, (_, others) in split.items()
        for c in others
    )
    for name, goal, part in (("median", 10.0, 0.5), ("p95", 20.0, 0.95)):
        lab.claim(
            f"rapp.{name}",
            f"time of {len(surfaces)} models by batch, share and quota, simulated: "
            f"{'median' if name == 'median' else '95th percentile of the'} error of {len(errors)} cells; by model "
            "one number for each quota, and two for each batch, fitted on the others",
            source="KontonGu/RaPP (V100)",
            goal=Goal("at most", goal, "%"),
            measured=errors[math.ceil(part * len(errors)) - 1],
        )


# -- headline figures -----------------------------------------------------------------------------------------------


def headlines(lab: Lab, pods: dict[str, Pod]) -> None:
    """What the authors claim, by their definition and by a fair one."""
    shared, racing = _file(lab, "mps-gcloud48-mps-rsnt-12.csv"), _file(lab, "mps-gcloud48-racing-rsnt.csv")
    if shared is None or racing is None or "rsnt" not in pods:
        _absent(lab, "headline.throughput", f"{FOLDER}/mps-gcloud48-*-rsnt*.csv")
    else:
        by_share, race = read_replicas(shared), read_replicas(racing)
        lab.claim(
            "headline.throughput.authors",
            "the authors' definition: requests of seven ResNet pods of 12 % against one pod without any partition, "
            "less one; from their data",
            source=SLIDES,
            published=PUBLISHED_GAIN,
            goal=Goal("at least", PUBLISHED_GAIN, "×"),
            measured=by_share[7] / race[1] - 1,
        )
        lab.claim(
            "headline.throughput.fair",
            "the same with seven pods on both sides, less one; from their data. Most of the gain is that of seven "
            "pods over one",
            source=DATA,
            goal=Goal("at least", 0.0, "×"),
            measured=by_share[7] / race[7] - 1,
        )
        pod = fit_beside(pods["rsnt"], 12, {n: by_share[n] for n in (1, 5, 9)})
        ratio = simulated_per_s(Pods(pod, 12, 1.0, 7)) / simulated_per_s(Pods(pods["rsnt"], 100, 1.0))
        lab.claim(
            "headline.throughput.simulated",
            "seven pods of 12 % against one pod with the whole GPU, simulated, against the authors' data: error of "
            f"the ratio ({ratio:.2f} against {by_share[7] / race[1]:.2f})",
            source=DATA,
            goal=Goal("within", 10.0, "%"),
            measured=100 * (ratio / (by_share[7] / race[1]) - 1),
        )
    for ident, published, of_four, of_one, fair in (
        ("utilisation", 1.34, [util for util, _ in FOUR], ONE[0], Goal("at most", 0.0, "×")),
        ("occupancy", 3.13, [occupancy for _, occupancy in FOUR], ONE[1], Goal("at least", 0.0, "×")),
    ):
        lab.claim(
            f"headline.{ident}.authors",
            f"the authors' definition: {ident} of the one GPU that has all eight pods against the mean of the four "
            "that had them, less one; quoted figures",
            source=SLIDES,
            published=published,
            goal=Goal("at least", published, "×"),
            measured=of_one / statistics.fmean(of_four) - 1,
        )
        lab.claim(
            f"headline.{ident}.fair",
            f"{ident} of the one GPU against that of the four added up, less one: the same eight pods on both sides; "
            "quoted figures",
            source=SLIDES,
            goal=fair,
            measured=of_one / sum(of_four) - 1,
        )


# -- packing --------------------------------------------------------------------------------------------------------


def packing(lab: Lab) -> None:
    """Slices on devices."""
    room = Room()
    places = [room.insert(Slice(*size)) for size in EXAMPLE]
    right = sum(p is not None and (p.x, p.y) == at for p, at in zip(places, PLACED, strict=True))
    lab.claim(
        "packing.example",
        "slices of the authors' example that are placed where they place them",
        source="Model_Share.ipynb of YukioZzz/FaST",
        goal=Goal("exactly", len(EXAMPLE), f"of {len(EXAMPLE)}"),
        measured=right,
    )
    orders = sorted(set(permutations(MIX)))
    lab.claim(
        "packing.mix",
        "orders of arrival in which the paper's mix of eight pods is on one GPU",
        source=SLIDES,
        goal=Goal("exactly", len(orders), f"of {len(orders)}"),
        measured=sum(_devices(order) == 1 for order in orders),
    )
    lab.claim(
        "packing.best_area_fit",
        "the same by best area fit as slices come, which is FaST-GShare's rule",
        source="Interstellarss/faas-share, pkg/go-binpack2d",
        goal=Goal("exactly", 138, f"of {len(orders)}"),
        measured=sum(best_area_fit(Slice(*size) for size in order) == 1 for order in orders),
    )


def _devices(order: tuple[tuple[int, int], ...]) -> int:
    made = Packing()
    for number, size in enumerate(order):
        made.add(str(number), Slice(*size))
    return len(made.devices)


def parva(lab: Lab) -> None:
    """ParvaGPU's scenarios: GPUs that serve all models in time, and the lower bound."""
    folder = lab.data("parvagpu_slo")
    if folder is None or not present(folder.parent):
        _absent(lab, "parva", "parvagpu_slo and parvagpu_a100_mig")
        return
    for scenario, published in enumerate(PUBLISHED_GPUS, 1):
        asked = demands(folder.parent, scenario)
        plan = plan_devices(asked, most=2 * published)
        late = 0 if plan is None else sum(part.answer_ns() > _objective(asked, part.model) for part in plan.parts)
        lab.claim(
            f"parva.s{scenario}",
            f"A100s for ParvaGPU's scenario S{scenario} if models share slices in time ({late} objectives violated; "
            f"lower bound {lower_bound(asked)})",
            source=PARVA,
            published=published,
            goal=Goal("at most", published, "GPUs"),
            measured=math.inf if plan is None or late else len(plan.cuts),
        )


def _objective(asked: list[Demand], model: str) -> int:
    return next(demand.objective_ns for demand in asked if demand.model == model)
