"""The acting half for choices: observation -> network -> the best that can be chosen, now and then something random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.acting import Network, misfit
from headrace.algorithms.base import Arrays, LaneNoise, PolicySpec
from headrace.algorithms.choices import Choices, Mask
from headrace.algorithms.configs import DQNConfig, IQNConfig
from headrace.algorithms.encoding import Float32, ObservationEncoder
from headrace.algorithms.exploration import RandomChoice
from headrace.core.arrays import aligned
from headrace.core.specs import leaves


class QActor:
    """Fulfils `headrace.algorithms.base.Actor`: the best by Q-value, or with a share of epsilon something random.

    Args:
        policy: What to rebuild; its configuration is a `DQNConfig` or an `IQNConfig`.
        network: From encoded observations to Q-values [N, n].

    Raises:
        UnsupportedSpace: The spaces of ``policy`` do not suit.
    """

    def __init__(self, policy: PolicySpec, network: Network) -> None:
        self._sight = _Sight(policy)
        self._network = network
        self._epsilon = 0.0

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Actor.load`.

        Raises:
            SnapshotCorrupt: The snapshot was made for another policy; the old one stays in use.
        """
        if "q" not in arrays or "exploration_scale" not in arrays:
            raise misfit("arrays 'q' and 'exploration_scale'", f"arrays {sorted(arrays)}")
        self._network.load(arrays["q"])
        self._epsilon = float(arrays["exploration_scale"][0])

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`."""
        return RandomChoice(generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`.

        Raises:
            ObservationMismatch: The observation's mask leaves no action of a Discrete space.
        """
        sight = self._sight
        x = sight.see(obs)
        legal = sight.mask.legal(x)
        chosen = sight.choices.best(self._network.forward(x), legal)
        # Only `noise` of this very actor makes them, hence RandomChoice.
        for place, lane in enumerate(cast("Sequence[RandomChoice]", noise or ())):
            if lane.explores(self._epsilon):
                chosen[place] = sight.choices.random(lane, None if legal is None else legal[place])
        return {"action": sight.choices.actions(chosen)}


class RandomActor:
    """Fulfils `headrace.algorithms.base.Actor`: whatever can be chosen, all alike; it needs no policy.

    What a space itself draws may be no action at all: any number of cells, or what cannot be chosen.

    Args:
        policy: As for `QActor`.
    """

    def __init__(self, policy: PolicySpec) -> None:
        self._sight = _Sight(policy)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """There is nothing to load."""

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`."""
        return RandomChoice(generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`; ``noise`` is needed."""
        assert noise is not None, "it has nothing but its noise"
        sight = self._sight
        legal = sight.mask.legal(sight.see(obs))
        rows = [
            sight.choices.random(lane, None if legal is None else legal[place])
            for place, lane in enumerate(cast("Sequence[RandomChoice]", noise))
        ]
        return {"action": sight.choices.actions(np.stack(rows))}


class DuelingForward:
    """A network with one output more than there are actions, the first of which is the value of the observation.

    Args:
        network: With outputs [N, 1 + n].
    """

    def __init__(self, network: Network) -> None:
        self._network = network

    def load(self, flat: Float32) -> None:
        """See `Network.load`."""
        self._network.load(flat)

    def forward(self, x: Float32) -> Float32:
        """See `Network.forward`; as `headrace.algorithms.q_networks.dueling`."""
        out = self._network.forward(x)
        advantage = out[:, 1:]
        advantage -= advantage.mean(axis=1, keepdims=True)
        advantage += out[:, :1]
        return advantage


class _Sight:
    """What an actor makes of observations: encoded, in memory that is used again, and what can be chosen."""

    def __init__(self, policy: PolicySpec) -> None:
        config = cast("DQNConfig | IQNConfig", policy.config)
        self._encoder = ObservationEncoder(policy.observation_space)
        self.choices = Choices(policy.action_space, config.actions)
        self.mask = Mask(config.actions, self._encoder, self.choices.size)
        self._first_leaf = leaves(policy.observation_space, "obs")[0].path
        self._x = aligned((1, self._encoder.size))

    def see(self, obs: Arrays) -> Float32:
        """[N, O]; until the next call."""
        lanes = len(obs[self._first_leaf])
        if lanes != len(self._x):
            self._x = aligned((lanes, self._encoder.size))
        self._encoder.encode(obs, self._x)
        return self._x
