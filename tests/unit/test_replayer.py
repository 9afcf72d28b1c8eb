"""A replay that is stopped, looked at and gone on with; and records that are cut short or grow."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from headrace.cli.replay import banner_of
from headrace.core.errors import ConfigError, RecordDamaged, ReplayDiffers
from headrace.record.events import BatchesTrained, ChunkCommitted, LearnerSucceeded, PolicyPublished
from headrace.record.trace import Trace, TraceWriter
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.replayer import Replayer, replay
from headrace.runtime.training import Training
from record_here import record_here
from run_support import PPO


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 416 updates, async and eager; only looked at."""
    return record_here(tmp_path_factory.mktemp("finished") / "run", run__schedule="async")


def trace_of(run: Path) -> Path:
    return run / "record" / TRACE_FILE


def test_it_stands_before_an_update_which_can_be_made_by_hand(run: Path):
    with Replayer(run) as replayer:
        moment = replayer.run("update:310")
        assert moment is not None
        assert moment.update == 310
        learner = replayer.learner
        assert learner.updates == 309
        batch = learner.batch()
        assert len(batch.reward) == replayer.config.algorithm.batch_size
        learner.algorithm.update(batch)
        assert learner.updates == 310
        assert replayer.run("update:311") is not None
        assert learner.updates == 310
        assert replayer.run() is None
        by_hand = replayer.outcome()
    assert by_hand == replay(run)
    assert by_hand.ended


def test_the_prompt_says_what_can_be_done_where_nothing_is_drawn(tmp_path: Path):
    of_ppo = {key.replace(".", "__"): value for key, value in PPO.items()}
    run = record_here(tmp_path / "run", **of_ppo)
    with Replayer(run) as replayer:
        moment = replayer.run("update:3")
        assert moment is not None
        told = banner_of(moment, on_policy=replayer.config.on_policy)
        assert "  learner.update() " in told
        assert "batch" not in told
        replayer.learner.update()
        assert replayer.learner.updates == 3
        assert replayer.run() is None
        assert replayer.outcome() == replay(run)
    assert "  batch = learner.batch() " in banner_of(moment, on_policy=False)


def test_a_rollout_that_came_to_nothing_has_used_its_chunks_up(tmp_path: Path):
    """A chunk of an older policy comes after it, and would have been in it had it been gathered later."""

    def drive(training: Training) -> None:
        learner, collectors = training.learner, training.groups._collectors

        def take(group: int, chunk: int, steps: int) -> None:
            learner.commit(collectors[group].collect(chunk, steps))

        def train() -> int:
            before = learner.updates
            learner.round_over()
            while learner.due:
                learner.update()
            learner.publish()
            return learner.updates - before

        for group in range(3):
            take(group, 0, 10)
        slow = collectors[2].collect(1, 10)
        assert train() == 4
        for group, chunk in ((0, 1), (1, 1), (0, 2)):
            take(group, chunk, 4)
        assert train() == 0, "none of these episodes is over"
        learner.commit(slow)
        take(1, 2, 6)
        take(0, 3, 2)
        assert train() == 4

    settings = {
        **PPO, "run.schedule": "async", "env.lanes": 3, "env.max_episode_steps": 10, "rollout.max_policy_lag": 2,
        "rollout.order": "arrival", "rollout.whole_episodes": True, "rollout.kept_rows": 64,
    }  # fmt: skip
    dotted = {key.replace(".", "__"): value for key, value in settings.items()}
    found = replay(record_here(tmp_path / "run", drive=drive, **dotted))
    assert (found.ended, found.updates) == (True, 8)


def test_going_on_still_compares(run: Path):
    with Replayer(run) as replayer:
        replayer.run("update:310")
        replayer.learner.algorithm.update(replayer.learner.batch())
        state = {name: array.copy() for name, array in replayer.learner.algorithm.state().items()}
        name = next(name for name, array in state.items() if array.dtype == np.float32 and array.size > 8)
        state[name].flat[0] += 0.25
        replayer.learner.algorithm.load_state(state)
        with pytest.raises(ReplayDiffers):
            replayer.run()
        with pytest.raises(ConfigError, match="was ended by an error"):
            replayer.run()


def test_a_batch_that_was_only_looked_at_is_told(run: Path):
    with Replayer(run) as replayer:
        replayer.run("update:310")
        replayer.learner.batch()
        with pytest.raises(ConfigError) as raised:
            replayer.run()
    assert str(raised.value) == (
        "[CFG-001] the batch of update 310 was drawn twice in this replay, so what follows would be drawn otherwise\n"
        "  fix: make the update of a batch that was drawn: algorithm.update(batch); begin a new replay"
    )


def test_a_batch_too_many_is_noticed(run: Path):
    with Replayer(run) as replayer:
        replayer.run("update:310")
        replayer.learner.algorithm.update(replayer.learner.batch())
        replayer.run("update:311")
        replayer.learner._sampler.generator.random()
        with pytest.raises(ReplayDiffers) as raised:
            replayer.run()
    assert raised.value.facts["cause"] == "sampling_differs"


@pytest.mark.parametrize("place", ["event", "chunk", "version"])
def test_it_stands_before_an_event(run: Path, place: str):
    with Trace.open(trace_of(run)) as trace:
        events = [event for _, event in trace.events()]
    kind = PolicyPublished if place == "version" else ChunkCommitted
    number, event = [(number, event) for number, event in enumerate(events, 1) if isinstance(event, kind)][-2]
    texts = {"event": number, "chunk": "chunk:{0.group}.{0.chunk}", "version": "version:{0.version}"}
    with Replayer(run) as replayer:
        moment = replayer.run(str(texts[place]).format(event))
        assert moment is not None
        assert (moment.event, moment.upcoming, moment.update) == (number, event, None)
        assert replayer.events == number - 1
        assert replayer.learner.updates == event.updates
        assert replayer.learner.version == sum(isinstance(made, PolicyPublished) for made in events[: number - 1])


@pytest.mark.parametrize("place", ["update:100000", "100000", "version:100000", "chunk:3.100000", "update:9"])
def test_a_place_that_is_not_there_or_passed_is_refused(run: Path, place: str):
    with Replayer(run) as replayer:
        replayer.run("update:10")
        with pytest.raises(ConfigError, match=f"the record does not come to {place}, or is past it"):
            replayer.run(place)


def test_progress_is_told_before_every_event_and_update(run: Path):
    told = []
    with Replayer(run) as replayer:
        replayer.run(on_progress=told.append)
        found = replayer.outcome()
        assert told[-1].position == replayer.record_bytes
    assert [moment.event for moment in told if moment.update is None] == list(range(1, found.events + 1))
    assert [moment.update for moment in told if moment.update is not None] == list(range(1, found.updates + 1))


def copied(run: Path, folder: Path, nbytes: int) -> bytes:
    """A run with the first bytes of its trace; returns the others."""
    whole = trace_of(run).read_bytes()
    (folder / "record").mkdir(parents=True)
    (folder / "config.toml").write_bytes((run / "config.toml").read_bytes())
    for rows in (run / "record").glob("rows-*"):
        (folder / "record" / rows.name).write_bytes(rows.read_bytes())
    trace_of(folder).write_bytes(whole[:nbytes])
    return whole[nbytes:]


def test_a_torn_end_is_left_out(run: Path, tmp_path: Path):
    copied(run, tmp_path / "copy", trace_of(run).stat().st_size - 3)
    found, whole = replay(tmp_path / "copy"), replay(run)
    assert (found.events, found.ended) == (whole.events - 1, False)
    assert found.torn_bytes > 3


def test_what_is_written_after_the_replay_began_is_left_for_another_one(run: Path, tmp_path: Path):
    with Trace.open(trace_of(run)) as trace:
        positions = [position for position, _ in trace.events()]
    half = len(positions) // 2
    rest = copied(run, tmp_path / "live", positions[half - 1])
    with Replayer(tmp_path / "live") as replayer:
        with trace_of(tmp_path / "live").open("ab") as file:
            file.write(rest)
        assert replayer.run() is None
        found = replayer.outcome()
    assert (found.events, found.ended, found.torn_bytes) == (half, False, 0)
    assert replay(tmp_path / "live") == replay(run)


def test_damage_in_the_middle_is_not_taken_for_the_end(run: Path, tmp_path: Path):
    with Trace.open(trace_of(run)) as trace:
        positions = [position for position, _ in trace.events()]
    copied(run, tmp_path / "damaged", positions[-1])
    data = bytearray(trace_of(tmp_path / "damaged").read_bytes())
    data[positions[40] - 1] ^= 1
    trace_of(tmp_path / "damaged").write_bytes(data)
    with pytest.raises(RecordDamaged, match="everything is identical up to event 40; there the record is damaged"):
        replay(tmp_path / "damaged")


def test_a_record_that_goes_back_contradicts_itself(run: Path, tmp_path: Path):
    with Trace.open(trace_of(run)) as trace:
        events = [(position, event) for position, event in trace.events()]
    position = next(position for position, event in events if isinstance(event, BatchesTrained))
    copied(run, tmp_path / "back", position)
    with TraceWriter.resume(trace_of(tmp_path / "back"), position) as writer:
        writer.write(PolicyPublished(0, 9, 0))
    with pytest.raises(RecordDamaged, match="contradicts itself: fewer updates"):
        replay(tmp_path / "back")


def test_a_successor_without_a_saved_state_begins_with_fresh_weights(run: Path, tmp_path: Path):
    with Trace.open(trace_of(run)) as trace:
        events = list(trace.events())
    position, last = next((position, event) for position, event in events if event.updates > 100)
    copied(run, tmp_path / "succeeded", position)
    with TraceWriter.resume(trace_of(tmp_path / "succeeded"), position) as writer:
        writer.write(LearnerSucceeded(last.updates, -1))
    with Replayer(tmp_path / "succeeded") as replayer:
        assert replayer.run() is None
        assert replayer.learner.updates == 0
        assert replayer.learner.env_steps > 100


def test_disk_that_takes_no_policy_costs_evaluations_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.runtime.checkpointing.save_policy", full)
    run = record_here(tmp_path / "run", evaluation__every_steps=100, evaluation__episodes=1)
    assert replay(run).ended
