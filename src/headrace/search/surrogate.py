"""What is believed of orders that were not tried: a Gaussian process over permutations, scikit-learn's."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError
from headrace.record.machine import limited_threads
from headrace.search.orders import Order, places

Float64 = NDArray[np.float64]
_RESTARTS = 4
"""Further places from which the likelihood is climbed."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What a surrogate expects of N orders."""

    mean: Float64
    """Of the true score, [N]."""
    std: Float64
    """Of the true score, [N]: less than that of an observation, which has noise besides."""
    noise_std: float
    """Of an observation of one and the same order."""

    @property
    def observed_std(self) -> Float64:
        """Of the next observation, [N]."""
        return np.hypot(self.std, self.noise_std)


class Surrogate:
    """A Gaussian process that was fitted to observations: Mallows kernel and noise, by their marginal likelihood.

    Args:
        items: What is ordered.
        orders: One for each observation; an order observed repeatedly is there repeatedly, and tells of the noise.
        scores: What was observed.
        seed: For the places from which the likelihood is climbed.

    Raises:
        ConfigError: scikit-learn is not installed.
    """

    def __init__(self, items: Sequence[str], orders: Sequence[Order], scores: Sequence[float], seed: int) -> None:
        self._items = tuple(items)
        observed = np.asarray(scores, float)
        self._centre, self._scale = float(observed.mean()), float(observed.std()) or 1.0
        self._places, self._scaled = places(orders, items), (observed - self._centre) / self._scale
        self._process = self._fitted(_kernel(), self._places, self._scaled, restarts=_RESTARTS, seed=seed)

    @property
    def described(self) -> str:
        """The kernel as it was fitted, scores having deviation 1."""
        return str(self._process.kernel_)

    def believe(self, orders: Sequence[Order], pending: Sequence[Order] = ()) -> Belief:
        """What is expected.

        Args:
            orders: Of which.
            pending: Orders that are being tried; of each it is believed that what is expected came (kriging believer).
        """
        process, asked = self._process, places(orders, self._items)
        if pending:
            waiting = places(pending, self._items)
            expected = process.predict(waiting)
            everything = np.concatenate([self._places, waiting]), np.concatenate([self._scaled, expected])
            process = self._fitted(process.kernel_, *everything)
        with limited_threads(1):
            mean, std = process.predict(asked, return_std=True)
        noise = float(process.kernel_.k2.noise_level)
        return Belief(
            mean=mean * self._scale + self._centre,
            std=np.sqrt(np.maximum(std**2 - noise, 0.0)) * self._scale,
            noise_std=float(np.sqrt(noise)) * self._scale,
        )

    def _fitted(
        self, kernel: Any, rows: Float64, scores: Float64, *, restarts: int = 0, seed: int | None = None
    ) -> Any:
        """A process with these observations; without a seed the kernel stays as it is."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor

        optimizer = None if seed is None else "fmin_l_bfgs_b"
        process = GaussianProcessRegressor(
            kernel=kernel, alpha=1e-10, optimizer=optimizer, n_restarts_optimizer=restarts, random_state=seed
        )
        with limited_threads(1), warnings.catch_warnings():  # one thread: the same sums on every machine's cores
            # Of few observations a parameter often ends at its bound; `described` tells which.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return process.fit(rows, scores)


def require_scikit_learn() -> None:
    """Say what is missing before anything is trained.

    Raises:
        ConfigError: scikit-learn cannot be imported.
    """
    try:
        import sklearn.gaussian_process  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise ConfigError(
            "the search over orders needs scikit-learn, which is not installed",
            problem=f"{type(error).__name__}: {error}",
            fix="pip install 'PATH_OF_THE_CLONE[search]'",
        ) from error


def _kernel() -> Any:
    require_scikit_learn()
    from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

    from headrace.search.kernel import Mallows

    return ConstantKernel(1.0, (1e-2, 1e2)) * Mallows() + WhiteKernel(0.1, (1e-4, 1e1))
