"""Figures of the scaler's claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..experiment import Lab
from .scaling_traces import Load
from .scaling_world import Run

__all__ = ["plot_days", "plot_has_gpu", "plot_stages"]


def _rates(axes: Any, load: Load) -> None:
    times, rates, at = [], [], 0.0
    for duration_ns, rate in load.steps:
        times += [at, at + duration_ns / 1e9]
        rates += [rate, rate]
        at = times[-1]
    axes.plot(times, rates, color="0.6")
    axes.set_ylabel("requests/s")
    axes.set_xlabel("s")


def _usage(axes: Any, run: Run, label: str = "") -> None:
    times = [at for at, _ in run.usage]
    axes.step(times, [gpus for _, gpus in run.usage], where="post", label=label, linewidth=1)
    axes.set_ylabel("GPU in use")
    axes.set_xlabel("s")


def plot_has_gpu(lab: Lab, rps: Load, mobilenet: Run, stress: Load, bert: Run) -> None:
    """Rate, GPU in use and latencies of two runs."""
    with lab.figure("has-gpu", width_in=9, height_in=6) as figure:
        axes = figure.subplots(2, 3)
        for row, (load, run, name) in enumerate(((rps, mobilenet, "MobileNet"), (stress, bert, "BERT, stress"))):
            _rates(axes[row][0], load)
            axes[row][0].set_title(name)
            _usage(axes[row][1], run)
            axes[row][2].plot([at for at, _ in run.latencies], [ms for _, ms in run.latencies], ".", markersize=2)
            axes[row][2].axhline(150, color="0.4", linestyle=":")
            axes[row][2].set_ylabel("latency, ms")
            axes[row][2].set_xlabel("s")


def plot_stages(lab: Lab, load: Load, run: Run) -> None:
    """The load of 14 stages."""
    with lab.figure("fourteen-stages", width_in=9, height_in=3.2) as figure:
        axes = figure.subplots(1, 3)
        _rates(axes[0], load)
        _usage(axes[1], run)
        axes[2].plot([at for at, _ in run.latencies], [ms for _, ms in run.latencies], ".", markersize=2)
        axes[2].axhline(69, color="0.4", linestyle=":")
        axes[2].set_ylabel("latency, ms")
        axes[2].set_xlabel("s")


def plot_days(lab: Lab, results: Mapping[str, Mapping[str, Run]], bounds: Mapping[str, float]) -> None:
    """Requests in time against GPU-seconds, and GPU in use over time."""
    with lab.figure("auto-scaling", width_in=9, height_in=3.4 * len(results)) as figure:
        axes = figure.subplots(len(results), 2, squeeze=False)
        for row, (name, runs) in enumerate(results.items()):
            for scaler, run in runs.items():
                axes[row][0].plot(run.gpu_s, 100 * run.in_time, "o", label=scaler)
                _usage(axes[row][1], run, scaler)
            axes[row][0].axvline(bounds[name], color="0.4", linestyle=":", label="bound")
            axes[row][0].set_xlabel("GPU-seconds reserved")
            axes[row][0].set_ylabel("requests in time, %")
            axes[row][0].set_title(name)
            axes[row][0].legend(fontsize=7)
