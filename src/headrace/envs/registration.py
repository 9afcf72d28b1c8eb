"""Registers Headrace's environments with Gymnasium.

Importing this module registers them; ``import headrace`` does it, and
``gymnasium.make("headrace.envs.registration:headrace/Hockey-v0")`` works anywhere, also in a worker that has imported
nothing of Headrace. Box2D is loaded when the first environment is made.
"""

from __future__ import annotations

from gymnasium.envs import registration as gymnasium_registration

HOCKEY_ID = "headrace/Hockey-v0"
FUELBREAK_ID = "headrace/FuelBreak-v0"
TREASUREHUNT_ID = "headrace/TreasureHunt-v0"
CAGE2_ID = "headrace/CAGE2-v0"
CAGE2_WORKFLOW_ID = "headrace/CAGE2Workflow-v0"

_ENTRY_POINTS = {
    HOCKEY_ID: "headrace.envs.hockey.env:HockeyEnv",
    FUELBREAK_ID: "headrace.envs.fuelbreak.env:FuelBreakEnv",
    TREASUREHUNT_ID: "headrace.envs.treasurehunt.env:TreasureHuntEnv",
    CAGE2_ID: "headrace.envs.cage2.env:CAGE2Env",
    CAGE2_WORKFLOW_ID: "headrace.envs.cage2.workflow:workflow_env",
}
_VECTOR_ENTRY_POINTS = {
    TREASUREHUNT_ID: "headrace.envs.treasurehunt.vector:TreasureHuntVector",
    CAGE2_ID: "headrace.envs.cage2.vector:CAGE2Vector",
    CAGE2_WORKFLOW_ID: "headrace.envs.cage2.workflow:workflow_vector",
}

PARALLEL_ENTRY_POINTS = {TREASUREHUNT_ID: "headrace.envs.treasurehunt:TreasureHuntParallel"}
"""The environments of several agents, by id: what builds one with the interface of PettingZoo's ``ParallelEnv``."""


def register() -> None:
    """Register every environment of Headrace; calling it again changes nothing.

    No ``max_episode_steps`` is registered: the environments truncate their episodes themselves.
    """
    for name, entry_point in _ENTRY_POINTS.items():
        if name not in gymnasium_registration.registry:
            gymnasium_registration.register(
                id=name, entry_point=entry_point, vector_entry_point=_VECTOR_ENTRY_POINTS.get(name)
            )


register()
