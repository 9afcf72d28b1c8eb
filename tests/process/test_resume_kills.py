"""SIGKILL of everything, at any moment, and on it goes: nothing of a checkpoint is lost, and what is lost is told."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.learners.checkpoints import CheckpointStore
from headrace.learners.manifest import Checkpoint
from headrace.record.events import ChunkCommitted, GroupSalvaged
from headrace.record.trace import Trace
from headrace.runtime.api import Run
from kill_support import Moment, Nursery
from run_support import SAC, SMALL, assert_books, events, summary
from session_support import metrics, options

pytestmark = pytest.mark.process

ENDLESS = 1_000_000
SETTINGS: Mapping[str, object] = {
    **SMALL, "env.id": "Pendulum-v1", "env.lanes": 4, "replay.learning_starts": 64, "collect.random_steps": 64,
    "replay.capacity": 1200, "checkpoint.every_steps": 96, "checkpoint.every_s": 1000.0, "evaluation.episodes": 1,
    "evaluation.random_baseline": False, "record.segment_mib": 1, "algorithm.exploration": {"kind": "ornstein-uhlenbeck"},
}  # fmt: skip
SQUASHED = {key: value for key, value in SETTINGS.items() if not key.startswith("algorithm.")} | SAC


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


@dataclass
class Killed:
    """A run that is killed over and over, and what is known about it from outside."""

    nursery: Nursery
    path: Path
    moments: list[tuple[str, int]] = field(default_factory=list)
    """Where each session was to be killed, and how it ended."""
    kills: int = 0
    updates: int = 0
    """Of the newest checkpoint there ever was."""
    expected: tuple[int, ...] | None = None
    """What the next session has to tell: environment steps, updates; and of each, what is lost."""

    def session(self, *arguments: str, until: Moment | None = None) -> int:
        """One session; whatever is to be told is compared."""
        resumes = len(events(self.path, "resumed", "supervisor")) if self.path.exists() else 0
        code = self.nursery.run(self.path, "--resume", *arguments, until=until)
        self.kills += code == -9
        self._compare(events(self.path, "resumed", "supervisor")[resumes:], until)
        self._look()
        return code

    def _compare(self, resumed: list[dict[str, Any]], until: Moment | None) -> None:
        for event in resumed:
            told = tuple(event[name] for name in ("env_steps", "updates", "lost_env_steps", "lost_updates"))
            assert told == self.expected, until
            assert event["problems"] == []

    def _look(self) -> None:
        """The newest checkpoint, and what the record holds behind it."""
        newest, problems = CheckpointStore(self.path / "checkpoints", 3).newest_sound()
        assert problems == []
        told = [event["updates"] for event in events(self.path, "checkpoint", "learner")]
        if newest is None:
            assert not told
            return
        assert newest.facts["updates"] >= max([self.updates, *told]), "a checkpoint is gone, or goes back"
        self.updates = newest.facts["updates"]
        self.expected = (newest.facts["env_steps"], self.updates, *self._behind(newest))

    def _behind(self, newest: Checkpoint) -> tuple[int, int]:
        steps, updates = {True: 0, False: 0}, self.updates
        with Trace.open(self.path / "record" / "trace.bin") as trace:
            for position, event in trace:
                beyond = position > newest.facts["trace_bytes"]
                if isinstance(event, ChunkCommitted):
                    steps[beyond] += sum(lane.transitions for lane in event.lanes)
                elif isinstance(event, GroupSalvaged):
                    steps[beyond] += sum(lane.salvaged for lane in event.lanes)
                updates = max(updates, event.updates + len(getattr(event, "prints", ())))
            assert not trace.damaged
        books = [dict(zip(("committed", "salvaged"), lane, strict=False)) for lane in newest.facts["lanes"]]
        stored = sum(lane["committed"] + lane["salvaged"] for lane in books)
        assert steps[False] == stored == newest.facts["env_steps"], "the books of the checkpoint are not its record's"
        return steps[True], updates - self.updates


def begun(nursery: Nursery, path: Path, given: Mapping[str, object]) -> Killed:
    """A run that has a checkpoint."""
    run = Killed(nursery, path)
    assert run.session(*arguments(given, 96)) == 0
    return run


def arguments(settings: Mapping[str, object], steps: int) -> list[str]:
    return options({**settings, "run.steps": steps})


def kill_over_and_over(run: Killed, kills: int, seed: int) -> None:
    """With moments drawn from a generator; sessions that come to their end first do not count."""
    draws, sessions = random.Random(seed), 0
    while run.kills < kills:
        moment = Moment.draw(draws)
        assert run.expected is not None
        steps = run.expected[0] + 64 if moment.where == "evaluator" else ENDLESS
        code = run.session("--steps", str(steps), until=moment)
        assert code in (-9, 0), (moment, Path(f"{run.path}.log").read_text()[-3000:])
        run.moments.append((moment.where, code))
        sessions += 1
        assert sessions < 2 * kills + 4, "most sessions end before they are killed"


def bring_to_an_end(run: Killed) -> Run:
    assert run.expected is not None
    assert run.session("--steps", str(run.expected[0] + 64)) == 0
    ended = Run(run.path, summary(run.path))
    assert ended.completed
    assert_books(ended)
    steps = ended.summary["env_steps"]
    assert ended.summary["updates"] == 1 + steps - 64
    assert ended.summary["sessions"] == 1 + len(events(ended, "resumed", "supervisor"))
    for name in ("step", "updates", "wall_s", "headrace/policy_version", "headrace/episodes"):
        values = [line[name] for line in metrics(ended)]
        assert values == sorted(values), name
    versions = [point["version"] for point in ended.summary["evaluations"]]
    assert versions == sorted(set(versions))
    found = headrace.replay(ended.path)
    assert (found.ended, found.env_steps, found.updates) == (True, steps, ended.summary["updates"])
    assert found.weights_sha256 == ended.summary["weights_sha256"]
    return ended


SCHEDULES = {
    "inline": {"run.schedule": "inline", "run.collectors": 1},
    "lockstep": {"run.schedule": "lockstep", "run.collectors": 2},
    "async": {"run.schedule": "async", "run.collectors": 2, "learn.publish_every": 20},
}


def check(
    nursery: Nursery, folder: Path, schedule: str, kills: int, seed: int, settings: Mapping[str, object] = SETTINGS
) -> None:
    given = {**settings, **SCHEDULES[schedule]}
    run = begun(nursery, folder / "killed", given)
    kill_over_and_over(run, kills, seed)
    ended = bring_to_an_end(run)
    if schedule == "async":
        return
    whole = folder / "whole"
    assert nursery.run(whole, "--resume", *arguments(given, ended.summary["env_steps"])) == 0
    for name in ("weights_sha256", "env_steps", "updates", "episodes"):
        assert summary(whole)[name] == ended.summary[name], "it is not what a run that is not killed comes to"


@pytest.mark.thin(3)
@pytest.mark.parametrize("moment", [Moment("root", 5), Moment("learner", 60), Moment("checkpoint", 3)], ids=str)
def test_killed_before_the_first_checkpoint_it_begins_anew(nursery, tmp_path, moment):
    path, given = tmp_path / "run", options({**SETTINGS, "run.steps": 160, "run.schedule": "lockstep"})
    assert nursery.run(path, "--resume", *given, until=moment) == -9
    assert nursery.run(path, "--resume", *given) == 0
    assert summary(path)["sessions"] == 1
    assert_books(Run(path, summary(path)))
    assert headrace.replay(path).weights_sha256 == summary(path)["weights_sha256"]


def test_killed_in_an_evaluation_the_next_session_makes_it(nursery, tmp_path):
    path = tmp_path / "run"
    given = {**SETTINGS, **SCHEDULES["inline"], "evaluation.every_steps": 96, "run.steps": 192}
    endless = options({**given, "evaluation.episodes": 100_000})
    assert nursery.run(path, "--resume", *endless, until=Moment("saved", 0)) == -9
    (policy,) = events(path, "policy")
    assert nursery.run(path, "--resume", *options(given)) == 0
    told = summary(path)
    assert policy["env_steps"] == told["resumes"][0]["env_steps"] == 96
    assert [point["env_steps"] for point in told["evaluations"]] == [96, 192]
    assert told["evaluations_skipped"] == 0


@pytest.mark.table
@pytest.mark.timeout(300)
def test_three_kills(nursery, tmp_path):
    check(nursery, tmp_path, "lockstep", kills=3, seed=1)


@pytest.mark.table
@pytest.mark.timeout(300)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_three_kills_of_sac(nursery, tmp_path, schedule):
    check(nursery, tmp_path, schedule, kills=3, seed=4, settings=SQUASHED)


@pytest.mark.table
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("schedule", "kills"), [("inline", 16), ("lockstep", 17), ("async", 17)])
def test_fifty_kills(nursery, tmp_path, schedule, kills):
    check(nursery, tmp_path, schedule, kills, seed=kills)
