"""Which slices fit on which device: rectangles of quota by share, packed by maximal rectangles.

A device is a rectangle: its time is the width (1000, in thousandths), its share the height (100 %). A slice is a
rectangle in it. Places are virtual: what is enforced is shares and tokens, so that a slice may be put elsewhere at
any time and nothing has to move.

Rules of this file
- Free room is kept as maximal rectangles, which may overlap (Jylänki, "A Thousand Ways to Pack the Bin", 2010). A
  slice goes where the least area is left over, then where the shorter leftover side is least: FaST-GShare's rule. It
  is never turned.
- Among devices the one with the least free area is taken. That is FaST-GShare's rule, too.
- FaST-GShare places slices as they arrive. Its own mix of eight fits one GPU in 138 of 420 orders. Here, if a slice
  finds no room, all slices of a device are placed anew with it, in several orders, largest first. Only then another
  device is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["DEVICE_HEIGHT", "DEVICE_WIDTH", "Packing", "Place", "Room", "Slice", "best_area_fit", "lower_bound"]

#: Quotas in thousandths of the time, shares in per cent: FaST-GShare's units.
DEVICE_WIDTH: Final = 1000
DEVICE_HEIGHT: Final = 100


class Slice(NamedTuple):
    """What is to be placed."""

    #: Thousandths of the device's time.
    width: int
    #: Per cent of the device.
    height: int

    @property
    def area(self) -> int:
        """Part of a device."""
        return self.width * self.height


class Place(NamedTuple):
    """A rectangle of a device."""

    x: int
    y: int
    width: int
    height: int

    def holds(self, other: Place) -> bool:
        """Whether the other one is inside."""
        return (
            self.x <= other.x and self.y <= other.y
            and other.x + other.width <= self.x + self.width and other.y + other.height <= self.y + self.height
        )  # fmt: skip

    def meets(self, other: Place) -> bool:
        """Whether the two have any room in common."""
        return (
            self.x < other.x + other.width and other.x < self.x + self.width
            and self.y < other.y + other.height and other.y < self.y + self.height
        )  # fmt: skip

    def without(self, taken: Place) -> list[Place]:
        """What is left of it, as rectangles that are as large as can be: below, above, left, right."""
        left: list[Place] = []
        if taken.y > self.y:
            left.append(Place(self.x, self.y, self.width, taken.y - self.y))
        if (end := taken.y + taken.height) < self.y + self.height:
            left.append(Place(self.x, end, self.width, self.y + self.height - end))
        if taken.x > self.x:
            left.append(Place(self.x, self.y, taken.x - self.x, self.height))
        if (end := taken.x + taken.width) < self.x + self.width:
            left.append(Place(end, self.y, self.x + self.width - end, self.height))
        return left


class Room:
    """The free room of one device."""

    def __init__(self, width: int = DEVICE_WIDTH, height: int = DEVICE_HEIGHT) -> None:
        self.width, self.height = width, height
        self.free: list[Place] = [Place(0, 0, width, height)]
        self.free_area = width * height

    def find(self, piece: Slice) -> Place | None:
        """Where it would be placed; None: nowhere."""
        fits = [f for f in self.free if piece.width <= f.width and piece.height <= f.height]
        if not fits:
            return None
        best = min(
            fits,
            key=lambda f: (f.width * f.height - piece.area, min(f.width - piece.width, f.height - piece.height)),
        )
        return Place(best.x, best.y, piece.width, piece.height)

    def insert(self, piece: Slice) -> Place | None:
        """Place it, if there is room for it."""
        if piece.width <= 0 or piece.height <= 0:
            raise ValueError(f"a slice of {piece.width} by {piece.height} is none")
        place = self.find(piece)
        if place is not None:
            self._take(place)
        return place

    def _take(self, place: Place) -> None:
        untouched = [f for f in self.free if not f.meets(place)]
        pieces = [piece for f in self.free if f.meets(place) for piece in f.without(place)]
        found = untouched + pieces
        # Of two that are equal the first is kept.
        self.free = [
            f for i, f in enumerate(found)
            if not any(other.holds(f) and (other != f or j < i) for j, other in enumerate(found) if j != i)
        ]  # fmt: skip
        self.free_area -= place.width * place.height


_ORDERS: Final[tuple[Callable[[tuple[str, Slice]], tuple[int, ...]], ...]] = (
    lambda item: (-item[1].area, -item[1].height),
    lambda item: (-item[1].height, -item[1].width),
    lambda item: (-item[1].width, -item[1].height),
    lambda item: (-max(item[1].width * DEVICE_HEIGHT, item[1].height * DEVICE_WIDTH), -item[1].area),
)


def place_all(slices: Mapping[str, Slice]) -> dict[str, Place] | None:
    """Place all of them on one device, in whatever order does it; None: none of ours does."""
    if sum(piece.area for piece in slices.values()) > DEVICE_WIDTH * DEVICE_HEIGHT:
        return None
    for order in _ORDERS:
        room, places = Room(), {}
        for name, piece in sorted(slices.items(), key=lambda item: (*order(item), item[0])):
            place = room.insert(piece)
            if place is None:
                break
            places[name] = place
        else:
            return places
    return None


class Packing:
    """Slices on devices. Each slice has a name."""

    def __init__(self, repack: bool = True) -> None:
        #: False: as FaST-GShare does it, each slice where it finds room when it comes.
        self.repack = repack
        #: For each device, its slices by name and where they are.
        self.devices: list[dict[str, Place]] = []
        self._rooms: list[Room] = []

    def device_of(self, name: str) -> int:
        """The device that a slice is on."""
        return next(n for n, places in enumerate(self.devices) if name in places)

    def add(self, name: str, piece: Slice, *, most: int | None = None) -> int | None:
        """Place a slice and say on which device; None: that would take more devices than `most`."""
        if piece.width > DEVICE_WIDTH or piece.height > DEVICE_HEIGHT:
            raise ValueError(f"slice {name!r} of {piece.width} by {piece.height} is larger than a device")
        if any(name in places for places in self.devices):
            raise ValueError(f"there is a slice {name!r}")
        by_room = sorted(range(len(self.devices)), key=lambda n: (self._rooms[n].free_area, n))
        for number in by_room:
            if (place := self._rooms[number].insert(piece)) is not None:
                self.devices[number][name] = place
                return number
        if self.repack:
            for number in by_room:
                if self._place_anew(number, {**self._slices(number), name: piece}):
                    return number
        if most is not None and len(self.devices) >= most:
            return None
        self.devices.append({})
        self._rooms.append(Room())
        place = self._rooms[-1].insert(piece)
        assert place is not None, "an empty device has room"
        self.devices[-1][name] = place
        return len(self.devices) - 1

    def remove(self, name: str) -> None:
        """Take a slice away. What it had is free as a whole: the others are placed anew if that helps."""
        number = self.device_of(name)
        slices = self._slices(number)
        del slices[name]
        if not self._place_anew(number, slices):  # then every one stays where it is
            del self.devices[number][name]
            self._mark(number)

    def resize(self, name: str, piece: Slice, *, most: int | None = None) -> int | None:
        """Give a slice another size, on its device if it can be; None, and all as it was: nowhere."""
        number = self.device_of(name)
        if self._place_anew(number, {**self._slices(number), name: piece}):
            return number
        before = [dict(places) for places in self.devices]
        self.remove(name)
        found = self.add(name, piece, most=most)
        if found is None:
            self.devices = before
            for n in range(len(before)):
                self._mark(n)
        return found

    def _slices(self, number: int) -> dict[str, Slice]:
        return {name: Slice(p.width, p.height) for name, p in self.devices[number].items()}

    def _place_anew(self, number: int, slices: Mapping[str, Slice]) -> bool:
        places = place_all(slices)
        if places is None:
            return False
        self.devices[number] = places
        self._mark(number)
        return True

    def _mark(self, number: int) -> None:
        room = Room()
        for place in self.devices[number].values():
            room._take(place)
        self._rooms[number] = room

    def validate(self) -> None:
        """Check that no two slices meet, and that all are inside; for tests."""
        whole = Place(0, 0, DEVICE_WIDTH, DEVICE_HEIGHT)
        for places, room in zip(self.devices, self._rooms, strict=True):
            placed = list(places.values())
            assert all(whole.holds(p) for p in placed), "inside the device"
            assert not any(p.meets(q) for i, p in enumerate(placed) for q in placed[:i]), "beside each other"
            assert not any(p.meets(f) for p in placed for f in room.free), "what is free is free"
            assert room.free_area == DEVICE_WIDTH * DEVICE_HEIGHT - sum(p.width * p.height for p in placed)


def best_area_fit(slices: Iterable[Slice]) -> int:
    """Devices that slices take in this order, each placed where it finds room: FaST-GShare's packing."""
    packing = Packing(repack=False)
    for number, piece in enumerate(slices):
        packing.add(str(number), piece)
    return len(packing.devices)


def lower_bound(slices: Sequence[Slice]) -> int:
    """Devices that nobody could do with less than.

    The area, and the slices of which no two fit on one device: those of more than half of it in both directions.
    """
    area = sum(piece.area for piece in slices)
    large = sum(2 * piece.width > DEVICE_WIDTH and 2 * piece.height > DEVICE_HEIGHT for piece in slices)
    return max(-(-area // (DEVICE_WIDTH * DEVICE_HEIGHT)), large)
