"""Verifying a run: sound ones are found sound, planted defects are found and named, and what cannot be said is not said."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from gymnasium import spaces

from acting_support import SmallRun, configuration, this_machine
from headrace.cli.main import main
from headrace.core import seeding
from headrace.core.errors import RecordDamaged, ReplayDiffers, RunDirectoryError
from headrace.core.spaces import space_facts
from headrace.record.events import Note
from headrace.record.rows import segment_name
from headrace.runtime import verifiable
from headrace.runtime.verifiable import Skipped
from headrace.runtime.verifier import verify_run
from headrace.weights.policy_file import save_policy


@pytest.fixture
def small(tmp_path):
    made = []

    def make(**settings) -> SmallRun:
        made.append(SmallRun(tmp_path / f"run-{len(made)}", configuration(**settings)))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.fixture(autouse=True)
def _same_machine(monkeypatch):
    """The fingerprint is taken once; it takes a while."""
    monkeypatch.setattr("headrace.runtime.verifier.fingerprint", this_machine)


def differs(run: SmallRun, **options) -> ReplayDiffers:
    with pytest.raises(ReplayDiffers) as caught:
        verify_run(run.end(), **options)
    return caught.value


# Sound runs.


@pytest.mark.thin(24)
@pytest.mark.parametrize("kind", ["gaussian", "ornstein-uhlenbeck", "none"])
@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("normalize", [False, True])
def test_sound_run_is_verified(small, kind, frame_stack, group_size, normalize):
    run = small(
        algorithm__exploration__kind=kind, env__frame_stack=frame_stack, env__group_size=group_size, env__lanes=4,
        algorithm__normalize_observations=normalize, collect__random_steps=40,
    )  # fmt: skip
    run.publish(keep=False)
    run.round()  # random throughout
    run.publish()
    run.round(2)  # the first of them begins at random
    run.publish(keep=False)
    run.round()
    run.publish()
    run.round(3, steps=1)  # shorter than the stack
    run.round(2)
    found = verify_run(run.end())
    groups = 4 // group_size
    assert (found.chunks, found.random, found.rows) == (8 * groups, groups, (5 * 8 + 3) * 4)
    assert (found.versions, found.largest_difference, found.machine) == ((2, 4), 0.0, ())
    assert found.skipped == {"the policy that acted was not kept": groups}


def test_policy_of_the_users_own_network_is_verified(small):
    run = small(algorithm__actor__factory="acting_support:network", algorithm__actor__hidden=[256, 256])
    run.publish()
    run.round(2)
    assert verify_run(run.end()).rows == 32


def test_exploration_is_followed_through_chunks_ends_and_replaced_collectors(small, monkeypatch):
    taken = []
    read = verifiable.StoredRows.chunk
    monkeypatch.setattr(verifiable.StoredRows, "chunk", lambda self, one: (taken.append(one), read(self, one))[1])
    run = small(algorithm__exploration__kind="ornstein-uhlenbeck", env__lanes=1)
    run.publish()
    run.round(3, steps=3)
    run.collectors[0].collect(run.chunks[0], 2)
    run.salvage()
    run.make(0, incarnation=1)
    run.round(2, steps=3)
    run.collect(0, 0)  # what a collector that leaves commits
    found = verify_run(run.end())
    assert (found.chunks, found.rows) == (5, 15)
    assert [one.carries is None for one in taken] == [True, False, False, True, False]
    assert found.skipped == {"it was salvaged from a collector that died": 1}


def test_progress_is_told(small):
    run = small()
    run.publish()
    run.round(2)
    told = []
    verify_run(run.end(), on_progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_run_that_goes_on_is_verified_as_far_as_it_is(small):
    run = small()
    run.publish()
    run.round(2)
    assert verify_run(run.directory).chunks == 4
    run.round()
    assert verify_run(run.directory).chunks == 6


# Which chunks.


def test_chunks_are_picked_at_random_and_the_same_for_the_same_seed(small, monkeypatch):
    run = small()
    run.publish()
    run.round(20)
    place = run.end()
    picked = []
    read = verifiable.StoredRows.chunk
    monkeypatch.setattr(
        verifiable.StoredRows, "chunk", lambda self, one: (picked.append(one.number), read(self, one))[1]
    )

    def numbers(seed: int) -> list[int]:
        picked.clear()
        assert verify_run(place, samples=5, seed=seed).chunks == 5
        return list(picked)

    assert numbers(0) == numbers(0)
    seen = [numbers(seed) for seed in range(12)]
    assert all(len(set(one)) == 5 for one in seen)
    everything = {number for one in seen for number in one}
    assert min(everything) < 10
    assert max(everything) > 35  # of events 1 to 41
    assert len(everything) > 25


def test_every_chunk_is_as_likely_as_any_other():
    counts = np.zeros(10, int)
    for seed in range(2000):
        sample = verifiable._Sample(3, seeding.generator(seed, "test"))
        for number in range(10):
            sample.offer(number)
        assert len(set(sample.taken)) == 3
        counts[sample.taken] += 1
    assert (np.abs(counts - 600) < 100).all()  # five standard deviations


def test_a_tenth_is_left_to_random_chunks(small):
    run = small(collect__random_steps=160)
    run.publish()
    run.round(20)  # 10 rounds are random
    place = run.end()
    found = verify_run(place, samples=10)
    assert (found.chunks, found.random) == (10, 1)
    found = verify_run(place, samples=30)
    assert (found.chunks, found.random) == (30, 10)
    found = verify_run(place, samples=1)
    assert (found.chunks, found.random) == (1, 0)


# What cannot be verified.


def test_chunks_without_policy_or_rows_are_counted_by_reason(small):
    run = small(record__segment_mib=1, env__frame_stack=3)
    run.publish()
    run.round(2)
    run.recorder.rows._begin_segment()
    starts = [int(row) for row in run.replay.books.row]
    run.round(2)
    first = [int(run.stored(lane, start, start + 1)["t"][0]) for lane, start in enumerate(starts)]
    run.publish(keep=False)
    run.round(3)
    place = run.end()
    (place.record_dir / segment_name(0)).unlink()
    found = verify_run(place)
    gone = sum(t > 0 for t in first)
    assert gone
    reasons = {Skipped.ROWS: 4, Skipped.POLICY: 6, Skipped.STACK: gone}
    assert found.skipped == {str(reason): count for reason, count in reasons.items()}
    assert found.chunks == 4 - gone


def test_policy_of_a_part_of_the_run_that_was_lost_is_not_taken_for_the_one_that_acted(small):
    run = small()
    run.publish(keep=False)
    lost = {name: array.copy() for name, array in run.arrays.items()}
    run.arrays["actor"] += 1.0
    run.keep(2)  # in a session whose end was lost
    run.arrays.update(lost)
    run.keep(1)
    run.round(2)
    run.publish(keep=False)  # the same number, other weights
    run.round()
    found = verify_run(run.end())
    assert (found.versions, found.chunks) == ((1,), 4)
    assert found.skipped == {"the policy kept under that number is not the one that acted": 2}


def test_damaged_policy_costs_its_own_chunks_only(small):
    run = small()
    run.publish()
    run.round()
    run.publish()
    run.round()
    place = run.end()
    (place.checkpoints_dir / "2" / "policy.safetensors").write_bytes(b"half of it")
    found = verify_run(place)
    assert (found.versions, found.chunks) == ((1,), 2)
    assert found.skipped == {"the policy kept under that number is not the one that acted": 2}


def test_nothing_to_verify_is_an_error_and_says_what_to_do(small):
    run = small()
    run.publish()
    run.publish(keep=False)
    run.round(3)
    with pytest.raises(RecordDamaged) as caught:
        verify_run(run.end())
    assert str(caught.value) == (
        "[REC-001] no chunk of this record can be verified\n"
        "  chunks: 6\n"
        "  skipped: 6 chunks: the policy that acted was not kept\n"
        "  policies kept: policy 1\n"
        "  fix: policies are kept with every evaluation and every checkpoint, and in a short run none of them may have acted: "
        'lower evaluation.every_steps or set checkpoint.every_steps, and record.rows = "all", before the next run'
    )


def test_run_without_any_policy_says_so(small):
    run = small()
    run.publish(keep=False)
    run.round()
    with pytest.raises(RunDirectoryError, match="no policy of this run was kept, so nothing can be verified"):
        verify_run(run.end())


def test_run_without_a_record_says_so(small):
    run = small()
    run.publish()
    place = run.end()
    (place.record_dir / "trace.bin").unlink()
    with pytest.raises(RecordDamaged, match=r"trace\.bin cannot be opened"):
        verify_run(place)


def test_run_that_kept_no_rows_says_so(small):
    run = small(record__rows="none", checkpoint__enabled=False)
    run.publish()
    run.round()
    with pytest.raises(RecordDamaged) as caught:
        verify_run(run.end())
    assert caught.value.facts["skipped"] == "2 chunks: the rows were not kept"


def test_changed_rows_are_found_before_anything_is_made_of_them(small):
    run = small(env__lanes=1)
    run.publish()
    run.round()
    place = run.end()
    file = place.record_dir / segment_name(0)
    data = bytearray(file.read_bytes())
    data[2 * run.geometry.dtype.itemsize] ^= 1
    file.write_bytes(data)
    with pytest.raises(RecordDamaged, match=r"rows 0 to \d+ of lane 0 in the record differ from what was committed"):
        verify_run(place)


def test_damaged_trace_is_not_verified_up_to_the_damage(small):
    run = small()
    run.publish()
    run.round(3)
    place = run.end()
    file = place.record_dir / "trace.bin"
    data = bytearray(file.read_bytes())
    data[len(data) // 2 + len(data) // 3] ^= 1
    file.write_bytes(data)
    with pytest.raises(RecordDamaged, match="is damaged: whole events follow bytes that mean nothing"):
        verify_run(place)


def test_policies_of_another_run_are_refused(small):
    run = small()
    run.publish(keep=False)
    run.round()
    place = run.end()
    facts = space_facts(spaces.Box(-1.0, 1.0, (4,), np.float64), run.spaces.action)
    save_policy(place.checkpoints_dir, 1, run.arrays, facts)
    with pytest.raises(RecordDamaged, match="laid out in another way than the spaces of its policies say"):
        verify_run(place)


# Planted defects: in the collector that records, while sound code verifies.


def late(collector):
    """The policy sees the observation before: so observation t+1 is stored with action t."""

    def observations():
        collector._places -= collector._t > 0
        collector._t -= collector._t > 0
        return type(collector)._observations(collector)

    collector._observations = observations


def late_across_episodes(collector):
    """As `late`, but an episode's first action answers what the one before ended with."""

    def observations():
        collector._places -= 1
        collector._t -= collector._t > 0
        return type(collector)._observations(collector)

    collector._observations = observations


def stack_of_another_lane(collector):
    def observations():
        collector._places[:] = collector._places[::-1].copy()
        return type(collector)._observations(collector)

    collector._observations = observations


def greedy(collector):
    act = collector._actor.act
    collector._actor.act = lambda obs, noise: act(obs)


def noise_of_another_lane(collector):
    act = collector._actor.act
    collector._actor.act = lambda obs, noise: act(obs, noise[::-1])


def always(arrays):
    """Weights of one version under every number."""

    def plant(collector):
        load = collector._actor.load
        collector._actor.load = lambda _: load(arrays)

    return plant


def planted(small, plant, *, sound=1, **settings) -> SmallRun:
    """Two versions; the second one's chunks are collected with a defect."""
    run = small(env__lanes=4, env__group_size=2, **settings)
    run.publish()
    run.round(sound)
    for collector in run.collectors.values():
        plant(collector)
    run.publish()
    run.round(2)
    return run


DEFECTS = [
    (late, "observation_shifted", "each action is stored with the observation it led to"),
    (stack_of_another_lane, "other_lane", "the action fits what lane 1 had seen"),
    (greedy, "exploration_differs", "the action is what policy 2 chooses without exploration: it was not applied"),
    (noise_of_another_lane, "exploration_differs", "with the exploration of lane 1"),
]


@pytest.mark.parametrize("kind", ["gaussian", "ornstein-uhlenbeck"])
@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize(("plant", "name", "words"), DEFECTS, ids=[one[0].__name__ for one in DEFECTS])
def test_planted_defect_is_found_and_named(small, plant, name, words, frame_stack, kind):
    run = planted(small, plant, env__frame_stack=frame_stack, algorithm__exploration__kind=kind)
    error = differs(run)
    assert error.facts["cause"] == name
    assert words in error.what
    assert error.what.startswith("event 5 (chunk 1 of group 0), lane 0, row ")
    assert error.facts["field"].startswith("action")
    assert error.facts["chunks"] == "4 of 6 differ"
    assert error.facts["policy"] == 2
    assert error.exit_code == 4


@pytest.mark.parametrize(("plant", "name"), [(late, "observation_shifted"), (stack_of_another_lane, "other_lane")])
def test_wrong_input_is_named_without_exploration_too(small, plant, name):
    assert differs(planted(small, plant, algorithm__exploration__kind="none")).facts["cause"] == name


def test_wrong_input_is_named_although_it_is_not_known_for_every_row(small):
    run = planted(small, late_across_episodes)
    error = differs(run)
    assert error.facts["cause"] == "observation_shifted"
    assert re.search(r"it explains (\d) of (\d) wrong actions", error.facts["evidence"]).groups() == ("6", "8")


def test_cause_that_explains_a_part_of_what_is_wrong_is_not_named(small):
    """Every other action is made without exploration, the others from the observation before."""

    def mixed(collector):
        act, calls = collector._actor.act, []
        late(collector)
        shifted = collector._observations

        def observations():
            calls.append(1)
            return shifted() if len(calls) % 2 else type(collector)._observations(collector)

        collector._observations = observations
        collector._actor.act = lambda obs, noise: act(obs, noise if len(calls) % 2 else None)

    error = differs(planted(small, mixed, algorithm__exploration__kind="ornstein-uhlenbeck"))
    assert error.facts["cause"] == "exploration_differs"
    assert "no recorded policy chooses this action: exploration or input differed" in error.what


def test_actions_at_an_end_of_their_range_prove_nothing(small):
    run = small(env__lanes=1, algorithm__exploration__kind="none", env__frame_stack=2)
    run.publish()
    run.arrays["actor"] *= 1e4
    run.arrays["actor"][-2:] = 0.0  # the last layer's bias: the sign shall depend on the observation
    run.keep(run.tell())
    late(run.make(0))
    run.round(40, steps=2)
    error = differs(run)
    rows = run.stored(0, 1, int(run.replay.books.row[0]))
    assert set(np.abs(rows["action"][rows["kind"] == 1]).ravel().tolist()) == {1.0, 2.0}
    assert error.facts["cause"] != "observation_shifted"


@pytest.mark.parametrize("kept", [True, False])
def test_weights_of_another_version_are_named_where_they_were_kept(small, kept):
    run = small(env__group_size=2)
    run.publish(keep=kept)
    old = {name: array.copy() for name, array in run.arrays.items()}
    always(old)(run.make(0))
    run.publish()
    run.round(2)
    error = differs(run)
    assert error.facts["cause"] == ("other_weights" if kept else "exploration_differs")
    told = "the action fits policy 1, and the record names policy 2"
    assert (told in error.what) == kept


def test_policy_that_acts_in_the_random_phase_is_named(small):
    run = small(collect__random_steps=16, env__group_size=2)
    run.publish()
    collector = run.make(0)
    for lane in collector._lanes:
        lane._group = type(collector.group)(0, (0, 1), 11)
    run.round()
    error = differs(run)
    assert error.facts["cause"] == "exploration_differs"
    assert "the action is the policy's, and collect.random_steps says otherwise" in error.what


def test_random_actions_of_another_generator_are_found_without_a_policy(small):
    run = small(collect__random_steps=16)
    run.publish(keep=False)
    collector = run.make(0)
    begin = collector._lanes[0].streams.begin_chunk
    collector._lanes[0].streams.begin_chunk = lambda chunk, **options: begin(chunk + 1, **options)
    run.round()
    run.publish()
    error = differs(run)
    assert error.facts["cause"] == "exploration_differs"
    assert "is not the uniformly random one" in error.what


def test_row_that_names_another_policy_than_its_event_is_found(small):
    run = small(env__lanes=1)
    run.publish()
    run.publish()

    def stale(collector):
        write = collector._lanes[0].writer.step_array
        collector._lanes[0].writer.step_array = lambda *args: write(*args[:-1], 1)

    run.collect(0, steps=3, before=stale)
    error = differs(run)
    assert (error.facts["cause"], error.facts["field"]) == ("other_weights", "version")
    assert "the event names policy 2, and the row was made by policy 1" in error.what


def test_difference_is_told_in_full(small):
    run = planted(small, late, algorithm__exploration__kind="none")
    error = differs(run)
    facts = {name: str(value) for name, value in error.facts.items()}
    assert list(facts) == [
        "after", "at", "field", "recorded", "replayed", "differing", "cause", "evidence", "policy", "chunks",
    ]  # fmt: skip
    rows = run.stored(0, 0, int(run.replay.books.row[0]))
    number = int(error.what.split("row ")[1].split(":")[0])
    row = rows[number]
    assert facts["after"] == "20 updates"
    assert facts["at"] == f"episode {row['episode']}, step {row['t']}"
    assert facts["recorded"] == str(row["action"][0])
    assert "bit for bit" in facts["evidence"]
    assert error.fix.startswith("keep the run directory and file a bug")


def test_lanes_that_are_alike_leave_the_cause_open(small):
    """Where two explanations lead to the same actions, both are told."""

    def shown_and_explored(collector):
        stack_of_another_lane(collector)
        noise_of_another_lane(collector)

    error = differs(planted(small, shown_and_explored))
    assert error.facts["cause"] == "other_lane"  # whole actions of the other lane stand there


# Rounding.


def by_a_bit(collector):
    act = collector._actor.act

    def rounded(obs, noise):
        action = act(obs, noise)["action"]
        return {"action": np.clip(np.nextafter(action, np.float32(9.0)), [-1, -2], [1, 2]).astype(np.float32)}

    collector._actor.act = rounded


@pytest.fixture
def elsewhere(monkeypatch):
    other = {**this_machine(), "processor": "another one"}
    monkeypatch.setattr("headrace.runtime.verifier.fingerprint", lambda: other)


def test_rounding_on_another_machine_names_the_machine_and_the_tolerance(small, elsewhere):
    run = planted(small, by_a_bit)
    error = differs(run)
    assert error.facts["cause"] == "other_machine"
    assert "another one is here" in error.facts["evidence"]
    needed = error.facts["tolerance_needed"]
    assert error.fix == f"verify it on the machine that recorded it, or accept rounding: --tolerance {needed}"
    assert float(needed) < 1e-6
    found = verify_run(run.directory, tolerance=float(needed))
    assert 0 < found.largest_difference < float(needed)
    assert found.rows == 6 * 16
    assert found.machine == (f"processor {this_machine()['processor']} was recorded, another one is here",)
    with pytest.raises(ReplayDiffers):
        verify_run(run.directory, tolerance=found.largest_difference / 2)


def test_rounding_on_the_same_machine_is_told_as_such(small):
    error = differs(planted(small, by_a_bit))
    assert error.facts["cause"] == "rounding_differs"
    assert "--tolerance" in error.fix


def test_defect_is_named_on_another_machine_too(small, elsewhere):
    """Rounded everywhere, and wrong from the second policy on: what is wrong by more than rounding is told."""
    run = small(env__lanes=4, env__group_size=2)
    run.publish()
    for group in (0, 1):
        by_a_bit(run.make(group))
    run.round()
    for collector in run.collectors.values():
        late(collector)
    run.publish()
    run.round()
    error = differs(run)
    assert error.facts["cause"] == "observation_shifted"
    assert "but for rounding" in error.facts["evidence"]
    assert error.what.startswith("event 5 ")
    assert "tolerance_needed" not in error.facts
    assert error.facts["chunks"] == "4 of 4 differ"


def test_tolerance_does_not_hide_what_is_wrong(small):
    error = differs(planted(small, late), tolerance=1e-3)
    assert error.facts["cause"] == "observation_shifted"


def test_machine_of_a_later_session_counts_for_its_chunks(small, elsewhere):
    run = small()
    run.publish()
    run.round()
    run.recorder.write(Note(10, "resumed", {"session": 1, "machine": {**this_machine(), "processor": "another one"}}))
    run.publish(keep=False)
    run.publish()
    run.round()
    place = run.end()
    assert verify_run(place).machine == (f"processor {this_machine()['processor']} was recorded, another one is here",)
    (place.checkpoints_dir / "1" / "policy.safetensors").unlink()
    assert verify_run(place).machine == ()


# The command.


def headrace(arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


@pytest.fixture(autouse=True)
def _path_as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_command_says_what_was_verified(small, capsys):
    run = small(collect__random_steps=16)
    run.publish(keep=False)
    run.round(2)
    run.publish()
    run.round(2)
    run.publish(keep=False)
    run.round()
    path = str(run.end().path)
    assert headrace(["verify", path]) == 0
    out, err = capsys.readouterr()
    assert out == (
        "verified: 48 actions in 6 chunks of policy 2 (in 2 chunks all of them random): all as recorded, bit for bit\n"
        "  not verified: 4 chunks: the policy that acted was not kept\n"
    )
    assert err == ""
    assert headrace(["verify", path, "--samples", "1"]) == 0
    assert capsys.readouterr().out.startswith("verified: 8 actions in 1 chunk of policy 2: all as recorded")


def test_command_in_json(small, capsys):
    run = small()
    run.publish()
    run.round(2)
    assert headrace(["verify", str(run.end().path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "verified": True, "chunks": 4, "actions": 32, "policies": [1], "random_chunks": 0, "largest_difference": 0.0,
        "tolerance": 0.0, "skipped": {}, "machine": [],
    }  # fmt: skip


def test_command_with_a_difference(small, capsys):
    path = str(planted(small, late).end().path)
    assert headrace(["verify", path]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("[REC-002] event 5 (chunk 1 of group 0), lane 0, row ")
    assert headrace(["verify", path, "--json"]) == 4
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["verified"], told["cause"], err) == (False, "observation_shifted", "")


def test_command_with_a_tolerance(small, capsys, elsewhere):
    path = str(planted(small, by_a_bit).end().path)
    assert headrace(["verify", path, "--tolerance", "1e-6"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "verified: 96 actions in 6 chunks of policies 1, 2: all as recorded within 1e-06"
    assert second.startswith("  largest difference ")
    assert third.startswith("  this machine differs: processor ")


def test_command_on_what_is_no_run(tmp_path, capsys):
    assert headrace(["verify", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
