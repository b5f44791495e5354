"""The Device machine with batches of one class: queue, memory and shares, called by hand and by chance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.device import Rules
from dovetail.device.events import NOBODY, DeviceAction, Evict, Grant, Load, ModelDropped, Refuse, SetAlarm
from dovetail.lab.rivals.compass_worker import AUTHORS_SIMULATOR, COMPASS
from dovetail.units import MS, SECOND

from .shop import LOAD_NS, Shop


def started(actions: list[DeviceAction]) -> list[int]:
    return [a.task for a in actions if isinstance(a, Grant)]


def holding(*models: str, rules: Rules | None = None) -> Shop:
    """A shop with these models in memory and nothing to do."""
    shop = Shop(rules)
    for weights in models:
        shop.take(weights)
        shop.drain()
    return shop


# -- starting -------------------------------------------------------------------------------------------------


def test_a_batch_without_weights_starts_at_once() -> None:
    assert Shop().take("") == [Grant(1, hit=True)]


def test_a_model_wanted_by_many_is_loaded_once_and_then_they_start_in_order() -> None:
    shop = Shop()
    assert shop.take("a", share_pct=50) == [Load("a", "absent", 1)]
    assert shop.take("a", share_pct=50, order=-1) == []
    assert shop.loaded("a") == [Grant(2, hit=False), Grant(1, hit=False)]


def test_two_models_load_side_by_side_and_the_third_waits_for_them() -> None:
    shop = Shop()
    assert shop.take("a") == [Load("a", "absent", 1)]
    assert shop.take("b") == [Load("b", "absent", 2)]
    assert shop.take("c") == []
    assert shop.loaded("b") == [Grant(2, hit=False), Load("c", "absent", 3)], (
        "2 starts before 1, whose model is not there"
    )


def test_one_that_waits_for_share_only_is_overtaken_by_nobody() -> None:
    shop = holding("a")
    shop.take("a", share_pct=60)
    shop.take("a", share_pct=60)
    assert shop.take("a", share_pct=30) == []
    assert started(shop.end(2)) == [3, 4]


def test_strict_order_lets_nobody_overtake_one_that_waits_for_its_model() -> None:
    shop = holding("a", rules=Rules(in_order=True))
    shop.take("b")
    assert shop.take("a") == []
    assert started(shop.loaded("b")) == [2]
    assert started(holding("a").take("a")) == [2]


def test_one_that_waits_for_room_is_overtaken_so_many_times_and_no_more() -> None:
    shop = holding("e", rules=Rules(overtakes=3))
    shop.take("e")
    assert shop.take("d") == [], "there is no room beside e, which is in use"
    for _ in range(10):
        shop.take("e")
    # The first of them was running when d came; d gives way to three more.
    assert started(shop.end(2)) == [4]
    assert started(shop.end(4)) == [5]
    assert started(shop.end(5)) == [6]
    actions = shop.end(6)
    assert [type(a) for a in actions] == [Evict, Load] and started(actions) == []
    assert started(shop.loaded("d")) == [3]


def test_a_batch_waits_for_its_time_and_holds_up_nobody() -> None:
    shop = holding("a")
    assert shop.take("a", earliest_ns=4 * MS) == [SetAlarm(4 * MS)]
    assert started(shop.take("a", order=9)) == [3]
    assert shop.end(3) == []
    assert started(shop.tick(4 * MS)) == [2]


# -- refusing -------------------------------------------------------------------------------------------------


def test_what_can_never_run_is_refused_with_the_reason() -> None:
    (memory,) = Shop().take("huge")
    assert isinstance(memory, Refuse) and memory.reason == "no_memory" and "huge needs 11 B" in memory.detail
    (share,) = Shop().take("a", share_pct=101)
    assert isinstance(share, Refuse) and share.reason == "no_share"


def test_too_late_is_said_at_once_when_the_work_before_it_shows_it() -> None:
    shop = holding("a")
    shop.take("a", expected_ns=10 * MS)
    shop.take("a", expected_ns=10 * MS)
    assert shop.take("a", latest_ns=20 * MS) == []
    (refused,) = shop.take("a", latest_ns=24 * MS)
    assert refused == Refuse(5, "too_late", "with the work before it, it would start 1 ms too late")
    assert shop.take("a", order=-1, latest_ns=10 * MS) == [], "before the others it is in time"
    shop.now_ns = 4 * MS
    assert isinstance(shop.take("a", order=-1, latest_ns=14 * MS)[0], Refuse)


def test_the_time_to_fetch_a_model_counts_and_so_does_what_is_left_of_a_load() -> None:
    assert isinstance(Shop().take("a", latest_ns=3 * LOAD_NS - 1)[0], Refuse)
    shop = Shop()
    assert isinstance(shop.take("a", latest_ns=3 * LOAD_NS)[0], Load)
    shop.now_ns = LOAD_NS
    assert isinstance(shop.take("a", latest_ns=3 * LOAD_NS)[0], Refuse), "5 ms of the first batch come before it"
    assert shop.take("a", share_pct=100, order=-1, latest_ns=3 * LOAD_NS) == []


def test_one_that_can_overtake_is_not_refused_for_the_loads_of_those_before_it() -> None:
    shop = holding("a")
    shop.take("b")
    assert started(shop.take("a", latest_ns=1)) == [3]


def test_a_load_on_its_way_does_not_wait_for_loads_that_have_not_begun() -> None:
    shop = Shop(Rules(loads=1))
    shop.take("a", share_pct=10)
    shop.take("b", share_pct=10, order=-1)
    assert shop.take("a", share_pct=10, latest_ns=3 * LOAD_NS) == []


def test_one_whose_time_has_passed_is_refused_when_its_turn_comes() -> None:
    shop = holding("a")
    shop.take("a", expected_ns=5 * MS)
    shop.take("a", latest_ns=6 * MS)
    shop.take("a")
    shop.now_ns = 7 * MS
    refused, start = shop.end(2)
    assert isinstance(refused, Refuse) and refused.reason == "too_late" and start == Grant(4, hit=True)


def test_when_a_load_fails_those_who_waited_are_refused_and_the_next_tries_again() -> None:
    shop = Shop()
    shop.take("a")
    shop.take("a")
    assert shop.fail("a") == [Refuse(n, "not_loaded", "the file is broken") for n in (1, 2)]
    assert shop.take("a") == [Load("a", "absent", 3)]


# -- memory ---------------------------------------------------------------------------------------------------


def test_room_is_made_for_one_that_has_come_up() -> None:
    shop = holding("a", "b", "c")
    *evicted, load = shop.take("d")
    assert [(e.weights, e.newcomer, e.task) for e in evicted if isinstance(e, Evict)] == [
        ("a", "d", 4),
        ("b", "d", 4),
    ]
    assert load == Load("d", "absent", 4)


def test_nobody_takes_room_that_an_earlier_batch_waits_for_be_it_free() -> None:
    shop = holding("e")
    shop.take("e")
    assert shop.take("d") == [], "3 bytes are free, and e is in use"
    assert shop.take("a") == [], "its 2 bytes would fit, but d is first"
    assert shop.hint("b") == []
    shop.end(2)
    assert sorted(shop.loading) == ["a", "d"]


def test_models_are_loaded_ahead_while_others_run() -> None:
    shop = holding("a")
    shop.take("a")
    assert shop.take("b") == [Load("b", "absent", 3)]
    assert shop.loaded("b") == []
    assert shop.end(2) == [Grant(3, hit=True)], "it was there when the device was free for it"


def test_loading_ahead_takes_nothing_that_a_batch_needs_unless_told_so() -> None:
    for evicts, expected in (("idle", []), ("later", ["c"])):
        shop = holding("b", "c", rules=Rules(prefetch_evicts=evicts))  # type: ignore[arg-type]
        shop.take("b")
        shop.take("c", order=9)
        actions = shop.take("d", order=1)
        assert [a.weights for a in actions if isinstance(a, Evict)] == expected


def test_loading_ahead_can_be_switched_off_and_bounded() -> None:
    shop = holding("a", rules=Rules(prefetch=0))
    shop.take("a")
    assert shop.take("b") == []
    assert shop.hint("b") == []
    assert shop.end(2) == [Load("b", "absent", 3)]
    shop = holding("a", rules=Rules(look_ahead=1))
    shop.take("a")
    shop.take("a")
    assert shop.take("b") == [], "it is the second in the queue"


def test_a_hint_loads_into_room_that_nobody_needs() -> None:
    shop = holding("d", "b")
    assert shop.hint("a") == [Load("a", "absent", NOBODY)]
    shop.loaded("a")
    shop.take("b")
    (evict, load) = shop.hint("c")
    assert isinstance(evict, Evict) and evict.weights == "d", "a was hinted at, b is in use"
    assert load == Load("c", "absent", NOBODY)
    assert holding("d", "b", rules=Rules(hints_evict=False)).hint("c") == []


def test_a_hint_that_finds_no_room_waits_for_it_but_not_for_ever() -> None:
    for later_ns, loads in ((SECOND, True), (11 * SECOND, False)):
        shop = holding("e")
        shop.take("e")
        assert shop.hint("d") == []
        shop.now_ns += later_ns
        assert any(isinstance(a, Load) for a in shop.end(2)) is loads


def test_what_somebody_wants_gone_goes_when_nothing_uses_it() -> None:
    shop = holding("a")
    shop.take("a")
    assert shop.device.step(ModelDropped("a", "scaled down"), 0) == []
    assert shop.end(2) == [Evict("a", 2, "scaled down", NOBODY)], "it goes with the last batch that needs it"
    assert shop.device.step(ModelDropped("a", "scaled down"), 0) == []
    assert shop.take("a") == [Load("a", "host", 3)]


# -- what it tells ----------------------------------------------------------------------------------------------


def test_the_wait_counts_what_runs_whole_and_what_is_queued() -> None:
    for rules, wait_ns in ((Rules(), 12 * MS), (Rules(counts_running=False), 5 * MS)):
        shop = holding("a", rules=rules)
        shop.take("a", expected_ns=7 * MS)
        shop.take("a", expected_ns=5 * MS)
        shop.now_ns = 3 * MS
        row = shop.device.row(3 * MS)
        assert (row.worker, row.at_ns, row.wait_ns, row.free_at_ns) == (3, 3 * MS, wait_ns, 12 * MS)
        assert (row.resident, row.free_bytes) == (("a",), 8)


def test_the_time_to_be_free_includes_loads() -> None:
    shop = Shop()
    shop.take("a", expected_ns=5 * MS)
    assert shop.device.row(0).free_at_ns == 3 * LOAD_NS + 5 * MS
    assert shop.device.row(0).wait_ns == 5 * MS


def test_a_long_queue_is_counted_to_its_end() -> None:
    shop = holding("a")
    for _ in range(100):
        shop.take("a", expected_ns=MS)
    assert shop.device.row(0).free_at_ns == 100 * MS


# -- Compass' worker --------------------------------------------------------------------------------------------


def test_a_blocking_fetch_occupies_the_device_and_the_cached_set_changes_when_it_ends() -> None:
    shop = holding("b", "c", rules=AUTHORS_SIMULATOR)
    assert shop.take("d", expected_ns=9 * MS) == [Load("d", "absent", 3)]
    assert shop.take("c", expected_ns=5 * MS) == [], "the device is occupied"
    row = shop.device.row(0)
    assert (row.resident, row.free_bytes, row.wait_ns) == (("b", "c"), 3, 5 * MS)
    evict, start = shop.loaded("d")
    assert isinstance(evict, Evict) and evict.weights == "b" and start == Grant(3, hit=False)
    assert shop.device.row(0).resident == ("c", "d")
    assert shop.end(3) == [Grant(4, hit=True)]


def test_a_blocking_worker_runs_one_batch_at_a_time_whatever_their_shares() -> None:
    shop = Shop(AUTHORS_SIMULATOR)
    shop.take("", share_pct=50)
    assert shop.take("", share_pct=50) == []
    assert shop.device.row(0).free_at_ns == 10 * MS


def test_a_fetch_is_not_begun_for_a_batch_that_would_then_be_too_late() -> None:
    shop = holding("a", rules=AUTHORS_SIMULATOR)
    shop.take("a", expected_ns=5 * MS)
    assert shop.take("d", latest_ns=36 * MS) == [], "30 ms of fetching after 5 ms of work"
    shop.now_ns = 10 * MS
    (refused,) = shop.end(2)
    assert isinstance(refused, Refuse) and refused.reason == "too_late"


def test_what_was_to_make_room_stays_when_the_fetch_fails() -> None:
    shop = holding("b", "c", rules=AUTHORS_SIMULATOR)
    shop.take("d")
    assert shop.fail("d") == [Refuse(3, "not_loaded", "the file is broken")]
    assert shop.take("b") == [Grant(4, hit=True)]


def test_compass_loads_one_model_ahead_into_free_room() -> None:
    shop = holding("a", rules=COMPASS)
    shop.take("a")
    assert shop.take("b") == [Load("b", "absent", 3)]
    assert shop.take("c") == [], "one at a time"
    assert shop.loaded("b") == [Load("c", "absent", 4)]
    assert shop.take("e") == [], "there is no room, and nothing goes for that"


def test_compass_makes_no_room_for_a_batch_that_has_lost_its_turn() -> None:
    shop = holding("a", rules=COMPASS)
    shop.take("a")
    shop.take("e")
    shop.take("d", order=-1)
    assert shop.end(2) == [], "d comes up, but e is loading and there is no room beside it"
    assert started(shop.take("", order=-2)) == [5]
    assert shop.loaded("e") == [], "something runs: now d is one of those ahead of their turn"
    assert [type(a) for a in shop.end(5)] == [Load]


def test_a_batch_forgotten_during_its_fetch_leaves_the_device_to_the_next() -> None:
    shop = holding("b", "c", rules=AUTHORS_SIMULATOR)
    shop.take("d")
    shop.take("b")
    shop.take("c")
    assert shop.forget(3) == [], "b is on its way out"
    (evict, load) = shop.loaded("d")
    assert isinstance(evict, Evict) and load == Load("b", "host", 4)


# -- laws -------------------------------------------------------------------------------------------------------

models = st.sampled_from(["a", "b", "c", "d", "e", "", "huge"])
takes = st.tuples(
    st.just("take"),
    models,
    st.sampled_from([10, 40, 50, 100]),
    st.integers(0, 3),
    st.sampled_from([0, 0, 0, 1, 30]),
    st.sampled_from([0, 0, 0, 5, 60]),
)
others = st.tuples(
    st.sampled_from(["end", "end", "loaded", "loaded", "fail", "forget", "hint", "tick"]), st.integers(0, 99), models
)
rules_of_all_kinds = st.builds(
    Rules,
    eviction=st.sampled_from(["look-ahead", "fifo"]),
    loads=st.integers(1, 3),
    in_order=st.booleans(),
    overtakes=st.integers(0, 4),
    fetch_blocks=st.booleans(),
    look_ahead=st.integers(0, 6),
    prefetch=st.integers(0, 3),
    prefetch_evicts=st.sampled_from(["nothing", "idle", "later"]),
    hints_evict=st.booleans(),
    counts_running=st.booleans(),
) | st.sampled_from([Rules(), COMPASS, AUTHORS_SIMULATOR])


@settings(max_examples=300, deadline=None)
@given(rules_of_all_kinds, st.sampled_from([None, 0, 6]), st.lists(takes | others, max_size=60))
def test_whatever_happens_the_laws_hold_and_every_batch_ends_once(
    rules: Rules, host_bytes: int | None, steps: list[tuple[object, ...]]
) -> None:
    """The laws themselves are in `Shop.heed`."""
    shop = Shop(rules, host_bytes=host_bytes)
    for step in steps:
        perform(shop, step)
    shop.drain()
    for batch, outcome in shop.outcomes.items():
        assert outcome in (
            ["started", "ended"], ["refused"], ["forgotten"], ["started", "forgotten"]
        ), f"batch {batch}: {outcome}"  # fmt: skip


def perform(shop: Shop, step: tuple[object, ...]) -> None:
    match step:
        case ("take", str(weights), int(share_pct), int(order), int(earliest_ms), int(latest_ms)):
            earliest_ns = shop.now_ns + earliest_ms * MS if earliest_ms else 0
            latest_ns = shop.now_ns + latest_ms * MS if latest_ms else 0
            shop.take(weights, share_pct=share_pct, order=order, earliest_ns=earliest_ns, latest_ns=latest_ns)
        case ("end", int(which), _) if shop.running:
            shop.end(sorted(shop.running)[which % len(shop.running)])
        case ("loaded", int(which), _) if shop.loading:
            shop.loaded(shop.loading[which % len(shop.loading)])
        case ("fail", int(which), _) if shop.loading:
            shop.fail(shop.loading[which % len(shop.loading)])
        case ("forget", int(which), _) if shop.queued or shop.running:
            open_batches = sorted([*shop.queued, *shop.running])
            shop.forget(open_batches[which % len(open_batches)])
        case ("hint", _, str(weights)):
            shop.hint(weights)
        case ("tick", int(ms), _):
            shop.tick(ms * MS)


def test_a_number_that_was_given_twice_is_a_mistake() -> None:
    shop = holding("a")
    shop.take("a")
    with pytest.raises(ValueError, match="batch 2 of ingress 0 was taken before"):
        shop.batches -= 1
        shop.take("a")
