"""The check that a vector environment loses, mixes up and delays nothing: it has to notice every way of doing so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headrace.core.errors import ConfigError
from headrace.testing.vectorcheck import (
    ACTIONS,
    CountingEnv,
    CountingFactory,
    NotASuccessor,
    Place,
    Provocation,
    Rows,
    Soak,
    SuccessorCheck,
    provocations,
)

ENVS = 3
IDS = np.arange(ENVS)
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
Change = Callable[[Rows], Rows]


def recorded(folder: Path, mode: AutoresetMode, batches: int = 130) -> tuple[np.ndarray, list[Rows]]:
    """What an honest vector environment returns: the observations of its reset, and rows."""
    envs = SyncVectorEnv([CountingFactory(env, folder, {}) for env in range(ENVS)], autoreset_mode=mode)
    draws, found = np.random.default_rng(3), []
    begun, _ = envs.reset(seed=1)
    begun = begun.copy()
    for _ in range(batches):
        actions = draws.integers(ACTIONS, size=ENVS)
        *returned, infos = envs.step(actions)
        found.append(Rows.of(IDS, actions, returned, np.ones(ENVS, bool), infos))
    envs.close()
    return begun, found


@pytest.fixture(params=MODES, ids=[mode.name for mode in MODES], scope="module")
def mode(request: pytest.FixtureRequest) -> AutoresetMode:
    return request.param


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, mode: AutoresetMode) -> tuple[np.ndarray, list[Rows]]:
    return recorded(tmp_path_factory.mktemp("honest"), mode)


def checked(mode: AutoresetMode, begun: np.ndarray, rows: list[Rows]) -> SuccessorCheck:
    check = SuccessorCheck(mode)
    check.begin(IDS.tolist(), begun)
    for batch in rows:
        check.rows(batch)
    return check


def with_value(name: str, at: int, value: Any) -> Change:
    def change(rows: Rows) -> Rows:
        values = list(getattr(rows, name))
        values[at] = value
        return dataclasses.replace(rows, **{name: values})

    return change


def fault(kind: str, at: int = 1) -> dict[str, Any]:
    mask = np.arange(ENVS) == at
    texts = np.where(mask, kind, None)
    return {"headrace": {"fault": texts, "_fault": mask, "message": texts, "_message": mask}, "_headrace": mask}


def cut(rows: Rows, last: list[int], kind: str = "hung", at: int = 1) -> Rows:
    """The row of an environment that hung, as it has to look under NEXT_STEP."""
    changed = {"observations": last, "rewards": 0.0, "terminations": False, "truncations": True, "valid": False}
    for name, value in changed.items():
        rows = with_value(name, at, value)(rows)
    return dataclasses.replace(rows, infos=fault(kind, at))


def goes_on_after_a_cut(begun: np.ndarray, copy: int = 2, episode: int = 0) -> list[Rows]:
    """Two batches: environment 1 hangs in the first and is a new copy in the second."""
    actions = [5, 6, 7]
    first = [Place(*obs).after(action) for obs, action in zip(begun.tolist(), actions, strict=True)]
    assert not any(any(place.ended) for place in first[1:])
    rows = batch(actions, first)
    second = [place.after(action) for place, action in zip(first, actions, strict=True)]
    second[0] = first[0].next_episode()
    second[1] = Place.beginning(1, copy, episode)
    resets = with_value("rewards", 0, 0.0)(with_value("rewards", 1, 0.0)(batch(actions, second)))
    return [cut(rows, begun[1].tolist()), with_value("terminations", 0, value=False)(resets)]


def batch(actions: list[int], places: list[Place]) -> Rows:
    mask = np.array([bool(place.info) for place in places])
    infos = {"trace": np.array([place.trace for place in places]), "_trace": mask} if mask.any() else {}
    ended = [place.ended if place.step else (False, False) for place in places]
    terminations, truncations = ([flags[at] for flags in ended] for at in (0, 1))
    return Rows(
        IDS.tolist(), actions, [list(place) for place in places], [place.reward for place in places],
        terminations, truncations, [True] * ENVS, infos,
    )  # fmt: skip


def test_honest_rows_pass(mode: AutoresetMode, honest: tuple[np.ndarray, list[Rows]]) -> None:
    counts = checked(mode, *honest).counts
    rows = ENVS * len(honest[1])
    assert counts["transitions"] + (counts["resets"] - ENVS if mode is AutoresetMode.NEXT_STEP else 0) == rows
    assert counts["resets"] > 3 * ENVS
    assert counts["infos"] > rows / 20
    assert counts["cuts"] == 0


def swapped(rows: Rows) -> Rows:
    return dataclasses.replace(rows, observations=rows.observations[::-1])


BAD: dict[str, Change] = {
    "rows of two environments": swapped,
    "another action": lambda rows: dataclasses.replace(rows, actions=[action + 1 for action in rows.actions]),
    "a reward": with_value("rewards", 2, 0.5),
    "terminated": with_value("terminations", 2, value=True),
    "truncated": with_value("truncations", 2, value=True),
    "an info that is not there": lambda rows: dataclasses.replace(
        rows, infos={"trace": np.zeros(ENVS, int), "_trace": np.ones(ENVS, bool)}
    ),
    "a fault told of a valid row": lambda rows: dataclasses.replace(rows, infos={**rows.infos, **fault("hung")}),
    "not valid, and nobody says why": with_value("valid", 1, value=False),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_wrong_row_is_noticed(mode: AutoresetMode, honest: tuple[np.ndarray, list[Rows]], change: Change) -> None:
    begun, rows = honest
    with pytest.raises(NotASuccessor, match="env "):
        checked(mode, begun, [*rows[:3], change(rows[3])])


@pytest.mark.parametrize("late", ["the batch before again", "a batch left out"])
def test_a_late_batch_is_noticed(mode: AutoresetMode, honest: tuple[np.ndarray, list[Rows]], late: str) -> None:
    begun, rows = honest
    order = [*rows[:4], rows[3]] if late == "the batch before again" else [*rows[:3], rows[4]]
    with pytest.raises(NotASuccessor):
        checked(mode, begun, order)


def test_a_late_observation_with_the_right_action_is_noticed(
    mode: AutoresetMode, honest: tuple[np.ndarray, list[Rows]]
) -> None:
    begun, rows = honest
    stale = dataclasses.replace(rows[3], observations=rows[2].observations)
    with pytest.raises(NotASuccessor, match="the observation"):
        checked(mode, begun, [*rows[:3], stale])


def test_infos_left_out_are_noticed(mode: AutoresetMode, honest: tuple[np.ndarray, list[Rows]]) -> None:
    begun, rows = honest
    without = [dataclasses.replace(batch, infos={**batch.infos, "_trace": np.zeros(ENVS, bool)}) for batch in rows]
    with pytest.raises(NotASuccessor, match="wanted info"):
        checked(mode, begun, without)


@pytest.mark.parametrize("key", ["final_obs", "final_info"])
def test_a_final_observation_left_out_is_noticed(tmp_path: Path, key: str) -> None:
    begun, rows = recorded(tmp_path, AutoresetMode.SAME_STEP, batches=800)
    without = [
        dataclasses.replace(batch, infos={name: value for name, value in batch.infos.items() if key not in name})
        for batch in rows
    ]
    with pytest.raises(NotASuccessor, match=f"wanted {key}"):
        checked(AutoresetMode.SAME_STEP, begun, without)


def test_a_row_after_the_end_of_an_episode_is_noticed(tmp_path: Path) -> None:
    begun, _ = recorded(tmp_path, AutoresetMode.NEXT_STEP, batches=1)
    first = [Place(*obs).after(4) for obs in begun.tolist()]
    assert any(first[0].ended)
    second = [place.after(4) for place in first]
    with pytest.raises(NotASuccessor, match="came as a reset after"):
        checked(AutoresetMode.NEXT_STEP, begun, [batch([4] * ENVS, first), batch([4] * ENVS, second)])
    with pytest.raises(NotASuccessor, match="no row after the end"):
        checked(AutoresetMode.DISABLED, begun, [batch([4] * ENVS, first), batch([4] * ENVS, second)])


def begun_of(folder: Path) -> np.ndarray:
    return recorded(folder, AutoresetMode.NEXT_STEP, batches=1)[0]


def test_a_cut_that_says_so_passes(tmp_path: Path) -> None:
    begun = begun_of(tmp_path)
    check = checked(AutoresetMode.NEXT_STEP, begun, goes_on_after_a_cut(begun))
    assert [(told.env, told.copy, told.kind) for told in check.told] == [(1, 1, "hung")]
    assert check.counts["cuts"] == 1


CUTS: dict[str, Change] = {
    "made up": with_value("observations", 1, [1, 1, 0, 1, 0]),
    "of its successor": with_value("observations", 1, list(Place.beginning(1, 1, 0).after(6))),
    "rewarded": with_value("rewards", 1, 1.0),
    "not truncated": with_value("truncations", 1, value=False),
    "terminated": with_value("terminations", 1, value=True),
}


@pytest.mark.parametrize("change", CUTS.values(), ids=CUTS)
def test_a_cut_that_makes_something_up_is_noticed(tmp_path: Path, change: Change) -> None:
    begun = begun_of(tmp_path)
    first, _ = goes_on_after_a_cut(begun)
    with pytest.raises(NotASuccessor, match="env 1"):
        checked(AutoresetMode.NEXT_STEP, begun, [change(first)])


def test_a_cut_that_nobody_tells_of_is_noticed(tmp_path: Path) -> None:
    begun = begun_of(tmp_path)
    first, _ = goes_on_after_a_cut(begun)
    with pytest.raises(NotASuccessor, match="wanted a fault that is told"):
        checked(AutoresetMode.NEXT_STEP, begun, [dataclasses.replace(first, infos={})])


@pytest.mark.parametrize("episode", [0, 1])
def test_after_a_cut_the_old_copy_is_noticed(tmp_path: Path, episode: int) -> None:
    begun = begun_of(tmp_path)
    first, _ = goes_on_after_a_cut(begun)
    same_copy = goes_on_after_a_cut(begun, copy=1, episode=episode)[1]
    with pytest.raises(NotASuccessor, match="came as a reset after"):
        checked(AutoresetMode.NEXT_STEP, begun, [first, same_copy])


def test_another_copy_without_a_word_is_noticed(tmp_path: Path) -> None:
    begun = begun_of(tmp_path)
    places = [Place(*obs).after(1) for obs in begun.tolist()]
    places[0] = Place.beginning(0, 2, 0)
    rows = dataclasses.replace(batch([1] * ENVS, places), infos={})
    with pytest.raises(NotASuccessor, match="env 0"):
        checked(AutoresetMode.NEXT_STEP, begun, [rows])


def provoked(copy: int, what: str = "sleep", env: int = 1) -> Provocation:
    return Provocation(env, copy, what, 0, 0)


@pytest.fixture
def after_a_cut(tmp_path: Path) -> Iterator[SuccessorCheck]:
    begun = begun_of(tmp_path)
    return checked(AutoresetMode.NEXT_STEP, begun, goes_on_after_a_cut(begun))


def test_what_was_provoked_and_told_is_accounted_for(after_a_cut: SuccessorCheck) -> None:
    never_seen, not_yet = provoked(3), provoked(1, env=2)
    assert after_a_cut.unaccounted([provoked(1), never_seen, not_yet]) == []


def test_what_was_told_otherwise_is_found(after_a_cut: SuccessorCheck) -> None:
    [found] = after_a_cut.unaccounted([provoked(1, "sigkill")])
    assert "sigkill" in found
    assert "['hung']" in found


def test_what_was_told_and_not_provoked_is_found(after_a_cut: SuccessorCheck) -> None:
    [found] = after_a_cut.unaccounted([])
    assert found.startswith("told and not provoked: Told(env=1, copy=1, kind='hung'")


def test_what_was_provoked_and_not_told_is_found(after_a_cut: SuccessorCheck) -> None:
    after_a_cut.told.clear()
    [found] = after_a_cut.unaccounted([provoked(1)])
    assert found.startswith("provoked and not told: Provocation(env=1, copy=1, what='sleep'")


def test_an_environment_that_went_down_with_another_was_not_provoked(tmp_path: Path) -> None:
    begun = begun_of(tmp_path)
    first, second = goes_on_after_a_cut(begun)
    lost = dataclasses.replace(first, infos=fault("lost-with-worker"))
    check = checked(AutoresetMode.NEXT_STEP, begun, [lost, second])
    assert check.unaccounted([]) == []
    assert check.unaccounted([provoked(1)]) == []


def step_often(env: CountingEnv) -> None:
    for _ in range(200):
        env.step(np.int64(0))


def test_every_copy_is_counted_and_notes_what_it_does(tmp_path: Path) -> None:
    factory = CountingFactory(4, tmp_path, {"raises": 0.5}, seed=2)
    for copy in (1, 2, 3):
        env = factory()
        obs, _ = env.reset()
        assert Place(*obs.tolist()) == Place.beginning(4, copy, 0)
        with pytest.raises(ValueError, match="provoked by headrace"):
            step_often(env)
    assert [(found.env, found.copy, found.what) for found in provocations(tmp_path)] == [
        (4, copy, "raises") for copy in (1, 2, 3)
    ]


def test_in_threads_nobody_can_say_who_ended_the_process(tmp_path: Path) -> None:
    begun = begun_of(tmp_path)
    first, second = goes_on_after_a_cut(begun)
    died = dataclasses.replace(first, infos=fault("died"))
    check = checked(AutoresetMode.NEXT_STEP, begun, [died, second])
    assert check.unaccounted([], threaded=True) == []
    assert len(check.unaccounted([])) == 1


def test_between_episodes_a_copy_may_be_replaced(tmp_path: Path) -> None:
    begun = begun_of(tmp_path)
    first = [Place(*obs).after(4) for obs in begun.tolist()]
    second = [Place.beginning(0, 2, 0), *(place.after(4) for place in first[1:])]
    rows = batch([4] * ENVS, second)
    rows = with_value("rewards", 0, 0.0)(rows)
    check = checked(AutoresetMode.NEXT_STEP, begun, [batch([4] * ENVS, first), rows])
    assert check.told == []
    told = dataclasses.replace(rows, infos={**rows.infos, **fault("hung", at=0)})
    check = checked(AutoresetMode.NEXT_STEP, begun, [batch([4] * ENVS, first), told])
    assert [(fault.env, fault.copy, fault.kind) for fault in check.told] == [(0, 1, "hung")]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": 7}, "a soak would check nothing"),
        ({"as_ready": True, "mode": AutoresetMode.DISABLED}, "have to reset themselves"),
    ],
)
def test_a_soak_that_would_check_nothing_or_blame_nobody_is_refused(change: dict[str, Any], text: str) -> None:
    settings = {"rows": 8, "num_envs": 8, "mode": AutoresetMode.NEXT_STEP, "rates": {}, "as_ready": False}
    Soak(**settings)
    with pytest.raises(ConfigError, match=text):
        Soak(**{**settings, **change})
