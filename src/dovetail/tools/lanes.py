"""The lanes of a device: which kernel ran when, who filled whose gap, as a picture and for ui.perfetto.dev.

It draws `device.record.KernelRecord`s, simulated or from a live gate's log. A lane is a class and what its tasks
run; a gap is the time between two kernels of a task of the highest class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..record.kernels import KernelRecord
from ..units import MS
from .chrome import ChromeTrace, Place

__all__ = ["Lane", "draw_lanes", "gaps", "lanes", "window", "write_lanes"]

#: Process of the trace, and its first track.
_PID, _FIRST_TRACK = 1, 1
#: Kernels that are thinner than this part of a picture cannot be told apart; the picture gets shorter instead.
_MOST_KERNELS = 400
_WHYS = {"turn": 1.0, "fill": 0.55, "beside": 0.55, "aged": 0.55}


class Lane(msgspec.Struct, frozen=True):
    """What one lane adds up to."""

    name: str
    priority: int
    tasks: int
    kernels: int
    #: Kernels that were started in a gap, beside another or by age, and not in their turn.
    filled: int
    busy_ns: int
    #: Longest time from ready to begin, -1 where it is not on record.
    worst_wait_ns: int
    longest_kernel_ns: int


def lanes(records: Sequence[KernelRecord]) -> list[Lane]:
    """All lanes, the highest class first."""
    found = []
    for priority, name in _keys(records):
        own = [r for r in records if (r.priority, r.name) == (priority, name)]
        waits = [r.begin_ns - max(r.ready_ns, _end_before(own, i)) for i, r in enumerate(own) if r.ready_ns >= 0]
        found.append(
            Lane(
                name,
                priority,
                len({r.task for r in own}),
                len(own),
                sum(r.why != "turn" for r in own),
                sum(r.end_ns - r.begin_ns for r in own),
                max(waits, default=-1),
                max(r.end_ns - r.begin_ns for r in own),
            )
        )
    return found


def _end_before(own: Sequence[KernelRecord], index: int) -> int:
    """When the kernel before it ended, if that was of the same task: a kernel does not wait for itself."""
    before = own[index - 1] if index else None
    return before.end_ns if before is not None and before.task == own[index].task else 0


def gaps(records: Sequence[KernelRecord]) -> list[tuple[int, int]]:
    """Times between two kernels of one task, of tasks of the highest class."""
    top = min((r.priority for r in records), default=0)
    last: dict[int, int] = {}
    found = []
    for record in sorted((r for r in records if r.priority == top), key=lambda r: r.begin_ns):
        end_ns = last.get(record.task)
        if end_ns is not None and record.begin_ns > end_ns:
            found.append((end_ns, record.begin_ns))
        last[record.task] = record.end_ns
    return found


def window(records: Sequence[KernelRecord], length_ns: int = 0) -> tuple[int, int]:
    """A stretch worth looking at: from a little before the second task of the highest class (or the first).

    It is as long as asked for, or else as long as kernels in it can be told apart.
    """
    top = min(r.priority for r in records)
    begins: dict[int, int] = {}
    for record in records:
        if record.priority == top:
            begins.setdefault(record.task, record.begin_ns)
    starts = sorted(begins.values())
    start_ns = starts[min(1, len(starts) - 1)]
    if not length_ns:
        later = sorted(r.end_ns for r in records if r.end_ns > start_ns)
        length_ns = later[min(_MOST_KERNELS, len(later)) - 1] - start_ns
    return start_ns - length_ns // 20, start_ns + length_ns


def draw_lanes(records: Sequence[KernelRecord], path: Path, *, title: str = "", length_ns: int = 0) -> None:
    """The picture: a row for the device and a row for each lane."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from .plots import COLOURS

    begin_ns, end_ns = window(records, length_ns)
    shown = [r for r in records if r.end_ns > begin_ns and r.begin_ns < end_ns]
    keys = _keys(records)
    figure = Figure((11.0, 1.6 + 0.55 * (len(keys) + 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for left_ns, right_ns in gaps(shown):
        axes.axvspan(_ms(left_ns, begin_ns), _ms(right_ns, begin_ns), color="#00000012", linewidth=0)
    for number, key in enumerate(keys):
        colour = COLOURS[number % len(COLOURS)]
        for why, alpha in _WHYS.items():
            bars = [
                (_ms(r.begin_ns, begin_ns), (r.end_ns - r.begin_ns) / MS)
                for r in shown
                if (r.priority, r.name) == key and r.why == why
            ]
            for row in (0, number + 1):
                axes.broken_barh(bars, (row - 0.38, 0.76), facecolors=colour, alpha=alpha, linewidth=0)
    axes.set_yticks(range(len(keys) + 1), ["device", *(f"{name} (class {priority})" for priority, name in keys)])
    axes.set_ylim(len(keys) + 0.6, -0.6)
    axes.set_xlim(0, (end_ns - begin_ns) / MS)
    axes.set_xlabel("ms")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    legend = [Patch(color="#444444", label="its turn"), Patch(color="#444444", alpha=0.55, label="filler or aged")]
    legend.append(Patch(color="#00000012", label="gap of the highest class"))
    axes.legend(handles=legend, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    figure.savefig(path, dpi=130, metadata={"Software": None})  # no version inside: the same run gives the same bytes


def write_lanes(records: Sequence[KernelRecord], path: Path, *, title: str = "") -> None:
    """The same for ui.perfetto.dev: a track per lane, gaps on a track of their own. ``.gz`` is compressed."""
    trace = ChromeTrace()
    keys = _keys(records)
    zero_ns = min((r.begin_ns for r in records), default=0)
    trace.process(_PID, title or "device")
    for number, (priority, name) in enumerate(keys):
        trace.track(_PID, _FIRST_TRACK + number, f"class {priority}: {name}")
    gap_track = _FIRST_TRACK + len(keys)
    trace.track(_PID, gap_track, "gaps of the highest class")
    for record in records:
        track = _FIRST_TRACK + keys.index((record.priority, record.name))
        arguments = {"task": record.task, "kernel": record.kernel, "why": record.why, "share_pct": record.share_pct}
        if record.ready_ns >= 0:
            arguments["wait_us"] = (record.begin_ns - record.ready_ns) / 1000
        begin = Place(_PID, track, record.begin_ns - zero_ns)
        trace.slice(begin, record.end_ns - zero_ns, record.why, record.what or f"kernel {record.kernel}", arguments)
    for left_ns, right_ns in gaps(records):
        trace.slice(Place(_PID, gap_track, left_ns - zero_ns), right_ns - zero_ns, "gap", "gap", {})
    trace.write(path, trace.branch(), {"lanes": title})


def _keys(records: Sequence[KernelRecord]) -> list[tuple[int, str]]:
    return sorted({(r.priority, r.name) for r in records})


def _ms(at_ns: int, zero_ns: int) -> float:
    return (at_ns - zero_ns) / MS
