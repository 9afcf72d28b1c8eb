"""Draws the network as text, or into an array with Pillow: no window, no display."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from headrace.envs.cage2 import network as net
from headrace.envs.cage2 import rules

FPS = 4
"""Steps a second at which an episode is pleasant to watch."""

WIDTH, HEIGHT = 420, 240
"""Pixels of a picture."""

_LEVELS = ("-", "user", "user", "privileged")
_BELIEFS = ("no", "unknown", "user", "privileged")
_ACTIVITIES = ("-", "scan", "exploit")
_COLUMNS = "{:<12} {:<11} {:<11} {:<11} {}"

_GROUND, _INK, _LINK = (246, 246, 242), (60, 60, 66), (200, 200, 200)
_LEVEL_COLOURS = ((120, 180, 120), (240, 190, 80), (240, 150, 60), (204, 60, 60))
_BELIEF_COLOURS = ((120, 180, 120), (170, 170, 170), (240, 170, 70), (204, 60, 60))
_ROWS = {net.USER: 40, net.ENTERPRISE: 115, net.OPERATIONAL: 190}
_SIZE = 11


def table(cores: Sequence[int], seen: Sequence[int], decoys: Sequence[int], title: str) -> str:
    """The network as text: what is so, and what blue sees and believes.

    Args:
        cores: Of the hosts, see `rules.core`.
        seen: The observation, 52 bits.
        decoys: Ports of each host's decoys, as bits.
        title: First line.
    """
    lines = [title, _COLUMNS.format("host", "red", "seen", "believed", "decoys on")]
    for host, name in enumerate(net.HOSTS):
        level, _, belief = rules.parts(cores[host])
        activity = seen[4 * host] + seen[4 * host + 1]
        ports = ",".join(str(port) for place, port in enumerate(net.PORTS) if decoys[host] >> place & 1)
        lines.append(_COLUMNS.format(name, _LEVELS[level], _ACTIVITIES[activity], _BELIEFS[belief], ports).rstrip())
    return "\n".join(lines)


def draw(cores: Sequence[int], seen: Sequence[int], stopped: bool) -> NDArray[np.uint8]:
    """The network as a picture: a square's inside is what is so, its frame what blue believes; a ring is activity.

    Args:
        cores: Of the hosts.
        seen: The observation, 52 bits.
        stopped: Whether the operational service is stopped, which crosses its server out.

    Returns:
        uint8 [240, 420, 3], a new array.
    """
    picture = Image.new("RGB", (WIDTH, HEIGHT), _GROUND)
    pen = ImageDraw.Draw(picture)
    places = [_place(host) for host in range(len(net.HOSTS))]
    for one, other in net.LINKS.items():
        pen.line((places[one], places[other]), fill=_LINK, width=2)
    for host, (x, y) in enumerate(places):
        level, _, belief = rules.parts(cores[host])
        box = (x - _SIZE, y - _SIZE, x + _SIZE, y + _SIZE)
        pen.rectangle(box, fill=_LEVEL_COLOURS[level], outline=_BELIEF_COLOURS[belief], width=4)
        if seen[4 * host]:
            edge = _SIZE + 6
            pen.ellipse((x - edge, y - edge, x + edge, y + edge), outline=_INK, width=1 + 2 * seen[4 * host + 1])
        if stopped and host == net.OP_SERVER:
            pen.line((box[:2], box[2:]), fill=_INK, width=3)
        pen.text((x, y + _SIZE + 12), net.HOSTS[host], fill=_INK, anchor="mm", font_size=10)
    return np.array(picture, dtype=np.uint8)


def _place(host: int) -> tuple[int, int]:
    subnet = net.SUBNET_OF[host]
    hosts = net.SUBNET_HOSTS[subnet]
    return round(WIDTH * (hosts.index(host) + 0.5) / len(hosts)), _ROWS[subnet]
