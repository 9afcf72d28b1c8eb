"""Registers Headrace's environments with Gymnasium.

Importing this module registers them; ``import headrace`` does it, and
``gymnasium.make("headrace.envs.registration:headrace/Hockey-v0")`` works anywhere, also in a worker that has imported
nothing of Headrace. Box2D is loaded when the first environment is made.
"""

from __future__ import annotations

from gymnasium.envs import registration as gymnasium_registration

HOCKEY_ID = "headrace/Hockey-v0"


def register() -> None:
    """Register every environment of Headrace; calling it again changes nothing.

    No ``max_episode_steps`` is registered: the environment truncates its episodes itself.
    """
    if HOCKEY_ID not in gymnasium_registration.registry:
        gymnasium_registration.register(id=HOCKEY_ID, entry_point="headrace.envs.hockey.env:HockeyEnv")


register()
