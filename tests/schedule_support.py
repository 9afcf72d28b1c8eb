"""What a schedule is driven with in its tests: groups whose chunks arrive when they are told to, and a keeper of nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.lanes.credits import Commit


@dataclass
class FakeGroups:
    """Four groups of two collectors. A granted chunk arrives at the next look, unless its group is mute."""

    then: list[Callable[[], None]] = field(default_factory=list)
    """What happens at each wait that follows; a wait with nothing left to happen would last for ever, and fails."""
    mute: set[int] = field(default_factory=set)
    granted: list[tuple[int, int, int]] = field(default_factory=list)
    arriving: list[Commit] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    left_out: list[int] = field(default_factory=list)
    hurry: bool = False
    """Whether the end of the run is waited for."""
    busy: list[list[int]] = field(default_factory=list)
    """Whom each wait was for."""

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        self.granted.append((group, limit, version))
        if group not in self.mute:
            self.arriving += [Commit(0, group, number, version, last=False, lanes=()) for number in range(chunk, limit)]

    def arrive(self, group: int, chunk: int, version: int = 1, *, last: bool = False) -> None:
        self.arriving.append(Commit(0, group, chunk, version, last=last, lanes=()))

    def take(self) -> list[Commit]:
        taken, self.arriving = self.arriving, []
        return taken

    def wait(self, waiting_for: Sequence[int], control_fd: int) -> None:
        self.busy.append(list(waiting_for))
        if not self.arriving:
            assert self.then, f"waits for ever, for {list(waiting_for)}"
            self.then.pop(0)()

    def present(self) -> list[int]:
        return [group for group in range(4) if group % 2 not in self.gone]

    def lost(self, collector: int) -> list[int]:
        self.gone.add(collector)
        return [collector, collector + 2]

    def leave_out(self, groups: Sequence[int]) -> None:
        self.left_out += groups

    def joined(self, collector: int, incarnation: int) -> list[int]:
        self.gone.discard(collector)
        return [collector, collector + 2]

    def hurried(self) -> bool:
        return self.hurry

    def stop(self) -> list[int]:
        for group in self.present():
            if group not in self.mute:
                self.arrive(group, 99, last=True)
        return self.present()


class FakeKeeper:
    """Keeps nothing."""

    state_due = checkpoint_due = False

    def let_rows_go(self) -> None:
        """There are none."""
