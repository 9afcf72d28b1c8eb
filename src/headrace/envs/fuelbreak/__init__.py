"""Fuel breaks against wildfire (``headrace/FuelBreak-v0``): `env` is the environment, `fires` what burns.

`rasters` holds a landscape, `synthetic` makes one, `loading` reads a real one, `sets` deals them out; `fuels` and
`behavior` say how fast fire runs, `spread` how it gets about; `observation`, `actions` and `rewards` are what the agent
sees, does and is paid; `plans` places breaks without learning and judges placements; `settings` is what the
constructor accepts, `misbehaviour` the faults it can be asked for; `render` draws.
"""

from headrace.envs.fuelbreak.env import FuelBreakEnv
from headrace.envs.fuelbreak.fires import Burn, Fires, Landscape
from headrace.envs.fuelbreak.loading import load_raster
from headrace.envs.fuelbreak.plans import PlanScore, evaluate_plan, influence_plan, random_plan
from headrace.envs.fuelbreak.rasters import Raster
from headrace.envs.fuelbreak.sets import RasterSet
from headrace.envs.fuelbreak.settings import Weather

__all__ = [
    "Burn",
    "Fires",
    "FuelBreakEnv",
    "Landscape",
    "PlanScore",
    "Raster",
    "RasterSet",
    "Weather",
    "evaluate_plan",
    "influence_plan",
    "load_raster",
    "random_plan",
]
