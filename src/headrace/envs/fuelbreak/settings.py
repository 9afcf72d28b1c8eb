"""What the environment's constructor accepts, checked before anything is built."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from pydantic import Field, model_validator

from headrace.core.config import Section
from headrace.core.errors import ConfigError
from headrace.core.refusals import nearest

WindSide = Literal["north", "east", "south", "west"]
SIDES: tuple[WindSide, ...] = ("north", "east", "south", "west")
"""Where wind may come from, in the order of the observation's fire-line channels."""


class Task(Section):
    """What is to be done, and how it is scored."""

    size: int = Field(default=50, ge=4, le=512)
    """Cells along each side of the map; a cell is 30 m wide."""
    num_simulations: int = Field(default=10, ge=1, le=1000)
    """Fires whose burned cells are averaged."""
    budget: int | None = Field(default=None, ge=1)
    """Cells that may be cut in an episode; not set: 8 % of the map, which is 200 of 50 x 50."""
    break_step: int | None = Field(default=None, ge=1)
    """Cells that may be cut in one step; not set: a twentieth of the budget, at least 1."""
    step_limit: int | None = Field(default=None, ge=1)
    """Steps after which an episode is truncated; not set: twice the fewest in which the budget can be used up."""
    reward_version: Literal[1, 2] = 1
    """1: cells saved since the step before. 2: that and what was saved in all, records and bonuses."""
    common_ignitions: bool = True
    """Play the same fires again after every cut of an episode; otherwise every step draws others."""
    rasters: int = Field(default=500, ge=1)
    """Synthetic maps to deal from."""
    first_raster: int = Field(default=0, ge=0)
    """Number of the first of them; maps with other numbers are other maps, e.g. held out for evaluation."""
    raster_seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the synthetic maps."""
    raster_path: str | None = None
    """A folder with real maps, or one of them; instead of synthetic ones, so the three above have to be left away."""

    @model_validator(mode="after")
    def _fits(self) -> Task:
        if self.total_budget > self.cells:
            raise ConfigError(
                "FuelBreakEnv cannot cut more cells than the map has: the budget would never be used up",
                fix="Lower budget or raise size.",
                budget=self.total_budget,
                cells=self.cells,
            )
        if self.cells_per_step > self.total_budget:
            raise ConfigError(
                "FuelBreakEnv cannot cut more cells in one step than in the whole episode",
                fix="Lower break_step or raise budget.",
                break_step=self.cells_per_step,
                budget=self.total_budget,
            )
        ignored = [name for name in ("rasters", "first_raster", "raster_seed") if name in self.model_fields_set]
        if self.raster_path is not None and ignored:
            raise ConfigError(
                f"FuelBreakEnv would ignore {', '.join(ignored)}: every map of raster_path is dealt out",
                fix="Leave them away. Real maps are held out by keeping them in another folder: set raster_path to it.",
                raster_path=self.raster_path,
            )
        return self

    @property
    def cells(self) -> int:
        """Cells of the map."""
        return self.size * self.size

    @property
    def total_budget(self) -> int:
        """Cells that may be cut in an episode."""
        return self.budget if self.budget is not None else max(1, round(0.08 * self.cells))

    @property
    def cells_per_step(self) -> int:
        """Cells that may be cut in one step."""
        return self.break_step if self.break_step is not None else max(1, self.total_budget // 20)

    @property
    def steps(self) -> int:
        """Steps after which an episode is truncated."""
        fewest = -(-self.total_budget // self.cells_per_step)
        return self.step_limit if self.step_limit is not None else 2 * fewest


class Weather(Section):
    """Wind, moistures, and for how long a fire burns."""

    wind_kmh: float = Field(default=10.0, ge=0, le=150)
    """Wind speed 20 ft above the vegetation."""
    wind_from: WindSide | None = None
    """Where it comes from; not set: each fire draws one of the four."""
    horizon_h: float = Field(default=24.0, gt=0, le=240)
    """Hours a fire burns before it is out."""
    dead_1h_percent: float = Field(default=10.0, ge=1, le=100)
    """Moisture of dead fuel below 6 mm, percent of its dry weight."""
    dead_10h_percent: float = Field(default=15.0, ge=1, le=100)
    """The same for 6 to 25 mm."""
    dead_100h_percent: float = Field(default=25.0, ge=1, le=100)
    """The same for 25 to 76 mm."""
    live_herb_percent: float = Field(default=90.0, ge=10, le=300)
    """Moisture of grasses and herbs."""
    live_woody_percent: float = Field(default=60.0, ge=10, le=300)
    """Moisture of shrubs."""
    foliar_percent: float = Field(default=90.0, ge=10, le=300)
    """Moisture of the trees' leaves; decides when a fire reaches the crowns."""


class Misbehaviour(Section):
    """How the environment misbehaves on purpose, to try out what runs it. Everything is off by default.

    All of it is drawn from streams of its own: an episode that gets through is the same with and without.
    """

    p_hang: float = Field(default=0.0, ge=0, le=1)
    """Probability per step of hanging, without using a processor."""
    p_crash: float = Field(default=0.0, ge=0, le=1)
    """Probability per step of killing its own process with SIGKILL."""
    p_raise: float = Field(default=0.0, ge=0, le=1)
    """Probability per step of raising EnvironmentRaised."""
    leak_mb: float = Field(default=0.0, ge=0, le=1024)
    """MiB that every step takes and never gives back."""
    hang_s: float = Field(default=86_400.0, gt=0, le=1e6)
    """How long a hang lasts; after it the step raises, it never returns."""
    delay_s: float = Field(default=0.0, ge=0, le=3600)
    """Median of a log-normal wait in every step, without using a processor."""
    busy_repeats: float = Field(default=0.0, ge=0, le=10_000)
    """Median of a log-normal number of times that a step plays its fires over again, for nothing."""
    tail_sigma: float = Field(default=1.0, ge=0, le=4)
    """Spread of both, the standard deviation of the logarithm."""
    slow_env_ids: tuple[int, ...] = Field(default=(), strict=False)
    """Environments (see ``env_id``) that take ``slow_factor`` times the delay and the repeats."""
    slow_factor: float = Field(default=10.0, ge=1, le=1000)
    """See ``slow_env_ids``."""

    @model_validator(mode="after")
    def _heard(self) -> Misbehaviour:
        if self.p_hang + self.p_crash + self.p_raise > 1:
            raise ConfigError(
                "FuelBreakEnv has one fault a step at most, and their probabilities exceed 1",
                fix="Lower p_hang, p_crash or p_raise.",
                sum=self.p_hang + self.p_crash + self.p_raise,
            )
        if self.slow_env_ids and not (self.delay_s or self.busy_repeats):
            raise ConfigError(
                "FuelBreakEnv would ignore slow_env_ids: there is nothing to be slow with",
                fix="Set delay_s or busy_repeats, whose multiple these environments take.",
                slow_env_ids=list(self.slow_env_ids),
            )
        return self


class Keywords(TypedDict, total=False):
    """Fields of `Task`, `Weather` and `Misbehaviour`, as the constructor takes them."""

    size: int
    num_simulations: int
    budget: int | None
    break_step: int | None
    step_limit: int | None
    reward_version: Literal[1, 2]
    common_ignitions: bool
    rasters: int
    first_raster: int
    raster_seed: int
    raster_path: str | None
    wind_kmh: float
    wind_from: WindSide | None
    horizon_h: float
    dead_1h_percent: float
    dead_10h_percent: float
    dead_100h_percent: float
    live_herb_percent: float
    live_woody_percent: float
    foliar_percent: float
    p_hang: float
    p_crash: float
    p_raise: float
    leak_mb: float
    hang_s: float
    delay_s: float
    busy_repeats: float
    tail_sigma: float
    slow_env_ids: tuple[int, ...] | list[int]
    slow_factor: float


def split(keywords: Keywords) -> tuple[Task, Weather, Misbehaviour]:
    """The three sections that the constructor's keywords fill.

    Raises:
        ConfigError: A keyword is unknown, a value is out of bounds, or two contradict each other.
    """
    sections = (Task, Weather, Misbehaviour)
    known = [name for section in sections for name in section.model_fields]
    for name in keywords:
        if name not in known:
            meant = nearest(name, known)
            raise ConfigError(
                f"FuelBreakEnv does not know the keyword {name}",
                **({"nearest": meant} if meant else {}),
                fix=f"Write {meant}, or remove it." if meant else "Remove it.",
            )
    parts: list[dict[str, Any]] = [
        {name: value for name, value in keywords.items() if name in section.model_fields} for section in sections
    ]
    task, weather, misbehaviour = parts
    return Task(**task), Weather(**weather), Misbehaviour(**misbehaviour)
