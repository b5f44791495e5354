"""What is known of kernels: identities, statistics in constant memory, and when they no longer hold."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.lab.kernels.fikit import pooled
from dovetail.profile.kernels import KernelStats, Spread, kernel_ids, kernel_name
from dovetail.record.kernels import KernelRecord, decode_records, encode_record

#: A busy machine is no reason to fail.
PATIENT = settings(deadline=None)
times = st.lists(st.integers(0, 10**8), min_size=1, max_size=200)


class TestIdentity:
    def test_operator_and_shapes_and_a_number_where_the_same_comes_again(self) -> None:
        found = kernel_ids(
            [("conv", [(1, 3, 8, 8), (4, 3)]), ("relu", [(1, 4)]), ("relu", [(1, 4)]), ("relu", [(2, 4)])]
        )
        assert found == ("conv[1x3x8x8,4x3]", "relu[1x4]", "relu[1x4]#1", "relu[2x4]")
        assert [kernel_name(ident) for ident in found[1:3]] == ["relu[1x4]"] * 2

    @PATIENT
    @given(st.lists(st.tuples(st.sampled_from("ab"), st.just(((1, 2),)))))
    def test_no_two_kernels_of_a_sequence_are_the_same(
        self, kernels: list[tuple[str, tuple[tuple[int, int]]]]
    ) -> None:
        assert len(set(kernel_ids(kernels))) == len(kernels)


class TestSpread:
    @PATIENT
    @given(times)
    def test_mean_and_variance_are_those_of_the_values(self, values: list[int]) -> None:
        spread = Spread()
        for value in values:
            spread.add(value)
        assert spread.mean_ns == pytest.approx(statistics.fmean(values), abs=1e-3)
        if len(values) > 1:
            assert spread.variance == pytest.approx(statistics.variance(values), rel=1e-6, abs=1e-3)

    @PATIENT
    @given(times, st.floats(0.01, 1.0))
    def test_a_quantile_is_within_a_bucket_of_the_true_one(self, values: list[int], q: float) -> None:
        spread = Spread()
        for value in values:
            spread.add(value)
        rank = max(0, min(len(values) - 1, int(q * len(values) + 1 - 1e-9) - 1))
        near = sorted(values)[max(0, rank - 1) : rank + 2]
        assert min(near) * 0.93 - 1 <= spread.quantile_ns(q) <= max(near) * 1.07 + 1

    @PATIENT
    @given(times, times)
    def test_merging_is_adding_all(self, one: list[int], other: list[int]) -> None:
        both, left, right = Spread(), Spread(), Spread()
        for value in one:
            left.add(value)
            both.add(value)
        for value in other:
            right.add(value)
            both.add(value)
        left.merge(right)
        assert left.count == both.count
        assert left.buckets == both.buckets
        assert left.mean_ns == pytest.approx(both.mean_ns, abs=1e-3)

    @PATIENT
    @given(times, st.integers(0, 10**8), st.integers(0, 10**8))
    def test_expected_delay_is_that_of_the_values_to_a_bucket(
        self, values: list[int], duration: int, passed: int
    ) -> None:
        spread = Spread()
        for value in values:
            spread.add(value)
        delay = spread.expected_delay_ns(duration, passed)
        assert 0 <= delay <= duration
        longer = [v for v in values if v > passed * 1.08 + 1]
        if len(longer) == len([v for v in values if v > passed * 0.92 - 1]) and longer:
            true = statistics.fmean(max(0, duration + passed - v) for v in longer)
            assert delay == pytest.approx(true, abs=0.08 * max(longer) + 2)

    def test_a_wait_that_lasts_longer_than_ever_may_end_at_any_moment(self) -> None:
        spread = Spread()
        spread.add(1000)
        assert spread.expected_delay_ns(500, 0) == 0
        assert spread.expected_delay_ns(500, 5000) == 500

    def test_memory_does_not_grow_and_old_observations_fade(self) -> None:
        rng, spread = random.Random(1), Spread()
        for _ in range(20_000):
            spread.add(rng.randrange(1000, 2000))
        assert len(spread.buckets) < 40
        for _ in range(3000):
            spread.add(8000)
        assert spread.quantile_ns(0.3) == pytest.approx(8000, rel=0.07)


class TestStats:
    def stats(self) -> KernelStats:
        stats = KernelStats.empty("m", ("a", "b", "a#1"))
        for _ in range(10):
            for position in range(3):
                stats.observe(position, 1000 * (position + 1))
                stats.observe_gap(position, 50 * (position + 1))
        return stats

    def test_what_was_seen_too_rarely_is_unknown(self) -> None:
        stats = KernelStats.empty("m", ("a",), min_count=3)
        for _ in range(2):
            stats.observe(0, 1000)
        assert not stats.known(0)
        assert stats.duration_ns(0) is None
        stats.observe(0, 1000)
        assert stats.duration_ns(0) == pytest.approx(1000, rel=0.07)
        assert stats.gap(0) is None
        assert not stats.known(7)

    def test_a_low_quantile_ignores_a_disturbed_run(self) -> None:
        stats = KernelStats.empty("m", ("a",))
        for duration in (400, 410, 400, 405, 400, 5000):
            stats.observe(0, duration * 1000)
        assert stats.duration_ns(0) == pytest.approx(400_000, rel=0.07)
        assert stats.durations[0].mean_ns > 1_000_000

    def test_it_survives_being_written_and_read(self) -> None:
        stats = self.stats()
        assert msgspec.json.decode(msgspec.json.encode(stats), type=KernelStats) == stats

    def test_another_sequence_is_noticed_and_named(self) -> None:
        stats = self.stats()
        assert stats.stale(("a", "b", "a#1")) is None
        changed = stats.stale(("a", "c", "a#1"))
        assert changed is not None and (changed.why, changed.detail) == ("kernels changed", "kernel 1 was b and is c")
        shorter = stats.stale(("a", "b"))
        assert shorter is not None and shorter.detail == "3 kernels before, 2 now"

    def test_drift_is_noticed_and_named_and_scatter_is_not(self) -> None:
        rng = random.Random(1)
        stats = self.stats()
        for _ in range(300):
            for position in range(3):
                stats.observe(position, round(1000 * (position + 1) * rng.lognormvariate(0, 0.3)))
        assert stats.stale() is None
        for _ in range(60):
            for position in range(3):
                stats.observe(position, 3000 * (position + 1))
        drifted = stats.stale()
        assert drifted is not None and drifted.why == "durations drifted"
        assert "times as long" in drifted.detail

    def test_kernels_of_one_name_together(self) -> None:
        durations, gaps = pooled(self.stats())
        assert durations["a"].mean_ns == pytest.approx(2000)
        assert gaps["a"].mean_ns == pytest.approx(100)
        assert durations["b"].count == 10

    def test_who_launches_early_does_not_wait_for_results(self) -> None:
        stats = self.stats()
        assert not stats.launches_ahead
        for _ in range(20):
            stats.observe_gap(0, 0, early=True)
        assert stats.launches_ahead


class TestRecords:
    def test_a_record_survives_its_line(self) -> None:
        records = [KernelRecord(1, "m", 0, 1, 5, 9), KernelRecord(2, "n", 3, 2, 9, 12, 4, "conv", "fill", "c", 50)]
        lines = [encode_record(record) for record in records]
        assert lines[0] == b'{"task":1,"name":"m","kernel":0,"priority":1,"begin_ns":5,"end_ns":9}\n'
        assert list(decode_records([*lines, b"\n"])) == records

    @pytest.mark.parametrize("line", [b"nonsense", b'{"task":1}', b'{"task":"x","name":"m"}'])
    def test_what_is_no_record_is_named_by_its_line(self, line: bytes) -> None:
        good = encode_record(KernelRecord(1, "m", 0, 1, 5, 9))
        with pytest.raises(DovetailError, match="line 2 is no kernel record"):
            list(decode_records([good, line]))
