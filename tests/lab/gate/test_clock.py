"""When a launch has come: by the stamp of the day's clock, and within what is sure whatever that clock does."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from dovetail.lab.gate.wire import Launch, Line, ToDevice, stamp_arrivals


@pytest.mark.parametrize("set_by_s", [-5, 5])
def test_a_clock_that_is_set_between_sending_and_reading_moves_no_arrival_beyond_these(set_by_s: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stamp_arrivals(theirs)
    with ours, theirs:
        sender, line = Line(ours, ToDevice), Line(theirs, ToDevice)
        sent_ns = time.monotonic_ns()
        sender.send(Launch(1, 1, sent_ns))
        assert line.receive() is not None
        true_ns = line.arrived_ns(sent_ns)
        assert sent_ns <= true_ns <= time.monotonic_ns()
        seconds, ns = struct.unpack("qq", line._stamp)
        line._stamp = struct.pack("qq", seconds + set_by_s, ns)
        found_ns = line.arrived_ns(sent_ns)
        assert found_ns == sent_ns if set_by_s < 0 else true_ns <= found_ns <= time.monotonic_ns()
