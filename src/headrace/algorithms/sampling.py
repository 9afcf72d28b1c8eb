"""The acting half of policies that draw their actions: observation -> network -> probabilities -> a draw; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.acting import Network, misfit
from headrace.algorithms.base import Arrays, LaneNoise, PolicySpec
from headrace.algorithms.choices import Mask
from headrace.algorithms.configs import ActionsConfig
from headrace.algorithms.encoding import Float32, ObservationEncoder, normalize
from headrace.algorithms.heads import Draws, GaussianHead, Head, head_of
from headrace.algorithms.on_policy_configs import PPOConfig, VTraceConfig
from headrace.core.arrays import aligned
from headrace.core.errors import UnsupportedSpace
from headrace.core.specs import leaves


def action_mask(config: ActionsConfig, encoder: ObservationEncoder, head: Head) -> Mask:
    """What reads out of an encoded observation what can be chosen.

    Raises:
        UnsupportedSpace: The observation has no such part, or nothing is chosen.
    """
    if config.mask_leaf is not None and isinstance(head, GaussianHead):
        raise UnsupportedSpace(
            "continuous actions have no mask",
            field=config.mask_leaf,
            expected="an action space of choices",
            found="Box",
            fix="remove algorithm.actions.mask_leaf",
        )
    return Mask(config, encoder, head.outputs)


class SamplingActor:
    """Fulfils `headrace.algorithms.base.Actor`; greedy, it returns the likeliest action.

    Beside ``action`` it returns what its head tells, see `headrace.algorithms.registry.told_leaves`.

    Args:
        policy: What to rebuild; its configuration is a `PPOConfig` or a `VTraceConfig`.
        network: From encoded observations to what the head of the action space needs.

    Raises:
        UnsupportedSpace: The spaces of ``policy`` do not suit.
    """

    def __init__(self, policy: PolicySpec, network: Network) -> None:
        config = cast("PPOConfig | VTraceConfig", policy.config)
        self._encoder = ObservationEncoder(policy.observation_space)
        self._head = head_of(policy.action_space)
        self._mask = action_mask(config.actions, self._encoder, self._head)
        self._normalizes = config.normalize.observations
        self._network = network
        self._log_std = np.zeros(0, np.float32)
        self._mean: Float32 | None = None
        self._std: Float32 | None = None
        self._first_leaf = leaves(policy.observation_space, "obs")[0].path
        self._x = aligned((1, self._encoder.size))

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """See `Actor.load`.

        Raises:
            SnapshotCorrupt: The snapshot was made for another policy; the old one stays in use.
        """
        expected = ["policy"]
        if isinstance(self._head, GaussianHead):
            expected.append("log_std")
        if self._normalizes:
            expected += ["obs_mean", "obs_std"]
        if not arrays.keys() >= set(expected):
            raise misfit(f"arrays {', '.join(expected)}", f"arrays {', '.join(sorted(arrays))}")
        self._network.load(arrays["policy"])
        self._log_std = arrays.get("log_std", self._log_std)
        self._mean, self._std = arrays.get("obs_mean"), arrays.get("obs_std")

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`."""
        return Draws(generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`. The returned arrays are new; environments may keep them.

        Raises:
            ObservationMismatch: The observation's mask leaves nothing to choose.
        """
        lanes = len(obs[self._first_leaf])
        if lanes != len(self._x):
            self._x = aligned((lanes, self._encoder.size))
        x = self._x
        self._encoder.encode(obs, x)
        legal = self._mask.legal(x)
        if self._mean is not None and self._std is not None:
            normalize(x, self._mean, self._std)
        outputs = self._network.forward(x)
        # Only `noise` of this very actor makes them, hence Draws.
        draws = cast("Sequence[Draws] | None", noise)
        if isinstance(self._head, GaussianHead):
            return self._head.act(outputs, self._log_std, draws)
        return self._head.act(outputs, legal, draws)


class UniformActor:
    """Fulfils `headrace.algorithms.base.Actor`: whatever can be chosen, all alike; it needs no policy.

    Args:
        policy: As for `SamplingActor`; the action space is one of choices.
    """

    def __init__(self, policy: PolicySpec) -> None:
        self._actor = SamplingActor(policy, _NoPreference(head_of(policy.action_space).outputs))

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """There is nothing to load."""

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """See `Actor.noise`."""
        return self._actor.noise(generator)

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """See `Actor.act`; ``noise`` is needed."""
        assert noise is not None, "it has nothing but its noise"
        return self._actor.act(obs, noise)


class _NoPreference:
    """A network that scores everything alike."""

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs

    def load(self, flat: Float32) -> None:
        """See `Network.load`; there are no weights."""

    def forward(self, x: Float32) -> Float32:
        """See `Network.forward`."""
        return np.zeros((len(x), self._outputs), np.float32)
