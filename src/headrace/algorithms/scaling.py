"""Running statistics that observations and rewards of rollouts are scaled by.

Letters in shapes: R observations, T steps of N streams, B rows, O encoded observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Arrays, Rollout
from headrace.algorithms.encoding import Float32, Float64, ObservationEncoder, RunningMoments, normalize
from headrace.algorithms.on_policy_configs import NormalizeConfig
from headrace.core.arrays import aligned

_LEAST_LANES = 64


class Observations:
    """Encodes and normalises what is observed. New statistics are put to use by `renew`, not by `observe`.

    Args:
        encoder: Of the observations.
        enabled: Whether they are normalised.
    """

    def __init__(self, encoder: ObservationEncoder, *, enabled: bool) -> None:
        self._encoder = encoder
        self._moments = RunningMoments(encoder.size) if enabled else None
        self._mean, self._std = aligned((encoder.size,)), aligned((encoder.size,))
        self.renew()

    def observe(self, obs: Arrays) -> None:
        """Add rows [B, ...] to the statistics; B may be 0."""
        count = len(next(iter(obs.values()), ()))
        if self._moments is not None and count:
            rows = np.empty((count, self._encoder.size), np.float32)
            self._encoder.encode(obs, rows)
            self._moments.add(rows)

    def renew(self) -> None:
        """Normalise by all that has been observed from now on."""
        if self._moments is not None:
            self._mean[:], self._std[:] = self._moments.mean32, self._moments.std32

    def scale(self, rows: Float32) -> None:
        """Normalise rows [R, O] in place, if they are to be."""
        if self._moments is not None:
            normalize(rows, self._mean, self._std)

    def published(self) -> dict[str, NDArray[Any]]:
        """``obs_mean`` and ``obs_std`` float32 [O] in use, live; nothing if observations are not normalised."""
        return {} if self._moments is None else {"obs_mean": self._mean, "obs_std": self._std}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The live state; after writing to it, call `refresh`."""
        if self._moments is None:
            return {}
        return {**self.published(), **{f"collected_{name}": array for name, array in self._moments.arrays().items()}}

    def refresh(self) -> None:
        """Follow what was written to `arrays`."""
        if self._moments is not None:
            self._moments.refresh()


class Rewards:
    """Scales rewards by the running standard deviation of discounted returns.

    Args:
        config: Whether, and the largest.
        gamma: Discount per step.
    """

    def __init__(self, config: NormalizeConfig, gamma: float) -> None:
        self._limit = config.reward_clip
        self._gamma = gamma
        self._moments = RunningMoments(1) if config.rewards else None
        self._running = np.zeros(_LEAST_LANES)
        """[lanes, or more] discounted return of each lane's episode so far."""

    def scaled(self, rollout: Rollout) -> Float64:
        """Rewards [T, N]; those of this rollout count already, and where there is no step it is 0."""
        reward = np.where(rollout.valid, rollout.reward, 0.0)
        if self._moments is None or not reward.size:
            return reward
        # Lane by lane, so that the order of streams decides nothing.
        order = np.argsort(rollout.lanes, kind="stable")
        returns = self._returns(reward[:, order], rollout, order)
        self._moments.add(returns.T[rollout.valid[:, order].T][:, None])
        return np.clip(reward / float(self._moments.std32[0]), -self._limit, self._limit)

    def _returns(self, reward: Float64, rollout: Rollout, order: NDArray[np.intp]) -> Float64:
        valid, over, lanes = rollout.valid[:, order], rollout.episode_ended[:, order], rollout.lanes[order]
        begins = rollout.t[:, order] == 0
        self._grow(int(lanes.max()) + 1)
        returns = np.zeros(reward.shape)
        for stream, lane in enumerate(lanes):
            so_far = self._running[lane]
            for step in np.flatnonzero(valid[:, stream]):
                if begins[step, stream]:  # the one before may have been cut after the rollout before
                    so_far = 0.0
                so_far = so_far * self._gamma + reward[step, stream]
                returns[step, stream] = so_far
                if over[step, stream]:
                    so_far = 0.0
            self._running[lane] = so_far
        return returns

    def _grow(self, lanes: int) -> None:
        if lanes > len(self._running):
            more = 2 ** (lanes - 1).bit_length() - len(self._running)
            self._running = np.concatenate([self._running, np.zeros(more)])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The live state."""
        if self._moments is None:
            return {}
        return {"returns": self._running, **{f"returns_{name}": a for name, a in self._moments.arrays().items()}}

    def load(self, arrays: Arrays) -> None:
        """Go on from `arrays`; there may have been more lanes."""
        if self._moments is not None:
            self._running = np.array(arrays["returns"])
            for name, array in self._moments.arrays().items():
                array[...] = arrays[f"returns_{name}"]
            self._moments.refresh()
