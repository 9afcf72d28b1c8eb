"""The acting half of a squashed Gaussian: observation -> network -> mean and deviation -> a draw -> tanh; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.acting import Network, misfit
from headrace.algorithms.base import Arrays, LaneNoise, PolicySpec
from headrace.algorithms.configs import SACConfig
from headrace.algorithms.encoding import ActionBox, Float32, ObservationEncoder, normalize
from headrace.algorithms.heads import Draws
from headrace.core.arrays import aligned
from headrace.core.specs import leaves

LOG_STD_RANGE = (-20.0, 2.0)
"""What logarithms of standard deviations are clamped to, in acting and in learning."""


class SquashedActor:
    """Fulfils `headrace.algorithms.base.Actor`: tanh of a normal draw, and of the mean where it acts greedily.

    Args:
        policy: What to rebuild; its configuration is a `SACConfig`.
        network: From encoded observations to means [A], followed by logarithms of standard deviations [A].

    Raises:
        UnsupportedSpace: The spaces of ``policy`` do not suit.
    """

    def __init__(self, policy: PolicySpec, network: Network) -> None:
        self._encoder = ObservationEncoder(policy.observation_space)
        self._box = ActionBox(policy.action_space)
        self._network = network
        self._expected = ["actor"]
        if cast("SACConfig", policy.config).normalize_observations:
            self._expected += ["obs_mean", "obs_std"]
        self._mean: Float32 | None = None
        self._std: Float32 | None = None
        self._first_leaf = leaves(policy.observation_space, "obs")[0].path
        self._resize(1)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Actor.load`.

        Raises:
            SnapshotCorrupt: The snapshot was made for another policy; the old one stays in use.
        """
        if not arrays.keys() >= set(self._expected):
            raise misfit(f"arrays {', '.join(self._expected)}", f"arrays {', '.join(sorted(arrays))}")
        self._network.load(arrays["actor"])
        self._mean, self._std = arrays.get("obs_mean"), arrays.get("obs_std")

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`; A normals a step are drawn from it."""
        return Draws(generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`. The returned array is new; environments may keep it."""
        lanes = len(obs[self._first_leaf])
        if lanes != len(self._x):
            self._resize(lanes)
        self._encoder.encode(obs, self._x)
        if self._mean is not None and self._std is not None:
            normalize(self._x, self._mean, self._std)
        outputs = self._network.forward(self._x)  # [N, 2 A]
        raw, log_std = outputs[:, : self._box.size], outputs[:, self._box.size :]
        if noise is not None:
            self._draw(raw, log_std, noise)
        np.tanh(raw, out=raw)
        return {"action": self._box.denormalize(raw)}

    def _draw(self, raw: Float32, log_std: Float32, noise: Sequence[LaneNoise]) -> None:
        # Only `noise` of this very actor makes them, hence Draws.
        for lane, row in zip(cast("Sequence[Draws]", noise), self._normal, strict=True):
            lane.normal(dtype=np.float32, out=row)
        np.clip(log_std, *LOG_STD_RANGE, out=log_std)
        np.exp(log_std, out=log_std)
        self._normal *= log_std
        raw += self._normal

    def _resize(self, lanes: int) -> None:
        self._x = aligned((lanes, self._encoder.size))
        self._normal = aligned((lanes, self._box.size))
