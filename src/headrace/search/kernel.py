"""The Mallows kernel over permutations, for scikit-learn. Imported only where scikit-learn is there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel, NormalizedKernelMixin, StationaryKernelMixin

from headrace.search.orders import distances

Float64 = NDArray[np.float64]


class Mallows(StationaryKernelMixin, NormalizedKernelMixin, Kernel):  # type: ignore[misc]  # scikit-learn has no types
    """``exp(-rate * Kendall's distance)``, positive definite for every rate above 0.

    scikit-learn finds the rate by the marginal likelihood, through its logarithm. Orders are rows of `places`.

    Args:
        rate: How fast orders cease to say something about each other: of neighbours the correlation is ``exp(-rate)``.
        rate_bounds: Where the rate is looked for; ``"fixed"``: it is not.

    *Source*: Jiao and Vert 2015, "The Kendall and Mallows kernels for permutations".
    """

    def __init__(self, rate: float = 0.5, rate_bounds: tuple[float, float] | str = (1e-2, 3.0)) -> None:
        self.rate = rate
        self.rate_bounds = rate_bounds

    @property
    def hyperparameter_rate(self) -> Any:
        """As scikit-learn asks for it, by this name."""
        return Hyperparameter("rate", "numeric", self.rate_bounds)

    def __call__(self, X: Float64, Y: Float64 | None = None, eval_gradient: bool = False) -> Any:  # noqa: N803 - scikit-learn's names
        """The kernel [N, M]; with ``eval_gradient`` also its derivative by the logarithm of the rate, [N, N, 1 or 0]."""
        apart = distances(X, X if Y is None else Y)
        values = np.exp(-self.rate * apart)
        if not eval_gradient:
            return values
        if self.hyperparameter_rate.fixed:
            return values, np.empty((*values.shape, 0))
        return values, (-self.rate * apart * values)[:, :, None]

    def __repr__(self) -> str:
        return f"Mallows(rate={self.rate:.3g})"
