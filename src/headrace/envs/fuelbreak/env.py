"""The Gymnasium environment ``headrace/FuelBreak-v0``."""

from __future__ import annotations

from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs.checks import checked_render_mode
from headrace.envs.fuelbreak import observation, render
from headrace.envs.fuelbreak.actions import Action, Choice, choose
from headrace.envs.fuelbreak.fires import Burn, Fires, Landscape, Mask
from headrace.envs.fuelbreak.misbehaviour import Troublemaker
from headrace.envs.fuelbreak.observation import Observation
from headrace.envs.fuelbreak.rewards import Outcome, reward
from headrace.envs.fuelbreak.sets import RasterSet
from headrace.envs.fuelbreak.settings import Keywords, split
from headrace.envs.rendering import require_render_mode


class FuelBreakEnv(gymnasium.Env[Observation, Action]):
    """Where to cut fuel breaks in a landscape so that wildfires burn less of it.

    Observation, float32 [8, size, size] in [0, 1]: slope, aspect, canopy cover, fuel model, and fire-line intensity
    under wind from north, east, south and west; 0 in every channel where a break was cut. Action, 0 or 1 for each
    cell, row by row: of the chosen cells that are not cut yet, the first ``break_step`` in that order are cut, as far
    as the budget goes; how many were not, and why, is in ``info``. After every step ``num_simulations`` fires are
    played; the reward is what the step saved (see docs/reference/fuelbreak.md for both versions).

    An episode terminates when the budget is used up, and is truncated after ``step_limit`` steps: a step that cuts
    nothing costs time. ``reset(seed=s)`` depends on ``s`` alone: it draws the landscape, then the fires; option
    ``raster`` (a number below the set's length) names the landscape instead.

    ``info``: ``burned`` (mean burned cells), ``initial_burned`` (before the first cut of this episode),
    ``reduction_percentage``, ``new_cells``, ``ignored_repeated``, ``ignored_over_limit``, ``budget_left``, ``raster``.
    Every value is measured. There is no fallback: a simulation that fails raises, and the episode is over.

    Args:
        env_id: Which of several environments this is, for ``slow_env_ids`` and the streams of faults.
        render_mode: None or "rgb_array", which needs no display.
        **settings: Fields of `Task`, `Weather` and `Misbehaviour` in `headrace.envs.fuelbreak.settings`.

    Raises:
        ConfigError: If a keyword is unknown, a value is out of bounds, or the rasters cannot be found.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self, *, env_id: int | None = None, render_mode: str | None = None, **settings: Unpack[Keywords]
    ) -> None:
        self.task, self.weather, misbehaviour = split(settings)
        if misbehaviour.slow_env_ids and env_id is None:
            raise ConfigError(
                "FuelBreakEnv cannot tell whether it is one of slow_env_ids",
                fix="Give each environment its number: env_id=0, 1, …",
                slow_env_ids=list(misbehaviour.slow_env_ids),
            )
        self.render_mode = checked_render_mode("FuelBreakEnv", render_mode)
        self.observation_space: spaces.Space[Any] = observation.space(self.task.size)
        self.action_space: spaces.Space[Any] = spaces.MultiBinary(self.task.cells)
        self.rasters = RasterSet.of(self.task)
        self._trouble = Troublemaker(misbehaviour, env_id or 0)
        self._troubled = False
        self._number = -1
        self._landscape: Landscape | None = None
        self._burn: Burn | None = None
        self._seen = np.zeros(0, np.float32)
        self._broken: Mask = np.zeros((self.task.size, self.task.size), np.bool_)
        self._initial = self._previous = self._best = 0.0
        self._steps = 0
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode in a landscape without cuts, and measure what its fires burn.

        Args:
            seed: Restarts every stream of random numbers; None goes on with the present ones.
            options: ``{"raster": number}`` names the landscape.

        Raises:
            ConfigError: An unknown option or raster; a raster's file cannot be used.
        """
        asked = self._asked_raster(options)
        super().reset(seed=seed)
        if seed is not None or not self._troubled:
            self._trouble.seed(max(0, self.np_random_seed))  # -1: somebody handed in a generator of their own
            self._troubled = True
        drawn = int(self.np_random.integers(len(self.rasters)))  # in any case, so that the fires stay the same
        self._running = False
        landscape = self._enter(drawn if asked is None else asked)
        self._burn = Burn(landscape, landscape.draw(self.task.num_simulations, self.np_random))
        self._seen = observation.view(landscape)
        self._broken = np.zeros_like(self._broken)
        self._initial = self._previous = self._best = float(self._burn.burned.mean())
        self._steps = 0
        self._running = True
        return self._seen.copy(), self._information(self._initial, Choice(np.zeros(0, np.int64), 0, 0))

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Cut the chosen cells, play the fires.

        Raises:
            ConfigError: If ``action`` is not 0 or 1 for each cell; nothing was cut, the episode goes on.
            HeadraceError: If no episode is in progress.
            EnvironmentRaised: On purpose, see `Misbehaviour`.
        """
        burn = self._current()
        if not self._running:
            raise HeadraceError(
                "FuelBreakEnv.step() was called while no episode was in progress",
                fix="Call reset() first, and again after each step that returned terminated or truncated, or raised.",
                steps_taken=self._steps,
            )
        choice = choose(action, self._broken, min(self.task.cells_per_step, self.budget_left))
        self._running = False  # until the step is through: after an exception there is no state to go on from
        self._trouble.step(burn.repeat)
        burned = self._cut(choice)
        self._steps += 1
        terminated = self.budget_left == 0
        truncated = not terminated and self._steps >= self.task.steps
        outcome = Outcome(
            initial=self._initial,
            previous=self._previous,
            best=self._best,
            burned=burned,
            coverage=float(self._broken.mean()),
            cells=self.task.cells,
            finished=terminated,
        )
        self._previous, self._best = burned, min(self._best, burned)
        self._running = not (terminated or truncated)
        value = reward(outcome, self.task.reward_version)
        return self._seen.copy(), value, terminated, truncated, self._information(burned, choice)

    def render(self) -> NDArray[np.uint8]:
        """The landscape, how likely each cell is to burn, and the breaks: uint8 [size * s, size * s, 3].

        Raises:
            ConfigError: If the environment was built without render_mode="rgb_array".
            HeadraceError: If reset() was never called, or close() was.
        """
        require_render_mode("FuelBreakEnv", self.render_mode)
        return render.draw(self.landscape, self._current().probability, self._broken)

    def close(self) -> None:
        """Free the maps. A closed environment may be reset again."""
        self._running = False
        self._landscape = self._burn = None
        self._number = -1

    @property
    def budget_left(self) -> int:
        """Cells that may still be cut in this episode."""
        return self.task.total_budget - int(np.count_nonzero(self._broken))

    @property
    def plan(self) -> Mask:
        """The cells cut so far, bool [size, size], a copy; see `headrace.envs.fuelbreak.evaluate_plan`."""
        return self._broken.copy()

    @property
    def landscape(self) -> Landscape:
        """The landscape of this episode, uncut: nothing that is cut changes it.

        Raises:
            HeadraceError: If reset() was never called, or close() was.
        """
        self._current()
        assert self._landscape is not None
        return self._landscape

    @property
    def fires(self) -> Fires:
        """The fires that were played last.

        Raises:
            HeadraceError: If reset() was never called, or close() was.
        """
        return self._current().fires

    def _enter(self, number: int) -> Landscape:
        if self._landscape is None or number != self._number:
            self._landscape = Landscape(self.rasters[number], self.weather)
            self._number = number
        return self._landscape

    def _cut(self, choice: Choice) -> float:
        """Mean burned cells after the cells of ``choice`` are cut."""
        rows, columns = np.divmod(choice.cells, self.task.size)
        self._broken[rows, columns] = True
        self._seen[:, rows, columns] = 0.0
        burn = self._current()
        if self.task.common_ignitions:
            burn.cut(self._broken)
        else:
            fires = self.landscape.draw(self.task.num_simulations, self.np_random)
            self._burn = burn = Burn(self.landscape, fires, self._broken)
        return float(burn.burned.mean())

    def _information(self, burned: float, choice: Choice) -> dict[str, Any]:
        return {
            "burned": burned,
            "initial_burned": self._initial,
            "reduction_percentage": 100.0 * (self._initial - burned) / self._initial,
            "new_cells": len(choice.cells),
            "ignored_repeated": choice.repeated,
            "ignored_over_limit": choice.over_limit,
            "budget_left": self.budget_left,
            "raster": self._number,
        }

    def _current(self) -> Burn:
        if self._burn is None:
            raise HeadraceError("FuelBreakEnv has no landscape yet, or none any more", fix="Call reset() first.")
        return self._burn

    def _asked_raster(self, options: dict[str, Any] | None) -> int | None:
        unknown = sorted(set(options or ()) - {"raster"})
        number = (options or {}).get("raster")
        fits = isinstance(number, int | np.integer) and not isinstance(number, bool) and 0 <= number < len(self.rasters)
        if unknown or not (number is None or fits):
            raise ConfigError(
                "FuelBreakEnv cannot be reset with these options",
                fix='Name a raster by its number, {"raster": 0}, or none.',
                found=options,
                allowed=f"raster: 0 to {len(self.rasters) - 1}",
            )
        return None if number is None else int(number)
