"""What a scaler reserves over a run: slices and devices, added up over time.

GPU-seconds are share times quota of all slices, as HAS-GPU counts "GPU in use": what a slice does not use is counted,
too. A device counts from the moment it is asked for to the moment it is told to stop.
"""

from __future__ import annotations

from ..control.actions import Action, SetSlice, StartWorker, StopWorker
from ..control.events import Event
from ..state.run_batch import FULL_QUOTA
from ..state.worker import FULL_SHARE
from ..units import SECOND

__all__ = ["Usage"]

_DEVICE = FULL_SHARE * FULL_QUOTA


class Usage:
    """An observer of a run. What is only said (`dry`) counts as if it were done."""

    def __init__(self, devices: int) -> None:
        self.devices = self.most_devices = devices
        self.changes = 0
        self.at_ns = 0
        #: (second, GPUs reserved from then on)
        self.points: list[tuple[float, float]] = []
        self._slices: dict[int, int] = {}
        self._area = 0
        self._area_ns = 0
        self._device_ns = 0

    @property
    def gpu_s(self) -> float:
        """Share times quota, over time."""
        return self._area_ns / _DEVICE / SECOND

    @property
    def device_s(self) -> float:
        """Devices, over time."""
        return self._device_ns / SECOND

    def advance(self, now_ns: int) -> None:
        """Time has passed."""
        passed_ns = now_ns - self.at_ns
        if passed_ns > 0:
            self.at_ns = now_ns
            self._area_ns += passed_ns * self._area
            self._device_ns += passed_ns * self.devices

    def __call__(self, event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SetSlice):
                self.advance(event.at_ns)
                self.changes += 1
                area = action.share_pct * action.quota_pct
                self._area += area - self._slices.pop(action.slice, 0)
                if area:
                    self._slices[action.slice] = area
                self.points.append((event.at_ns / SECOND, self._area / _DEVICE))
            elif isinstance(action, StartWorker | StopWorker):
                self.advance(event.at_ns)
                self.devices += 1 if isinstance(action, StartWorker) else -1
                self.most_devices = max(self.most_devices, self.devices)
