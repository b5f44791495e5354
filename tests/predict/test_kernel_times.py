"""Statistics of sequences: made, bounded, renewed when stale, told to others once."""

from __future__ import annotations

from dovetail.predict.kernel_times import KernelTimes
from dovetail.profile.kernels import MIN_COUNT, KernelStats

IDENTS = ("conv[1]", "relu[1]")


def seen(name: str, count: int, ns: int = 1000, kernels: tuple[str, ...] = IDENTS) -> KernelStats:
    stats = KernelStats.empty(name, kernels)
    for _ in range(count):
        for position in range(len(kernels)):
            stats.observe(position, ns)
    return stats


def test_a_sequence_is_learned_and_its_news_are_told_once() -> None:
    times = KernelTimes()
    stats = times.sequence("read", IDENTS)
    assert stats is not None and times.stats["read"] is stats
    stats.observe(0, 500)
    stats.observe_gap(0, 70)
    (news,) = times.news(9)
    assert (type(news), news.durations[0].count, news.gaps[1].mean_ns) == (KernelStats, 1, 70)
    assert times.news(9) == []
    assert stats.durations[0].count == 1, "it is still known here"
    assert times.sequence("read", IDENTS) is stats


def test_news_are_told_in_turn() -> None:
    times = KernelTimes()
    for name in "abc":
        stats = times.sequence(name, IDENTS)
        assert stats is not None
        stats.observe(0, 500)
    assert [n.name for n in times.news(2)] == ["a", "b"]
    again = times.sequence("a", IDENTS)
    assert again is not None
    again.observe(0, 500)
    assert [n.name for n in times.news(2)] == ["c", "a"]


def test_other_kernels_and_drift_begin_anew() -> None:
    times = KernelTimes()
    stats = times.sequence("read", IDENTS)
    assert stats is not None
    stats.observe(0, 500)
    other = times.sequence("read", ("conv[2]",))
    assert other is not None and other.kernels == ("conv[2]",) and other.seen == 0
    for ns in (*[1000] * 500, *[9000] * 40):
        other.observe(0, ns)
    renewed = times.sequence("read", ("conv[2]",))
    assert renewed is not None and renewed is not other and renewed.seen == 0


def test_there_is_a_bound_and_a_sequence_beyond_it_goes_without() -> None:
    times = KernelTimes(most=2)
    assert times.sequence("", IDENTS) is None
    assert times.sequence("a", IDENTS) is not None
    assert times.sequence("b", IDENTS) is not None
    assert times.sequence("c", IDENTS) is None
    assert times.sequence("a", IDENTS) is not None
    assert list(times.stats) == ["a", "b"]


def test_what_others_learned_counts_when_such_a_sequence_comes_and_is_no_news() -> None:
    times = KernelTimes(most=2)
    told = seen("read", MIN_COUNT)
    times.learn([told, seen("x", 1), seen("beyond the bound", 1)])
    assert times.stats == {}
    stats = times.sequence("read", IDENTS)
    assert stats is not None and stats.seen == MIN_COUNT
    assert times.news(9) == []
    stats.observe(0, 1000)
    assert told.durations[0].count == MIN_COUNT, "what was told is a copy"
    (news,) = times.news(9)
    assert news.durations[0].count == 1
    beyond = times.sequence("beyond the bound", IDENTS)
    assert beyond is not None and beyond.seen == 0


def test_what_others_learn_later_is_added_to_what_is_known() -> None:
    times = KernelTimes()
    stats = times.sequence("read", IDENTS)
    assert stats is not None
    stats.observe(0, 1000)
    times.learn([seen("read", MIN_COUNT)])
    assert stats.durations[0].count == MIN_COUNT + 1
    assert [n.durations[0].count for n in times.news(9)] == [1], "only what was seen here"
    stats.observe(0, 1000)
    times.learn([seen("read", 2, kernels=("gemm[3]",))])
    assert stats.kernels == ("gemm[3]",)
    assert times.news(9) == [], "what was seen here was of other kernels"


def test_who_tells_nobody_learns_as_much_and_has_no_news() -> None:
    times = KernelTimes(tells=False)
    stats = times.sequence("s", ["a", "b"])
    assert stats is not None
    for _ in range(5):
        stats.observe(0, 100)
    assert times.news(8) == [] and stats.duration_ns(0) is not None
    again = KernelTimes(tells=False)
    again.restore(*times.state())
    assert again.stats == times.stats
    assert again.stats["s"] is not times.stats["s"], "a copy"
