"""Planning for a percentile: how far above its mean a path's time has to be counted, in a way that adds up.

Times of a path's stages are taken as independent, with mean m and variance v = (m × spread)². Means and variances
add up; percentiles do not, and adding them up pays for all stages being slow at once. The path's percentile is

    q = Σm + z √Σv

Rules of this file
- z is that of the normal distribution, raised for two things. Run times lean to the right: if single times are
  log-normal with a spread of at most s, z becomes (g(s) − 1) / s, where g(s) is the percentile of a log-normal time
  of mean 1. Exact for one stage. The skewness γ of a sum is at most the largest of its terms', so for sums the
  next-order percentile Σm + (z + (z² − 1) γ / 6) √Σv (Cornish and Fisher) is covered. And if several paths must all
  be in time, each gets p^(1/paths): path times are increasing functions of the same independent times, hence
  associated, hence P(all in time) >= ΠP(one in time) (Esary, Proschan and Walkup, 1967).
- √Σv is not additive, and a planner composes plans by adding. So plans are measured with *rulers*: additive times
  that are never below q. √v <= v / 2θ + θ / 2 for any θ > 0, with equality at θ = √v, gives
      ruler θ:      Σ(m + z v / 2θ)  +  z θ / 2
      ruler naive:  Σ(m + z √v)
  A plan that is in time by any ruler is in time by q (sound). Because of the naive ruler, no plan is dearer than
  with percentiles added up. With a ladder of θ in steps of 2 some θ is off √v by √2 at most, and that ruler counts
  z √v at most (√2 + 1/√2) / 2 = 1.061 times. Below the ladder the naive ruler remains.
- At z = 0 there is one ruler, the mean.
"""

from __future__ import annotations

from math import ceil, exp, log1p, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import DeclarationError

__all__ = ["LADDER", "Ruler", "rulers", "z_value"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Rungs of the ladder of θ, in steps of 2 downwards from the largest deviation that can be in time. That of n equal
#: stages is 1/√n of it, so three rungs, which reach down to 1/8, cover eight stages at a third of the objective.
LADDER = 3


class Ruler(NamedTuple):
    """An additive measure of time: mean + per_sd × deviation + per_var × variance for each stage, offset once."""

    z: float = 0.0
    per_sd: float = 0.0
    per_var: float = 0.0
    offset_ns: int = 0

    def time_ns(self, mean_ns: Floats, sd_ns: Floats) -> Ints:
        """Times of options by this ruler, rounded up."""
        return np.ceil(mean_ns + self.per_sd * sd_ns + self.per_var * sd_ns * sd_ns).astype(np.int64)

    def percentile_ns(self, time_ns: Ints, mean_ns: Floats, var_ns2: Floats) -> Ints:
        """What plans need of the time left: q from their means and variances, or the ruler's bound if that is less.

        It is less for some plans with forks, whose mean and variance are bounds that no single path need have.
        """
        if self.z == 0:
            return time_ns
        return np.minimum(time_ns + self.offset_ns, np.ceil(mean_ns + self.z * np.sqrt(var_ns2)).astype(np.int64))


def z_value(percentile: float, *, spread: float = 0.0, paths: int = 1) -> float:
    """How many deviations above the mean to plan for, so that `paths` paths are all in time with `percentile`.

    `spread` is the largest spread of any option. Below the mean nothing is planned: the least z is 0.
    """
    if not 0 < percentile < 1:
        raise DeclarationError(f"percentile {percentile} must be above 0 and below 1, for example 0.99")
    z = NormalDist().inv_cdf(percentile ** (1 / paths))
    if spread > 0:
        log_variance = log1p(spread * spread)
        leaning = exp(z * sqrt(log_variance) - log_variance / 2)
        z = max(z, (leaning - 1) / spread)
    # Logarithms differ in their last bits between machines; a replay elsewhere must plan the same.
    return max(0.0, ceil(z * 1e6) / 1e6)


def rulers(z: float, spread: float, objective_ns: int) -> list[Ruler]:
    """The rulers for plans of at most `objective_ns` whose options have at most this spread."""
    if z < 0 or spread < 0:
        raise DeclarationError(f"z = {z} and spread = {spread} cannot be negative")
    if z == 0 or spread == 0:
        return [Ruler()]
    # A plan in time has Σm + z√v <= objective, and √v <= spread × Σm: deviations add up to at most their sum.
    largest_sd_ns = objective_ns / (z + 1 / spread)
    thetas = [largest_sd_ns * 2 ** -(rung + 0.5) for rung in range(LADDER)]
    return [Ruler(z, per_sd=z)] + [Ruler(z, 0.0, z / (2 * theta), ceil(z * theta / 2)) for theta in thetas]
