"""Everything at once: memory that is too small, batches that pay, shares and two classes, against all rivals.

Two questions. Equal cost: on the same cards, who answers more requests in time? Equal goodput: how many cards does
each need for the same requests, 95 % of them in time? And what is each part of ours worth? `joint_world` says what is
served and on what; the times of many models in it are unverified (docs/catalogue.md), so the comparison of policies
with each other is what counts.

Seeds 11 to 15 are reported. Rivals were tuned on seed 101 (docs/rivals.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from ...profile import catalogue
from ..experiment import Goal, Lab, over_seeds
from . import joint_plots as plots
from .joint_runs import ABLATIONS, ALONE, HIGH, OURS, STEP, TARGET, Job, Search, search, seconds, simulate
from .joint_world import Outcome, Setting

SEEDS = (11, 12, 13, 14, 15)
QUICK_SEEDS = (11, 12)

SOURCE = "our own; same requests, same simulated cards, unverified times"
#: Those of them that take everything are compared with as they are and with an admission rule added.
RIVALS = (
    "old-dovetail",
    "place",
    "esg",
    "esg, refusing",
    "compass",
    "infless",
    "infless, refusing",
    "triton",
    "triton, refusing",
    "ray-serve",
)
#: 14,000,000 KB: what Compass's authors take to be usable of a T4. All models need 22 GB.
USABLE_GB, SCARCE_GB = 14.336, 8.0
SETTINGS = (
    Setting(8, USABLE_GB, 0.6),
    Setting(8, SCARCE_GB, 0.6, bursty=True),
    Setting(8, SCARCE_GB, 1.2, bursty=True),
    Setting(16, USABLE_GB, 0.9),
    Setting(16, USABLE_GB, 0.5, kind="v100"),
    Setting(32, USABLE_GB, 0.7, bursty=True),
    Setting(32, SCARCE_GB, 0.9),
    Setting(64, USABLE_GB, 0.8),
)
QUICK_SETTINGS = SETTINGS[:4]
#: Large clusters take long to simulate, and have so many requests that seeds differ little: the first seeds do.
LARGE, LARGE_SEEDS = 32, 3
#: Whose price in cards is asked for: the requests that load eight cards to 0.6.
PRICED = (Setting(0, USABLE_GB, 0.6, load_of=8), Setting(0, SCARCE_GB, 0.6, bursty=True, load_of=8))
CARD_SEEDS, CARD_SECONDS = 2, 40.0
#: Where parts are left out, and on how many seeds.
PARTS, PARTS_SEEDS = (SETTINGS[1], SETTINGS[3]), 2

#: (setting, policy) -> one outcome per seed.
_Outcomes = Callable[[Setting, str], list[Outcome]]


def run(lab: Lab) -> None:
    """Equal cost, equal goodput, parts."""
    settings = QUICK_SETTINGS if lab.quick else SETTINGS
    outcomes = _measure(lab, settings, (OURS, ALONE, *RIVALS), _seeds(lab), "policies in all settings")
    _equal_cost(lab, settings, outcomes)
    _first_class(lab, settings, outcomes)
    plots.goodput(lab, settings, (OURS, *RIVALS), outcomes)
    if lab.quick:
        lab.leave_out("cards.*", "the search for the number of cards takes minutes; run without --quick")
    else:
        _equal_goodput(lab)
    parts = [f"without {what}" for what in ABLATIONS]
    without = _measure(lab, PARTS, parts, lambda _: lab.seeds[:PARTS_SEEDS], "parts left out")
    _parts(lab, outcomes, without)
    plots.parts(lab, PARTS, parts, outcomes, without)


def _seeds(lab: Lab) -> Callable[[Setting], Sequence[int]]:
    return lambda setting: lab.seeds[:LARGE_SEEDS] if setting.devices >= LARGE else lab.seeds


def _measure(
    lab: Lab,
    settings: Sequence[Setting],
    policies: Sequence[str],
    seeds: Callable[[Setting], Sequence[int]],
    what: str,
) -> _Outcomes:
    def row(setting: Setting, policy: str) -> list[Job]:
        return [Job(setting, policy, seed, seconds(setting, quick=lab.quick)) for seed in seeds(setting)]

    # The largest first: what is left at the end is then short, and no core waits for long.
    largest_first = sorted(settings, key=lambda s: -s.devices)
    jobs = [job for setting in largest_first for policy in policies for job in row(setting, policy)]
    found = dict(zip(jobs, lab.map(simulate, jobs, what), strict=True))
    return lambda setting, policy: [found[job] for job in row(setting, policy)]


def _name(rival: str) -> str:
    """As part of the name of a claim."""
    return rival.replace(", ", "-")


def _equal_cost(lab: Lab, settings: Sequence[Setting], outcomes: _Outcomes) -> None:
    """Goodput on the same cards."""
    for setting in settings:
        ours = outcomes(setting, OURS)
        for rival in RIVALS:
            theirs = outcomes(setting, rival)
            gains = [100 * (a.hit_rate - b.hit_rate) for a, b in zip(ours, theirs, strict=True)]
            lab.claim(
                f"goodput.{setting.key}.{_name(rival)}",
                f"{setting.title}: what Dovetail answers in time ({_mean(ours, 'goodput'):.1f}/s) above what {rival} "
                f"does ({_mean(theirs, 'goodput'):.1f}/s), in per cent of all that came; $ for the cards per 1,000 "
                f"in time {_mean(ours, 'usd_per_1000'):.3f} against {_mean(theirs, 'usd_per_1000'):.3f}",
                source=SOURCE,
                goal=Goal("at least", 0.0, "points"),
                measured=over_seeds(gains),
            )


def _first_class(lab: Lab, settings: Sequence[Setting], outcomes: _Outcomes) -> None:
    """Class 1 is a third of the load, so it fits on average.

    In bursts it is two and a half times that: at load 1.2 class 1 alone then asks for all that the cards could do.
    What it gets with nobody else there is said beside the claim.
    """
    for setting in settings:
        runs = outcomes(setting, OURS)
        best = max(RIVALS, key=lambda p: _mean(outcomes(setting, p), "first_hit_rate"))
        lab.claim(
            f"class1.{setting.key}",
            f"{setting.title}: requests of class 1 that Dovetail answers in time; the best other is {best} with "
            f"{100 * _mean(outcomes(setting, best), 'first_hit_rate'):.1f} %; with nothing but class 1, Dovetail "
            f"has {100 * _mean(outcomes(setting, ALONE), 'first_hit_rate'):.1f} %",
            source=SOURCE,
            goal=Goal("at least", 99.0, "%"),
            measured=over_seeds([100 * o.first_hit_rate for o in runs]),
        )


def _equal_goodput(lab: Lab) -> None:
    """Cards that each needs for the same requests."""
    policies, seeds = (OURS, *RIVALS), lab.seeds[:CARD_SEEDS]
    jobs = [Search(s, p, seed, CARD_SECONDS) for s in PRICED for p in policies for seed in seeds]
    needed = dict(zip(jobs, lab.map(search, jobs, "cards for the same goodput"), strict=True))
    usd_per_hour = catalogue.device(PRICED[0].kind).usd_per_hour
    table: dict[tuple[Setting, str], list[int]] = {}
    for job, cards in needed.items():
        table.setdefault((job.setting, job.policy), []).append(cards)
    for setting in PRICED:
        for rival in RIVALS:
            ours, theirs = table[setting, OURS], table[setting, rival]
            mine, other = statistics.fmean(ours), statistics.fmean(theirs)
            lab.claim(
                f"cards.{setting.memory_gb:.0f}.{_name(rival)}",
                f"cards with {setting.memory_gb:.0f} GB that Dovetail needs ({mine:.0f}, {mine * usd_per_hour:.2f} "
                f"$/h) over those of {rival} ({other:.0f}, {other * usd_per_hour:.2f} $/h; {HIGH + STEP} stands for "
                f"more than {HIGH}), {100 * TARGET:.0f} % in time, {'bursty' if setting.bursty else 'Poisson'}",
                source=SOURCE,
                goal=Goal("at most", 1.0),
                measured=over_seeds([a / b for a, b in zip(ours, theirs, strict=True)]),
            )
    plots.cards(lab, PRICED, policies, table)


def _parts(lab: Lab, outcomes: _Outcomes, without: _Outcomes) -> None:
    """No part may cost goodput; that of classes is that the first one is served, so it is judged by that."""
    for setting in PARTS:
        for what in ABLATIONS:
            runs = without(setting, f"without {what}")
            whole = outcomes(setting, OURS)[: len(runs)]
            field = "first_hit_rate" if what == "classes" else "hit_rate"
            pairs = zip(whole, runs, strict=True)
            gains = [100 * (getattr(a, field) - getattr(b, field)) for a, b in pairs]
            lab.claim(
                f"without.{setting.key}.{what}",
                f"{setting.title}: {'class 1' if what == 'classes' else 'requests'} in time with everything "
                f"({100 * _mean(whole, field):.1f} %) above that without {what} ({100 * _mean(runs, field):.1f} %)",
                source=SOURCE,
                goal=Goal("at least", 0.0, "points"),
                measured=over_seeds(gains),
            )


def _mean(runs: Sequence[Outcome], field: str) -> float:
    return statistics.fmean(msgspec.structs.asdict(run)[field] for run in runs)
