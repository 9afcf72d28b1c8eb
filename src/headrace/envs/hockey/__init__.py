"""Two-player air hockey (``headrace/Hockey-v0``): `env` is the environment, `physics` the rink behind it.

`opponent` plays player two, `starts` draws how an episode begins, `views` holds what a player sees of the
state and what it is paid, `settings` what the constructor accepts, `render` draws.
"""

from headrace.envs.hockey.env import HockeyEnv
from headrace.envs.hockey.opponent import BasicOpponent
from headrace.envs.hockey.views import mirror_observation

__all__ = ["BasicOpponent", "HockeyEnv", "mirror_observation"]
