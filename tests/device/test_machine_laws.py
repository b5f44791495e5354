"""The laws of the Device machine, with whatever may happen: the laws themselves are in `workshop`."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.device import Device, WindowQuota
from dovetail.device.events import TO_THE_END, Grant
from dovetail.units import MS

from .workshop import Job, Workshop

arrivals = st.tuples(
    st.just("arrive"),
    st.sampled_from(["plain", "plain", "a", "b", "c"]),
    st.integers(1, 3),
    st.sampled_from([30, 50, 100, 100]),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 1),
    st.booleans(),
    st.sampled_from([0, 0, 3, 40]),
)
others = st.tuples(
    st.sampled_from(["kernel"] * 6 + ["loaded", "loaded", "broke", "launch", "launch", "withdraw", "hint", "wait"]),
    st.integers(0, 99),
    st.integers(0, 5),
)


def perform(shop: Workshop, step: tuple[object, ...], number: int) -> None:
    match step:
        case (
            "arrive",
            str(stage),
            int(priority),
            int(share),
            int(kernels),
            bool(hosted),
            int(ingress),
            follows,
            late,
        ):
            assert isinstance(late, int)
            shop.arrive(
                # The same numbers at both ingresses: they are told apart.
                number // 2,
                kernels=kernels,
                launched=min(1, kernels - 1) if hosted and kernels > 1 else None,
                stage=stage,
                priority=priority,
                share_pct=share,
                ingress=number % 2 if ingress else 1 + number % 2,
                follows=bool(follows),
                objective_ns=shop.now_ns + 50 * MS if number % 3 else 0,
                **({"latest_ns": shop.now_ns + late * MS} if late else {}),
            )
        case ("kernel", int(which), int(ms)) if shop.running:
            shop.kernel(shop.running[which % len(shop.running)], ms * MS // 2)
        case ("loaded" | "broke" as how, int(which), _) if shop.loading:
            shop.loaded(shop.loading[which % len(shop.loading)], broke=how == "broke")
        case ("launch", int(which), int(more)) if hosted_tasks(shop):
            tasks = hosted_tasks(shop)
            shop.launch(tasks[which % len(tasks)], more)
        case ("withdraw", int(which), _) if shop.open:
            shop.withdraw(shop.open[which % len(shop.open)])
        case ("hint", int(which), _):
            shop.hint("abc"[which % 3])
        case ("wait", int(ms), _):
            shop.wait(ms * MS)


def hosted_tasks(shop: Workshop) -> list[int]:
    return [t for t in shop.open if shop.jobs[t].launched < shop.jobs[t].kernels]


def play(shop: Workshop, steps: list[tuple[object, ...]]) -> None:
    for number, step in enumerate(steps):
        perform(shop, step, 2 * number)
    shop.drain()
    for job in shop.jobs.values():
        assert job.ends == 1, "every batch ends once"
        whole = list(range(job.kernels))
        assert job.ran == whole[: len(job.ran)], "every kernel runs once, in order"


@settings(max_examples=250, deadline=None)
@given(st.lists(arrivals | others, max_size=50), st.sampled_from([0, 0, 5 * MS]))
def test_whatever_happens_the_laws_hold(steps: list[tuple[object, ...]], ageing_ns: int) -> None:
    play(Workshop(ageing_ns=ageing_ns), steps)


@settings(max_examples=100, deadline=None)
@given(st.lists(arrivals | others, max_size=40))
def test_what_is_not_refused_or_withdrawn_runs_to_its_last_kernel(steps: list[tuple[object, ...]]) -> None:
    """Revocation loses nothing."""
    shop = Workshop()
    kept = [s for s in steps if s[0] not in ("withdraw", "broke")]
    play(shop, [(*s[:8], 0) if s[0] == "arrive" else s for s in kept])
    for job in shop.jobs.values():
        assert job.ran == list(range(job.kernels))


@settings(max_examples=60, deadline=None)
@given(st.lists(arrivals | others, max_size=40))
def test_the_same_events_give_the_same_actions(steps: list[tuple[object, ...]]) -> None:
    shop = Workshop()
    play(shop, steps)
    again: Device = Workshop().device
    for event, now_ns, actions in shop.log:
        assert again.step(event, now_ns) == actions


#: A batch whose window passes while another of its class runs: nothing may start beside it.
LATE_BESIDE = [
    ("arrive", "plain", 1, 100, 2, False, 0, False, 0),
    ("arrive", "plain", 1, 100, 4, True, 0, False, 0),
    ("kernel", 0, 0),
    ("wait", 1, 0),
    ("arrive", "plain", 2, 30, 1, False, 0, False, 0),
    ("arrive", "plain", 1, 30, 1, False, 0, False, 3),
]


@settings(max_examples=100, deadline=None)
@given(st.lists(arrivals | others, max_size=40))
@example(LATE_BESIDE)
def test_nothing_of_a_lower_class_begins_where_a_higher_one_could(steps: list[tuple[object, ...]]) -> None:
    """Without ageing, and but for shares that a higher one could not use, or that are kept for another's gap."""
    shop = Workshop()

    def watch(job: Job, grant: Grant) -> None:
        free_pct = 100 - sum(shop.jobs[t].run.share_pct for t in shop.running)
        # What a task keeps for its next kernel while its host has not launched that.
        gaps = [shop.jobs[t] for t in hosted_tasks(shop) if shop.jobs[t].at == shop.jobs[t].launched]
        free_pct -= max((j.run.share_pct for j in gaps if j.granted is None), default=0)
        others = [t for t in shop.open if t not in shop.granted_now]
        higher = [shop.jobs[t] for t in others if shop.jobs[t].run.priority < job.run.priority]
        for other in higher:
            if other.granted is None and shop.could_run(other):
                assert other.run.share_pct > free_pct, "a higher class could have had this share"

    shop.watch = watch
    play(shop, steps)


@pytest.mark.parametrize("high_kernels", [1, 4])
def test_a_lower_class_is_not_starved_under_declared_ageing(high_kernels: int) -> None:
    shop = Workshop(ageing_ns=20 * MS)
    low = shop.arrive(1, kernels=5, priority=3)
    for number in range(2, 400):
        shop.arrive(number, kernels=high_kernels, priority=1)
        while len(shop.open) > 2:
            high = [t for t in shop.running if t != low]
            shop.kernel((high or shop.running)[0], MS)
        shop.wait(0)
        if shop.jobs[low].ends:
            break
    assert shop.jobs[low].ends, "one kernel per 20 ms, whatever is above it"
    assert shop.now_ns <= 5 * (20 + 2 * high_kernels) * MS + 10 * MS


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["x", "y"]), st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=25)
)
def test_no_client_is_above_its_quota_and_overuse_is_carried_over(work: list[tuple[str, int, int]]) -> None:
    window_ns, quota = 20 * MS, {"x": 30, "y": 50}
    shop = Workshop(account=WindowQuota(quota, window_ns))
    used_ns = dict.fromkeys(quota, 0)
    longest_ns = 0
    for number, (client, kernels, ms) in enumerate(work):
        shop.arrive(number, kernels=kernels, client=client, share_pct=50)
        for task in shop.running[:1]:
            job, before = shop.jobs[task], len(shop.jobs[task].ran)
            shop.kernel(task, ms * MS)
            used_ns[job.run.client] += ms * MS * (len(job.ran) - before)
            longest_ns = max(longest_ns, ms * MS)
        for who, pct in quota.items():
            windows = shop.now_ns // window_ns + 1
            assert used_ns[who] <= windows * window_ns * pct // 100 + 4 * longest_ns, f"{who} is above its quota"
    shop.drain()


def test_two_ingresses_with_the_same_numbers_do_not_disturb_each_other() -> None:
    shop = Workshop()
    first = shop.arrive(7, kernels=3, priority=2)
    shop.kernel(first, MS)
    second = shop.arrive(7, kernels=1, priority=1, ingress=1)
    assert first != second and shop.jobs[first].revoked
    shop.kernel(first, MS)
    assert shop.running == [second]
    shop.kernel(second, MS)
    assert shop.running == [first] and shop.jobs[first].granted == Grant(first, 1, TO_THE_END)
    shop.drain()
