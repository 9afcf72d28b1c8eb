"""Where a replay is to stop: ``1204``, ``update:410``, ``version:9``, ``chunk:3.17``."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.core.errors import ConfigError
from headrace.record.events import ChunkCommitted, PolicyPublished
from headrace.runtime.moments import Moment

Stop = Callable[[Moment], bool]

_FORM = re.compile(r"(?:(update|version|event):)?(\d+)|chunk:(\d+)\.(\d+)")


def parse_until(text: str | int) -> Stop:
    """What tells the moment before which a replay stops.

    Args:
        text: Number of an event, ``update:N``, ``version:N`` (of a published policy) or ``chunk:GROUP.N``.

    Raises:
        ConfigError: It is none of these.
    """
    match = _FORM.fullmatch(str(text).strip())
    if match is None:
        raise ConfigError(
            f"{text!r} names no event of a record",
            expected="1204, event:1204, update:410, version:9 or chunk:3.17 (group 3, chunk 17)",
            fix="write it in one of these forms",
        )
    kind, number, group, chunk = match.groups()
    if group is not None:
        return lambda moment: _is_chunk(moment, int(group), int(chunk))
    wanted = int(number)
    if kind == "update":
        return lambda moment: moment.update == wanted
    if kind == "version":
        return lambda moment: _is_version(moment, wanted)
    return lambda moment: moment.update is None and moment.event == wanted


def _is_chunk(moment: Moment, group: int, chunk: int) -> bool:
    event = moment.upcoming
    if moment.update is not None or not isinstance(event, ChunkCommitted):
        return False
    return (event.group, event.chunk) == (group, chunk)


def _is_version(moment: Moment, version: int) -> bool:
    return moment.update is None and isinstance(moment.upcoming, PolicyPublished) and moment.upcoming.version == version
