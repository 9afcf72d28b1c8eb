"""Agents that collect gems in one shared grid world (``headrace/TreasureHunt-v0``): `world` holds the rules.

`parallel` is the environment of many agents, `env` that of one, `vector` many copies at once; `draws` are the random
numbers of a copy, `views` what an agent sees, `settings` what the constructors accept, `render` draws.
"""

from headrace.envs.treasurehunt.draws import Draws
from headrace.envs.treasurehunt.env import TreasureHuntEnv
from headrace.envs.treasurehunt.parallel import TreasureHuntParallel
from headrace.envs.treasurehunt.settings import Settings
from headrace.envs.treasurehunt.vector import TreasureHuntVector
from headrace.envs.treasurehunt.world import World

__all__ = ["Draws", "Settings", "TreasureHuntEnv", "TreasureHuntParallel", "TreasureHuntVector", "World"]
