"""What is known of interference on one kind of device, and how it learns from a batch.

Rules of this file
- The cost of a neighbour, in logarithms, is features times weights plus effects. The weights, the effects and the way
  neighbours add up are corrected together by one error, each in proportion to its doubt (a Kalman filter whose
  covariance has blocks: one for the weights, one number for each effect).
- An error beyond three deviations counts as three, unless the world has just changed.
- Variances do not fall below what `memory` observations would leave. After a change the memory is short. They do not
  rise above what they were before anything was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from .drift import Drift
from .effects import FIRST, NOWHERE, Effects
from .features import CROWD, NAMES, PRIOR_DEVIATION, PRIOR_MEAN, crowd_of, row
from .load import Load
from .margin import ENOUGH, Margin
from .presence import Presence, Stretches
from .state import ClassState, KindState, NoiseState
from .weights import Vector, Weights

__all__ = ["Kind", "Pair", "Victim", "crowd_beside", "direction_of"]

#: Observations that count of what is seen all the time, and right after a change. [our choice]
MEMORY: Final = 400
HASTY_MEMORY: Final = 12
#: Single batches are taken to scatter by 5 % before any was seen; never by less than half a per cent. iGniter's
#: co-located batches: 0.9 % in the median, 4 % at the 95th percentile.
_FIRST_NOISE, _LEAST_NOISE = 0.05**2, 0.005**2
#: Batches of a victim, and of all, whose scatter counts.
_NOISE_WINDOW, _ALL_WINDOW = 64, 512
#: Forecasts whose errors count for what comes and goes unannounced.
_CHURN_WINDOW: Final = 64
#: How neighbours add up before it was seen (1: what they cost is added), and its bounds.
_POWER, _POWER_DEVIATION, _LEAST_POWER, _MOST_POWER = 1.0, 0.3, 0.25, 4.0
_CLIP: Final = 3.0
#: Weights that come from another kind of device are doubted so much more, as a factor of their deviation.
_ELSEWHERE: Final = 3.0
#: A cost that is so far below nought already is not lowered any more.
_DEEP: Final = -0.02
#: No neighbour makes anybody more than 55 times slower; a span that is too short says nothing.
_DEAR: Final = 4.0
#: Rows that are remembered at most; they can be made again.
_MOST_ROWS: Final = 1 << 14
#: The class of all situations.
ALL: Final = "all"
#: Errors of what a server said when batches began, as logarithms, not in units of a deviation.
SAID: Final = "said at the begin"
_NOTHING: Final = Margin()
_NO_NOISE: Final = (0, 0.0)


class Pair(NamedTuple):
    """A victim and one other on a kind of device: the place of its features, and its effects.

    There are three everywhere, and more where devices have parts or models families. To name the three costs half the
    time of a loop over them.
    """

    place: int
    general: int
    of_kind: int
    of_pair: int
    more: tuple[int, ...]


class Victim:
    """A victim on a kind of device: its effects, and its pairs with others."""

    __slots__ = ("effects", "pairs")

    def __init__(self, effects: tuple[int, ...]) -> None:
        self.effects = effects
        self.pairs: dict[Load, Pair] = {}


class Kind:
    """One kind of device."""

    def __init__(self, name: str, effects: Effects, state: KindState | None = None) -> None:
        self.name = name
        self.effects = effects
        self.weights = Weights(PRIOR_MEAN, PRIOR_DEVIATION)
        self.power, self.power_variance = _POWER, _POWER_DEVIATION**2
        self.drift = Drift()
        self.variance = _FIRST_NOISE
        #: Variance of what is said before a batch runs, beyond what the model of neighbours knows of itself.
        self.churn = 0.0
        self.seen = self.said = 0
        #: victim -> [batches, variance of logarithms].
        self.noise: dict[str, tuple[int, float]] = {}
        self.margins: dict[str, Margin] = {}
        self.presence = Presence()
        self.stretches = Stretches()
        self._victims: dict[Load, Victim] = {}
        self._rows = np.zeros((64, len(NAMES)))
        self._count = 0
        if state is not None:
            self._restore(state)

    def inherit(self, other: Kind) -> None:
        """Begin with what is known of another kind, and doubt it."""
        covariance = 0.5 * (other.weights.covariance * _ELSEWHERE**2 + self.weights.covariance)
        self.weights.set(other.weights.mean, covariance)
        self.power, self.variance = other.power, other.variance

    # -- answers --------------------------------------------------------------------------------------------------

    def victim(self, load: Load) -> Victim:
        """A load as a victim."""
        found = self._victims.get(load)
        if found is None:
            if self._count >= _MOST_ROWS:
                self._victims = {}
                self._count = 0
            found = self._victims[load] = Victim(self.effects.of_victim(self.name, load))
        return found

    def pairs(self, victim: Victim, load: Load, others: Sequence[Load]) -> list[Pair]:
        """The pairs of a victim with each of these."""
        known = victim.pairs
        try:
            return list(map(known.__getitem__, others))
        except KeyError:
            for other in others:
                if other not in known:
                    known[other] = self._new_pair(load, other)
            return [known[other] for other in others]

    def _new_pair(self, victim: Load, other: Load) -> Pair:
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        place = self._count
        self._rows[place] = row(victim, other)
        self._count += 1
        general, of_kind, of_pair, *more = self.effects.of_pair(self.name, victim, other)
        return Pair(place, general, of_kind, of_pair, tuple([number for number in more if number != NOWHERE]))

    def rows(self, pairs: list[Pair]) -> Vector:
        """Features of these pairs, one row each."""
        # A name costs more than a number here, and this is on the way of every batch.
        return self._rows.take([pair[0] for pair in pairs], axis=0)

    def costs(self, victim: Victim, pairs: list[Pair], rows: Vector) -> list[float]:
        """What each of the others would cost the victim alone, as a logarithm; below nought counts as nought."""
        means = self.effects.means
        own = 0.0
        for number in victim.effects:
            own += means[number]
        costs: list[float] = rows.dot(self.weights.mean).tolist()
        for j, (_, general, of_kind, of_pair, more) in enumerate(pairs):
            cost = costs[j] + own + means[general] + means[of_kind] + means[of_pair]
            for number in more:
                cost += means[number]
            costs[j] = cost if cost < _DEAR else _DEAR
        return costs

    @property
    def crowd_weight(self) -> float:
        """What each device's worth of demand beyond the device costs three or more, as a logarithm."""
        return float(self.weights.mean[CROWD])

    def noise_of(self, victim: str) -> float:
        """Variance of the logarithm of single times of a victim."""
        count, variance = self.noise.get(victim, _NO_NOISE)
        if count > _NOISE_WINDOW:
            count = _NOISE_WINDOW
        noise = (count * variance + 8 * self.variance) / (count + 8)
        return noise if noise > _LEAST_NOISE else _LEAST_NOISE

    def doubt(
        self, victim: Victim, pairs: list[Pair], direction: Vector, by_cost: list[float], by_power: float
    ) -> float:
        """Variance of a prediction that stems from what is not known, not from scatter."""
        variance = self.weights.doubt(direction)[1] + by_power * by_power * self.power_variance
        return variance + self._of_effects(victim, pairs, by_cost)

    def _of_effects(self, victim: Victim, pairs: list[Pair], by_cost: list[float]) -> float:
        """The part of effects. Two neighbours with the same effect are taken to be two."""
        variances = self.effects.variances
        own = 0.0
        for number in victim.effects:
            own += variances[number]
        total, all_of_them = 0.0, 0.0
        for (_, general, of_kind, of_pair, more), slope in zip(pairs, by_cost, strict=True):
            all_of_them += slope
            square = slope * slope
            total += square * (variances[general] + variances[of_kind] + variances[of_pair])
            for number in more:
                total += square * variances[number]
        return total + all_of_them * all_of_them * own

    # -- observations ---------------------------------------------------------------------------------------------

    def learn(
        self,
        model: str,
        victim: Victim,
        pairs: list[Pair],
        costs: list[float],
        direction: Vector,
        by_cost: list[float],
        by_power: float,
        error: float,
    ) -> float:
        """Correct all that had a part in a prediction that was off by `error`; returns its expected deviation."""
        along, of_weights = self.weights.doubt(direction)
        known = of_weights + by_power * by_power * self.power_variance + self._of_effects(victim, pairs, by_cost)
        noise = self.noise_of(model)
        total = noise + known
        deviation = math.sqrt(total)
        drift = self.drift
        drift.seen(error / deviation)
        self._scatter(model, noise, error, known)
        if abs(error) > _CLIP * deviation and drift.haste < 0.5:
            error = math.copysign(_CLIP * deviation, error)
        floor = noise / (MEMORY + (HASTY_MEMORY - MEMORY) * drift.haste)
        self.weights.learn(direction, along, of_weights, error, total, floor)
        floor = min(floor, FIRST)
        means, variances = self.effects.means, self.effects.variances
        pull, all_of_them = error / total, 0.0
        for (_, *effects, more), slope, cost in zip(pairs, by_cost, costs, strict=True):
            if (cost < _DEEP and error < 0) or (cost >= _DEAR and error > 0):
                continue
            all_of_them += slope
            gain, square = slope * pull, slope * slope / total
            for number in (*effects, *more) if more else effects:
                variance = variances[number]
                means[number] += gain * variance
                variance -= square * variance * variance
                variances[number] = variance if variance > floor else floor
        square = all_of_them * all_of_them / total
        for number in victim.effects:
            variance = variances[number]
            means[number] += all_of_them * variance * pull
            variances[number] = max(variance - square * variance * variance, floor)
        means[NOWHERE] = variances[NOWHERE] = 0.0
        if by_power:
            gain = by_power * self.power_variance / total
            self.power = min(_MOST_POWER, max(_LEAST_POWER, self.power + gain * error))
            self.power_variance = max(self.power_variance * (1 - gain * by_power), floor)
        self.seen += 1
        return deviation

    def alone(self, model: str, error: float) -> None:
        """A batch had nobody beside it: its error is scatter alone."""
        self._scatter(model, self.noise_of(model), error, 0.0)
        self.seen += 1

    def _scatter(self, victim: str, noise: float, error: float, known: float) -> None:
        """An error is part scatter and part what was not known: the scatter's expected square, given the error."""
        part = noise / (noise + known)
        square, most = error * error, 16 * (noise + known)
        square = part * (part * (square if square < most else most) + known)
        count, variance = self.noise.get(victim, _NO_NOISE)
        count += 1
        within = count if count < _NOISE_WINDOW else _NOISE_WINDOW
        self.noise[victim] = count, variance + (square - variance) / within
        count = self.seen + 8
        variance = self.variance + (square - self.variance) / (count if count < _ALL_WINDOW else _ALL_WINDOW)
        self.variance = variance if variance > _LEAST_NOISE else _LEAST_NOISE

    def margin(self, situation: str) -> Margin:
        """Errors that count in a class of situation: its own, or those of all while it has but a few."""
        found = self.margins.get(situation)
        return found if found is not None and found.asked >= ENOUGH else self.margins.get(ALL, _NOTHING)

    def held(self, error: float) -> None:
        """What was said when a batch began was off by so much, by those who came later as well."""
        margin = self.margins.get(SAID)
        if margin is None:
            margin = self.margins[SAID] = Margin()
        margin.add(error)

    def missed(self, situation: str, error: float, deviation: float, caution: float) -> None:
        """What was said of a batch before it ran was off by so much."""
        off = error / (deviation * caution)
        margin = self.margins.get(situation)
        if margin is None:
            margin = self.margins[situation] = Margin()
        margin.add(off)
        # A class that is known well tells the others of every fourth error only: that is enough, and takes less time.
        if margin.asked < 4 * ENOUGH or margin.asked % 4 == 0:
            both = self.margins.get(ALL)
            if both is None:
                both = self.margins[ALL] = Margin()
            both.add(off)
        # What the model did not know when it spoke: who would come, and who would leave.
        square = min(error * error, 16 * deviation * deviation)
        more = max(0.0, square - (deviation * deviation - self.churn))
        self.churn += (more - self.churn) / min(self.said + 8, _CHURN_WINDOW)
        self.said += 1

    # -- as data --------------------------------------------------------------------------------------------------

    def state(self) -> KindState:
        """All that is known of this kind, effects apart."""
        return KindState(
            self.name,
            self.seen,
            tuple(self.weights.mean.tolist()),
            tuple(self.weights.covariance.ravel().tolist()),
            self.power,
            self.power_variance,
            self.variance,
            self.drift.total,
            self.drift.haste,
            self.drift.alarms,
            self.churn,
            self.said,
            tuple(NoiseState(victim, *self.noise[victim]) for victim in sorted(self.noise)),
            tuple(ClassState(name, self.margins[name].state()) for name in sorted(self.margins)),
            self.presence.state(),
            self.stretches.rows(),
        )

    def _restore(self, state: KindState) -> None:
        self.seen = state.seen
        self.weights.set(state.weights, np.array(state.covariance).reshape(len(NAMES), len(NAMES)))
        self.power, self.power_variance, self.variance = state.power, state.power_variance, state.variance
        self.drift = Drift(state.drift_total, state.haste, state.alarms)
        self.churn, self.said = state.churn, state.said
        self.noise = {row.victim: (row.count, row.variance) for row in state.noise}
        self.margins = {row.name: Margin(row.margin) for row in state.classes}
        self.presence, self.stretches = Presence(state.presence), Stretches(state.stretches)


def direction_of(rows: Vector, by_cost: list[float], by_crowd: float) -> Vector:
    """How a prediction changes with the weights."""
    direction: Vector = np.array(by_cost).dot(rows)
    direction[CROWD] = by_crowd
    return direction


def crowd_beside(victim: Load, others: Sequence[Load]) -> float:
    """How far all of these together ask for more than the device has."""
    return crowd_of(victim.share_pct + sum([other.share_pct for other in others]), len(others))
