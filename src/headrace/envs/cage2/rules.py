"""What an action does to one host, as functions of few small numbers, and the tables made from them.

A host's *core* is one number: red's level there (0-3), whether malware lies on its disk, and what blue believes. `World` and
`Solo` look everything up here, so that there is one set of rules however many copies are played at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.envs.cage2 import network as net

NO_SESSION, REMOVABLE, STUBBORN, PRIVILEGED = range(4)
"""Red's level on a host. A removable session is one whose process blue has seen; no other is ended by Remove."""

BELIEVED_NO, BELIEVED_UNKNOWN, BELIEVED_USER, BELIEVED_PRIVILEGED = range(4)
"""What blue believes of a host; its two bits are those of the observation, lower one first."""

QUIET, SCANNED, EXPLOITED = range(3)
"""Activity that blue sees on a host in one step."""

CORES: Final = 32
MALWARE: Final = 4
"""The bit of a core that says there is some."""


def core(level: int, malware: bool, belief: int) -> int:
    """One number for all three."""
    return level | malware * MALWARE | belief << 3


def parts(number: int) -> tuple[int, bool, int]:
    """Level, malware and belief of a core."""
    return number & 3, bool(number & MALWARE), number >> 3


FOOTHOLD_CORE: Final = core(PRIVILEGED, malware=False, belief=BELIEVED_NO)
"""Of the host that red begins on."""

# Blue

UNTOUCHED, ANALYSED, CLEANED, RESTORED, RESTORED_FOOTHOLD = range(5)
"""What a blue action does to its host's core."""


def after_blue(effect: int, number: int) -> int:
    """A host's core after a blue action on it."""
    level, malware, belief = parts(number)
    if effect == ANALYSED and malware:
        belief = BELIEVED_PRIVILEGED
    elif effect == CLEANED:
        level = NO_SESSION if level == REMOVABLE else level
        belief = BELIEVED_UNKNOWN if belief != BELIEVED_NO else BELIEVED_NO
    elif effect in (RESTORED, RESTORED_FOOTHOLD):
        # Red's first session is part of the backup of the host it began on.
        level, malware, belief = PRIVILEGED * (effect == RESTORED_FOOTHOLD), False, BELIEVED_NO
    return core(level, malware, belief)


def effect_of(action: net.Action) -> int:
    """What an action does to its host's core."""
    if action.kind == net.RESTORE:
        return RESTORED_FOOTHOLD if action.host == net.FOOTHOLD else RESTORED
    return {net.ANALYSE: ANALYSED, net.REMOVE: CLEANED}.get(action.kind, UNTOUCHED)


def decoy_bits(action: net.Action) -> tuple[int, int, int]:
    """Ports as bits: which must all be unused for a decoy to be placed, which it opens, which decoys stay.

    A host has an open port, so asking for all of them to be unused means never.
    """
    keep = 0 if action.kind == net.RESTORE else 255
    if action.kind != net.DECOY:
        return 255, 0, keep
    decoy = net.DECOYS[action.decoy]
    if decoy.system not in (None, net.IMAGES[action.host].system):
        return 255, 0, keep
    return 1 << decoy.must_be_free, 1 << decoy.opens, keep


# Red

(
    NO_EVENT,
    SCAN_EVENT,
    USER_SEEN,
    USER_UNSEEN,
    ROOT_SEEN,
    ROOT_UNSEEN,
    SSH_SESSION,
    SSH_FAILED,
    DECOY_HIT,
    ESCALATED,
) = range(10)
"""What a red action comes to on its host."""
EVENTS: Final = 10

ALONE, WITH_DECOY, WITH_FINDING = range(3)
"""What blue did on the host of red's action in the same step: nothing of interest, placed a decoy, found malware."""

DETECTED: Final = 0.95
"""Probability that a reverse shell is noticed when it opens."""
PREFERRED: Final = 0.75
"""Probability that red takes the exploit it prefers, where it has a choice."""
NO_EXPLOIT: Final = len(net.EXPLOITS)


def exploit_event(host: int, exploit: int, decoyed: bool, seen: bool) -> int:
    """What comes of an exploit.

    Args:
        host: Where.
        exploit: Which; `NO_EXPLOIT` where red knows no port.
        decoyed: Whether a decoy listens on the exploit's port.
        seen: Whether a reverse shell would be noticed.
    """
    outcome = net.IMAGES[host].services.get(exploit, net.NOTHING)
    if outcome == net.USER_SHELL:
        return USER_SEEN if seen else USER_UNSEEN
    if outcome == net.ROOT_SHELL:
        return ROOT_SEEN if seen else ROOT_UNSEEN
    if outcome == net.SSH_LOGIN:
        return SSH_SESSION
    if outcome == net.SSH_REFUSED or (decoyed and exploit == net.SSH):
        return SSH_FAILED
    return DECOY_HIT if decoyed else NO_EVENT


def activity(event: int, beside: int) -> int:
    """What blue sees of an event.

    Args:
        event: What happened.
        beside: What blue did there. A decoy that it has just placed is counted among the connections.
    """
    if event == SCAN_EVENT:
        return SCANNED
    if event in (USER_SEEN, ROOT_SEEN, SSH_SESSION, SSH_FAILED):
        return EXPLOITED
    if event in (USER_UNSEEN, ROOT_UNSEEN):
        return QUIET if beside == WITH_DECOY else SCANNED
    if event == DECOY_HIT:
        return EXPLOITED if beside == WITH_DECOY else SCANNED
    return QUIET


def after_red(event: int, beside: int, number: int) -> int:
    """A host's core after a red action on it and what blue makes of it."""
    level, malware, belief = parts(number)
    if event in (ROOT_SEEN, ROOT_UNSEEN) or (event == ESCALATED and level != NO_SESSION):
        malware = malware or event != ESCALATED or level != PRIVILEGED
        level = PRIVILEGED
    elif event == USER_SEEN:
        level, malware = max(level, REMOVABLE), True
    elif event == USER_UNSEEN:
        level, malware = max(level, STUBBORN), True
    elif event == SSH_SESSION:
        level = max(level, STUBBORN)
    if activity(event, beside) == EXPLOITED and beside != WITH_FINDING:  # files are looked at after connections
        belief = BELIEVED_USER
    return core(level, malware, belief)


def exploits_by_preference(ports: int) -> list[int]:
    """The exploits that red considers, given the ports it knows as bits, the preferred one first."""
    web = ports >> net.HTTPS & 1 or ports >> net.HTTP & 1
    return [e for e in range(len(net.EXPLOITS)) if ports >> e & 1 and (e != net.SQL or web)]


def few_ports(host: int, decoys: int) -> bool:
    """Whether a scan is taken for nothing in the step in which blue places a decoy there."""
    return (services(host) | decoys).bit_count() + net.IMAGES[host].other_ports < 3


def services(host: int) -> int:
    """Ports of real services, as bits."""
    return sum(1 << port for port in net.IMAGES[host].services)


# Tables

_HOSTS = range(len(net.HOSTS))


def _table(*shape: int) -> NDArray[np.uint8]:
    return np.zeros(shape, np.uint8)


def _after_blue_table() -> NDArray[np.uint8]:
    return np.array([[after_blue(effect, c) for c in range(CORES)] for effect in range(5)], np.uint8)


def _after_red_table() -> NDArray[np.uint8]:
    return np.array(
        [[[after_red(event, b, c) for c in range(CORES)] for b in range(3)] for event in range(EVENTS)], np.uint8
    )


def _event_table() -> NDArray[np.uint8]:
    table = _table(len(net.HOSTS), NO_EXPLOIT + 1, 2, 2)
    for index in np.ndindex(*table.shape):
        host, exploit, decoyed, seen = index
        table[index] = exploit_event(host, exploit, bool(decoyed), bool(seen))
    return table


def _choice_tables() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    choices, others = np.full((256, len(net.EXPLOITS)), NO_EXPLOIT, np.uint8), _table(256)
    for ports in range(256):
        found = exploits_by_preference(ports)
        others[ports] = max(len(found) - 1, 0)
        if found:
            choices[ports, : len(found)] = found
        if len(found) == 1:
            choices[ports, 1] = found[0]  # what the draw for another one leads to
    return choices, others


AFTER_BLUE: Final = _after_blue_table()
"""[effect, core] -> core."""
AFTER_RED: Final = _after_red_table()
"""[event, beside, core] -> core."""
ACTIVITY: Final = np.array([[activity(event, b) for b in range(3)] for event in range(EVENTS)], np.uint8)
"""[event, beside] -> activity."""
EVENT: Final = _event_table()
"""[host, exploit, decoyed, seen] -> event."""
CHOICES, OTHERS = _choice_tables()
"""[known ports, place] -> exploit, and [known ports] -> how many there are beside the preferred one."""
FEW_PORTS: Final = np.array([[few_ports(host, decoys) for decoys in range(256)] for host in _HOSTS], np.bool_)
"""[host, decoys]."""
SERVICES: Final = np.array([services(host) for host in _HOSTS], np.uint8)
"""[host] -> ports as bits."""

EFFECT: Final = np.array([effect_of(action) for action in net.ACTIONS], np.uint8)
"""[action] -> what it does to the core."""
TARGET: Final = np.array([action.host for action in net.ACTIONS], np.int64)
"""[action] -> host."""
MUST_BE_FREE, OPENS, KEEPS = np.array([decoy_bits(action) for action in net.ACTIONS], np.uint8).T.copy()
"""[action] -> ports as bits, see `decoy_bits`."""

BELIEF_VIEW: Final = np.array([[0, 0, c >> 3 & 1, c >> 4] for c in range(CORES)], np.uint8)
"""[core] -> four bits of observation."""
ACTIVITY_VIEW: Final = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]], np.uint8)
"""[activity] -> the same."""

NTH_BIT: Final = np.array(
    [[([b for b in _HOSTS if mask >> b & 1] + [0] * 13)[place] for place in _HOSTS] for mask in range(1 << 13)],
    np.uint8,
)
"""[hosts as bits, place] -> host."""
COUNT: Final = np.array([mask.bit_count() for mask in range(1 << 13)], np.uint8)
"""[hosts as bits] -> how many."""
