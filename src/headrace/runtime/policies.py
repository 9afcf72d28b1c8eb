"""Policies of a record, by version, for the collectors of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.arrays import aligned
from headrace.weights.snapshot import SnapshotLayout

Arrays = Mapping[str, NDArray[Any]]
_NEWEST = 8
"""Policies that are kept in any case."""


class Policies:
    """Published policies, kept as long as the record still refers to them.

    Args:
        last_use: Number of the last event that refers to each version.
    """

    def __init__(self, last_use: Mapping[int, int]) -> None:
        self._last_use = last_use
        self._kept: dict[int, Arrays] = {}

    @property
    def versions(self) -> list[int]:
        """Those that are kept, the newest first."""
        return sorted(self._kept, reverse=True)

    def of(self, version: int) -> Arrays | None:
        """A policy that is kept."""
        return self._kept.get(version)

    def keep(self, version: int, layout: SnapshotLayout, arrays: Arrays) -> None:
        """Copy a policy that has just been published."""
        views = layout.views(aligned((layout.payload_bytes,), np.uint8))
        for name, view in views.items():
            np.copyto(view, arrays[name], casting="no")
        self._kept[version] = views

    def forget_before(self, event: int) -> None:
        """Drop those that no event from this one on refers to, but for the newest few, which a wrong action may fit."""
        for version in self.versions[_NEWEST:]:
            if self._last_use.get(version, -1) < event:
                del self._kept[version]


class PinnedPolicy:
    """Gives a collector the very version the record names; a `headrace.collectors.collector.PolicySource`."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._wanted = 0
        self.version = 0
        """Of the policy in use."""
        self.arrays: Arrays = {}
        """All that acting needs."""

    def pin(self, version: int) -> None:
        """Give this version from the next `refresh` on."""
        self._wanted = version

    def refresh(self) -> bool:
        """Take the version that is pinned; whether it is another one."""
        arrays = self._policies.of(self._wanted)
        if self._wanted == self.version or arrays is None:
            return False
        self.version, self.arrays = self._wanted, arrays
        return True
