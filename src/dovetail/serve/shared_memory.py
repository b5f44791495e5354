"""System shared memory of clients, Triton's extension: regions that clients register, and tensors that lie in them.

Rules of this file
- Nothing is mapped. Bytes are read into our own memory and written from it: a client that cuts its object short gets
  an error, where a mapping would end the server (SIGBUS).
- A key names an object in /dev/shm. It is no path and no link, belongs to this user, and has no reserved prefix.
- Offsets and sizes are checked against the object when a region is registered, and again at each use.
- A region that is unregistered is gone at once for new requests. Its descriptor is closed when the last request that
  writes to it has ended.

Sources: Triton's docs/protocol/extension_shared_memory.md; its issues 8273, 8330, 8335, 8336, 8721.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import msgspec

from ..errors import BadRequest
from .framing import HttpError

__all__ = ["MAX_REGIONS", "Held", "Regions", "SharedPlace", "shared_place", "turned_on"]

FOLDER = "/dev/shm"
#: Each costs a descriptor.
MAX_REGIONS = 256
MAX_NAME_CHARS = 256
#: Semaphores lie in the same folder, and Triton keeps its Python stages' memory there.
RESERVED = ("sem.", "triton_python_backend_shm", "dovetail")
_LARGEST = 2**63 - 1
#: Parts that are written in one call; IOV_MAX of Linux.
_PARTS = 1024


class SharedPlace(msgspec.Struct, frozen=True):
    """Where a tensor lies, or is to go, as its parameters say."""

    region: str
    offset: int
    nbytes: int


def shared_place(parameters: dict[str, bool | int | float | str]) -> SharedPlace | None:
    """The place that parameters of a tensor name; None if they name none."""
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    numbers = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    if type(region) is not str or not all(type(n) is int and 0 <= n <= _LARGEST for n in numbers):
        raise BadRequest(
            "shared_memory_region is a name, shared_memory_offset and shared_memory_byte_size are numbers from 0 on; "
            f"got {region!r}, {numbers[0]!r} and {numbers[1]!r}"
        )
    if "binary_data_size" in parameters:
        raise BadRequest("a tensor is in shared memory or in the request: give shared_memory_region or data")
    return SharedPlace(region, *numbers)  # type: ignore[arg-type]  # just checked


def turned_on(regions: Regions | None) -> Regions:
    """The regions of clients, if the server takes any."""
    if regions is None:
        raise HttpError(501, "shared memory is off; start the server with --shared-memory to turn it on")
    return regions


class _Region:
    def __init__(self, name: str, key: str, offset: int, nbytes: int, descriptor: int) -> None:
        self.name, self.key, self.offset, self.nbytes = name, key, offset, nbytes
        self.descriptor = descriptor
        self.users = 1  # the table is one

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            os.close(self.descriptor)


class Held:
    """A place that a request uses. Release it once, when nothing is read or written there any more."""

    def __init__(self, region: _Region, place: SharedPlace) -> None:
        self._region = region
        self._at = region.offset + place.offset
        self.place = place
        region.users += 1

    def release(self) -> None:
        self._region.release()

    def _check_size(self) -> None:
        if os.fstat(self._region.descriptor).st_size < self._at + self.place.nbytes:
            raise BadRequest(f"the object of region {self.place.region!r} is smaller than when it was registered")

    def read_into(self, view: memoryview) -> None:
        """Copy the tensor."""
        self._check_size()
        done = 0
        while done < len(view):
            taken = os.preadv(self._region.descriptor, [view[done:]], self._at + done)
            if not taken:
                raise BadRequest(f"the object of region {self.place.region!r} was made smaller while it was read")
            done += taken

    def write(self, parts: Sequence[bytes | memoryview]) -> int:
        """Copy a tensor there; its bytes."""
        nbytes = sum(map(len, parts))
        if nbytes > self.place.nbytes:
            raise BadRequest(
                f"the output has {nbytes} bytes, more than the {self.place.nbytes} of shared_memory_byte_size"
            )
        self._check_size()
        at, left = self._at, [memoryview(part) for part in parts if len(part)]
        while left:
            taken = os.pwritev(self._region.descriptor, left[:_PARTS], at)
            at += taken
            while left and taken >= len(left[0]):
                taken -= len(left.pop(0))
            if left:
                left[0] = left[0][taken:]
        return nbytes


class Regions:
    """What clients have registered. All calls come from the thread of the event loop."""

    def __init__(self, max_tensor_bytes: int) -> None:
        """No tensor of more bytes is copied: everybody waits meanwhile."""
        self._max_tensor_bytes = max_tensor_bytes
        self._known: dict[str, _Region] = {}

    def register(self, name: str, key: str, offset: int, nbytes: int) -> None:
        """Open the object of a client."""
        if not name or len(name) > MAX_NAME_CHARS:
            raise HttpError(400, f"the name of a region has 1 to {MAX_NAME_CHARS} characters")
        if name in self._known:
            raise HttpError(400, f"shared memory region {name!r} is registered already; unregister it first")
        if len(self._known) >= MAX_REGIONS:
            raise HttpError(400, f"{MAX_REGIONS} regions are registered, which is all there may be; unregister some")
        if not 0 <= offset <= _LARGEST or not 0 < nbytes <= _LARGEST - offset:
            raise HttpError(400, f"region {name!r}: offset {offset} and byte_size {nbytes} are no part of an object")
        descriptor = _opened(key)
        try:
            size = os.fstat(descriptor).st_size
            if offset + nbytes > size:
                raise HttpError(
                    400, f"region {name!r}: bytes {offset} to {offset + nbytes} of {key!r}, which has {size}"
                )
        except BaseException:
            os.close(descriptor)
            raise
        self._known[name] = _Region(name, key, offset, nbytes, descriptor)

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all. Requests that use it end as if it were there."""
        for region in [self._known.pop(name, None)] if name else list(self._known.values()):
            if region is not None:
                self._known.pop(region.name, None)
                region.release()

    def status(self, name: str = "") -> list[dict[str, str | int]]:
        """One region, or all."""
        if name and name not in self._known:
            raise HttpError(404, f"no shared memory region {name!r} is registered")
        return [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.nbytes}
            for region in ([self._known[name]] if name else self._known.values())
        ]

    def hold(self, place: SharedPlace) -> Held:
        """Use a place; the region stays until it is released."""
        region = self._known.get(place.region)
        if region is None:
            raise BadRequest(f"no shared memory region {place.region!r} is registered")
        if place.offset + place.nbytes > region.nbytes:
            raise BadRequest(
                f"bytes {place.offset} to {place.offset + place.nbytes} are not in region {place.region!r} of "
                f"{region.nbytes} bytes"
            )
        if place.nbytes > self._max_tensor_bytes:
            raise BadRequest(f"a tensor of {place.nbytes} bytes is larger than {self._max_tensor_bytes} bytes")
        return Held(region, place)


def _opened(key: str) -> int:
    """A descriptor of an object that may be used."""
    name = key.lstrip("/")
    if not name or "/" in name or "\0" in name or name in (".", "..") or len(name) > MAX_NAME_CHARS:
        raise HttpError(400, f"key {key!r} is not the name of a shared memory object, such as /input_0")
    if name.startswith(RESERVED):
        raise HttpError(400, f"key {key!r} begins like {' or '.join(RESERVED)}: these names are reserved")
    try:
        descriptor = os.open(f"{FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise HttpError(
            400, f"shared memory object {key!r} cannot be opened: {getattr(error, 'strerror', None) or error}"
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise HttpError(400, f"shared memory object {key!r} is not a plain object of the server's user")
    return descriptor
