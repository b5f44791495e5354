"""The simulated world: virtual time, simulated devices, recorded or generated arrivals.

It drives the very same Controller as `live`; nothing here decides anything.
"""

from .device import Branching, SimDevice
from .driver import Simulation

__all__ = ["Branching", "SimDevice", "Simulation"]
