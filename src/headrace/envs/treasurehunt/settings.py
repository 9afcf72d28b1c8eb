"""What the environment's constructors accept, checked before anything is built."""

from __future__ import annotations

from typing import TypedDict

from pydantic import Field, model_validator

from headrace.core.config import Section
from headrace.core.errors import ConfigError


class Settings(Section):
    """The map, who is on it, what grows there, and how long an epoch lasts."""

    height: int = Field(default=10, ge=3, le=512)
    """Rows of the map, the two of its border walls among them."""
    width: int = Field(default=10, ge=3, le=512)
    """Columns of the map, the two of its border walls among them."""
    num_agents: int = Field(default=2, ge=1, le=1024)
    """Agents in one world."""
    max_turns: int = Field(default=50, ge=1)
    """Turns of an epoch; the last one truncates it."""
    random_order: bool = False
    """Draw in which order the agents act, anew each turn; otherwise it is always that of their numbers."""
    vision_radius: int = Field(default=2, ge=1, le=32)
    """Cells that an agent sees in each direction."""
    gem_value: float = 10.0
    """Reward of taking a gem."""
    spawn_prob: float = Field(default=0.02, ge=0, le=1)
    """Probability that an empty cell becomes a gem, per cell and turn."""
    food_value: float = 5.0
    """Reward of taking food."""
    food_spawn_prob: float = Field(default=0.0, ge=0, le=1)
    """Probability that an empty cell becomes food; 0: there is none, and no channel that shows it."""
    bone_value: float = -10.0
    """Reward of taking a bone."""
    bone_spawn_prob: float = Field(default=0.0, ge=0, le=1)
    """Probability that an empty cell becomes a bone; 0: there is none, and no channel that shows it."""

    @model_validator(mode="after")
    def _fits(self) -> Settings:
        if self.num_agents > self.inner_cells:
            raise ConfigError(
                "TreasureHunt has not enough cells inside its walls for its agents",
                fix="Lower num_agents, or raise height or width.",
                num_agents=self.num_agents,
                inner_cells=self.inner_cells,
            )
        if self.spawn_prob + self.food_spawn_prob + self.bone_spawn_prob > 1:
            raise ConfigError(
                "TreasureHunt turns an empty cell into one thing at most, and the probabilities exceed 1",
                fix="Lower spawn_prob, food_spawn_prob or bone_spawn_prob.",
                sum=self.spawn_prob + self.food_spawn_prob + self.bone_spawn_prob,
            )
        for kind, probability in (("food", self.food_spawn_prob), ("bone", self.bone_spawn_prob)):
            if probability == 0 and f"{kind}_value" in self.model_fields_set:
                raise ConfigError(
                    f"TreasureHunt would ignore {kind}_value: nothing of that kind appears",
                    fix=f"Set {kind}_spawn_prob above 0, or remove {kind}_value.",
                    keyword=f"{kind}_value",
                )
        return self

    @property
    def inner_cells(self) -> int:
        """Cells inside the border walls."""
        return (self.height - 2) * (self.width - 2)

    @property
    def spawning(self) -> tuple[float, float, float]:
        """Probabilities of gem, food and bone, per empty cell and turn."""
        return self.spawn_prob, self.food_spawn_prob, self.bone_spawn_prob


class Keywords(TypedDict, total=False):
    """Fields of `Settings`, as the constructors take them."""

    height: int
    width: int
    num_agents: int
    max_turns: int
    random_order: bool
    vision_radius: int
    gem_value: float
    spawn_prob: float
    food_value: float
    food_spawn_prob: float
    bone_value: float
    bone_spawn_prob: float
