"""The doorbell: whole messages in order, of any size, with descriptors beside them."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from dovetail.live.links.doorbell import MAX_PACKET_BYTES, Doorbell, pair
from dovetail.live.links.wire import (
    Attach,
    Free,
    FromWorker,
    Loaded,
    Ready,
    ToWorker,
)


@pytest.fixture
def ends():
    ours, theirs = pair()
    front: Doorbell[FromWorker] = Doorbell(ours, FromWorker)
    worker: Doorbell[ToWorker] = Doorbell(theirs, ToWorker)
    yield front, worker
    front.close()
    worker.close()


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_messages_come_whole_and_in_order(ends):
    front, worker = ends
    sent = [Free(list(range(n))) for n in (0, 1, 500)]
    for message in sent:
        front.send(message)
    assert [worker.receive() for _ in sent] == [(m, []) for m in sent]
    worker.send(Loaded("read", 5, 1))
    assert front.receive() == (Loaded("read", 5, 1), [])


@pytest.mark.parametrize("numbers", [MAX_PACKET_BYTES, 1_000_000])
def test_a_message_larger_than_a_packet_goes_through_a_file(ends, numbers):
    front, worker = ends
    before = open_fds()
    large = Free([1 << 40] * numbers)
    front.send(large)
    front.send(Free([1]))
    assert worker.receive() == (large, [])
    assert worker.receive() == (Free([1]), [])
    assert open_fds() == before


def test_descriptors_travel_beside_messages(ends):
    front, worker = ends
    before = open_fds()
    read_end, write_end = os.pipe()
    front.send(Attach(3), [read_end])
    message, (fd,) = worker.receive()
    assert message == Attach(3)
    os.write(write_end, b"hello")
    assert os.read(fd, 10) == b"hello"
    for end in (read_end, write_end, fd):
        os.close(end)
    assert open_fds() == before


def test_what_is_not_a_message_is_refused_and_its_descriptors_are_closed(ends):
    front, worker = ends
    before = open_fds()
    for junk in (b"\x00", b"\xc1", b"\x93\xa4Free\x01", msgspec.msgpack.encode(["Ready", 1])):
        with open(os.devnull) as file:
            fds = [] if junk == b"\xc1" else [file.fileno()]
            socket.send_fds(front._sock, [junk], fds)
        with pytest.raises((msgspec.DecodeError, IndexError)):
            worker.receive()
    assert open_fds() == before


def test_a_packet_that_is_too_large_is_refused(ends):
    front, worker = ends
    front._sock.send(bytes(MAX_PACKET_BYTES + 1))
    with pytest.raises(msgspec.DecodeError, match="cut"):
        worker.receive()


def test_the_end_of_the_other_side_is_seen(ends):
    front, worker = ends
    worker.send(Ready(1))
    worker._sock.close()
    assert front.receive() == (Ready(1), [])
    assert front.receive() is None
    with pytest.raises(BrokenPipeError):
        front.send(Free([1]))


def test_a_full_doorbell_says_so_when_it_must_not_wait(ends):
    front, worker = ends
    front.setblocking(False)
    sent = 0
    with pytest.raises(BlockingIOError):
        for sent in range(1_000_000):
            front.send(Free([sent]))
    assert [worker.receive()[0].offsets for _ in range(sent)] == [[i] for i in range(sent)]
    with pytest.raises(BlockingIOError):
        front.receive()
