"""Evaluation of frozen policies: always complete episodes, always the same seeds, in a process of its own."""

from __future__ import annotations

import copy
import io
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.algorithms.base import Actor, LaneNoise
from headrace.algorithms.registry import build_actor, build_random_actor
from headrace.collectors.stepping import raised
from headrace.core import seeding
from headrace.core.errors import ConfigError, NonFiniteValue, RunDirectoryError
from headrace.core.files import write_whole
from headrace.core.specs import Leaf, assemble, handed_over, leaves
from headrace.envs.agents import ParallelCopy
from headrace.envs.building import environment_name
from headrace.envs.contract import ObservationCheck
from headrace.ipc.child import ChildContext
from headrace.ipc.copies import copies_ended
from headrace.lanes.derive import stack
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import Basics, EnvFactory, EnvSpaces, EvaluatorPayload, build_run_environment
from headrace.runtime.remains import policy_to_come
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.scores import Scores
from headrace.runtime.team import TeamPlayer
from headrace.supervision.messages import Command, Ready, Report, Stop
from headrace.supervision.telling import tell
from headrace.telemetry.board import Activity, Board, State
from headrace.telemetry.waits import wait_readable
from headrace.weights.policy_file import load_policy_arrays, policy_versions

_FRAME_MS = 40
_MAX_FRAMES = 1500


class Player:
    """Plays episodes of one environment, greedily or at random.

    Args:
        env: The environment.
        config: Of the run.
        name: The environment's name, for messages.
        actor: The acting half, with a policy loaded; None acts uniformly at random.
        explores: With the actor's exploration, as drawn for the episode; for one that acts at random.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], config: ExperimentConfig, name: str, actor: Actor | None = None, *,
        explores: bool = False,
    ) -> None:  # fmt: skip
        self._env = env
        self._name = name
        self._seed = config.run.seed
        self._actor = actor
        self._explores = explores
        self._noise: list[LaneNoise] | None = None
        self._check = ObservationCheck(env.observation_space, name, cast=config.env.cast_observations)
        self._observation = leaves(env.observation_space, "obs")
        self._action = leaves(env.action_space, "action")
        self._depth = config.env.frame_stack

    def play(self, episodes: int, each_step: Callable[[], None] | None = None) -> Scores:
        """Play ``episodes`` complete episodes; number ``k`` has the same seed in every call and every process.

        Args:
            episodes: How many.
            each_step: Called after each environment step of the first episode.
        """
        return Scores(tuple(self._episode(number, None if number else each_step) for number in range(episodes)))

    def _episode(self, number: int, each_step: Callable[[], None] | None) -> float:
        env, check = self._env, self._check
        seeding.seed_global_generators(self._seed, "evaluation-global", number)
        env.action_space.seed(seeding.integer(self._seed, "evaluation-actions", number))
        if self._explores and self._actor is not None:
            self._noise = [self._actor.noise(seeding.generator(self._seed, "evaluation-actions", number))]
        try:
            obs, _ = env.reset(seed=seeding.integer(self._seed, "evaluation", number))
        except Exception as error:  # user code may raise anything; it is passed on with its place
            raise raised(error, "reset", self._name, -1, 0) from error
        # Copied: an environment may return the same array every time, and overwrite it.
        frames = deque([_copied(self._finite(check.check(obs, -1, 0), 0))], maxlen=self._depth)
        total, step = 0.0, 0
        while True:
            action = self._act(frames, step)
            step += 1
            try:
                obs, reward, terminated, truncated, _ = env.step(action)
            except Exception as error:  # user code may raise anything; it is passed on with its place
                raise raised(error, "step", self._name, -1, step) from error
            frames.append(_copied(self._finite(check.check(obs, -1, step), step)))
            gained = check.reward(reward, -1, step)
            if not math.isfinite(gained):
                raise self._not_finite("reward", gained, step)
            total += gained
            if each_step is not None:
                each_step()
            if check.flag("terminated", terminated, -1, step) or check.flag("truncated", truncated, -1, step):
                return total

    def _finite(self, obs: Any, step: int) -> Any:
        """The observation, if no number in it is NaN or infinite."""
        for leaf in self._observation:
            if leaf.dtype.kind == "f" and not np.isfinite(leaf.of(obs)).all():
                raise self._not_finite(leaf.path, leaf.of(obs), step)
        return obs

    def _not_finite(self, field: str, found: Any, step: int) -> NonFiniteValue:
        return NonFiniteValue(
            f"{self._name} in an evaluation returned a value that is not finite from {'step' if step else 'reset'}()",
            field=field,
            expected="finite numbers",
            found=found,
            step=step,
            fix="find out why the environment returns it; the evaluation was given up",
        )

    def _act(self, frames: Sequence[Any], t: int) -> Any:
        if self._actor is None:
            return self._env.action_space.sample()
        values = {leaf.path: self._observe(leaf, frames, t) for leaf in self._observation}
        actions = self._actor.act(values, self._noise)
        parts = {leaf.path: handed_over(actions[leaf.path][0]) for leaf in self._action}
        return assemble(self._env.action_space, parts, "action")

    def _observe(self, leaf: Leaf, frames: Sequence[Any], t: int) -> NDArray[Any]:
        """What the policy sees of one leaf, [1, ...], stacked by the same rule as in training."""
        values = [np.asarray(leaf.of(frame), leaf.dtype) for frame in frames]
        if self._depth == 1:
            return values[-1][None]
        padded = [values[0]] * (self._depth - len(values)) + values
        return stack(np.stack(padded)[None], np.array([t]))


def _copied(obs: Any) -> Any:
    """An observation that nobody else writes into."""
    return obs.copy() if type(obs) is np.ndarray else copy.deepcopy(obs)  # which takes five times as long


def player_of(
    env: gymnasium.Env[Any, Any] | ParallelCopy, config: ExperimentConfig, name: str, actor: Actor | None, *,
    explores: bool = False,
) -> Player | TeamPlayer:  # fmt: skip
    """Who plays an environment, of one agent or of many; arguments as of `Player`."""
    if isinstance(env, ParallelCopy):
        return TeamPlayer(env, config, name, actor, explores=explores)
    return Player(env, config, name, actor, explores=explores)


def build_judge(
    basics: Basics, component: str, render_mode: str | None = None
) -> gymnasium.Env[Any, Any] | ParallelCopy:
    """The environment that evaluations are played in; arguments and errors as of `build_run_environment`."""
    config = basics.config
    if not config.evaluation.episode_limit:
        env = config.env.model_copy(update={"max_episode_steps": None})
        basics = replace(basics, config=config.model_copy(update={"env": env}))
    return build_run_environment(basics, -1, component, render_mode)


def evaluator(context: ChildContext) -> None:
    """Entry point of the evaluator's process: one frozen policy after the other, as ordered."""
    payload: EvaluatorPayload = context.payload
    config = payload.basics.config
    name = environment_name(config.env, payload.basics.env_factory)
    with Board.attach(payload.basics.board) as board:
        slot = board.slot(context.id)
        slot.enter(Activity.ENV_CONSTRUCT)
        with closing(build_judge(payload.basics, context.id)) as env:
            policy = payload.spaces.policy(config)
            actor = build_actor(policy)
            tell(context.control, slot, Ready({}))
            slot.set_state(State.RUNNING)
            while True:
                wait_readable(
                    slot, [context.control.fileno()], activity=Activity.WAIT_COMMANDS, on="supervisor", need=1, have=0,
                    timeout_s=config.deadlines.wait_s, raise_on_timeout=False,
                )  # fmt: skip
                for message in context.control.receive_all():
                    if isinstance(message, Stop):
                        return
                    assert isinstance(message, Command), f"unexpected {message}"
                    version = message.facts["version"]
                    slot.enter(Activity.EVALUATE)
                    if version is None:
                        player = player_of(env, config, name, build_random_actor(policy), explores=True)
                    else:
                        actor.load(load_policy_arrays(payload.checkpoints, version)[0])
                        player = player_of(env, config, name, actor)
                    scores = player.play(config.evaluation.episodes)
                    slot.add("evaluations")
                    tell(context.control, slot, Report("evaluated", {**message.facts, **scores.facts()}))


def evaluate_run(
    run: RunDirectory,
    episodes: int | None = None,
    version: int | None = None,
    render_to: Path | None = None,
    env_factory: EnvFactory | None = None,
) -> dict[str, Any]:
    """Play a policy of a run, live or finished.

    Args:
        run: Where it is.
        episodes: How many; None takes the run's own number.
        version: Which policy; None takes the newest.
        render_to: File for an animated GIF of the first episode; None renders nothing.
        env_factory: As the run had it, if it was a callable.

    Returns:
        ``mean_reward``, ``interval``, ``episodes``, ``version``, ``env_steps``, ``returns``, ``render_path``.

    Raises:
        RunDirectoryError: The run has no such policy, or what was drawn cannot be written.
        EnvironmentFault: The environment cannot be built or breaks its contract.
    """
    config = run.read_config()
    chosen = _newest(run) if version is None else version
    arrays, facts = load_policy_arrays(run.checkpoints_dir, chosen)
    mode = "rgb_array" if render_to is not None else None
    name = environment_name(config.env, env_factory)
    basics = Basics(config, run.board_file, env_factory)
    with copies_ended("the evaluation"), closing(build_judge(basics, "eval", mode)) as env:
        actor = build_actor(EnvSpaces.declared(env).policy(config))
        actor.load(arrays)
        frames: list[NDArray[np.uint8]] = []
        camera = _camera(env, frames, config) if render_to is not None else None
        wanted = episodes or config.evaluation.episodes or 10
        scores = player_of(env, config, name, actor).play(wanted, camera)
    if render_to is not None:
        _write_gif(frames, render_to)
    return {
        **scores.facts(),
        "version": chosen,
        "env_steps": _number(facts, "env_steps"),
        "returns": list(scores.returns),
        "render_path": render_to,
    }


def _newest(run: RunDirectory) -> int:
    """The newest policy of a run."""
    versions = policy_versions(run.checkpoints_dir)
    if versions:
        return versions[-1]
    raise RunDirectoryError(
        f"{run.path} holds no policy", expected=f"{run.checkpoints_dir}/<version>/policy.safetensors", found="none",
        fix=policy_to_come(run),
    )  # fmt: skip


def _number(facts: Mapping[str, str], name: str) -> int | None:
    return int(facts[name]) if facts.get(name, "").isdigit() else None


def _camera(
    env: gymnasium.Env[Any, Any] | ParallelCopy, frames: list[NDArray[np.uint8]], config: ExperimentConfig
) -> Callable[[], None]:
    if env.render_mode != "rgb_array":
        raise ConfigError(
            "this environment cannot be drawn",
            environment=environment_name(config.env),
            expected="render_mode rgb_array",
            found=env.render_mode,
            fix="leave out --render",
        )

    def shoot() -> None:
        if len(frames) < _MAX_FRAMES:
            frame: Any = env.render()
            frames.append(np.asarray(frame, np.uint8))

    return shoot


def _write_gif(frames: Sequence[NDArray[np.uint8]], path: Path) -> None:
    images = [Image.fromarray(frame).quantize(64) for frame in frames]
    drawn = io.BytesIO()
    images[0].save(drawn, "GIF", save_all=True, append_images=images[1:], duration=_FRAME_MS, loop=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # a run has no such folder before something of it is drawn
        write_whole(path, [drawn.getbuffer()])  # whoever ends this now keeps what was drawn before
    except OSError as error:
        raise RunDirectoryError(
            f"what was drawn cannot be written to {path}",
            problem=f"{type(error).__name__}: {error}",
            fix="make the run's folder writable, or leave out --render",
        ) from None
