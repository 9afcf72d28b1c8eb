"""The Gymnasium environment ``headrace/Hockey-v0``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError
from headrace.envs.hockey import actions, views
from headrace.envs.hockey.actions import Action
from headrace.envs.hockey.field import FPS
from headrace.envs.hockey.opponent import BasicOpponent
from headrace.envs.hockey.physics import Rink
from headrace.envs.hockey.render import draw
from headrace.envs.hockey.settings import TWO_PLAYER, Settings, reset_options
from headrace.envs.hockey.starts import NORMAL, STEP_LIMITS, draw_start
from headrace.envs.rendering import require_render_mode

Observation = NDArray[np.floating]


class HockeyEnv(gymnasium.Env[Observation, Action]):
    """Air hockey for two rackets, seen and played by player one (the left one).

    Observation, float32: x, y (from the centre), angle, vx, vy, angular velocity of player one; the same
    six of player two; x, y, vx, vy of the puck; the steps for which player one and player two keep the
    puck (these two only in keep mode). Action: force x, force y, torque, shoot (in keep mode; above 0.5).
    Reward: +10 or -10 on the step a goal falls, plus ``info["reward_closeness_to_puck"]`` on every step.
    An episode terminates with a goal and is truncated after exactly its limit of steps. ``reset(seed=s)``
    depends on ``s`` alone; options: ``starter`` (1 or 2) and ``mode``, both for that episode only.

    With ``compat="2.6"`` the original environment's behaviour is kept where it is wrong:

    - an episode lasts one step more than its limit, and running out of time is ``terminated``;
    - the starter alternates over resets, player two first, so equal seeds can give different starts;
    - keep counters and the opponent's phase survive a reset (a new seed restarts the phase);
    - observations are float64 although the space says float32;
    - the discrete set is ``Discrete(7)``, in which nobody can shoot.

    The opponent's randomness comes from the environment's seed even then, not from ``np.random``.

    Args:
        mode: "NORMAL" (250 steps), "TRAIN_SHOOTING" or "TRAIN_DEFENSE" (80 steps).
        opponent: Who plays player two inside step(): "weak", "strong", or "idle", which never acts.
            None or "none": the caller plays both, with an action of 8 floats (6 without keep mode).
        keep_mode: Whether a player catches the puck when touching it, until it shoots or 15 steps pass.
        discrete_actions: Discrete(8): nothing, -x, +x, -y, +y, -angle, +angle, shoot; without keep mode
            Discrete(7), which lacks shoot.
        max_episode_steps: The limit in every mode, which also scales the proxies; None: the mode's own.
            gymnasium.make keeps this keyword to itself, for a wrapper that can only shorten an episode.
        compat: None or "2.6".
        render_mode: None or "rgb_array", which needs no display.

    Raises:
        ConfigError: If a value is unknown; names the keyword, the value and the allowed ones.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        mode: str = NORMAL,
        opponent: str | None = "weak",
        *,
        keep_mode: bool = True,
        discrete_actions: bool = False,
        max_episode_steps: int | None = None,
        compat: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.settings = Settings(
            mode=mode,
            opponent=TWO_PLAYER if opponent is None else opponent,
            keep_mode=keep_mode,
            discrete_actions=discrete_actions,
            max_episode_steps=max_episode_steps,
            compat=compat,
            render_mode=render_mode,
        )
        self.render_mode = render_mode
        self._player_size = self.settings.player_size
        self._action_size = self._player_size * (2 if self.settings.two_player else 1)
        self.observation_space = spaces.Box(-np.inf, np.inf, (18 if keep_mode else 16,), np.float32)
        self.action_space: spaces.Space[Any] = (
            spaces.Discrete(self.settings.discrete_size)
            if discrete_actions
            else spaces.Box(-1.0, 1.0, (self._action_size,), np.float32)
        )
        self._dtype = np.float32 if compat is None else np.float64
        self._rink = Rink(keep_mode=keep_mode)
        self._opponent: BasicOpponent | None = None
        self._mode = mode
        self._limit_steps = 0
        self._last_step = 0
        self._steps = 0
        self._starter = 1
        self._running = False
        self._state: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Restarts every stream of random numbers; None goes on with the present ones.
            options: ``{"starter": 1 or 2, "mode": ...}``, both optional, for this episode only.

        Raises:
            ConfigError: On an unknown option or value; the episode in progress stays as it is.
        """
        mode, starter = reset_options(options, self.settings.mode)
        super().reset(seed=seed)
        old = self.settings.compat is not None
        self._choose_starter(starter, mode, old)
        start = draw_start(mode, self._starter, self.np_random)
        self._prepare_opponent(fresh=seed is not None or not old)
        self._rink.reset(start, carry_keep=old)
        self._mode = mode
        self._limit_steps = self.settings.max_episode_steps or STEP_LIMITS[mode]
        self._last_step = self._limit_steps + 1 if old else self._limit_steps
        self._steps = 0
        self._running = True
        self._state = self._rink.state()
        return self._observation(), views.information(self._state, 0, self._limit_steps)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play 1/50 s.

        Raises:
            ConfigError: If ``action`` is not of the action space's shape or set.
            NonFiniteValue: If it holds NaN or infinity. Either way nothing has moved.
            HeadraceError: If no episode is in progress.
        """
        if not self._running:
            raise HeadraceError(
                "HockeyEnv.step() was called while no episode was in progress",
                fix="Call reset() first, and again after each step that returned terminated or truncated.",
                steps_taken=self._steps,
            )
        if self.settings.discrete_actions:
            one = actions.discrete(action, self.settings.discrete_size)
        else:
            one = actions.continuous(action, self._action_size)
        self._rink.advance(one, self._second_action(one))
        self._steps += 1
        self._state = self._rink.state()
        winner = self._rink.winner
        timed_out = self._steps >= self._last_step
        terminated, truncated = winner != 0, timed_out and winner == 0
        if truncated and self.settings.compat is not None:
            terminated, truncated = True, False
        self._running = not (terminated or truncated)
        info = views.information(self._state, winner, self._limit_steps)
        return self._observation(), views.reward(info), terminated, truncated, info

    def observe_two(self) -> Observation:
        """The present moment as player two sees it."""
        return np.array(views.mirror_state(self._current()), self._dtype)

    def info_two(self) -> dict[str, int | float]:
        """Player two's ``info`` for the present moment."""
        return views.information(views.mirror_state(self._current()), -self._rink.winner, self._limit_steps)

    def reward_two(self) -> float:
        """Player two's reward for the last step."""
        return views.reward(self.info_two())

    def render(self) -> NDArray[np.uint8]:
        """The present moment as an image, uint8 [480, 600, 3].

        Raises:
            ConfigError: If the environment was built without render_mode="rgb_array".
            HeadraceError: If reset() was never called, or close() was.
        """
        require_render_mode("HockeyEnv", self.render_mode)
        self._current()
        return draw(*self._rink.outlines())

    def close(self) -> None:
        """Free the world. A closed environment may be reset again."""
        self._rink.close()
        self._running = False
        self._state = []

    def _current(self) -> list[float]:
        if not self._state:
            raise HeadraceError("HockeyEnv has no state to show yet, or none any more", fix="Call reset() first.")
        return self._state

    def _observation(self) -> Observation:
        return np.array(self._state, self._dtype)

    def _second_action(self, one: Any) -> Any:
        if self._opponent is not None:
            return self._opponent.act(views.mirror_state(self._state))
        return one[self._player_size :] if self.settings.two_player else _IDLE

    def _choose_starter(self, asked: int | None, mode: str, old: bool) -> None:
        # The draw is made even if the answer is given, so that the rest of the start stays the same.
        drawn = 3 - self._starter if old else int(self.np_random.integers(1, 3))
        if mode == NORMAL:
            self._starter = asked or drawn

    def _prepare_opponent(self, *, fresh: bool) -> None:
        # Its own generator, so that how long an episode lasts does not move the next one's start.
        seed = int(self.np_random.integers(2**63))
        if self.settings.opponent in ("weak", "strong") and (fresh or self._opponent is None):
            rng = np.random.Generator(np.random.PCG64(seed))
            self._opponent = BasicOpponent(self.settings.opponent == "weak", self.settings.keep_mode, rng)


_IDLE = (0.0, 0.0, 0.0, 0.0)
