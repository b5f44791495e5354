"""Are profiles true? The form of the catalogue's curves against the measurements that they were made of."""

from __future__ import annotations

import csv
from collections import defaultdict

from ...profile import catalogue
from ...profile.curve import fit
from ...units import MS
from ..experiment import Estimate, Goal, Lab, bootstrap

__all__ = ["profiles"]

RAPP = "KontonGu/RaPP@600348c, V100, batch 1 to 8, share 5 to 100 %"
RAPP_FILE = ("rapp", "latency_ms_by_batch_sm_quota.csv")


def profiles(lab: Lab) -> None:
    """The form of the catalogue's curves against the measurements that they were made of."""
    ident = "profile.rapp"
    path = lab.data(*RAPP_FILE)
    if path is None:
        needed = "/".join(RAPP_FILE)
        lab.leave_out(
            ident, f"needs {needed} of the public measurements, which are not part of the project; set DOVETAIL_DATA"
        )
        return
    times: dict[str, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["quota_pct"] == "100":
                ns = round(float(row["latency_ms"]) * MS)
                times[row["model"]][int(row["batch"])][int(row["sm_pct"])] = ns
    chosen = {name: of for name, of in times.items() if name in catalogue.models()}
    errors = {name: fit(of).mape_pct for name, of in sorted(chosen.items())}
    measured: Estimate = bootstrap(list(errors.values()), seed=lab.seeds[0])
    lab.claim(
        ident,
        f"mean error of max(floor, work / share) over {len(errors)} vision models (interval: bootstrap over models)",
        source=RAPP,
        goal=Goal("at most", 5.5, "%"),
        measured=measured,
    )
    _draw_profiles(lab, chosen, errors)


def _draw_profiles(lab: Lab, times: dict[str, dict[int, dict[int, int]]], errors: dict[str, float]) -> None:
    with lab.figure("profiles", width_in=9.0) as figure:
        left, right = figure.subplots(1, 2)
        for batch, of_batch in sorted(times["resnet50"].items()):
            curve = fit(times["resnet50"]).curve
            shares = sorted(of_batch)
            (line,) = left.plot(
                shares, [curve.latency_ns(batch, s) / MS for s in shares], lw=1.2, label=f"batch {batch}"
            )
            left.plot(shares, [of_batch[s] / MS for s in shares], "o", ms=3, color=line.get_color())
        left.set(xlabel="share of the V100, %", ylabel="ms per batch", title="resnet50: measured (marks) and fitted")
        left.set_ylim(bottom=0)
        left.legend(frameon=False)
        ranked = sorted(errors.values())
        right.plot(range(1, len(ranked) + 1), ranked, "o", ms=3)
        right.axhline(sum(ranked) / len(ranked), lw=1, ls="--", color="grey")
        right.set(
            xlabel="model, best to worst", ylabel="mean absolute error, %", title=f"error of {len(ranked)} models"
        )
        right.set_ylim(bottom=0)
