"""Gaussian processes for Aquatope's optimisation; the only file that knows scikit-learn, and imports it when asked.

Values are standardised before fitting. Whatever is predicted is predicted without the noise of a single run.
"""

from __future__ import annotations

import math
import warnings
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...extras import need

__all__ = ["Floats", "Surrogate", "expected_gain", "normal_below", "one_thread"]

#: Observations further than this from leave-one-out prediction are anomalies: 95 %, as in Aquatope's code.
ANOMALY_SIGMAS = 1.96

Floats = NDArray[np.float64]


def one_thread() -> AbstractContextManager[object]:
    """Keep linear algebra to one thread: matrices of sixty rows are slower on two, and sums then keep their order."""
    need("threadpoolctl", extra="lab", for_="Aquatope")
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(limits=1)
    return limits


class Surrogate:
    """A Gaussian process (Matern 5/2, a length for each feature, noise) fitted to observations."""

    def __init__(self, x: Floats, y: Floats, *, like: Surrogate | None = None, fit: bool = True) -> None:
        need("sklearn", extra="lab", for_="Aquatope")
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        kernel = ConstantKernel() * Matern(np.ones(x.shape[1]), (0.05, 100.0), nu=2.5) + WhiteKernel(0.01)
        self._middle, self._scale = float(y.mean()), float(y.std()) or 1.0
        self._process: Any = GaussianProcessRegressor(
            kernel if like is None else like._process.kernel_, optimizer="fmin_l_bfgs_b" if fit else None
        )
        with warnings.catch_warnings():
            # A resource that does not matter has no length; that its bound is reached is no news.
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._process.fit(x, (y - self._middle) / self._scale)
        self._noise = float(self._process.kernel_.k2.noise_level)

    def marginal(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, without the noise of a run."""
        mean, std = self._process.predict(x, return_std=True)
        latent = np.sqrt(np.maximum(std * std - self._noise, 1e-12))
        return mean * self._scale + self._middle, latent * self._scale

    def draws(self, x: Floats, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws of the values at `x`, one row each, without the noise of a run."""
        mean, cov = self._process.predict(x, return_cov=True)
        values, vectors = np.linalg.eigh(cov - self._noise * np.eye(len(x)))
        half = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = rng.standard_normal((count, len(x)))
        return np.asarray((mean + normal @ half.T) * self._scale + self._middle)

    def anomalies(self, sigmas: float = ANOMALY_SIGMAS) -> NDArray[np.bool_]:
        """Which observations the process, had it not seen them, would have put further away than that.

        Leave-one-out in closed form: with the inverse P of the covariance, the residual is (P y)_i / P_ii and its
        variance 1 / P_ii (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, eq. 5.12).
        """
        lower = self._process.L_
        half = np.linalg.solve(lower, np.eye(len(lower)))
        precision = np.sum(half * half, axis=0)
        return np.asarray(np.abs(self._process.alpha_) > sigmas * np.sqrt(precision))


def expected_gain(best: Floats, mean: Floats, std: Floats, probability: Floats) -> Floats:
    """Improvement over the best so far times probability of feasibility, for each candidate.

    Runs are noisy, so the best so far is not known but drawn: `best` has one value per draw, the mean is taken.
    """
    z = (mean[None, :] - best[:, None]) / std[None, :]
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return np.asarray((std[None, :] * (z * normal_below(z) + density)).mean(axis=0) * probability)


def normal_below(z: Floats) -> Floats:
    """The normal distribution function."""
    return np.asarray(0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(z / math.sqrt(2))))
