"""Hides packages that are installed, as where an extra is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence


class _Hiding:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(monkeypatch, *packages: str, importers: Sequence[str] = ()) -> None:
    """Let Python find no such package any more, nor remember modules below `importers`, which have imported it."""
    for name in list(sys.modules):
        if any(name == one or name.startswith(f"{one}.") for one in (*packages, *importers)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Hiding(packages), *sys.meta_path])
