"""Where slices go: on the devices that are there, as they are now as far as can be.

Rules of this file
- A slice stays where it is if its device has room for its new size (`packing`, which may place all slices of a device
  anew: places are virtual). If not, it goes to another device, or is left as it is until there is one.
- New slices go to the fullest device that has room for them, the largest first.
- Nothing is decided here of how many devices there should be: it is said how many more would be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .packing import Packing, Slice, place_all

__all__ = ["Fitted", "Wanted", "fit"]

#: Thousandths of the time for each per cent of a quota.
_MILLI = 10


class Wanted(msgspec.Struct, frozen=True):
    """A slice that should be; of one that is there, its number, its worker and its size as it is."""

    stage: str
    share_pct: int
    quota_pct: int
    slice: int = 0
    worker: int = 0
    now: tuple[int, int] = (0, 0)

    @property
    def size(self) -> Slice:
        """As a rectangle."""
        return Slice(self.quota_pct * _MILLI, self.share_pct)


class Fitted(msgspec.Struct, frozen=True):
    """Where each goes, and what found no room."""

    #: (wanted, worker): it stays there with its new size, it is new there, or it moves there.
    placed: tuple[tuple[Wanted, int], ...]
    #: Those of which nothing changes, or that cannot be yet.
    homeless: tuple[Wanted, ...]
    #: Devices that these would need.
    more: int


def fit(wanted: Sequence[Wanted], workers: Iterable[int], *, avoid: int = 0) -> Fitted:
    """Place slices on workers; what is on `avoid` goes elsewhere."""
    held: dict[int, dict[str, Slice]] = {worker: {} for worker in workers if worker != avoid}
    placed: list[tuple[Wanted, int]] = []
    waiting: list[Wanted] = []
    by_size = sorted(wanted, key=lambda w: (-w.size.area, w.slice == 0, w.slice, w.stage))
    # Those that are there keep their room first: whoever shrinks or stays can always stay.
    for piece in sorted(by_size, key=lambda w: w.size.area > Slice(w.now[1] * _MILLI, w.now[0]).area):
        if piece.worker in held and _add(held[piece.worker], piece):
            placed.append((piece, piece.worker))
        else:
            waiting.append(piece)
    homeless = []
    for piece in sorted(waiting, key=lambda w: (-w.size.area, w.slice == 0, w.slice, w.stage)):
        for worker in sorted(held, key=lambda n: (-_area(held[n]), n)):
            if _add(held[worker], piece):
                placed.append((piece, worker))
                break
        else:
            homeless.append(piece)
    return Fitted(tuple(placed), tuple(homeless), _devices(homeless))


def _add(there: dict[str, Slice], piece: Wanted) -> bool:
    name = f"{piece.stage}#{piece.slice or f'new{len(there)}'}"
    if place_all({**there, name: piece.size}) is None:
        return False
    there[name] = piece.size
    return True


def _area(there: Mapping[str, Slice]) -> int:
    return sum(piece.area for piece in there.values())


def _devices(pieces: Sequence[Wanted]) -> int:
    packing = Packing()
    for number, piece in enumerate(pieces):
        packing.add(str(number), piece.size)
    return len(packing.devices)
