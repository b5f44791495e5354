"""Replay: run a fresh controller on the events of a log and compare its actions with the recorded ones, byte by byte.

That a replay is the same is what makes every other reading of a log trustworthy: the simulator cannot have drifted
from production, and a decision taken there can be repeated at a desk under a debugger. A log of either world replays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..control import Action, Event
from ..errors import LogError
from ..record.ledger import Ledger, Summary
from ..record.log import Header, LogReader
from ..wiring import PolicySpec, make_controller

__all__ = ["Difference", "ReplayResult", "policy_spec", "replay"]

#: Steps between two calls of `progress`: a few hundredths of a second.
_PROGRESS_STEPS = 2048

#: As for a simulation: takes every recorded step.
Observer = Callable[[Event, list[Action]], None]
#: Takes bytes read so far and bytes in all.
Progress = Callable[[int, int], None]


class Difference(msgspec.Struct, frozen=True):
    """The first step at which the controller decided otherwise."""

    step: int
    event: Event
    recorded: list[Action]
    replayed: list[Action]
    #: What the controller raised instead of answering; empty if it answered.
    raised: str = ""


class ReplayResult(msgspec.Struct, frozen=True):
    """What a replay found."""

    world: str
    policy: PolicySpec
    #: Whole steps of the log, and how many of them were decided alike before the first difference.
    steps: int
    same_steps: int
    first_difference: Difference | None
    #: The log ends in the middle of a step, as when its process was killed.
    cut_short: bool
    #: What became of the recorded requests.
    outcomes: list[Summary]

    @property
    def same(self) -> bool:
        """Whether every action was the recorded one."""
        return self.first_difference is None


class _RawStep(msgspec.Struct, frozen=True, array_like=True):
    """A `Step` whose actions are left as they were written."""

    event: Event
    actions: msgspec.Raw
    note: str = ""


def policy_spec(header: Header) -> PolicySpec:
    """The policy that a log was made with."""
    try:
        return msgspec.msgpack.decode(header.policy, type=PolicySpec)
    except msgspec.DecodeError as error:
        raise LogError(f"the policy of the log is not known to this Dovetail: {error}") from None


def replay(path: Path, *, observers: Sequence[Observer] = (), progress: Progress | None = None) -> ReplayResult:
    """Replay a log to its end. After the first difference only the recorded steps are read on, for the outcomes."""
    encode = msgspec.msgpack.Encoder().encode
    decode_step = msgspec.msgpack.Decoder(_RawStep).decode
    decode_actions = msgspec.msgpack.Decoder(list[Action]).decode
    with LogReader(path) as log:
        header = log.header
        policy = policy_spec(header)
        controller = make_controller(
            header.graphs, policy, header.entries, header.cores, learned=header.learned, ingress=header.ingress
        )
        ledger = Ledger([(graph.name, graph.slo_ns) for graph in header.graphs])
        difference: Difference | None = None
        same_steps = 0
        for frame in log.frames():
            try:
                step = decode_step(frame)
                recorded = decode_actions(step.actions)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise LogError(f"step {log.steps} of {path} cannot be read: {error}") from None
            if difference is None:
                replayed: list[Action] = []
                raised = ""
                try:
                    replayed = controller.step(step.event)
                except Exception as error:  # whatever it is, the recorded controller did not raise it
                    raised = f"{type(error).__name__}: {error}"
                if raised or encode(replayed) != bytes(step.actions):
                    difference = Difference(log.steps, step.event, recorded, replayed, raised)
                else:
                    same_steps += 1
            ledger.note(recorded, step.event.at_ns)
            for observe in observers:
                observe(step.event, recorded)
            if progress is not None and not log.steps % _PROGRESS_STEPS:
                progress(log.read_bytes, log.size_bytes)
        return ReplayResult(header.world, policy, log.steps, same_steps, difference, log.cut_short, ledger.summary())
