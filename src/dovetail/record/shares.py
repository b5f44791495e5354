"""Who had a device when, against what was asked: windows of a kernel log, each with its reason if it missed.

Rules of this file
- What counts is the time of kernels, as the worker measured it. Nobody is asked what he believes he had. Time between
  two kernels of a task counts as the task's if nobody else began one there: it had the device.
- A window is missed if a client had less than it asked for by more than the tolerance, of the time in which the
  device ran anything. What is lost between kernels is lost for all, and is shown beside it. If all that there is was
  asked for, to have more by more than the tolerance is a miss, too. In strict mode so is to have more than the limit,
  of all the time.
- The reason is the largest of what is known to take the time: the client had no batch at the device; others had more
  than they asked for, with kernels that are long for the window; or quotas add up to more than there is.
- Windows before the first `skip` are left out: the first batches bring models and caches in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..units import MS
from .kernels import KernelRecord

__all__ = ["ShareReport", "ShareWindow", "busy_ns", "share_report"]

_PCT = 100.0


class ShareWindow(msgspec.Struct, frozen=True):
    """What one client had of the device in one window."""

    window: int
    client: str
    #: Per cent of the time; 0: nothing was asked for.
    asked_pct: int
    #: Of the window, and of the part of it in which anybody had the device.
    got_pct: float
    of_busy_pct: float
    busy_pct: float
    held: bool
    why: str = ""


class ShareReport(msgspec.Struct, frozen=True):
    """All windows, and what each client had of all of them together."""

    window_ns: int
    windows: tuple[ShareWindow, ...]
    #: Client -> per cent of the time, and of the time in which anybody had the device.
    got_pct: dict[str, float]
    of_busy_pct: dict[str, float]

    @property
    def held(self) -> bool:
        """Whether every client had in every window what it asked for."""
        return bool(self.windows) and all(window.held for window in self.windows)


def share_report(
    records: Iterable[KernelRecord],
    clients: Mapping[str, str],
    asked_pct: Mapping[str, int],
    window_ns: int,
    *,
    devices: int = 1,
    skip: int = 1,
    tolerance_pct: float = 3.0,
    strict: bool = False,
    last_ns: int | None = None,
) -> ShareReport:
    """Divide the kernels of a log into windows; `clients` says who is charged for a stage.

    `last_ns` is how long after the first kernel everybody still had work; what ran later does not count.
    """
    single = [r for r in records if r.name in clients]
    kernels = _held(single)
    if not kernels:
        return ShareReport(window_ns, (), {}, {})
    begin_ns = min(r.begin_ns for r in kernels)
    end_ns = max(r.end_ns for r in kernels) - begin_ns
    count = min(end_ns, end_ns if last_ns is None else last_ns) // window_ns
    names = list(dict.fromkeys([*asked_pct, *clients.values()]))
    everything = sum(asked_pct.values()) == _PCT
    known = all(r.ready_ns >= 0 for r in single)
    present = {name: _present([r for r in single if known and clients[r.name] == name]) for name in names}
    windows: list[ShareWindow] = []
    total: dict[str, float] = dict.fromkeys(names, 0.0)
    for number in range(skip, count):
        since_ns = begin_ns + number * window_ns
        inside = [r for r in kernels if r.begin_ns < since_ns + window_ns and r.end_ns > since_ns]
        got = dict.fromkeys(names, 0.0)
        longest = dict.fromkeys(names, 0)
        for r in inside:
            client = clients[r.name]
            part_ns = min(r.end_ns, since_ns + window_ns) - max(r.begin_ns, since_ns)
            got[client] += part_ns * _PCT / (window_ns * devices)
        for r in single:
            if r.begin_ns < since_ns + window_ns and r.end_ns > since_ns:
                longest[clients[r.name]] = max(longest[clients[r.name]], r.end_ns - r.begin_ns)
        busy_pct = busy_ns(inside, since_ns, window_ns) * _PCT / (window_ns * devices)
        for client in names:
            total[client] += got[client]
            asked = asked_pct.get(client, 0)
            of_busy_pct = got[client] * _PCT / busy_pct if busy_pct else 0.0
            held = not asked or of_busy_pct >= asked - tolerance_pct
            if everything and asked:
                held = held and of_busy_pct <= asked + tolerance_pct
            if strict and asked:
                overrun_pct = longest[client] * _PCT / window_ns
                held = held and got[client] <= asked + max(tolerance_pct, overrun_pct)
            here_ns = sum(
                max(0, min(end, since_ns + window_ns) - max(begin, since_ns)) for begin, end in present[client]
            )
            away_ns = window_ns - here_ns if known else 0
            why = "" if held else _why(client, got, asked_pct, longest, busy_pct, window_ns, away_ns, strict)
            windows.append(ShareWindow(number, client, asked, got[client], of_busy_pct, busy_pct, held, why))
    seen = max(1, count - skip)
    all_pct = sum(total.values())
    return ShareReport(
        window_ns,
        tuple(windows),
        {client: pct / seen for client, pct in total.items()},
        {client: pct * _PCT / all_pct if all_pct else 0.0 for client, pct in total.items()},
    )


def _held(kernels: Sequence[KernelRecord]) -> list[KernelRecord]:
    """Kernels of a task that follow each other on a worker, as one."""
    held: list[KernelRecord] = []
    last: dict[str, int] = {}
    for r in sorted(kernels, key=lambda r: (r.begin_ns, r.end_ns)):
        place = last.get(r.client)
        before = None if place is None else held[place]
        if before is not None and place is not None and (before.task, before.kernel + 1) == (r.task, r.kernel):
            held[place] = msgspec.structs.replace(before, kernel=r.kernel, end_ns=max(before.end_ns, r.end_ns))
        else:
            last[r.client] = len(held)
            held.append(r)
    return held


def _present(kernels: Sequence[KernelRecord]) -> list[tuple[int, int]]:
    """When a client had a batch at its device, from when it came to when it ended; pieces do not overlap."""
    pieces: list[tuple[int, int]] = []
    for begin_ns, end_ns in sorted((min(r.ready_ns, r.begin_ns), r.end_ns) for r in kernels):
        if pieces and begin_ns <= pieces[-1][1]:
            pieces[-1] = pieces[-1][0], max(pieces[-1][1], end_ns)
        else:
            pieces.append((begin_ns, end_ns))
    return pieces


def busy_ns(kernels: Sequence[KernelRecord], since_ns: int, window_ns: int) -> int:
    """Time of a window in which devices had a kernel, added up over devices."""
    busy_ns, ends = 0, dict[str, int]()
    for r in sorted(kernels, key=lambda r: r.begin_ns):
        begin_ns = max(r.begin_ns, since_ns, ends.get(r.client, since_ns))
        end_ns = min(r.end_ns, since_ns + window_ns)
        if end_ns > begin_ns:
            busy_ns += end_ns - begin_ns
            ends[r.client] = end_ns
    return busy_ns


def _why(
    client: str,
    got: Mapping[str, float],
    asked_pct: Mapping[str, int],
    longest: Mapping[str, int],
    busy_pct: float,
    window_ns: int,
    away_ns: int,
    strict: bool,
) -> str:
    """What is likely to have kept a client from what it asked for, the largest first."""
    asked = asked_pct[client]
    if strict and got[client] > asked:
        return f"it had {got[client] - asked:.1f} points more than its limit"
    of_busy_pct = got[client] * _PCT / busy_pct if busy_pct else 0.0
    if of_busy_pct > asked:
        words = f"it had {of_busy_pct - asked:.1f} points more than it asked for, which others had less"
        long = longest[client] * _PCT > window_ns
        return f"{words}; its kernels take up to {longest[client] / MS:.0f} ms" if long else words
    if (total := sum(asked_pct.values())) > _PCT:
        return f"quotas add up to {total} % of the device"
    reasons = [(0.0, f"the device stood still for {_PCT - busy_pct:.1f} % of the window")]
    if 0 < away_ns < window_ns:
        reasons.append((away_ns * _PCT / window_ns, f"it had no batch at the device for {away_ns / MS:.0f} ms"))
    for other, pct in got.items():
        over = (pct * _PCT / busy_pct if busy_pct else 0.0) - asked_pct.get(other, 0)
        if other != client and over > 0:
            words = f"{other} had {over:.1f} points more than it asked for"
            if longest[other] * _PCT > window_ns:
                words += f", with kernels of up to {longest[other] / MS:.0f} ms"
            reasons.append((over, words))
    if not got[client]:
        return f"it ran nothing: {max(reasons)[1]}"
    return max(reasons)[1]
