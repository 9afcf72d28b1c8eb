"""Scenario 2: one copy, in plain integers.

For one copy an array operation is nearly all overhead, so a single environment does not use `World`. The rules are the same
tables; that both play alike, bit for bit, is tested.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.envs.cage2 import network as net
from headrace.envs.cage2 import rules
from headrace.envs.cage2.draws import Draws
from headrace.envs.cage2.settings import Settings
from headrace.envs.cage2.world import (
    FIRST_HOST,
    LEARNT,
    SERVER_STAGE,
    SUBNET_BITS,
    TYPE_BITS,
    TYPE_BITS_BESIDE_FOOTHOLD,
)

_AFTER_BLUE = rules.AFTER_BLUE.tolist()
_AFTER_RED = rules.AFTER_RED.tolist()
_ACTIVITY = rules.ACTIVITY.tolist()
_EVENT = rules.EVENT.tolist()
_CHOICES = rules.CHOICES.tolist()
_OTHERS = rules.OTHERS.tolist()
_FEW_PORTS = rules.FEW_PORTS.tolist()
_SERVICES = rules.SERVICES.tolist()
_EFFECT = rules.EFFECT.tolist()
_TARGET = rules.TARGET.tolist()
_MUST_BE_FREE = rules.MUST_BE_FREE.tolist()
_OPENS = rules.OPENS.tolist()
_NTH_BIT = rules.NTH_BIT.tolist()
_COUNT = rules.COUNT.tolist()
_VIEW = [bytes(row) for row in rules.BELIEF_VIEW.tolist()]
_SEEN = [
    [bytes(b | a for b, a in zip(view, seen, strict=True)) for view in _VIEW] for seen in rules.ACTIVITY_VIEW.tolist()
]
_RESTORES = [action.kind == net.RESTORE for action in net.ACTIONS]
_TENTHS = [[weight if c & 3 == rules.PRIVILEGED else 0 for c in range(rules.CORES)] for weight in net.WEIGHTS]
_STAGE_TARGETS = {user: net.b_line_targets(user) for user in range(net.USER_1, net.USER_4 + 1)}
_LAST_STAGE = len(net.B_LINE_STAGES) - 1
_RESTORE_SERVER = net.action_of(net.RESTORE, net.OP_SERVER)
_TYPE_BITS: list[int] = TYPE_BITS.tolist()
_TYPE_BITS_BESIDE_FOOTHOLD: list[int] = TYPE_BITS_BESIDE_FOOTHOLD.tolist()
_OPERATIONAL = [subnet == net.OPERATIONAL for subnet in net.SUBNET_OF]
_FOOTHOLD_BIT = 1 << net.FOOTHOLD
_SERVER_BIT = 1 << net.OP_SERVER
_OPERATIONAL_BITS = SUBNET_BITS[net.OPERATIONAL]
_GATEWAY_BITS = sum(1 << host for host in net.GATEWAYS)


class Wanderer:
    """Meander's memory: hosts and subnets as bits."""

    __slots__ = ("escalated", "exploited", "known", "mapped", "nets", "scanned", "swept")

    def __init__(self) -> None:
        self.known, self.nets = _FOOTHOLD_BIT, 1 << net.USER
        self.scanned = self.exploited = self.escalated = self.mapped = self.swept = 0

    def remember(self, kind: int, host: int, succeeded: bool) -> None:
        """What comes of the last action."""
        bit = 1 << host
        if kind == net.SWEEP and succeeded:
            self.known |= SUBNET_BITS[net.SUBNET_OF[host]]
        elif kind == net.ESCALATE and succeeded:
            self.known |= LEARNT[host]
            self.nets |= 1 << net.SUBNET_OF[host]
        elif kind == net.EXPLOIT and succeeded:
            self.mapped |= bit
        elif kind == net.EXPLOIT:
            self.exploited &= ~bit
            given_up = self.escalated & _OPERATIONAL_BITS or self.escalated & _GATEWAY_BITS
            self.escalated &= ~given_up
            self.exploited &= ~given_up
        elif kind in (net.ESCALATE, net.IMPACT) and not succeeded:
            self.escalated &= ~bit
            self.exploited &= ~(bit & self.mapped)

    def choose(self, number: float) -> tuple[int, int]:
        """Kind and host of the next action, given a number in [0, 1)."""
        if self.escalated & _SERVER_BIT:
            return net.IMPACT, net.OP_SERVER
        unswept = self.nets & ~self.swept
        if unswept:
            first = unswept & -unswept
            self.swept |= first
            return net.SWEEP, FIRST_HOST[first.bit_length() - 1]
        candidates, kind = self.known & ~self.scanned, net.SCAN
        if not candidates:
            owned = self.mapped & self.exploited | _FOOTHOLD_BIT & ~self.mapped
            candidates, kind = owned & ~self.escalated, net.ESCALATE
        if not candidates:
            candidates, kind = self.known & ~self.exploited, net.EXPLOIT
        host = _NTH_BIT[candidates][int(number * _COUNT[candidates])]
        if kind == net.SCAN:
            self.scanned |= 1 << host
        elif kind == net.ESCALATE:
            self.escalated |= 1 << host
        else:
            self.exploited |= 1 << host
        return kind, host


class Solo:
    """One copy of the network; see `headrace.envs.cage2.world.World`, whose names it shares.

    Args:
        settings: Who attacks, and for how long.
        draws: Its random numbers.
    """

    def __init__(self, settings: Settings, draws: Draws) -> None:
        self.draws = draws
        self._limit = settings.max_steps
        self.steps = 0
        self._begin(net.ASLEEP, net.USER_1)

    @property
    def over(self) -> bool:
        """Whether it has had the steps of an episode."""
        return self._limit is not None and self.steps >= self._limit

    def reset(self) -> None:
        """Begin an episode."""
        self._begin(*self.draws.episode())

    def _begin(self, opponent: int, user: int) -> None:
        hosts = len(net.HOSTS)
        self.cores = [0] * hosts
        self.cores[net.FOOTHOLD] = rules.FOOTHOLD_CORE
        self.decoys, self.ports = [0] * hosts, [0] * hosts
        self.opponent = opponent
        self.stopped = self._unstoppable = self._service_known = False
        self.kind = self.target = net.REST
        self.succeeded = self._blind = self._planned = False
        self._stage = 0
        self._targets = _STAGE_TARGETS[user]
        self._wanderer = Wanderer()
        self._view, self._shown = bytearray(4 * hosts), -1
        self._numbers: list[list[float]] = []
        self.steps = 0

    def step(self, action: int) -> float:
        """One step; ``action`` is from 0 to 144.

        Returns:
            The reward.
        """
        turn = self.steps % self.draws.block_steps
        if turn == 0:
            self._numbers = self.draws.block().tolist()
        pick, choice, notice = self._numbers[turn]
        place = _TARGET[action]
        done = self._blue(action, place)
        self._choose(pick)
        self._red(done if self.target == place else rules.ALONE, choice, notice)
        self.steps += 1
        tenths = 0
        for host, number in enumerate(self.cores):
            tenths += _TENTHS[host][number]
        if self.stopped:
            tenths += net.IMPACT_TENTHS
        if _RESTORES[action]:
            tenths += net.RESTORE_TENTHS
        return (0.0 - tenths) / 10

    def observe(self) -> NDArray[np.uint8]:
        """What blue sees, [52], a new array."""
        return np.frombuffer(self._view[:], np.uint8)  # of a copy

    def compromised(self, *, foothold: bool = True) -> int:
        """Types of hosts with a red session, as bits by their place in `network.TYPES`; see `World.compromised`."""
        found = 0
        for bit, number in zip(_TYPE_BITS if foothold else _TYPE_BITS_BESIDE_FOOTHOLD, self.cores, strict=True):
            if number & 3:
                found |= bit
        return found

    def _blue(self, action: int, host: int) -> int:
        """Blue acts; what of it matters to a red action on the same host, see `rules.ALONE`."""
        effect = _EFFECT[action]
        if effect:
            before = self.cores[host]
            after = self.cores[host] = _AFTER_BLUE[effect][before]
            self._view[4 * host : 4 * host + 4] = _VIEW[after]
            if _RESTORES[action]:
                self.decoys[host] = 0
                if action == _RESTORE_SERVER:
                    self.stopped, self._unstoppable = False, True
            return rules.WITH_FINDING if effect == rules.ANALYSED and before & rules.MALWARE else rules.ALONE
        if _MUST_BE_FREE[action] & (_SERVICES[host] | self.decoys[host]):
            return rules.ALONE
        self.decoys[host] |= _OPENS[action]
        return rules.WITH_DECOY

    def _choose(self, number: float) -> None:
        if self.opponent == net.B_LINE:
            stage = min(self._stage + 1, _LAST_STAGE) if self.succeeded else net.B_LINE_JUMPS[self._stage]
            if stage == SERVER_STAGE and not self._planned:
                if self._blind:
                    stage = 1
                else:
                    self._planned = True
            self._stage = stage
            self.kind, self.target = net.B_LINE_STAGES[stage], self._targets[stage]
        elif self.opponent == net.MEANDER:
            self._wanderer.remember(self.kind, self.target, self.succeeded)
            self.kind, self.target = self._wanderer.choose(number)

    def _red(self, beside: int, choice: float, notice: float) -> None:
        """Red's action; ``beside``: what blue has done on its host in this step."""
        cores, host, kind = self.cores, self.target, self.kind
        reached = not _OPERATIONAL[host] or bool((cores[1] | cores[2] | cores[3]) & 3)
        event = rules.NO_EVENT
        self._blind = self.succeeded = False
        if kind == net.EXPLOIT and reached:
            exploit = _chosen(self.ports[host], choice)
            event = _EVENT[host][exploit][self.decoys[host] >> exploit & 1][notice < rules.DETECTED]
            self.succeeded = rules.USER_SEEN <= event <= rules.SSH_SESSION
        elif kind == net.SCAN:
            event = self._scan(host, beside) if reached else rules.NO_EVENT
            self._blind, self.succeeded = not reached, True
        elif kind == net.SWEEP:
            self.succeeded = reached
        elif kind in (net.ESCALATE, net.IMPACT) and cores[host] & 3:
            event = self._deepen(kind, host)
        self._show(event, host, beside)

    def _scan(self, host: int, beside: int) -> int:
        self.ports[host] = _SERVICES[host] | self.decoys[host]
        return (
            rules.NO_EVENT if beside == rules.WITH_DECOY and _FEW_PORTS[host][self.decoys[host]] else rules.SCAN_EVENT
        )

    def _deepen(self, kind: int, host: int) -> int:
        """Escalate or impact, where there is a session."""
        if kind == net.ESCALATE:
            self.succeeded = True
            self._service_known |= host == net.OP_SERVER
            return rules.ESCALATED
        self.succeeded = self._service_known
        self.stopped |= self._service_known and not self._unstoppable
        return rules.NO_EVENT

    def _show(self, event: int, host: int, beside: int) -> None:
        """What an event leaves behind; activity is seen in its own step only."""
        if self._shown >= 0:
            self._view[4 * self._shown] = self._view[4 * self._shown + 1] = 0
            self._shown = -1
        if event:
            self.cores[host] = number = _AFTER_RED[event][beside][self.cores[host]]
            self._view[4 * host : 4 * host + 4] = _SEEN[_ACTIVITY[event][beside]][number]
            self._shown = host


def _chosen(known: int, number: float) -> int:
    """The exploit that red takes, given the ports it knows."""
    if number < rules.PREFERRED:
        return int(_CHOICES[known][0])
    beyond = (number - rules.PREFERRED) / (1 - rules.PREFERRED) * _OTHERS[known]
    return int(_CHOICES[known][int(beyond + 1)])
