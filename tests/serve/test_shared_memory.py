"""Regions of clients: what may be registered, what is checked at each use, and when a region goes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.serve.support import Wire

from dovetail.errors import BadRequest
from dovetail.serve.framing import HttpError
from dovetail.serve.shared_memory import FOLDER, MAX_REGIONS, RESERVED, Regions, SharedPlace, shared_place

pytestmark = pytest.mark.cpu
Make = Callable[..., Path]


@pytest.fixture
def make() -> Iterator[Make]:
    """Objects of a client; those that are left are removed."""
    made: list[Path] = []

    def object_of(size: int, prefix: str = "") -> Path:
        path = Path(FOLDER, f"{prefix}test-{uuid.uuid4().hex}")
        path.write_bytes(bytes(range(256)) * (size // 256) + bytes(size % 256))
        made.append(path)
        return path

    yield object_of
    for path in made:
        path.unlink(missing_ok=True)


@pytest.fixture
def regions() -> Iterator[Regions]:
    regions = Regions(1 << 20)
    yield regions
    regions.unregister()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/../etc/passwd", "a/b", "/a/b", "x\0y", "absent-object", "x" * 300, *RESERVED]
)
def test_keys_that_are_refused(regions: Regions, key: str) -> None:
    with pytest.raises(HttpError) as caught:
        regions.register("r", key, 0, 1)
    assert caught.value.status == 400 and not regions.status()


def test_reserved_names_are_refused_though_they_are_there(regions: Regions, make: Make) -> None:
    for prefix in RESERVED:
        with pytest.raises(HttpError, match="reserved"):
            regions.register("r", make(16, prefix).name, 0, 16)


def test_links_and_pipes_are_refused(regions: Regions, make: Make) -> None:
    target = make(16)
    link = target.with_name(f"{target.name}-link")
    pipe = target.with_name(f"{target.name}-pipe")
    link.symlink_to(target)
    os.mkfifo(pipe)
    before = descriptors()
    try:
        for path in (link, pipe):
            with pytest.raises(HttpError):
                regions.register("r", path.name, 0, 16)
    finally:
        link.unlink()
        pipe.unlink()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 257), (1, 256), (256, 1), (0, 0), (-1, 8), (2**63, 1), (2**63 - 1, 2), (0, 2**64 - 1)]
)
def test_sizes_that_do_not_fit(regions: Regions, make: Make, offset: int, nbytes: int) -> None:
    before = descriptors()
    with pytest.raises(HttpError):
        regions.register("r", make(256).name, offset, nbytes)
    assert descriptors() == before


@pytest.mark.parametrize("place", [(0, 129), (1, 128), (2**62, 1), (128, 1)])
def test_places_outside_of_a_region(regions: Regions, make: Make, place: tuple[int, int]) -> None:
    regions.register("r", make(256).name, 64, 128)
    with pytest.raises(BadRequest, match="not in region"):
        regions.hold(SharedPlace("r", *place))


def test_bytes_are_those_of_the_object(regions: Regions, make: Make) -> None:
    path = make(1024)
    regions.register("r", f"/{path.name}", 64, 512)
    held = regions.hold(SharedPlace("r", 16, 32))
    found = memoryview(bytearray(32))
    held.read_into(found)
    assert bytes(found) == bytes(range(80, 112))
    assert held.write([b"ab", memoryview(b""), memoryview(b"cde")]) == 5
    assert path.read_bytes()[79:86] == bytes([79]) + b"abcde" + bytes([85])
    with pytest.raises(BadRequest, match="more than the 32"):
        held.write([bytes(33)])
    assert held.write([b"x"] * 32) == 32
    held.release()


def test_an_object_that_is_cut_short_is_an_error_and_no_more(regions: Regions, make: Make) -> None:
    path = make(4096)
    regions.register("r", path.name, 0, 4096)
    os.truncate(path, 10)
    held = regions.hold(SharedPlace("r", 0, 4096))
    with pytest.raises(BadRequest, match="smaller"):
        held.read_into(memoryview(bytearray(4096)))
    with pytest.raises(BadRequest, match="smaller"):
        held.write([bytes(4096)])
    held.release()
    assert path.stat().st_size == 10


def test_a_region_in_use_goes_when_its_last_user_does(regions: Regions, make: Make) -> None:
    path, before = make(256), descriptors()
    regions.register("r", path.name, 0, 256)
    one, two = regions.hold(SharedPlace("r", 0, 8)), regions.hold(SharedPlace("r", 8, 8))
    regions.unregister("r")
    with pytest.raises(BadRequest, match="no shared memory region 'r'"):
        regions.hold(SharedPlace("r", 0, 8))
    regions.register("r", make(16).name, 0, 16)  # the name is free again
    regions.unregister("r")
    one.release()
    assert descriptors() == before + 1
    two.write([b"still"])
    assert path.read_bytes()[8:13] == b"still"
    two.release()
    assert descriptors() == before


def test_numbers_are_bounded(regions: Regions, make: Make) -> None:
    path, before = make(4 << 20), descriptors()
    for number in range(MAX_REGIONS):
        regions.register(str(number), path.name, 0, 4 << 20)
    with pytest.raises(HttpError, match="all there may be"):
        regions.register("one more", path.name, 0, 1)
    with pytest.raises(BadRequest, match="larger than"):
        regions.hold(SharedPlace("0", 0, 2 << 20))
    regions.unregister()
    assert descriptors() == before


@pytest.mark.parametrize(
    "more", [{"shared_memory_byte_size": -1}, {"shared_memory_byte_size": True}, {"shared_memory_byte_size": 1.5}, {}]
)
def test_parameters_that_are_no_place(more: dict[str, bool | int | float | str]) -> None:
    with pytest.raises(BadRequest, match="are numbers from 0 on"):
        shared_place({"shared_memory_region": "r", **more})
    with pytest.raises(BadRequest, match="in shared memory or in the request"):
        shared_place({"shared_memory_region": "r", "shared_memory_byte_size": 1, "binary_data_size": 1})


def test_it_is_off_unless_it_is_asked_for(wire: Wire) -> None:
    assert wire.ask("GET", "/v2/systemsharedmemory/status").status == 501
    reply = wire.ask("POST", "/v2/systemsharedmemory/region/r/register", b'{"key": "/x", "byte_size": 1}')
    assert reply.status == 501 and "--shared-memory" in reply.error
