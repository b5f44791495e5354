"""The memory for models, called by hand: room, order of eviction, the tier behind it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dovetail.device.cache import ModelCache, names_of
from dovetail.device.eviction import MAX_REASON_CHARS, Candidate
from dovetail.units import SECOND
from dovetail.workflow.graph import StageSpec

GB = 10**9


def bring(cache: ModelCache, weights: str, nbytes: int) -> None:
    cache.want(weights, nbytes)
    cache.load(weights)
    cache.loaded(weights)
    cache.unwant(weights)


def use(cache: ModelCache, weights: str, now_ns: int) -> None:
    cache.pin(weights, now_ns)
    cache.unpin(weights, now_ns)


def names(victims: object) -> list[str] | None:
    return None if victims is None else [v.weights for v in victims]  # type: ignore[attr-defined]


def full(eviction: str = "look-ahead") -> ModelCache:
    """Four models of 2 GB in 8 GB, loaded in the order a to d, used in the order b, a, d; and e wants to come in."""
    cache = ModelCache(9 * GB, reserve_bytes=GB, eviction=eviction)  # type: ignore[arg-type]
    for weights in "abcd":
        bring(cache, weights, 2 * GB)
    for second, weights in enumerate("bad", 1):
        use(cache, weights, second * SECOND)
    cache.want("e", 2 * GB)
    return cache


def test_the_reserve_is_never_used() -> None:
    cache = full()
    assert cache.free_bytes == 0
    assert cache.room_for("e", {"e": 0}, 0, evict="nothing") is None


def test_a_model_that_cannot_fit_is_refused_and_the_reason_gives_both_sizes() -> None:
    assert full().too_large("opt", 8 * GB) == ""
    problem = full().too_large("opt", 9 * GB)
    assert "opt needs 9.0 GB" in problem and "8.0 GB" in problem


def test_what_nobody_needs_goes_first_and_of_that_the_least_recently_used() -> None:
    cache = full()
    cache.want("f", 6 * GB)
    assert names(cache.room_for("e", {"e": 0}, 4 * SECOND)) == ["c"], "never used"
    assert names(cache.room_for("e", {"c": 1, "e": 0}, 4 * SECOND)) == ["b"]
    assert names(cache.room_for("f", {"f": 0}, 4 * SECOND)) == ["c", "b", "a"]


def test_of_what_nobody_needs_goes_what_saves_the_least_time_for_its_room() -> None:
    """A small model whose load takes long stays, though it was not used for longer than the large one."""
    cache = ModelCache(10 * GB)
    cache.load_ns = lambda weights, _source: {"small": SECOND // 25, "large": SECOND // 40}.get(weights, 0)
    bring(cache, "small", GB)
    bring(cache, "large", 8 * GB)
    use(cache, "small", 1 * SECOND)
    use(cache, "large", 2 * SECOND)
    cache.want("e", 2 * GB)
    assert names(cache.room_for("e", {"e": 0}, 3 * SECOND)) == ["large"]
    assert names(cache.room_for("e", {"e": 0}, 2 * SECOND + SECOND // 100)) == ["small"], "it was just in use"
    cache.want("f", 9 * GB)
    assert names(cache.room_for("f", {"f": 0}, 3 * SECOND)) == ["large"], "the free room and this are enough"


def test_who_turns_out_not_to_be_in_the_way_stays() -> None:
    cache = ModelCache(10 * GB)
    for weights, size in (("old", 1), ("large", 6), ("kept", 3)):
        bring(cache, weights, size * GB)
    for second, weights in enumerate(("old", "large", "kept"), 1):
        use(cache, weights, second * SECOND)
    cache.want("e", 5 * GB)
    cache.want("f", 7 * GB)
    assert names(cache.room_for("e", {"e": 0}, 9 * SECOND)) == ["large"], "old is the first in line, and not needed"
    assert names(cache.room_for("f", {"f": 0}, 9 * SECOND)) == ["old", "large"]


def test_then_goes_what_is_needed_last_but_never_what_is_needed_as_early_as_the_newcomer() -> None:
    cache = full()
    needs = {"c": 0, "a": 1, "e": 2, "b": 3, "d": 6}
    cache.want("f", 6 * GB)
    assert names(cache.room_for("e", needs, 0)) == ["d"]
    assert names(cache.room_for("f", needs | {"f": 2}, 0)) is None, "only b and d are needed later: 4 GB"
    assert names(cache.room_for("f", needs | {"f": -1}, 0)) == ["d", "b", "a"]


def test_what_is_in_use_or_loading_never_goes() -> None:
    cache = full()
    for weights in "abc":
        cache.pin(weights, 0)
    assert names(cache.room_for("e", {"e": 0}, 0)) == ["d"]
    cache.evict("d")
    cache.load("e")
    cache.want("f", 2 * GB)
    assert cache.room_for("f", {"f": 0}, 0) is None, "e is loading, the others are in use"


def test_first_in_first_out_takes_the_oldest_whatever_the_queue_says() -> None:
    assert names(full("fifo").room_for("e", {"e": 0, "a": 1}, 0)) == ["a"]
    assert names(full("fifo").room_for("e", {"e": 1, "a": 0}, 0)) == ["b"], "but not what is needed earlier"


def test_a_hint_makes_nothing_go_that_is_needed_or_hinted_at() -> None:
    cache = full()
    cache.unwant("e")
    for weights in "ce":
        cache.hint(weights, 2 * GB)
    assert names(cache.room_for("e", {"b": 0, "d": 1}, 0)) == ["a"]
    assert cache.room_for("e", {"a": 2, "b": 0, "d": 1}, 0) is None
    cache.want("f", 2 * GB)
    assert names(cache.room_for("f", {"f": 0}, 0)) == ["b"], "for a batch, what was hinted at is the last to go"


def test_reasons_are_sentences_for_people() -> None:
    cache = full()
    (idle,) = cache.room_for("e", {"c": 3, "e": 0}, 4 * SECOND + SECOND // 5) or ()
    assert idle.reason == "room for e (2.0 GB): nothing queued needs it, last used 3.2 s ago"
    (later,) = cache.room_for("e", {"a": 1, "b": 2, "c": 3, "d": 6, "e": 0}, 0) or ()
    assert later.reason == "room for e (2.0 GB): next needed by the 7th batch in the queue"


@pytest.mark.parametrize(("position", "text"), [(0, "1st"), (1, "2nd"), (2, "3rd"), (10, "11th"), (21, "22nd")])
def test_positions_are_said_as_people_count(position: int, text: str) -> None:
    needs = dict.fromkeys("abcd", position) | {"e": -1}
    (victim, *_) = full().room_for("e", needs, 0) or ()
    assert f"by the {text} batch" in victim.reason


def test_a_reason_stays_short_whatever_a_model_is_called() -> None:
    cache = full()
    cache.want("x" * 1000, 2 * GB)
    (victim,) = cache.room_for("x" * 1000, {}, 0) or ()
    assert len(victim.reason) <= MAX_REASON_CHARS


def test_what_is_evicted_drops_to_host_memory_and_comes_back_from_there() -> None:
    cache = full()
    assert cache.evict("c")
    assert cache.tier("c") == "host"
    cache.want("c", 2 * GB)
    assert cache.load("c") == "host"
    cache.loaded("c")
    assert cache.host_used_bytes == 0, "it is in one place at a time"
    assert cache.tier("e") == "absent"


def test_host_memory_has_its_own_bound_and_its_oldest_makes_room() -> None:
    cache = ModelCache(8 * GB, host_bytes=4 * GB)
    for weights in "abc":
        bring(cache, weights, 2 * GB)
    assert [cache.evict(weights) for weights in "abc"] == [True, True, True]
    assert cache.listed("host") == ("b", "c")
    bring(cache, "large", 5 * GB)
    assert not cache.evict("large")
    assert cache.listed("host") == ("b", "c"), "what does not fit anyway pushes nothing out"


def test_host_memory_does_not_drop_what_is_being_copied_from_it() -> None:
    cache = ModelCache(8 * GB, host_bytes=2 * GB)
    cache.put_on_host("a", 2 * GB)
    cache.want("a", 2 * GB)
    cache.load("a")
    assert not cache.put_on_host("b", 2 * GB)
    cache.failed("a")
    assert cache.tier("a") == "host"


def test_a_model_that_could_not_be_loaded_gives_its_room_back_and_is_lacking_again() -> None:
    cache = ModelCache(8 * GB)
    cache.want("a", 2 * GB)
    assert list(cache.lacking) == ["a"]
    cache.load("a")
    assert (list(cache.lacking), cache.free_bytes) == ([], 6 * GB)
    cache.failed("a")
    assert (list(cache.lacking), cache.free_bytes) == (["a"], 8 * GB)


def test_a_model_that_is_leaving_has_given_up_its_room_already() -> None:
    cache = full()
    cache.leave("c")
    assert cache.free_bytes == 2 * GB
    cache.load("e")
    assert cache.listed("leaving") == ("c",)
    cache.validate({"e": 1}, {})
    assert cache.evict("c") and cache.tier("c") == "host"


def test_a_reserve_larger_than_the_budget_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="reserve"):
        ModelCache(GB, reserve_bytes=2 * GB)


def test_people_read_names_and_not_hashes() -> None:
    cache = ModelCache(100, names={"2f62c9": "page_way"})
    assert "page_way needs 200 B" in cache.too_large("2f62c9", 200)
    file = StageSpec("page_way", "onnx", model="2f62c9", path="page_way.onnx")
    again = StageSpec("way_again", "onnx", model="2f62c9", path="page_way.onnx")
    listed = StageSpec("look", "model", model="compass/vit")
    assert names_of([file, again, listed]) == {"2f62c9": "page_way", "compass/vit": "compass/vit"}


def test_what_a_model_wastes_is_rounded_once_compiled_or_not() -> None:
    """Who goes must not depend on how the code was built."""
    idle_ns, nbytes, load_ns = 2_304_463_163, 1_736_984_002, 10_282_669
    assert float(idle_ns * nbytes) / load_ns != idle_ns * nbytes / load_ns, "these do not tell one rounding from two"
    held = Candidate("a", nbytes, 0, 1, False, load_ns)
    assert held.waste(idle_ns) == float(Fraction(idle_ns * nbytes, load_ns))
