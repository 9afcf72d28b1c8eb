"""Scenario 2: many copies at once, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.envs.cage2 import network as net
from headrace.envs.cage2 import rules
from headrace.envs.cage2.draws import CHOICE, NOTICE, PICK, Draws
from headrace.envs.cage2.settings import Settings

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HOSTS = len(net.HOSTS)
_WEIGHTS = np.array(net.WEIGHTS, np.float64)
_RESTORES = np.array([action.kind == net.RESTORE for action in net.ACTIONS])
_RESTORES_SERVER = net.action_of(net.RESTORE, net.OP_SERVER)
_OPERATIONAL = np.array([subnet == net.OPERATIONAL for subnet in net.SUBNET_OF])
TYPE_BITS = np.array([1 << kind for kind in net.TYPE_OF], np.uint8)
"""[host] -> its type as a bit."""
TYPE_BITS_BESIDE_FOOTHOLD = TYPE_BITS * (np.arange(_HOSTS) != net.FOOTHOLD)

_STAGES = np.array(net.B_LINE_STAGES)
_JUMPS = np.array(net.B_LINE_JUMPS)
_LAST_STAGE = len(_STAGES) - 1
_STAGE_TARGETS = np.array([net.b_line_targets(user) for user in range(net.USER_1, net.USER_4 + 1)])
SERVER_STAGE = 12
"""The stage that B_line cannot plan if the scan before it came to nothing."""

BIT = np.array([1 << host for host in range(_HOSTS)])
SUBNET_BITS = tuple(sum(1 << host for host in hosts) for hosts in net.SUBNET_HOSTS)
_SUBNET_OF = np.array(net.SUBNET_OF)
_SUBNET_BITS_OF_HOST = np.array(SUBNET_BITS)[_SUBNET_OF]
FIRST_HOST = tuple(hosts[0] for hosts in net.SUBNET_HOSTS)
LEARNT = tuple(1 << host | (1 << net.LINKS[host] if host in net.LINKS else 0) for host in range(_HOSTS))
"""Addresses that Meander knows once it is privileged on each host."""
_LEARNT = np.array(LEARNT)
_FOOTHOLD_BIT = 1 << net.FOOTHOLD
_SERVER_BIT = 1 << net.OP_SERVER
_OPERATIONAL_BITS = SUBNET_BITS[net.OPERATIONAL]
_GATEWAY_BITS = sum(1 << host for host in net.GATEWAYS)
_NEXT_SUBNET = np.array([FIRST_HOST[(mask & -mask).bit_length() - 1] if mask else 0 for mask in range(8)])
"""A host of the subnet that Meander sweeps next, given those it has not swept as bits."""


class World:
    """Copies of the network that share nothing but their settings and their clockwork; all begin and end together.

    In a step blue acts, then red, and both are paid for the state that this leads to; blue sees what red's action left
    behind, at once. `headrace.envs.cage2.solo.Solo` is the same for one copy, in plain integers.

    Args:
        settings: The same for every copy.
        draws: The random numbers of each copy; as many copies as there are of these.
    """

    def __init__(self, settings: Settings, draws: Sequence[Draws]) -> None:
        self.settings = settings
        self.draws = tuple(draws)
        copies = len(self.draws)
        self._every = np.arange(copies)
        self._first = self._every * _HOSTS  # where each copy's hosts begin in flat arrays
        self.cores = np.zeros((copies, _HOSTS), np.uint8)
        """[C, hosts], see `rules.core`."""
        self.decoys = np.zeros((copies, _HOSTS), np.uint8)
        """[C, hosts], ports as bits."""
        self.ports = np.zeros((copies, _HOSTS), np.uint8)
        """[C, hosts]; ports that red has found, as bits."""
        self.opponents = np.zeros(copies, np.int64)
        """[C], by their place in `network.OPPONENTS`."""
        self.stopped = np.zeros(copies, np.bool_)
        """[C]; whether the operational service is stopped."""
        self._unstoppable = np.zeros(copies, np.bool_)  # its server was restored, which loses the service's process id
        self._service_known = np.zeros(copies, np.bool_)
        self.kinds, self.targets = np.zeros(copies, np.int64), np.zeros(copies, np.int64)
        """Red's last action, [C]."""
        self.succeeded = np.zeros(copies, np.bool_)
        """[C]; whether it was a success."""
        self._blind = np.zeros(copies, np.bool_)  # red's last scan could not reach its host
        self._users, self._stages = np.zeros(copies, np.int64), np.zeros(copies, np.int64)
        self._planned = np.zeros(copies, np.bool_)
        self._meander = np.zeros((7, copies), np.int64)
        self._view = np.zeros((copies, _HOSTS, 4), np.uint8)
        self._block_steps = self.draws[0].block_steps if draws else 0
        self._numbers = np.zeros((self._block_steps, 3, copies))
        self.steps = 0
        """Steps since the reset."""

    @property
    def copies(self) -> int:
        """How many copies there are."""
        return len(self.draws)

    @property
    def over(self) -> bool:
        """Whether every copy has had the steps of an episode."""
        return self.settings.max_steps is not None and self.steps >= self.settings.max_steps

    def reset(self, seeds: Sequence[int | None] | None = None) -> None:
        """Begin an episode in every copy; a seed restarts a copy's random numbers first."""
        for draws, seed in zip(self.draws, seeds or [None] * self.copies, strict=True):
            if seed is not None:
                draws.seed(seed)
        begun = np.array([draws.episode() for draws in self.draws]).reshape(-1, 2)
        self.opponents, self._users = begun[:, 0].copy(), begun[:, 1].copy()
        self._b_line = np.flatnonzero(self.opponents == net.B_LINE)
        self._wanderers = np.flatnonzero(self.opponents == net.MEANDER)
        self.cores[:] = self.decoys[:] = self.ports[:] = 0
        self.stopped[:] = self._unstoppable[:] = self._service_known[:] = False
        self.kinds[:] = self.targets[:] = self._stages[:] = 0
        self.succeeded[:] = self._blind[:] = self._planned[:] = False
        self._meander[:] = 0
        self.cores[:, net.FOOTHOLD] = rules.FOOTHOLD_CORE
        self._meander[_KNOWN] = _FOOTHOLD_BIT
        self._meander[_NETS] = 1 << net.USER
        self._view[:] = 0
        self.steps = 0

    def step(self, actions: Ints) -> NDArray[np.float64]:
        """One step of every copy.

        Args:
            actions: [C], from 0 to 144.

        Returns:
            Rewards, [C].
        """
        numbers = self._next_numbers()
        places, done = self._blue(actions)
        self._choose(numbers[PICK])
        self._red(places, done, numbers[CHOICE], numbers[NOTICE])
        self.steps += 1
        tenths: NDArray[np.float64] = (self.levels() == rules.PRIVILEGED) @ _WEIGHTS
        tenths += self.stopped * net.IMPACT_TENTHS
        tenths += _RESTORES[actions] * net.RESTORE_TENTHS
        rewards: NDArray[np.float64] = (0.0 - tenths) / 10
        return rewards

    def observe(self) -> NDArray[np.uint8]:
        """What blue sees, [C, 52], a new array."""
        seen: NDArray[np.uint8] = self._view.reshape(self.copies, -1).copy()
        return seen

    def compromised(self, *, foothold: bool = True) -> NDArray[np.uint8]:
        """Types of hosts with a red session, as bits by their place in `network.TYPES`, [C].

        Args:
            foothold: Whether the host counts that red begins on and always keeps.
        """
        found = np.where(self.cores & 3, TYPE_BITS if foothold else TYPE_BITS_BESIDE_FOOTHOLD, np.uint8(0))
        types: NDArray[np.uint8] = np.bitwise_or.reduce(found, axis=1)
        return types

    def levels(self) -> NDArray[np.uint8]:
        """Red's level on each host, [C, hosts], see `rules`."""
        return np.bitwise_and(self.cores, 3, dtype=np.uint8)

    def _next_numbers(self) -> NDArray[np.float64]:
        turn = self.steps % self._block_steps
        if turn == 0:
            for copy, draws in enumerate(self.draws):
                self._numbers[:, :, copy] = draws.block()
        numbers: NDArray[np.float64] = self._numbers[turn]
        return numbers

    def _blue(self, actions: Ints) -> tuple[Ints, NDArray[np.uint8]]:
        """Blue acts; where in flat arrays, and what of it matters to a red action there, see `rules.ALONE`."""
        places = self._first + rules.TARGET[actions]
        cores, decoys = self.cores.reshape(-1), self.decoys.reshape(-1)
        effects, before = rules.EFFECT[actions], cores[places]
        cores[places] = rules.AFTER_BLUE[effects, before]
        there = decoys[places]
        used = rules.SERVICES[rules.TARGET[actions]] | there
        placed = (rules.MUST_BE_FREE[actions] & used) == 0
        decoys[places] = there & rules.KEEPS[actions] | rules.OPENS[actions] * placed
        restored = actions == _RESTORES_SERVER
        self.stopped &= ~restored
        self._unstoppable |= restored
        finds = (effects == rules.ANALYSED) & (before & rules.MALWARE > 0)
        return places, placed * np.uint8(rules.WITH_DECOY) + finds * np.uint8(rules.WITH_FINDING)

    def _choose(self, picks: NDArray[np.float64]) -> None:
        """What red does next, from what came of what it did last."""
        if len(self._b_line):
            self._choose_b_line(self._b_line)
        if len(self._wanderers):
            self._choose_meander(self._wanderers, picks)

    def _choose_b_line(self, who: Ints) -> None:
        stages = self._stages[who]
        stages = np.where(self.succeeded[who], np.minimum(stages + 1, _LAST_STAGE), _JUMPS[stages])
        # An empty scan leaves it without an address: it begins again, and as the scan counts as a success, with stage 1.
        stages[(stages == SERVER_STAGE) & self._blind[who] & ~self._planned[who]] = 1
        self._planned[who] |= stages == SERVER_STAGE
        self._stages[who] = stages
        self.kinds[who] = _STAGES[stages]
        self.targets[who] = _STAGE_TARGETS[self._users[who] - net.USER_1, stages]

    def _choose_meander(self, who: Ints, picks: NDArray[np.float64]) -> None:
        memory = self._meander[:, who]
        _remember(memory, self.kinds[who], self.targets[who], self.succeeded[who])
        known, scanned, exploited, escalated, mapped, nets, swept = memory
        unscanned = known & ~scanned
        owned = (mapped & exploited | _FOOTHOLD_BIT & ~mapped) & ~escalated
        candidates = np.where(unscanned, unscanned, np.where(owned, owned, known & ~exploited))
        host = rules.NTH_BIT[candidates, (picks[who] * rules.COUNT[candidates]).astype(np.int64)].astype(np.int64)
        kind = np.where(unscanned, net.SCAN, np.where(owned, net.ESCALATE, net.EXPLOIT))
        unswept = nets & ~swept
        kind, host = np.where(unswept, net.SWEEP, kind), np.where(unswept, _NEXT_SUBNET[unswept], host)
        impact = (escalated & _SERVER_BIT) > 0
        kind, host = np.where(impact, net.IMPACT, kind), np.where(impact, net.OP_SERVER, host)
        bit = BIT[host]
        memory[_SCANNED] |= bit * (kind == net.SCAN)
        memory[_ESCALATED] |= bit * (kind == net.ESCALATE)
        memory[_EXPLOITED] |= bit * (kind == net.EXPLOIT)
        memory[_SWEPT] |= (1 << _SUBNET_OF[host]) * (kind == net.SWEEP)
        self._meander[:, who] = memory
        self.kinds[who], self.targets[who] = kind, host

    def _red(
        self, blue_places: Ints, done: NDArray[np.uint8], choices: NDArray[np.float64], notices: NDArray[np.float64]
    ) -> None:
        kinds, targets = self.kinds, self.targets
        places = self._first + targets
        cores, decoys, ports = self.cores.reshape(-1), self.decoys.reshape(-1), self.ports.reshape(-1)
        gateway = (self.cores[:, net.ENTERPRISE_0 : net.ENTERPRISE_2 + 1] & 3).any(axis=1)
        reached = gateway | ~_OPERATIONAL[targets]
        there, before, known = decoys[places], cores[places], ports[places]
        beside = done * (places == blue_places)
        scans, exploits, escalates = kinds == net.SCAN, kinds == net.EXPLOIT, kinds == net.ESCALATE
        exploit = _chosen(known, choices)
        events = rules.EVENT[targets, exploit, there >> exploit & 1, (notices < rules.DETECTED).view(np.uint8)]
        events = np.where(exploits & reached, events, rules.NO_EVENT)
        events[scans & reached & ~((beside == rules.WITH_DECOY) & rules.FEW_PORTS[targets, there])] = rules.SCAN_EVENT
        events[escalates] = rules.ESCALATED
        cores[places] = rules.AFTER_RED[events, beside, before]
        ports[places] = np.where(scans & reached, rules.SERVICES[targets] | there, known)
        self._blind = scans & ~reached
        on_host = (before & 3) > 0
        self._service_known |= escalates & on_host & (targets == net.OP_SERVER)
        impacts = (kinds == net.IMPACT) & on_host & self._service_known
        self.stopped |= impacts & ~self._unstoppable
        shells = (events >= rules.USER_SEEN) & (events <= rules.SSH_SESSION)
        self.succeeded = scans | impacts | shells | (escalates & on_host) | ((kinds == net.SWEEP) & reached)
        view = self._view.reshape(-1, 4)
        view[:] = rules.BELIEF_VIEW[cores]
        view[places] |= rules.ACTIVITY_VIEW[rules.ACTIVITY[events, beside]]


_KNOWN, _SCANNED, _EXPLOITED, _ESCALATED, _MAPPED, _NETS, _SWEPT = range(7)
"""What Meander remembers: hosts as bits, of `_NETS` and `_SWEPT` subnets. Mapped are those whose name it has an address for."""


def _chosen(known: NDArray[np.uint8], numbers: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The exploit that red takes, given the ports it knows and a number in [0, 1) for each copy."""
    beyond = (numbers - rules.PREFERRED) / (1 - rules.PREFERRED) * rules.OTHERS[known]
    return rules.CHOICES[known, np.where(beyond < 0, 0, beyond + 1).astype(np.int64) * (numbers >= rules.PREFERRED)]


def _remember(memory: Ints, kinds: Ints, targets: Ints, succeeded: Bools) -> None:
    """What Meander makes of its last action; ``memory``, [7, C], is changed."""
    bit = BIT[targets]
    exploits, deepens = kinds == net.EXPLOIT, (kinds == net.ESCALATE) | (kinds == net.IMPACT)
    sweeps, learns = (kinds == net.SWEEP) & succeeded, (kinds == net.ESCALATE) & succeeded
    memory[_MAPPED] |= bit * (exploits & succeeded)
    memory[_KNOWN] |= _SUBNET_BITS_OF_HOST[targets] * sweeps | _LEARNT[targets] * learns
    memory[_NETS] |= (1 << _SUBNET_OF[targets]) * learns
    lost = exploits & ~succeeded
    memory[_EXPLOITED] &= ~(bit * lost)
    deep, near = memory[_ESCALATED] & _OPERATIONAL_BITS, memory[_ESCALATED] & _GATEWAY_BITS
    given_up = np.where(deep, deep, near) * lost
    failed = bit * (deepens & ~succeeded)
    memory[_ESCALATED] &= ~(given_up | failed)
    memory[_EXPLOITED] &= ~(given_up | failed & memory[_MAPPED])
