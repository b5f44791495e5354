"""The one estimator: the profile's time; without a profile, what was learned; before that, a guess.

Rules of this file
- A profile's mean stands: decisions change with a profile and not behind its back. What its stage is seen to take is
  kept all the same, and can be compared with it (`observed_ratio`). How far single times scatter is another matter: a
  profile is measured in a quiet hour, and what is believed of the scatter follows what is seen (`scatter`).
- All else is learned from the first observation on, in constant memory, to the same bit from the same observations.
- A common question is one look into a dictionary: answers are remembered until something is learned of that stage.
  Times of profiled stages, which change no answer, are put aside and counted many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from ..profile.kernels import KernelStats
from ..profile.table import ProfileTable
from ..state import Config
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec
from .estimate import GUESSED_SPREAD, GUESSED_TURNAROUND_NS, Estimate, guessed_load_ns
from .interference import Beside, Interference, Load, Work, quarter_octaves
from .kernel_pairs import KernelPairs
from .kernel_times import KernelTimes
from .neighbours import Neighbours
from .running import Seen
from .scatter import ProfiledTimes, Scatter
from .similar import guessed_run, pace, work_ns
from .sizes import WINDOW, SeenSizes
from .state import EstimatorState, LearnedLoad, LearnedRun, LearnedScatter, LearnedTurnaround
from .turnaround import Turnaround

__all__ = ["Estimator"]

#: Loads that count: they are rare, and how fast they were of late says most.
LOAD_WINDOW = 4
#: Times of a profiled stage that are put aside at most.
_ASIDE = 64

_Key = tuple[str, str, int, int, int]


class Estimator:
    """Answers how long, from a table that does not change and from what it is told.

    `load_ns` is what a load of so many bytes is taken to last before one was seen. Without `tells` it has no `news`.
    With `interference` it learns what neighbours cost each other; without, times are as if there were none. `uses`
    says of stages what they use of a device, where that was measured.
    """

    def __init__(
        self,
        table: ProfileTable,
        state: EstimatorState | None = None,
        *,
        stages: Iterable[StageSpec] = (),
        load_ns: Callable[[int], int] = guessed_load_ns,
        tells: bool = True,
        interference: Interference | None = None,
        uses: Mapping[str, tuple[float, float, float]] = MappingProxyType({}),
    ) -> None:
        self._uses = uses
        self._neighbours = None if interference is None else Neighbours(interference)
        self.table = table
        self._load_ns = load_ns
        #: What was asked and answered, by stage, kind, items, cores and share.
        self._answers: dict[_Key, Estimate] = {}
        #: (stage, kind) -> what was seen of it, and the answers that an observation may make old.
        self._runs: dict[tuple[str, str], SeenSizes] = {}
        self._asked: dict[tuple[str, str], list[_Key]] = {}
        #: Stages whose work is known, and kind -> answers that were guessed from it: others' times change them, too.
        self._similar: dict[str, StageSpec] = {}
        self._guessed: dict[str, list[_Key]] = {}
        #: (stage, kind) with a profile -> how far its times are seen to scatter.
        self._scatters: dict[tuple[str, str], Scatter] = {}
        #: What was seen of profiled stages and is not counted yet.
        self._profiled: dict[_Key, ProfiledTimes] = {}
        #: (model, kind) -> load time of the first stage of that model that has one in its profile.
        self._profiled_loads: dict[tuple[str, str], Estimate] = {}
        self._loads: dict[tuple[str, str], Seen] = {}
        self._turnarounds: dict[str, Turnaround] = {}
        self._kernel_times = KernelTimes(tells=tells)
        self._pairs: dict[str, KernelPairs] = {}
        self.declare(stages)
        if state is not None:
            self.restore(state)

    # -- answers --------------------------------------------------------------------------------------------------

    @property
    def kernels(self) -> Mapping[str, KernelStats]:
        """What is known of sequences of kernels, by name: always as it is now."""
        return self._kernel_times.stats

    @property
    def knows_neighbours(self) -> bool:
        """Whether it learns what neighbours cost, and so wants to be told who ran beside whom."""
        return self._neighbours is not None

    @property
    def interference(self) -> Interference | None:
        """What is known of neighbours, where that is learned."""
        return None if self._neighbours is None else self._neighbours.model

    def run(self, stage: StageSpec, kind: str, items: int, config: Config, beside: Sequence[Load] = ()) -> Estimate:
        """Run time of a batch of `items` of `stage` in `config` on a device of that kind, beside these."""
        key = stage.name, kind, items, config.cpus, config.share_pct
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answer(stage, key)
        if beside and self._neighbours is not None:
            return self._neighbours.beside(kind, self._load(key, answer), answer, beside)
        return answer

    def usual(self, stage: StageSpec, kind: str, items: int, config: Config) -> Estimate:
        """The same in the company that batches of this stage have of late: what a plan counts on."""
        alone = self.run(stage, kind, items, config)
        if config.share_pct >= FULL_SHARE or not self.felt(kind):
            return alone
        assert self._neighbours is not None
        key = stage.name, kind, items, config.cpus, config.share_pct
        return self._neighbours.usual(kind, self._load(key, alone), alone)

    def felt(self, kind: str) -> bool:
        """Whether neighbours are known to cost anything on this kind of device."""
        return self._neighbours is not None and self._neighbours.felt(kind)

    def curious(self, kind: str) -> bool:
        """Whether it wants to be told of every batch who was beside it, or only now and then."""
        return self._neighbours is not None and self._neighbours.curious(kind)

    def ends_ns(self, kind: str, works: Sequence[Work]) -> list[float]:
        """When each of these ends who share a device: those who run, and then those who wait for room."""
        assert self._neighbours is not None, "nobody asks who does not feel neighbours"
        return self._neighbours.ends_ns(kind, works)

    def slowdown(self, kind: str, load: Load, others: Sequence[Load]) -> float:
        """How many times as long such a batch takes beside these."""
        return 1.0 if self._neighbours is None else self._neighbours.slowdown(kind, load, others)

    def factor(self, kind: str, load: Load, others: Sequence[Load], level: float) -> float:
        """How many times as long as predicted it takes beside these at most, with this chance."""
        return 1.0 if self._neighbours is None else self._neighbours.factor(kind, load, others, level)

    def load_of(self, stage: StageSpec, kind: str, items: int, config: Config) -> Load:
        """Such a batch as its neighbours feel it."""
        key = stage.name, kind, items, config.cpus, config.share_pct
        return self._load(key, self.run(stage, kind, items, config))

    def _load(self, key: _Key, alone: Estimate) -> Load:
        solo_q, uses = quarter_octaves(alone.mean_ns), self._uses.get(key[0])
        return Load(key[0], key[2], key[4], solo_q, "", *(uses or ()))

    def _answer(self, stage: StageSpec, key: _Key) -> Estimate:
        answer = self._known(key)
        if answer is None:
            answer = guessed_run(stage, *key[1:], self._paces(stage, key))
        if answer.source == "guess" and work_ns(stage):
            self._guessed.setdefault(key[1], []).append(key)
        else:
            self._asked.setdefault(key[:2], []).append(key)
        self._answers[key] = answer
        return answer

    def _known(self, key: _Key) -> Estimate | None:
        """What the profile says, or else what was seen."""
        name, kind, items, cpus, share_pct = key
        mean_ns = None
        if (name, kind) in self.table.entries:
            mean_ns = self.table.latency_ns(name, kind, items, cpus, share_pct)
        if mean_ns is not None:
            scatter = self._scatters.get((name, kind))
            spread = self.table.entries[name, kind].spread if scatter is None else scatter.said
            return Estimate(mean_ns, spread, "profile")
        seen = self._runs.get((name, kind))
        return None if seen is None else seen.estimate(items, cpus, share_pct)

    def _paces(self, stage: StageSpec, key: _Key) -> list[int]:
        """How other models take to such a batch on such a device, over their work."""
        found = []
        for other in self._similar.values() if work_ns(stage) else ():
            known = self._known((other.name, *key[1:]))
            if known is not None:
                found.append(pace(known.mean_ns, other))
        return found

    def similar(self, stage: StageSpec, kind: str) -> list[str]:
        """Stages on whose times a guess of this one rests."""
        others = [o for o in self._similar if o != stage.name] if work_ns(stage) else []
        return [o for o in others if (o, kind) in self.table.entries or (o, kind) in self._runs]

    def load(self, weights: str, nbytes: int, kind: str) -> Estimate:
        """Time to bring a model of so many bytes into the memory of a device of that kind; nothing takes no time."""
        profiled = self._profiled_loads.get((weights, kind))
        if profiled is not None:
            return profiled
        seen = self._loads.get((weights, kind))
        if seen is not None:
            return Estimate(seen.mean, seen.spread(), "learned")
        return Estimate(self._load_ns(nbytes), GUESSED_SPREAD, "guess")

    def turnaround(self, kind: str = "") -> Estimate:
        """From the end of a batch to the arrival of its requests' next one at the same device."""
        seen = self._turnarounds.get(kind)
        return Estimate(GUESSED_TURNAROUND_NS, GUESSED_SPREAD, "guess") if seen is None else seen.estimate()

    def observed_ratio(self, stage: str, kind: str) -> float | None:
        """How long a profiled stage takes over what its profile says, by what was seen of late; None if it was not.

        Beside others, and on a machine that has changed, it differs from 1.
        """
        self._count_aside()
        seen_ns = expected_ns = 0
        if (stage, kind) in self.table.entries and (stage, kind) in self._runs:
            for items, cpus, share_pct, seen in self._runs[stage, kind].rows():
                weight = min(seen.count, seen.window)
                seen_ns += weight * seen.mean
                expected_ns += weight * (self.table.latency_ns(stage, kind, items, cpus, share_pct) or 0)
        return seen_ns / expected_ns if expected_ns else None

    # -- observations ---------------------------------------------------------------------------------------------

    def declare(self, stages: Iterable[StageSpec]) -> None:
        """These stages will be asked for: what their profiles say of loads counts for their models."""
        names: dict[str, list[str]] = {}
        for stage in stages:
            names.setdefault(stage.name, []).append(stage.weights)
            if work_ns(stage):
                self._similar[stage.name] = stage
        self._guess_anew(*self._guessed)
        for (name, kind), entry in self.table.entries.items():
            if entry.load_ns:
                for weights in names.get(name, ()):
                    self._profiled_loads.setdefault((weights, kind), Estimate(entry.load_ns, entry.spread, "profile"))

    def observe_run(
        self,
        stage: StageSpec,
        kind: str,
        items: int,
        config: Config,
        duration_ns: int,
        beside: Sequence[Beside] = (),
        said_ns: int = 0,
    ) -> None:
        """A batch had the device for so long, beside these; when it began it was said to take `said_ns`, if not 0.

        What neighbours are known to cost is taken off before it counts for the time alone.
        """
        key = stage.name, kind, items, config.cpus, config.share_pct
        if self._neighbours is not None:
            duration_ns = self._learn_of_neighbours(stage, key, duration_ns, said_ns, beside)
            if not duration_ns:
                return
        profiled = self._profiled.get(key) or self._profiled_times(key)
        if profiled is not None:
            aside = profiled.aside
            aside.append(duration_ns)
            if len(aside) >= _ASIDE:
                self._seen(key).add_many(aside)
                aside.clear()
            if profiled.scatter.add(duration_ns, profiled.mean_ns):
                self._forget_answers(key[:2])
            return
        self._seen(key).add(max(0, duration_ns))
        self._forget_answers(key[:2])
        if kind in self._guessed and work_ns(stage):
            self._guess_anew(kind)

    def _guess_anew(self, *kinds: str) -> None:
        """Forget guesses that rest on what others take there."""
        for kind in kinds:
            for answer in self._guessed.pop(kind):
                del self._answers[answer]

    def _profiled_times(self, key: _Key) -> ProfiledTimes | None:
        """Where times of this configuration are put aside; None: it has no profile."""
        entry, mean_ns = self.table.entries.get(key[:2]), self.table.latency_ns(*key)
        if entry is None or mean_ns is None:
            return None
        scatter = self._scatters.setdefault(key[:2], Scatter(entry.spread))
        self._profiled[key] = times = ProfiledTimes(mean_ns, scatter)
        return times

    def _forget_answers(self, key: tuple[str, str]) -> None:
        for answer in self._asked.pop(key, ()):
            del self._answers[answer]

    def _learn_of_neighbours(
        self, stage: StageSpec, key: _Key, took_ns: int, said_ns: int, beside: Sequence[Beside]
    ) -> int:
        """Learn from who was there or was not; how long it would have taken alone, as far as is known."""
        neighbours = self._neighbours
        assert neighbours is not None
        if not beside and not neighbours.model.has_seen(key[1]):
            return took_ns
        alone = self._answers.get(key) or self._answer(stage, key)
        if beside:
            neighbours.held(key[1], said_ns, took_ns)
            return neighbours.saw(key[1], self._load(key, alone), alone, took_ns, beside)
        neighbours.saw_alone(key[1], self._load(key, alone), alone, took_ns)
        return took_ns

    def _seen(self, key: _Key) -> Seen:
        name, kind, items, cpus, share_pct = key
        seen = self._runs.get((name, kind))
        if seen is None:
            seen = self._runs[name, kind] = SeenSizes()
        return seen.at(items, cpus, share_pct)

    def _count_aside(self) -> None:
        for key, times in self._profiled.items():
            if times.aside:
                self._seen(key).add_many(times.aside)
                times.aside.clear()

    def observe_load(self, weights: str, kind: str, duration_ns: int) -> None:
        """A load took so long."""
        self._loads.setdefault((weights, kind), Seen(LOAD_WINDOW)).add(max(0, duration_ns))

    def observe_turnaround(self, duration_ns: int, kind: str = "") -> None:
        """The next batch came so long after the end of the one before."""
        self._turnarounds.setdefault(kind, Turnaround()).add(max(0, duration_ns))

    # -- kernels --------------------------------------------------------------------------------------------------

    def sequence(self, name: str, identities: Sequence[str]) -> KernelStats | None:
        """A task of these kernels begins: the statistics to read and to observe into. None: none are kept of it."""
        return self._kernel_times.sequence(name, identities)

    def pairs(self, kind: str) -> KernelPairs:
        """What kernels cost each other that run side by side on a device of that kind."""
        return self._pairs.setdefault(kind, KernelPairs(kind))

    def learn(self, others: Iterable[KernelStats]) -> None:
        """Add what others have observed of kernels."""
        self._kernel_times.learn(others)

    def news(self, most: int) -> list[KernelStats]:
        """What was observed of kernels here since this was last asked, of at most so many sequences."""
        return self._kernel_times.news(most)

    # -- what was learned, as data --------------------------------------------------------------------------------

    def state(self) -> EstimatorState:
        """All that was learned, in a fixed order."""
        self._count_aside()
        kernels, told = self._kernel_times.state()
        return EstimatorState(
            runs=tuple(
                LearnedRun(stage, kind, items, cpus, share_pct, seen.count, seen.mean, seen.squares)
                for stage, kind in sorted(self._runs)
                for items, cpus, share_pct, seen in self._runs[stage, kind].rows()
            ),
            loads=tuple(
                LearnedLoad(weights, kind, seen.count, seen.mean, seen.squares)
                for (weights, kind), seen in sorted(self._loads.items(), key=lambda pair: pair[0])
            ),
            turnarounds=tuple(
                LearnedTurnaround(kind, self._turnarounds[kind].count, seen.mean_ns, seen.variance)
                for kind, seen in sorted(self._turnarounds.items(), key=lambda pair: pair[0])
            ),
            kernels=kernels,
            told=told,
            scatters=tuple(
                LearnedScatter(*key, row.seen.count, row.seen.mean, row.seen.squares, row.said)
                for key, row in sorted(self._scatters.items(), key=lambda pair: pair[0])
            ),
            interference=self._neighbours.state() if self._neighbours is not None else msgspec.UNSET,
        )

    def restore(self, state: EstimatorState) -> None:
        """Know what `state` gave, in place of all that was learned so far."""
        self._answers.clear()
        self._asked.clear()
        self._guessed.clear()
        self._profiled.clear()
        self._runs.clear()
        for run in state.runs:
            seen = self._runs.setdefault((run.stage, run.kind), SeenSizes())
            seen.put(run.items, run.cpus, run.share_pct, Seen(WINDOW, run.count, run.mean_ns, run.squares))
        self._loads = {
            (row.weights, row.kind): Seen(LOAD_WINDOW, row.count, row.mean_ns, row.squares) for row in state.loads
        }
        self._turnarounds = {row.kind: Turnaround(row.count, row.mean_ns, row.variance) for row in state.turnarounds}
        self._scatters = {
            (row.stage, row.kind): Scatter(
                self.table.entries[row.stage, row.kind].spread, row.count, row.mean, row.squares, row.said
            )
            for row in state.scatters
            if (row.stage, row.kind) in self.table.entries
        }
        self._kernel_times.restore(state.kernels, state.told)
        if self._neighbours is not None:
            self._neighbours = Neighbours(Interference(state.interference or None))
