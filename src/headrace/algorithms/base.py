"""The protocol an algorithm fulfils: build, act, update, what to publish.

It may learn several policies that are alike and know nothing of each other, each from its own transitions.

An algorithm has two halves. The learning half lives in the learner and uses torch. The acting half, the
`Actor`, lives wherever actions are chosen and sees nothing but arrays of a snapshot; for plain
perceptrons it is numpy alone. Letters in shapes: B batch, N lanes, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.config import Section

Arrays = Mapping[str, NDArray[Any]]
"""Arrays by leaf path (``obs``, ``obs.camera``, ``action``), each with its batch dimension first."""


@dataclass(slots=True)
class Transitions:
    """B transitions as they were stored: the spaces' own dtypes and shapes, nothing normalised."""

    obs: Arrays  # [B, ...]
    action: Arrays  # [B, ...]
    reward: NDArray[np.float64]  # [B]  n-step return without the bootstrap
    discount: NDArray[np.float64]  # [B]  factor of the bootstrap value; 0 where the task terminated
    next_obs: Arrays  # [B, ...]  the true successor, also where the episode was truncated or cut
    weight: NDArray[np.float64] | None = None  # [B]  of each in the loss, in (0, 1]; None: all are 1


@dataclass(slots=True)
class Rollout:
    """Steps of N streams, T at most, each stream steps of one lane one after the other, as they were stored."""

    obs: Arrays  # [R, ...]  every observation once
    at: NDArray[np.intp]  # [T, N]  place in obs of what each step was taken on
    then: NDArray[np.intp]  # [T, N]  place in obs of its true successor, never of a reset's observation
    action: Arrays  # [T, N, ...]
    told: Arrays  # [T, N, ...]  what the policy noted beside the action; see `headrace.algorithms.registry.told_leaves`
    reward: NDArray[np.float64]  # [T, N]
    terminated: NDArray[np.bool_]  # [T, N]
    ended: NDArray[np.bool_]  # [T, N]  nothing of the same stretch follows: the episode or the rollout ended here
    episode_ended: NDArray[np.bool_]  # [T, N]  the episode ended here (terminated, truncated, cut or lost)
    valid: NDArray[np.bool_]  # [T, N]  False: no step (ragged streams, lost environments); the rest is ignored there
    version: NDArray[np.int64]  # [T, N]  of the policy that acted
    t: NDArray[np.int64]  # [T, N]  step in its episode
    lanes: NDArray[np.intp]  # [N]  lane of each stream; one may occur in more than one of them, in order
    waiting: int = 0
    """Steps that have been observed and that no rollout had yet; schedules do not count them."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What it takes to rebuild the acting half anywhere; small, picklable, without weights."""

    algorithm: str
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    config: Section
    """The algorithm's own section."""
    policy_of: tuple[int, ...] = ()
    """Policy of each agent of a copy; row ``i`` of a call belongs to agent ``i % len(policy_of)``. Empty: one for all."""
    threads: int | None = None
    """Threads of torch while it acts, wherever that is; None: as many as the process has."""


class LaneNoise(Protocol):
    """Exploration state of one lane; owns the lane's exploration generator, which begins anew with every chunk."""

    @property
    def carry(self) -> NDArray[np.float32]:
        """All that crosses the end of a chunk, live, to be read and overwritten.

        Of one length in all lanes of a run; empty where nothing crosses.
        """
        ...

    def begin_episode(self) -> None:
        """Forget what must not cross an episode's end."""
        ...


class Actor(Protocol):
    """Chooses actions from a snapshot."""

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Use this snapshot from now on; the arrays stay valid and unchanged until the next `load`."""
        ...

    def noise(self, generator: np.random.Generator) -> LaneNoise:
        """Fresh exploration state for one lane."""
        ...

    def act(self, obs: Arrays, noise: Sequence[LaneNoise] | None = None) -> Arrays:
        """Actions for N lanes.

        Args:
            obs: [N, ...] per leaf.
            noise: One per lane, in the same order; None acts greedily.

        Returns:
            Actions of the action space's own dtype and range, [N, ...] per leaf, and beside them, unless it acts greedily,
            what the policy has to tell of them; see `headrace.algorithms.registry.told_leaves`.

        Raises:
            ObservationMismatch: An observation leaves nothing to choose; its fact ``row`` says which of the N it is.
            NonFiniteValue: An action is NaN or infinite; ``row`` likewise.
        """
        ...


class Learning(Protocol):
    """What every learning half does, whatever it learns from."""

    policy: PolicySpec
    updates: int
    """Gradient steps so far."""

    def observe(self, obs: Arrays, env_steps: int, policies: NDArray[np.intp] | None = None) -> None:
        """Take notice of newly committed observations [B, ...] and of the total of environment steps.

        Args:
            obs: [B, ...] per leaf.
            env_steps: Over all lanes.
            policies: [B] policy that was shown each of them; None: there is one.
        """
        ...

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """All that acting needs: weights, normaliser, exploration. Live views where they can be; copied to publish.

        Of several policies each array is [policies, ...], one after the other, but ``exploration_scale``, which is [1].
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Means since the last call, by TensorBoard name (``train/critic_loss``); absent if not measured."""
        ...

    def weights_sha256(self) -> str:
        """Hash of every learned array, targets and normaliser included."""
        ...

    def ledger(self) -> dict[str, float]:
        """What was done (``critic_steps``, ``target_critic_moves``, ...) beside what is declared (``..._declared``).

        Done should come from what does it (`headrace.algorithms.flat.counts`), declared from the configuration and
        ``updates``, so that neither follows the other into a mistake. Counts survive `state`; a name without its
        ``..._declared`` is only told, and may never fall if it ends in ``_steps`` or ``_moves``.
        """
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here, generators and counters included. Live; copied to keep."""
        ...

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a `state` of the same configuration and spaces."""
        ...


class Algorithm(Learning, Protocol):
    """The learning half of what learns from transitions, whoever made them."""

    def update(self, batch: Transitions) -> NDArray[np.float32] | None:
        """One gradient step; deterministic given the batch and the algorithm's own generator.

        Args:
            batch: Of several policies, as many transitions of each, policy by policy.

        Returns:
            Size of each transition's TD error before the step, [B], for whoever draws by priority; None: not measured.
        """
        ...


class OnPolicyAlgorithm(Learning, Protocol):
    """The learning half of what learns from rollouts of its own policy, or of one that is little older.

    Between `begin` and the last `update` an epoch set is open. `state` may be asked for only while none is. Of what
    `observe` is shown, acting and learning take notice when the epoch set that is open, or the next one, is done: so the
    policy that learns from a rollout at first sees exactly what the one that acted saw.
    """

    def begin_with(self, arrays: Arrays) -> None:
        """Take over networks and running statistics of `state` of another run; before the first rollout.

        Raises:
            ConfigError: They are of other networks. Nothing has changed.
        """
        ...

    def begin(self, rollout: Rollout) -> None:
        """Work out what is to be learned with the networks as they are, and open the epoch set; none may be open.

        Args:
            rollout: Arrays may be strided and read-only, and are not kept.

        Raises:
            NonFiniteValue: A number in it is NaN or infinite. Nothing has changed, and no epoch set is open.
        """
        ...

    @property
    def pending(self) -> bool:
        """Whether updates of the epoch set remain; deterministic given all calls so far."""
        ...

    def update(self) -> None:
        """One gradient step on the next minibatch; only while `pending`.

        Raises:
            NonFiniteValue: The loss or its gradient is NaN or infinite. No weight and no moment has changed.
        """
        ...
