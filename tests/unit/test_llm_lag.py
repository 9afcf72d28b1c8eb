"""How far rollouts may be ahead: the bound always holds, and something can always go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.llm.orchestration.lag import Limits, Standing, admissible, lags, too_old


@dataclass(frozen=True)
class World:
    """Orchestrator and trainer, as far as versions go. Groups are the versions of their oldest tokens, sorted."""

    trained: int = 0  # version that is published
    served: int = 0
    shipped: int = 0
    running: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    worst: int = 0

    def standing(self) -> Standing:
        return Standing(version=self.served, shipped=self.shipped, pending=len(self.kept), in_flight=len(self.running))


def swept(world: World, limits: Limits) -> World:
    old = set(too_old(dict(enumerate((*world.running, *world.kept))), world.shipped, limits.max_lag))
    count = len(world.running)
    return replace(
        world,
        running=tuple(v for i, v in enumerate(world.running) if i not in old),
        kept=tuple(v for i, v in enumerate(world.kept) if i + count not in old),
    )


def moves(world: World, limits: Limits) -> Iterator[tuple[str, World]]:
    """Everything that may happen next. The orchestrator sweeps, and begins groups, whenever it looks."""
    if admissible(limits, world.standing()):
        yield "begin", replace(world, running=tuple(sorted((*world.running, world.served))))
    for index, version in enumerate(world.running):
        if version in world.running[:index]:
            continue
        rest = world.running[:index] + world.running[index + 1 :]
        yield "lose", replace(world, running=rest)  # failed or filtered
        yield "keep", replace(world, running=rest, kept=tuple(sorted((*world.kept, version))))
    if len(world.kept) >= limits.per_step:
        # The oldest first, as the orchestrator does.
        batch, rest = world.kept[: limits.per_step], world.kept[limits.per_step :]
        worst = max(world.worst, *lags(world.shipped, batch))
        yield "ship", swept(replace(world, kept=rest, shipped=world.shipped + 1, worst=worst), limits)
    if world.trained < world.shipped:
        yield "train", replace(world, trained=world.trained + 1)
    if world.served < world.trained:
        yield "serve", replace(world, served=world.trained)


def over(world: World, limits: Limits) -> bool:
    return world.trained == limits.steps


@pytest.mark.parametrize("max_lag", [0, 1, 2])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_every_state_that_can_be_reached_holds_the_bound_and_leads_to_the_end(max_lag: int, in_flight: int) -> None:
    limits = Limits(max_lag=max_lag, per_step=2, in_flight=in_flight, steps=4)
    seen, todo = {World()}, [World()]
    leads: dict[World, set[World]] = {}
    while todo:
        world = todo.pop()
        assert world.worst <= max_lag
        assert world.shipped <= limits.steps
        following = [other for _, other in moves(world, limits)]
        assert following or over(world, limits), f"nothing can go on: {world}"
        for other in following:
            leads.setdefault(other, set()).add(world)
            if other not in seen:
                seen.add(other)
                todo.append(other)
        if not max_lag and world.served == world.shipped and world.served:
            assert all(version == world.served for version in (*world.running, *world.kept))
    # From everywhere the end can be reached: nothing runs in circles for ever.
    ending = [world for world in seen if over(world, limits)]
    reached = set(ending)
    while ending:
        for before in leads.get(ending.pop(), ()):
            if before not in reached:
                reached.add(before)
                ending.append(before)
    assert reached == seen
    assert max(world.worst for world in seen) == max_lag  # what is allowed can happen


def test_at_lag_zero_nothing_runs_when_weights_change() -> None:
    limits = Limits(max_lag=0, per_step=3, in_flight=5, steps=9)
    for running in range(4):
        for pending in range(4 - running):
            now = Standing(version=2, shipped=2, pending=pending, in_flight=running)
            assert running + pending + admissible(limits, now) == 3
    assert admissible(limits, Standing(version=2, shipped=3, pending=0, in_flight=0)) == 0


@given(
    max_lag=st.integers(0, 5),
    per_step=st.integers(1, 4),
    in_flight=st.integers(1, 20),
    choices=st.lists(st.integers(0, 10**6), min_size=50, max_size=200),
)
@settings(max_examples=50)
def test_the_bound_holds_on_any_way(max_lag: int, per_step: int, in_flight: int, choices: list[int]) -> None:
    limits = Limits(max_lag=max_lag, per_step=per_step, in_flight=in_flight, steps=20)
    world = World()
    for choice in choices:
        possible = list(moves(world, limits))
        if not possible:
            assert over(world, limits)
            return
        world = possible[choice % len(possible)][1]
        assert world.worst <= max_lag
        assert len(world.running) <= in_flight


def test_no_group_is_begun_that_nobody_will_train_on() -> None:
    limits = Limits(max_lag=4, per_step=2, in_flight=99, steps=3)
    assert admissible(limits, Standing(version=0, shipped=2, pending=1, in_flight=0)) == 1
    assert admissible(limits, Standing(version=3, shipped=3, pending=0, in_flight=0)) == 0
