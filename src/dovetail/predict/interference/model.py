"""The predictor of interference: how long a batch takes beside others, how sure that is, and what a batch taught.

Rules of this file
- Alone, a batch takes its time alone. Beside others it takes at least that.
- A time is a work integral: work that is left falls at the rate 1/slow-down of those who are there, and the slow-down
  is looked at again whenever somebody leaves.
- The same observations give the same state, to the bit; a restored model goes on as the saved one would have.
- A new kind of device begins with the weights of the kind that was seen most, and doubts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from .crowd import forward_ns, over_time, together
from .effects import Effects
from .forward import Slowdown
from .kind import Kind, crowd_beside, direction_of
from .load import Beside, Load
from .records import Forecast
from .state import InterferenceState, checked

__all__ = ["Interference"]

#: No bound is further off than this, as a logarithm: half a billion times as long. [our choice]
_MOST: Final = 20.0

#: A neighbourhood by its size: 1, 2, 3 to 4, 5 to 8, more. [our choice]
_KNOWN = ("alone", "1", "2", "3-4", "3-4", "5-8", "5-8", "5-8", "5-8", "more")
_NEW = tuple([f"{size} new" for size in _KNOWN])


class Interference:
    """Learns while running how those who share a device slow each other down."""

    def __init__(self, state: InterferenceState | None = None) -> None:
        state = InterferenceState() if state is None else checked(state)
        self._effects = Effects(state.effects)
        self._kinds = {row.kind: Kind(row.kind, self._effects, row) for row in state.kinds}

    def kind(self, name: str) -> Kind:
        """What is known of a kind of device; of one that was never seen, what the others suggest."""
        kind = self._kinds.get(name)
        if kind is None:
            kind = Kind(name, self._effects)
            if self._kinds:
                kind.inherit(max(self._kinds.values(), key=lambda known: known.seen))
        return kind

    def kinds(self) -> list[Kind]:
        """All kinds that were seen."""
        return [self._kinds[name] for name in sorted(self._kinds)]

    def has_seen(self, name: str) -> bool:
        """Whether a batch was beside others on this kind of device."""
        return name in self._kinds

    # -- answers --------------------------------------------------------------------------------------------------

    def slowdown(self, kind: str, victim: Load, others: Sequence[Load]) -> float:
        """How many times as long the victim takes beside all of these, all the time."""
        if not others:
            return 1.0
        of = self.kind(kind)
        who = of.victim(victim)
        pairs = of.pairs(who, victim, others)
        costs = of.costs(who, pairs, of.rows(pairs))
        return math.exp(together(costs, of.crowd_weight * crowd_beside(victim, others), of.power)[0])

    def felt(self, kind: str) -> bool:
        """Whether neighbours are known to cost anything on this kind of device."""
        of = self._kinds.get(kind)
        return of is not None and of.presence.felt

    def slowdowns(self, kind: str) -> Slowdown:
        """The same for many questions at once: what one of a pair adds to the other is worked out once."""
        of = self.kind(kind)
        #: Victim -> neighbour -> what that adds to s^p.
        known: dict[Load, dict[Load, float]] = {}
        weight, power = of.crowd_weight, of.power

        def slowdown(victim: Load, others: Sequence[Load]) -> float:
            if not others:
                return 1.0
            row = known.get(victim)
            if row is None:
                row = known[victim] = {}
            try:
                total = sum([row[other] for other in others], 1.0)
            except KeyError:
                who = of.victim(victim)
                pairs = of.pairs(who, victim, others)
                for other, cost in zip(others, of.costs(who, pairs, of.rows(pairs)), strict=True):
                    row[other] = math.exp(power * cost) - 1 if cost > 0 else 0.0
                total = sum([row[other] for other in others], 1.0)
            if weight > 0 and (crowd := crowd_beside(victim, others)):
                total += math.exp(power * weight * crowd) - 1
            return math.exp(math.log(total) / power)

        return slowdown

    def over(self, kind: str, victim: Load, solo_ns: int, beside: Sequence[Beside]) -> float:
        """How long a batch takes beside neighbours that come and leave at these times, in nanoseconds."""
        of = self.kind(kind)
        others = [other.load for other in beside]
        who = of.victim(victim)
        pairs = of.pairs(who, victim, others)
        costs = of.costs(who, pairs, of.rows(pairs)) if beside else []
        begins, ends = [other.begin_ns for other in beside], [other.end_ns for other in beside]
        shares = [other.share_pct for other in others]
        return forward_ns(solo_ns, costs, begins, ends, shares, victim.share_pct, of.crowd_weight, of.power)

    def predict(
        self, kind: str, victim: Load, solo_ns: int, others: Sequence[Load], ends_ns: Sequence[int] | None = None
    ) -> Forecast:
        """How long a batch that begins now takes beside these, who leave at these times from now on (or never)."""
        if not others:
            of = self.kind(kind)
            return Forecast(solo_ns, solo_ns, math.sqrt(of.noise_of(victim.model) + of.churn), "alone")
        of = self.kind(kind)
        who = of.victim(victim)
        pairs = of.pairs(who, victim, others)
        rows = of.rows(pairs)
        costs = of.costs(who, pairs, rows)
        weight = of.crowd_weight
        crowd = crowd_beside(victim, others)
        value, by_cost, by_crowd, by_power = together(costs, weight * crowd, of.power)
        if ends_ns is None:
            median_ns = solo_ns * math.exp(value)
        else:
            shares = [other.share_pct for other in others]
            begins = [0] * len(shares)
            median_ns = forward_ns(solo_ns, costs, begins, ends_ns, shares, victim.share_pct, weight, of.power)
        doubt = of.doubt(who, pairs, direction_of(rows, by_cost, by_crowd * crowd), by_cost, by_power)
        noise = of.noise_of(victim.model)
        situation = _situation(len(others), new=doubt > noise)
        deviation = math.sqrt(doubt + noise + of.churn)
        return Forecast(solo_ns, max(solo_ns, round(median_ns)), deviation, situation, 1 + of.drift.haste)

    def bound_ns(self, kind: str, forecast: Forecast, level: float) -> int:
        """What the time stays below with this chance."""
        off = self.kind(kind).margin(forecast.situation).bound(level) * forecast.deviation
        return round(forecast.median_ns * math.exp(min(_MOST, off * forecast.caution if off > 0 else off)))

    def factor(self, kind: str, victim: Load, others: Sequence[Load], level: float) -> float:
        """How many times as long as predicted it takes at most, with this chance, beside these as they come.

        Whoever comes later is not in it. A margin that covers them as well (`Kind.held`) keeps too many apart: with
        it a simulated cluster answered 5 % less in time, and less on each of four seeds.
        """
        of = self.kind(kind)
        off = of.margin(_situation(len(others), new=False)).bound(level)
        return math.exp(min(_MOST, max(0.0, off) * math.sqrt(of.noise_of(victim.model)) * (1 + of.drift.haste)))

    # -- observations ---------------------------------------------------------------------------------------------

    def observe(
        self,
        kind: str,
        victim: Load,
        solo_ns: int,
        duration_ns: int,
        beside: Sequence[Beside],
        forecast: Forecast | None = None,
    ) -> float:
        """A batch took so long beside these; returns the error of the model, as a logarithm.

        `forecast` is what was said before it ran: its error counts for the bounds. Without one, what would have been
        said with the neighbours as they came.
        """
        if solo_ns <= 0 or duration_ns <= 0 or not (beside or forecast):
            return 0.0
        of = self._kinds.get(kind)
        if of is None:
            of = self._kinds[kind] = self.kind(kind)
        if forecast is not None:
            off = math.log(duration_ns / max(1, forecast.median_ns))
            of.missed(forecast.situation, off, forecast.deviation, forecast.caution)
            if not beside:
                of.alone(victim.model, math.log(duration_ns / solo_ns))
                return off
        others = [other.load for other in beside]
        who = of.victim(victim)
        pairs = of.pairs(who, victim, others)
        rows = of.rows(pairs)
        costs = of.costs(who, pairs, rows)
        weight = of.crowd_weight
        if _all_the_time(beside, duration_ns):
            crowd = crowd_beside(victim, others)
            value, by_cost, by_crowd, by_power = together(costs, weight * crowd, of.power)
            by_crowd *= crowd
        else:
            spans = [(other.begin_ns / duration_ns, other.end_ns / duration_ns) for other in beside]
            shares = [other.share_pct for other in others]
            value, by_cost, by_crowd, by_power = over_time(costs, spans, shares, victim.share_pct, weight, of.power)
        seen = math.log(duration_ns / solo_ns)
        error = seen - value
        direction = direction_of(rows, by_cost, by_crowd)
        caution = 1 + of.drift.haste
        deviation = of.learn(victim.model, who, pairs, costs, direction, by_cost, by_power, error)
        if forecast is None:
            new = deviation * deviation > 2 * of.noise_of(victim.model)
            of.missed(_situation(len(beside), new=new), error, math.sqrt(deviation**2 + of.churn), caution)
        return error

    # -- as data --------------------------------------------------------------------------------------------------

    def state(self) -> InterferenceState:
        """All that was learned."""
        return InterferenceState(
            kinds=tuple(self._kinds[name].state() for name in sorted(self._kinds)), effects=self._effects.rows()
        )


def _all_the_time(beside: Sequence[Beside], duration_ns: int) -> bool:
    # A generator takes longer, and this is on the way of every batch.
    for other in beside:  # noqa: SIM110
        if other.begin_ns > 0 or other.end_ns < duration_ns:
            return False
    return True


def _situation(others: int, *, new: bool) -> str:
    """The class of situation: how many others there are, and whether more is unknown than scatters."""
    return (_NEW if new else _KNOWN)[min(others, len(_KNOWN) - 1)]
