"""The standard fuel models, and how a surface fire spreads in each under given moistures.

Sources: the 13 models of Anderson (1982), INT-122, and the 40 of Scott and Burgan (2005), RMRS-GTR-153. Spread is
Rothermel (1972), INT-115, with Albini (1976), INT-30, as collected by Andrews (2018), RMRS-GTR-371; equations are named
by what that report calls them. Its units (feet, minutes, pounds, Btu) stay inside this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headrace.envs.fuelbreak.settings import Weather

Floats = NDArray[np.float64]

BREAK_CODE = 91
"""What the fuel of a cell is after a cut: the non-burnable code NB1."""

NON_BURNABLE = (91, 92, 93, 98, 99)
"""Urban, snow or ice, agriculture, open water, bare ground."""

# fmt: off
_TABLE = np.array([
    # code, load of 1 h, 10 h, 100 h, live herbaceous, live woody (short tons per acre),
    # surface to volume of 1 h, herbaceous, woody (1/ft), depth (ft), moisture of extinction (%), heat content (Btu/lb)
    (  1,  0.74,  0.00,  0.00,  0.00,  0.00, 3500,    0,    0, 1.0, 12, 8000),
    (  2,  2.00,  1.00,  0.50,  0.50,  0.00, 3000, 1500,    0, 1.0, 15, 8000),
    (  3,  3.01,  0.00,  0.00,  0.00,  0.00, 1500,    0,    0, 2.5, 25, 8000),
    (  4,  5.01,  4.01,  2.00,  0.00,  5.01, 2000,    0, 1500, 6.0, 20, 8000),
    (  5,  1.00,  0.50,  0.00,  0.00,  2.00, 2000,    0, 1500, 2.0, 20, 8000),
    (  6,  1.50,  2.50,  2.00,  0.00,  0.00, 1750,    0,    0, 2.5, 25, 8000),
    (  7,  1.13,  1.87,  1.50,  0.00,  0.37, 1750,    0, 1550, 2.5, 40, 8000),
    (  8,  1.50,  1.00,  2.50,  0.00,  0.00, 2000,    0,    0, 0.2, 30, 8000),
    (  9,  2.92,  0.41,  0.15,  0.00,  0.00, 2500,    0,    0, 0.2, 25, 8000),
    ( 10,  3.01,  2.00,  5.01,  0.00,  2.00, 2000,    0, 1500, 1.0, 25, 8000),
    ( 11,  1.50,  4.51,  5.51,  0.00,  0.00, 1500,    0,    0, 1.0, 15, 8000),
    ( 12,  4.01, 14.03, 16.53,  0.00,  0.00, 1500,    0,    0, 2.3, 20, 8000),
    ( 13,  7.01, 23.04, 28.05,  0.00,  0.00, 1500,    0,    0, 3.0, 25, 8000),
    (101,  0.10,  0.00,  0.00,  0.30,  0.00, 2200, 2000,    0, 0.4, 15, 8000),
    (102,  0.10,  0.00,  0.00,  1.00,  0.00, 2000, 1800,    0, 1.0, 15, 8000),
    (103,  0.10,  0.40,  0.00,  1.50,  0.00, 1500, 1300,    0, 2.0, 30, 8000),
    (104,  0.25,  0.00,  0.00,  1.90,  0.00, 2000, 1800,    0, 2.0, 15, 8000),
    (105,  0.40,  0.00,  0.00,  2.50,  0.00, 1800, 1600,    0, 1.5, 40, 8000),
    (106,  0.10,  0.00,  0.00,  3.40,  0.00, 2200, 2000,    0, 1.5, 40, 9000),
    (107,  1.00,  0.00,  0.00,  5.40,  0.00, 2000, 1800,    0, 3.0, 15, 8000),
    (108,  0.50,  1.00,  0.00,  7.30,  0.00, 1500, 1300,    0, 4.0, 30, 8000),
    (109,  1.00,  1.00,  0.00,  9.00,  0.00, 1800, 1600,    0, 5.0, 40, 8000),
    (121,  0.20,  0.00,  0.00,  0.50,  0.65, 2000, 1800, 1800, 0.9, 15, 8000),
    (122,  0.50,  0.50,  0.00,  0.60,  1.00, 2000, 1800, 1800, 1.5, 15, 8000),
    (123,  0.30,  0.25,  0.00,  1.45,  1.25, 1800, 1600, 1600, 1.8, 40, 8000),
    (124,  1.90,  0.30,  0.10,  3.40,  7.10, 1800, 1600, 1600, 2.1, 40, 8000),
    (141,  0.25,  0.25,  0.00,  0.15,  1.30, 2000, 1800, 1600, 1.0, 15, 8000),
    (142,  1.35,  2.40,  0.75,  0.00,  3.85, 2000,    0, 1600, 1.0, 15, 8000),
    (143,  0.45,  3.00,  0.00,  0.00,  6.20, 1600,    0, 1400, 2.4, 40, 8000),
    (144,  0.85,  1.15,  0.20,  0.00,  2.55, 2000,    0, 1600, 3.0, 30, 8000),
    (145,  3.60,  2.10,  0.00,  0.00,  2.90,  750,    0, 1600, 6.0, 15, 8000),
    (146,  2.90,  1.45,  0.00,  0.00,  1.40,  750,    0, 1600, 2.0, 30, 8000),
    (147,  3.50,  5.30,  2.20,  0.00,  3.40,  750,    0, 1600, 6.0, 15, 8000),
    (148,  2.05,  3.40,  0.85,  0.00,  4.35,  750,    0, 1600, 3.0, 40, 8000),
    (149,  4.50,  2.45,  0.00,  1.55,  7.00,  750, 1800, 1500, 4.4, 40, 8000),
    (161,  0.20,  0.90,  1.50,  0.20,  0.90, 2000, 1800, 1600, 0.6, 20, 8000),
    (162,  0.95,  1.80,  1.25,  0.00,  0.20, 2000,    0, 1600, 1.0, 30, 8000),
    (163,  1.10,  0.15,  0.25,  0.65,  1.10, 1800, 1600, 1400, 1.3, 30, 8000),
    (164,  4.50,  0.00,  0.00,  0.00,  2.00, 2300,    0, 2000, 0.5, 12, 8000),
    (165,  4.00,  4.00,  3.00,  0.00,  3.00, 1500,    0,  750, 1.0, 25, 8000),
    (181,  1.00,  2.20,  3.60,  0.00,  0.00, 2000,    0,    0, 0.2, 30, 8000),
    (182,  1.40,  2.30,  2.20,  0.00,  0.00, 2000,    0,    0, 0.2, 25, 8000),
    (183,  0.50,  2.20,  2.80,  0.00,  0.00, 2000,    0,    0, 0.3, 20, 8000),
    (184,  0.50,  1.50,  4.20,  0.00,  0.00, 2000,    0,    0, 0.4, 25, 8000),
    (185,  1.15,  2.50,  4.40,  0.00,  0.00, 2000,    0,    0, 0.6, 25, 8000),
    (186,  2.40,  1.20,  1.20,  0.00,  0.00, 2000,    0,    0, 0.3, 25, 8000),
    (187,  0.30,  1.40,  8.10,  0.00,  0.00, 2000,    0,    0, 0.4, 25, 8000),
    (188,  5.80,  1.40,  1.10,  0.00,  0.00, 1800,    0,    0, 0.3, 35, 8000),
    (189,  6.65,  3.30,  4.15,  0.00,  0.00, 1800,    0,    0, 0.6, 35, 8000),
    (201,  1.50,  3.00, 11.00,  0.00,  0.00, 2000,    0,    0, 1.0, 25, 8000),
    (202,  4.50,  4.25,  4.00,  0.00,  0.00, 2000,    0,    0, 1.0, 25, 8000),
    (203,  5.50,  2.75,  3.00,  0.00,  0.00, 2000,    0,    0, 1.2, 25, 8000),
    (204,  5.25,  3.50,  5.25,  0.00,  0.00, 2000,    0,    0, 2.7, 25, 8000),
])  # [M, 12]
# fmt: on

BURNABLE: NDArray[np.int64] = _TABLE[:, 0].astype(np.int64)  # [M], ascending
KNOWN_CODES = frozenset({*BURNABLE.tolist(), *NON_BURNABLE})

_TON_PER_ACRE = 2000.0 / 43560.0  # lb/ft²
_PARTICLE_DENSITY = 32.0  # lb/ft³
_TOTAL_MINERALS = 0.0555
_MINERAL_DAMPING = 0.174 * 0.01**-0.19  # effective mineral content 0.01
_SIZE_CLASSES = (16.0, 48.0, 96.0, 192.0, 1200.0)  # 1/ft, lower bounds of Albini's subclasses
_DEAD, _LIVE = slice(0, 4), slice(4, 6)  # 1 h, 10 h, 100 h, cured herbaceous | herbaceous, woody

M_PER_FT = 0.3048
FPM_PER_KMH = 1000.0 / 60.0 / M_PER_FT
MPS_PER_FPM = M_PER_FT / 60.0
_KJ_M2_PER_BTU_FT2 = 1.05505585 / M_PER_FT**2


@dataclass(frozen=True, slots=True)
class FuelBeds:
    """What fire does in each burnable fuel model, in the order of `BURNABLE`; arrays float64 [M]."""

    rate: Floats
    """Spread without wind and slope, m/min; 0 where it is too moist to burn."""
    heat: Floats
    """Heat that the flaming front releases, kJ/m²."""
    slope_factor: Floats
    """Times tan(slope)² gives the slope coefficient."""
    wind_factor: Floats
    """Times (midflame wind in ft/min) ** ``wind_exponent`` gives the wind coefficient."""
    wind_exponent: Floats
    wind_limit: Floats
    """Effective midflame wind above which spread grows no more, ft/min."""
    depth: Floats
    """Of the fuel bed, ft."""

    def wind(self, speed: Floats, rows: NDArray[np.int64]) -> Floats:
        """Wind coefficient of the models ``rows`` for midflame winds in ft/min; same shape as both."""
        return self.wind_factor[rows] * speed ** self.wind_exponent[rows]

    def effective_wind(self, coefficient: Floats, rows: NDArray[np.int64]) -> Floats:
        """The midflame wind, ft/min, whose coefficient is ``coefficient``; the inverse of `wind`."""
        return (coefficient / self.wind_factor[rows]) ** (1.0 / self.wind_exponent[rows])


def rows_of(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each code stands in `BURNABLE` (0 for one that does not burn), and whether it burns; shaped as ``codes``."""
    rows = np.minimum(np.searchsorted(BURNABLE, codes), len(BURNABLE) - 1)
    burnable = BURNABLE[rows] == codes
    return np.where(burnable, rows, 0), burnable


@lru_cache(maxsize=8)
def fuel_beds(weather: Weather) -> FuelBeds:
    """Every model's spread under ``weather``'s moistures; its wind is not looked at."""
    load, surface = _particles(weather.live_herb_percent / 100.0)  # [M, 6]
    moisture = _moistures(weather)  # [6]
    area = surface * load / _PARTICLE_DENSITY
    in_class = np.concatenate([_share(area[:, _DEAD]), _share(area[:, _LIVE])], axis=1)
    of_class = _share(np.stack([area[:, _DEAD].sum(1), area[:, _LIVE].sum(1)], axis=1))  # [M, 2]
    weight = in_class * np.repeat(of_class, (4, 2), axis=1)
    sigma = (weight * surface).sum(1)
    depth, extinction = _TABLE[:, 9], _TABLE[:, 10] / 100.0
    bulk_density = load.sum(1) / depth
    packing = bulk_density / _PARTICLE_DENSITY
    relative = packing / (3.348 * sigma**-0.8189)
    damped = _moisture_damping(load, surface, moisture, in_class, extinction)  # [M, 2]
    net = _net_loads(load, surface, in_class)  # [M, 2]
    reaction = _velocity(sigma, relative) * (net * damped).sum(1) * _TABLE[:, 11] * _MINERAL_DAMPING  # Btu/ft²/min
    flux = np.exp((0.792 + 0.681 * np.sqrt(sigma)) * (packing + 0.1)) / (192.0 + 0.2595 * sigma)
    ignition = (weight * _exponential(-138.0, surface) * (250.0 + 1116.0 * moisture)).sum(1)  # Btu/lb
    exponent_e = 0.715 * np.exp(-3.59e-4 * sigma)
    return FuelBeds(
        rate=reaction * flux / (bulk_density * ignition) * M_PER_FT,
        heat=reaction * 384.0 / sigma * _KJ_M2_PER_BTU_FT2,
        slope_factor=5.275 * packing**-0.3,
        wind_factor=7.47 * np.exp(-0.133 * sigma**0.55) * relative**-exponent_e,
        wind_exponent=0.02526 * sigma**0.54,
        wind_limit=0.9 * reaction,
        depth=depth,
    )


def _particles(herb_moisture: float) -> tuple[Floats, Floats]:
    """Loads in lb/ft² and surface to volume ratios in 1/ft of the six particle classes, each [M, 6].

    The herbaceous load of the dynamic models (Scott and Burgan's) is cured in part: all of it at 30 % moisture, none
    at 120 %.
    """
    cured = np.where(_TABLE[:, 0] > 100, np.clip((1.2 - herb_moisture) / 0.9, 0.0, 1.0), 0.0)
    herb, ones = _TABLE[:, 4], np.ones(len(_TABLE))
    load = np.stack(
        [_TABLE[:, 1], _TABLE[:, 2], _TABLE[:, 3], herb * cured, herb * (1.0 - cured), _TABLE[:, 5]], axis=1
    )
    surface = np.stack(
        [_TABLE[:, 6], 109.0 * ones, 30.0 * ones, _TABLE[:, 7], _TABLE[:, 7], _TABLE[:, 8]],
        axis=1,
    )
    return load * _TON_PER_ACRE, surface


def _moistures(weather: Weather) -> Floats:
    percent = (
        weather.dead_1h_percent,
        weather.dead_10h_percent,
        weather.dead_100h_percent,
        weather.dead_1h_percent,  # cured herbs are as dry as the finest dead fuel
        weather.live_herb_percent,
        weather.live_woody_percent,
    )
    return np.array(percent) / 100.0


def _share(parts: Floats) -> Floats:
    """Each part over the sum of its row; 0 where the row is empty."""
    total = parts.sum(1, keepdims=True)
    share: Floats = np.divide(parts, total, out=np.zeros_like(parts), where=total > 0)
    return share


def _exponential(factor: float, surface: Floats) -> Floats:
    """exp(factor / surface), 0 for particles that a model does not have."""
    return np.exp(np.divide(factor, surface, out=np.full_like(surface, -np.inf), where=surface > 0))


def _moisture_damping(load: Floats, surface: Floats, moisture: Floats, in_class: Floats, extinction: Floats) -> Floats:
    """Moisture damping coefficients of the dead and the live class, [M, 2]."""
    dead_fine = load[:, _DEAD] * _exponential(-138.0, surface[:, _DEAD])
    live_fine = (load[:, _LIVE] * _exponential(-500.0, surface[:, _LIVE])).sum(1)
    fine_moisture = (dead_fine * moisture[_DEAD]).sum(1) / dead_fine.sum(1)
    ratio = np.divide(dead_fine.sum(1), live_fine, out=np.zeros(len(load)), where=live_fine > 0)
    live_extinction = np.maximum(2.9 * ratio * (1.0 - fine_moisture / extinction) - 0.226, extinction)
    dead = (in_class[:, _DEAD] * moisture[_DEAD]).sum(1) / extinction
    live = (in_class[:, _LIVE] * moisture[_LIVE]).sum(1) / live_extinction
    r = np.minimum(np.stack([dead, live], axis=1), 1.0)
    # The polynomial is zero at extinction, but for rounding: a rate of 1e-16 would still be a fire.
    damping: Floats = np.where(r < 1.0, 1.0 - 2.59 * r + 5.11 * r**2 - 3.52 * r**3, 0.0)
    return damping


def _net_loads(load: Floats, surface: Floats, in_class: Floats) -> Floats:
    """Net fuel loads of the dead and the live class, lb/ft² [M, 2], weighted by size subclass."""
    subclass = np.searchsorted(_SIZE_CLASSES, surface, side="right")  # [M, 6]
    nets = []
    for part in (_DEAD, _LIVE):
        same = subclass[:, part, None] == subclass[:, None, part]  # [M, P, P]
        weight = (same * in_class[:, None, part]).sum(2)
        nets.append((weight * load[:, part]).sum(1) * (1.0 - _TOTAL_MINERALS))
    return np.stack(nets, axis=1)


def _velocity(sigma: Floats, relative: Floats) -> Floats:
    """Optimum reaction velocity, 1/min."""
    power = 133.0 * sigma**-0.7913
    fastest = sigma**1.5 / (495.0 + 0.0594 * sigma**1.5)
    return fastest * relative**power * np.exp(power * (1.0 - relative))
