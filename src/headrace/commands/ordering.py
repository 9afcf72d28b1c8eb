"""Who may be started, who is to be stopped next, who can never be started. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Needs = Mapping[str, Sequence[str]]
"""By process: whom it needs."""


def ring(needs: Needs) -> list[str]:
    """Processes that need each other in a circle; empty if there is none."""
    clear: set[str] = set()
    for start in needs:
        path: list[str] = []
        found = _walk(start, needs, path, clear)
        if found:
            return found
    return []


def _walk(name: str, needs: Needs, path: list[str], clear: set[str]) -> list[str]:
    if name in path:
        return path[path.index(name) :]
    if name in clear:
        return []
    path.append(name)
    for needed in needs.get(name, ()):
        found = _walk(needed, needs, path, clear)
        if found:
            return found
    path.pop()
    clear.add(name)
    return []


def startable(needs: Needs, waiting: Collection[str], ready: Collection[str]) -> list[str]:
    """Those that wait and have all they need, in the order of the file."""
    return [name for name in needs if name in waiting and all(needed in ready for needed in needs[name])]


def blocked_by(name: str, needs: Needs, ready: Collection[str]) -> str | None:
    """The first one it needs that is not ready."""
    return next((needed for needed in needs[name] if needed not in ready), None)


def hopeless(needs: Needs, waiting: Collection[str], gone: Collection[str]) -> dict[str, str]:
    """Those that wait for one that will never be ready, and for whom, also through others."""
    found: dict[str, str] = {}
    lost = set(gone)
    for _ in needs:
        for name in needs:
            missing = next((needed for needed in needs[name] if needed in lost), None)
            if name in waiting and name not in found and missing is not None:
                found[name] = missing
                lost.add(name)
    return found


def next_to_stop(needs: Needs, alive: Collection[str]) -> list[str]:
    """Those that nobody who is alive needs any more: they are stopped first, in the reverse order of the file."""
    needed = {one for name in alive for one in needs[name]}
    return [name for name in reversed(list(needs)) if name in alive and name not in needed]


def needed_by(name: str, needs: Needs) -> list[str]:
    """All that need it, also through others, in the order of the file."""
    found: set[str] = {name}
    for _ in needs:
        found |= {one for one in needs if any(needed in found for needed in needs[one])}
    return [one for one in needs if one in found and one != name]
