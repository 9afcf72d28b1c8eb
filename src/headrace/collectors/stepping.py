"""One lane of a group: its environment, its random streams, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.collectors.remote import RemoteEnv
from headrace.collectors.streams import LaneStreams
from headrace.core import seeding
from headrace.core.errors import EnvironmentFault, EnvironmentRaised, HeadraceError
from headrace.core.specs import assemble
from headrace.envs.contract import ObservationCheck
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import INFO_KEYS
from headrace.telemetry.board import Activity, Slot

_ODD_KEYS = frozenset(INFO_KEYS)


def says_something(value: object) -> bool:
    """Whether a value in ``info`` is more than None, False, 0 or empty. Never asks an object of the user's."""
    if isinstance(value, np.ndarray | np.generic):
        return bool(value.any())
    if isinstance(value, bool | int | float | str | bytes | list | tuple | dict | set):
        return bool(value)
    return value is not None


@dataclass(frozen=True, slots=True)
class Group:
    """Which lanes a collector object steps, and what their random streams hang on."""

    number: int
    lanes: tuple[int, ...]
    seed: int
    """Of the run."""
    incarnation: int = 0
    """How often the group's random streams have been begun anew, because its collector was replaced."""
    random_steps: int = 0
    """Transitions per lane whose actions are uniformly random."""
    environment: str = "environment"
    """Name for messages."""
    cast: bool = False
    """Convert observations of another dtype instead of refusing them."""


def raised(error: Exception, call: str, environment: str, lane: int, step: int) -> HeadraceError:
    """What an environment raised, in our words; an error that is ours already says it itself.

    Args:
        error: What it raised.
        call: ``reset`` or ``step``.
        environment: Its name.
        lane: -1 in an evaluation.
        step: The lane's transition it was to be; for ``reset``, those before it.
    """
    if isinstance(error, HeadraceError):
        return error
    return EnvironmentRaised(
        f"{environment} {f'in lane {lane}' if lane >= 0 else 'in an evaluation'} raised {type(error).__name__} "
        f"in {call}()",
        error=f"{type(error).__name__}: {error}",
        **({"lane": lane} if lane >= 0 else {}),
        step=step,
        fix="see the traceback in the component's log; the environment must not raise in the middle of an episode",
    )


class SteppedLane:
    """Resets and steps one environment, and writes what it returns into its lane.

    Args:
        group: The lane's.
        number: Of the lane.
        env: Its environment; another one may take its place between two episodes.
        writer: Of the lane.
        streams: Of the lane.
        check: Of what the environment returns.
        slot: The component's place on the board.
        block: The lanes.
    """

    def __init__(  # noqa: PLR0913 - all that a lane has, of which nothing belongs together
        self, group: Group, number: int, env: gymnasium.Env[Any, Any], writer: LaneWriter, streams: LaneStreams,
        check: ObservationCheck, slot: Slot, block: LaneBlock,
    ) -> None:  # fmt: skip
        self.number = number
        self.env = env
        self.writer = writer
        self.streams = streams
        self.running = writer.t > 0
        """Whether an episode is running."""
        self._group = group
        self._check = check
        self._slot = slot
        self._info_counts = block.info_counts
        self._observation, self._action = block.geometry.observation, block.geometry.action
        self._action_space: spaces.Space[Any] = env.action_space
        self._pending: list[Any] | None = None

    @property
    def acts_at_random(self) -> bool:
        """Whether the next action is uniformly random."""
        return self.writer.transitions < self._group.random_steps

    @property
    def awaited(self) -> RemoteEnv | None:
        """The environment, while it is at work in another process."""
        return self.env if isinstance(self.env, RemoteEnv) and self.env.busy else None

    def random_action(self) -> list[Any]:
        """The next uniformly random action, per leaf."""
        value = self.streams.random_actions.sample()
        return [np.asarray(leaf.of(value), leaf.dtype)[()] for leaf in self._action]

    def step(self, action: list[Any], version: int) -> None:
        """One transition, here and now.

        Args:
            action: Per leaf.
            version: Of the policy that chose it.

        Raises:
            EnvironmentFault: The environment raised, or broke its contract. Nothing was stored but the action.
        """
        writer = self.writer
        writer.intend(action)  # before the board says so: whoever finds this step unfinished finds what it was
        self._finish(action, self.assembled(action), version)

    def send_step(self, action: list[Any]) -> None:
        """Have an environment in another process begin a step; `finish_step` completes it."""
        assert isinstance(self.env, RemoteEnv), "one that is here has nobody to send to"
        self.writer.intend(action)
        self._pending = action
        self.env.send_step(self.assembled(action), self.writer.transitions)

    def finish_step(self, version: int) -> None:
        """Complete the step that was sent, if one was; as `step`."""
        action, self._pending = self._pending, None
        if action is not None:
            self._finish(action, None, version)

    def assembled(self, action: list[Any]) -> Any:
        """An action, given per leaf, as the environment takes it."""
        leaves = self._action
        if not leaves[0].keys:
            return action[0]
        return assemble(
            self._action_space, {leaf.path: part for leaf, part in zip(leaves, action, strict=True)}, "action"
        )

    def _finish(self, action: list[Any], value: Any, version: int) -> None:
        writer = self.writer
        self._slot.enter(Activity.ENV_STEP, self.number, writer.transitions)
        info: Any  # a dict, says Gymnasium; nobody checks it
        try:
            *returned, info = self.env.step(value)
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "step", self._group.environment, self.number, writer.transitions + 1) from error
        self.store(action, returned, info, version)

    def store(self, action: list[Any], returned: Sequence[Any], info: Any, version: int) -> None:
        """Write what a step came to.

        Args:
            action: Per leaf.
            returned: Observation, reward, terminated, truncated, as the environment returned them.
            info: What it returned beside them.
            version: Of the policy that chose the action.

        Raises:
            EnvironmentFault: It broke its contract. Nothing was stored.
        """
        writer = self.writer
        if info and isinstance(info, dict) and not _ODD_KEYS.isdisjoint(info):
            self._count_odd(info)
        obs, reward, ended = self._check.transition(returned, self.number, writer.transitions + 1)
        if writer.one_array and type(obs) is np.ndarray:
            writer.step_array(action, reward, ended, obs, version)
        else:
            writer.step(action, reward, ended, self._parts(obs), version)
        if ended[0] or ended[1]:
            self.running = False

    def _count_odd(self, info: Mapping[str, Any]) -> None:
        """Count keys by which the environment says that it failed."""
        for place, key in enumerate(INFO_KEYS):
            if says_something(info.get(key)):
                self._info_counts[self.number, place] += 1

    def send_reset(self) -> None:
        """Have an environment in another process begin its next episode; `reset` completes it."""
        assert isinstance(self.env, RemoteEnv), "one that is here has nobody to send to"
        self.env.send_reset(self._next_seed(), self.writer.transitions)

    def reset(self) -> None:
        """Begin the lane's next episode.

        Raises:
            EnvironmentFault: The environment raised, or broke its contract. No episode has begun.
        """
        writer = self.writer
        self._slot.enter(Activity.ENV_RESET, self.number, writer.transitions)
        try:
            obs, _ = self.env.reset(seed=self._next_seed())
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "reset", self._group.environment, self.number, writer.transitions) from error
        self.begin(obs)

    def begin(self, obs: Any, episode: int | None = None) -> None:
        """Store the observation an episode begins with.

        Args:
            obs: As the environment returned it.
            episode: Its number, if the lane does not count by itself.

        Raises:
            EnvironmentFault: It broke its contract. No episode has begun.
        """
        self.writer.begin_episode(self._parts(self._check.check(obs, self.number, self.writer.transitions)), episode)
        self.streams.noise.begin_episode()
        self.running = True

    def _next_seed(self) -> int:
        return seeding.integer(self._group.seed, "environment", self.number, self.writer.episode + 1)

    def lose(self, version: int) -> None:
        """The environment did not come back from a step: its episode ends where it stands."""
        self.writer.lose(version)
        self.running = False

    def _parts(self, obs: Any) -> list[Any]:
        """A checked observation as numpy values per leaf."""
        leaves = self._observation
        if not leaves[0].keys and type(obs) is np.ndarray:
            return [obs]
        return [np.asarray(leaf.of(obs), leaf.dtype) for leaf in leaves]

    def close(self) -> None:
        """Close the environment, and drop all views of the shared memory."""
        self._slot.enter(Activity.ENV_CLOSE, self.number)
        self.env.close()
        self.writer.release()
        del self._info_counts


def refused(error: EnvironmentFault, call: str, lane: SteppedLane) -> EnvironmentFault:
    """The same error, with all that is known of where it happened."""
    step = lane.writer.transitions + (call == "step")
    error.place(lane=lane.number, step=step, call=call)
    return error
