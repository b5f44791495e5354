"""How long data takes from one worker to another, and between host memory and a device.

Rules of this file: a delay is a function of bytes alone. Nobody waits for a link here; whoever lets transfers queue
(a simulated device, a real bus) does so itself. Answers are integer nanoseconds, remembered per size, since a
workflow has few sizes and a planner asks for each worker.

The constants are Compass's: its authors measured a 100 Gb/s RDMA network and the bus of a Tesla T4 with Cascade, and
use them in two forms that differ in the last digits: their simulator's (core/network.py) and Cascade's own.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["CASCADE", "SIMULATOR", "Delays", "Links"]

#: The source counts in KB of 1,024 bytes, and 1,048.58 of them (a thousandth of 2^20, rounded) to "GB/s times 1 ms".
KB: Final = 1024
KB_PER_MS_PER_GB_S: Final = 1048.58
NS_PER_MS: Final = 1_000_000


class Links(msgspec.Struct, frozen=True):
    """The constants of one form."""

    #: GB/s from host memory to the device, and back.
    host_to_device_gb_s: float
    device_to_host_gb_s: float
    #: Fixed part of a copy between host and device.
    copy_ns: int
    #: GB/s between hosts for messages of 4 KB and more.
    network_gb_s: float = 12.0
    #: Fixed part of a message; the whole of one below 1 KB.
    message_ns: int = 2_000
    #: Messages of 1 to 4 KB reach 3 + 2 s GB/s, s being their KB; their time is divided by this. Cascade's source
    #: adds these milliseconds to microseconds, which is a slip, but of a third of a microsecond.
    small_divisor: int = 1


#: core/network.py of the authors' simulator.
SIMULATOR: Final = Links(9.7, 9.7, 0)
#: Cascade, branch `navigator`: copies back are half as fast, and each copy has a fixed part.
CASCADE: Final = Links(9.7, 4.7, 2_000, small_divisor=1_000)


class Delays:
    """Delays over given links."""

    def __init__(self, links: Links = CASCADE) -> None:
        self.links = links
        self._load: dict[int, int] = {}
        self._save: dict[int, int] = {}
        self._message: dict[int, int] = {}

    def load_ns(self, nbytes: int) -> int:
        """Host memory to device. Nothing takes no time.

        What fetching a model takes is asked of the predictor, which begins with this (`wiring`).
        """
        known = self._load.get(nbytes)
        if known is None:
            known = self._load[nbytes] = self._copy_ns(nbytes, self.links.host_to_device_gb_s)
        return known

    def save_ns(self, nbytes: int) -> int:
        """Device to host memory."""
        known = self._save.get(nbytes)
        if known is None:
            known = self._save[nbytes] = self._copy_ns(nbytes, self.links.device_to_host_gb_s)
        return known

    def message_ns(self, nbytes: int) -> int:
        """Host to host: what an input takes to reach another worker."""
        known = self._message.get(nbytes)
        if known is None:
            known = self._message[nbytes] = self._message_ns(nbytes)
        return known

    def result_ns(self, nbytes: int) -> int:
        """Device to device on another worker: down to the host, over, and up again."""
        return self.save_ns(nbytes) + self.message_ns(nbytes) + self.load_ns(nbytes)

    def _copy_ns(self, nbytes: int, gb_s: float) -> int:
        if nbytes <= 0:
            return 0
        return round(nbytes / KB / (gb_s * KB_PER_MS_PER_GB_S) * NS_PER_MS) + self.links.copy_ns

    def _message_ns(self, nbytes: int) -> int:
        links = self.links
        kb = nbytes / KB
        if kb < 1:
            return links.message_ns
        if kb < 4:
            moving_ms = kb / ((3 + 2 * kb) * (1 << 20) / 1000) / links.small_divisor
        else:
            moving_ms = kb / (links.network_gb_s * KB_PER_MS_PER_GB_S)
        return round(moving_ms * NS_PER_MS) + links.message_ns
