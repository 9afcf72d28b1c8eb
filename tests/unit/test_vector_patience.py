"""Waiting awake: for a moment, offering the core to others, and less and less often if it does not pay."""

from __future__ import annotations

from headrace.core.clock import FakeClock
from headrace.vector.patience import Patience


class Scene:
    """A yield takes as long as is said; what is waited for comes with a yield, or never."""

    def __init__(self, clock: FakeClock, yield_s: float = 1e-5, most_s: float = 5e-4) -> None:
        self.clock, self.yield_s, self.yields = clock, yield_s, 0
        self.patience = Patience(most_s, clock.now, self._give_way)

    def _give_way(self) -> None:
        self.yields += 1
        self.clock.advance(self.yield_s)

    def wait(self, comes_after: int = 10**9) -> bool:
        self.yields = 0
        return self.patience.lasts(lambda: self.yields >= comes_after)

    def slept(self, comes_after: int = 10**9) -> int:
        """Waits that are slept through before the next one that is not."""
        count = 0
        while True:
            came = self.wait(comes_after)
            if self.yields or came:
                return count
            count += 1


def test_what_comes_soon_is_waited_for_awake(clock: FakeClock) -> None:
    scene = Scene(clock)
    assert [scene.wait(comes_after=7) for _ in range(20)] == [True] * 20
    assert scene.yields == 7
    assert scene.wait(comes_after=0)
    assert scene.yields == 0


def test_what_does_not_come_is_slept_through_more_and_more_often(clock: FakeClock) -> None:
    scene = Scene(clock)
    assert not scene.wait()
    assert 49 <= scene.yields <= 52
    assert [scene.slept() for _ in range(10)] == [4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024]


def test_where_others_need_the_core_nobody_waits_awake(clock: FakeClock) -> None:
    scene = Scene(clock, yield_s=0.004)
    assert not scene.wait()
    assert scene.yields == 1
    assert scene.wait(comes_after=1) is False
    assert scene.yields == 0


def test_what_came_while_others_had_the_core_is_taken(clock: FakeClock) -> None:
    scene = Scene(clock, yield_s=0.004)
    assert scene.wait(comes_after=1)
    assert scene.slept(comes_after=1) == 4


def test_it_recovers_when_it_pays_again(clock: FakeClock) -> None:
    scene = Scene(clock)
    for _ in range(5):
        scene.slept()
    assert scene.slept(comes_after=1) == 64
    for _ in range(5):
        assert scene.wait(comes_after=1)
    assert not scene.wait()
    assert scene.slept(comes_after=1) == 4


def test_never_is_never(clock: FakeClock) -> None:
    scene = Scene(clock, most_s=0.0)
    assert not scene.wait(comes_after=0)
    assert scene.yields == 0
