"""Defence of a network against a red agent (``headrace/CAGE2-v0``): Scenario 2 of CybORG 2.1 as an array state machine.

`network` holds the facts, `rules` what an action does to a host, `world` plays many copies in numpy and `solo` one in plain
integers; `env` and `vector` are the Gymnasium environments. `workflows` and `workflow` are about orders of priority for repairs,
`baselines` are policies to compare with, `cyborg` runs a CybORG that you have behind the same interface.
"""

from headrace.envs.cage2.draws import Draws
from headrace.envs.cage2.env import CAGE2Env
from headrace.envs.cage2.settings import Settings
from headrace.envs.cage2.solo import Solo
from headrace.envs.cage2.vector import CAGE2Vector
from headrace.envs.cage2.world import World

__all__ = ["CAGE2Env", "CAGE2Vector", "Draws", "Settings", "Solo", "World"]
