"""A plan in words and as values, from measurements that are made up."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from headrace.cli.planreport import Report, in_words, sentence, time, to_json
from headrace.cli.train import overrides_of, train
from headrace.runtime.advisor import Costs, Judged, Plan, Prediction
from headrace.runtime.config import load_config
from headrace.runtime.learnerways import Way, best, timed, ways
from headrace.runtime.planning import Figures
from headrace.runtime.rehearsal import Pace

COSTS = Costs(
    step_s=(0.001, 0.003), step_cpu_s=0.0005, reset_s=0.02, reset_cpu_s=0.02, resets_per_step=0.01, act_s=80e-6,
    row_s=25e-6, chunk_s=120e-6, commit_s=510e-6, update_s=1.5, update_cpu_s=1.5, publish_s=200e-6,
)  # fmt: skip
FIGURES = {
    "calls": {"steps": 1200, "median_s": 0.001, "p99_s": 0.003, "max_s": 0.0125},
    "transitions": 1200,
    "spent": {"update": [300.0, 450.0, 450.0]},
    "lasted_s": 6.04,
}
LEARNER = {"environment": 0.1, "policy": 0.05, "rows": 0.05, "learner": 0.7, "waiting": 0.1}
CORES = {"environment": 0.1, "policy": 0.05, "rows": 0.05, "learner": 0.1, "waiting": 0.7}


def judged(plan, predicted, measured=None, limits=LEARNER, for_cores=0.1, **further):
    known = None if measured is None else Pace(measured, measured / 2)
    return Judged(Prediction(plan, Pace(predicted, predicted / 2), limits, for_cores), known, **further)


INLINE = judged(Plan("inline"), 1100, 1000, start_s=3.0, busy_cores=0.0)
LOCKSTEP = judged(Plan("lockstep", 2), 1500)
ASYNC = judged(Plan("async", 2), 1800, 1700, start_s=3.4, busy_cores=0.1)
MORE = judged(Plan("async", 3), 1850, limits=CORES, for_cores=0.6)


def report(*found, **changes):
    config = load_config("cartpole-dqn", {"env.lanes": 9})
    return dataclasses.replace(
        Report("cartpole-dqn", config, ("env.lanes=9",), COSTS, FIGURES, found, 2, 0.0), **changes
    )


def test_the_whole_report():
    lost = judged(Plan("async", 1), 900, why_not="[ENV-004] it raised")
    assert in_words(report(INLINE, LOCKSTEP, lost, ASYNC, MORE)) == (
        "\n"
        "cartpole-dqn on 2 cores: 6.0 s timed under inline, 1,200 environment steps, 300 updates\n"
        "  environment  a step takes 2 ms, 500 us of it processor time (median 1 ms, 99 % below 3 ms, longest 12.5 ms); "
        "a reset 20 ms\n"
        "  barrier      the slowest of 9 takes 1.50 times the mean\n"
        "  cores        a step waits 75% of its time and leaves its core to others meanwhile\n"
        "  policy       80 us for 3 lanes\n"
        "  rows         25 us each, 120 us a chunk\n"
        "  learner      an update takes 1.5 s, to publish 200 us, to take over a chunk 510 us\n"
        "\n"
        "                                   environment steps/s   limited by\n"
        "plan                         predicted  measured         environment       policy         rows      learner      waiting\n"
        "inline                           1,100     1,000  +10%           10%           5%           5%          70%          10%\n"
        "lockstep with 2 collectors       1,500         -                 10%           5%           5%          70%          10%\n"
        "async with 1 collector             900         -                 10%           5%           5%          70%          10%"
        "   [ENV-004] it raised\n"
        "async with 2 collectors          1,800     1,700   +6%           10%           5%           5%          70%          10%\n"
        "async with 3 collectors          1,850         -                 10%           5%           5%          10%          70%\n"
        "\n"
        "recommended: async with 2 collectors: 1.7 times as fast as inline; the learner limits it (70%); "
        "beyond 2 collectors waiting for a core limits\n"
        "  headrace train cartpole-dqn --set env.lanes=9 --schedule async --collectors 2\n"
        "  to start takes 3.4 s, which no speed here contains"
    )


def test_other_work_is_told_of():
    busy = dataclasses.replace(ASYNC, busy_cores=1.3)
    assert (
        "\n  note         other work had 0.0 to 1.3 cores meanwhile; what is predicted is for what it left of them. "
        "Measure again with nothing beside it\n" in in_words(report(INLINE, busy, busy_cores=0.4))
    )
    same = dataclasses.replace(ASYNC, busy_cores=1.31)
    assert "other work had 1.3 cores meanwhile" in in_words(report(same, busy_cores=1.29))
    assert "note" not in in_words(report(INLINE, ASYNC))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([INLINE], "inline: there is no other plan; the learner limits it (70%)"),
        (
            [INLINE, judged(Plan("async", 1), 2000, 600)],
            "inline: async with 1 collector is slower (0.60 times as fast); the learner limits it (70%)",
        ),
        (
            [INLINE, judged(Plan("async", 1), 2000, 1040)],
            (
                "inline: async with 1 collector is 1.04 times as fast, which is not worth its processes; "
                "the learner limits it (70%)"
            ),
        ),
        (
            [judged(Plan("inline"), 100), judged(Plan("lockstep", 2), 150)],
            (
                "lockstep with 2 collectors, by prediction alone: 1.5 times as fast as inline; the learner limits it (70%), and "
                "learns bit for bit what inline learns; more than 2 collectors would only wait for each other's cores"
            ),
        ),
        (
            [INLINE, judged(Plan("async", 3), 2000, 3000)],
            (
                "async with 3 collectors: 3 times as fast as inline; the learner limits it (70%); it cannot have more collectors "
                "than groups of lanes (3): see env.lanes and env.group_size"
            ),
        ),
        (
            [ASYNC, judged(Plan("async", 3), 3600, 1000)],
            (
                "async with 2 collectors: the learner limits it (70%); async with 3 collectors should be 2 times as fast again, "
                "but it was not so when it ran"
            ),
        ),
        (
            [judged(Plan("inline"), 100, limits=CORES, for_cores=0.1)],
            "inline, by prediction alone: there is no other plan; waiting for the slowest limits it (70%)",
        ),
    ],
)
def test_what_to_do_and_why(found, told):
    assert sentence(report(*found)) == told


def test_a_plan_that_ran_is_compared_with_what_was_left_to_it():
    then = judged(Plan("async", 2), 850, limits=CORES, for_cores=0.6).prediction
    told = dataclasses.replace(ASYNC, then=then)
    assert told.error == 850 / 1700 - 1
    assert to_json(report(INLINE, told))["plans"][1]["predicted_steps_per_s"] == 850
    assert "850     1,700  -50%           10%           5%           5%          10%          70%" in in_words(
        report(told)
    )
    assert sentence(report(INLINE, told, MORE)).endswith(
        "1.7 times as fast as inline; waiting for a core limits it (70%); beyond 2 collectors waiting for a core limits"
    )
    faster = judged(Plan("async", 3), 3600)
    assert sentence(report(INLINE, told, faster)).endswith(
        "async with 3 collectors should be 2 times as fast again, but it was not run: raise --check"
    )


def test_as_values():
    told = to_json(report(INLINE, LOCKSTEP, ASYNC))
    assert told["recommended"] == {
        "schedule": "async", "collectors": 2, "measured": True,
        "command": "headrace train cartpole-dqn --set env.lanes=9 --schedule async --collectors 2",
    }  # fmt: skip
    assert told["step"] == {
        "count": 1200, "cpu_s": 0.0005, "mean_s": 0.002, "median_s": 0.001, "p99_s": 0.003, "max_s": 0.0125,
        "waits": 0.75, "barrier": pytest.approx(1.5, abs=0.01),
    }  # fmt: skip
    assert (told["cores"], told["busy_cores"], "step_s" in told["costs"]) == (2, 0.0, False)
    assert told["costs"]["update_s"] == 1.5
    assert told["plans"][0] == {
        "schedule": "inline", "collectors": None, "predicted_steps_per_s": 1100, "predicted_updates_per_s": 550,
        "measured_steps_per_s": 1000, "measured_updates_per_s": 500, "error": pytest.approx(0.1), "not_measured": None,
        "start_s": 3.0, "busy_cores": 0.0, "limited_by": LEARNER, "waiting_for_cores": 0.1,
    }  # fmt: skip
    assert (told["plans"][1]["measured_steps_per_s"], told["plans"][1]["error"]) == (None, None)


def test_durations():
    assert [time(seconds) for seconds in (1.5e-6, 123.4e-6, 0.0123, 2.5, 120.0)] == [
        "1.5 us", "123 us", "12.3 ms", "2.5 s", "120 s",
    ]  # fmt: skip


ONE, TWO = Way(1, "float32", 0.005), Way(2, "float32", 0.003)
ROUNDED, REFUSED = Way(1, "bfloat16", 0.0029), Way(2, "bfloat16", why_not="[CFG-001] cpu has no instructions")


def test_the_command_can_be_typed_whatever_is_in_it():
    found = report(INLINE, name="my runs/a.toml", settings=("algorithm.network.hidden=[8, 8]",)).command
    assert shlex.split(found) == [
        "headrace", "train", "my runs/a.toml", "--set", "algorithm.network.hidden=[8, 8]", "--schedule", "inline",
    ]  # fmt: skip


@pytest.mark.parametrize("best", [INLINE, ASYNC])
@pytest.mark.parametrize(
    "setting", ["run.schedule=lockstep", "run.collectors=1", "learn.threads=3", "run.steps=5000", None]
)
def test_the_command_is_taken_and_runs_what_is_recommended(setting, best):
    settings = () if setting is None else (setting,)
    config = load_config("cartpole-dqn", overrides_of(settings, {}))
    said = report(best, config=config, settings=settings, ways=(TWO,)).command
    given = train.make_context("train", shlex.split(said)[2:]).params
    started = load_config(given["config"], overrides_of(given["settings"], given))
    assert started.run.schedule == best.plan.schedule
    assert started.learn.threads == (2 if best is INLINE else config.learn.threads)
    assert best is INLINE or started.run.collectors == 2
    assert started.run.steps == config.run.steps


def test_ways_of_the_learner_are_told_and_the_best_one_is_in_the_command():
    found = report(INLINE, ways=(ONE, TWO, ROUNDED, REFUSED))
    assert in_words(found).split("\n\n")[-2].splitlines() == [
        "learner, 1 thread, float32: an update takes 5 ms",
        "learner, 2 threads, float32: an update takes 3 ms   <-",  # as good as the fastest, and exact
        "learner, 1 thread, bfloat16: an update takes 2.9 ms",
        "learner, 2 threads, bfloat16: [CFG-001] cpu has no instructions",
    ]
    assert found.command == "headrace train cartpole-dqn --set env.lanes=9 --set learn.threads=2 --schedule inline"
    assert to_json(found)["learner"][0] == {
        "threads": 1,
        "precision": "float32",
        "update_s": 0.005,
        "why_not": None,
        "compiled": False,
    }


def test_a_learner_leaves_every_collector_a_core():
    assert best((ONE, TWO), Plan("inline"), 2) is TWO
    assert best((ONE, TWO), Plan("lockstep", 2), 2) is TWO  # they take turns
    assert best((ONE, TWO), Plan("async", 1), 2) is ONE
    assert best((ONE, TWO), Plan("async", 1), 3) is TWO
    assert best((REFUSED,), Plan("inline"), 2) is None


def test_each_way_is_timed_in_a_folder_of_its_own(tmp_path):
    said, asked = [], []

    def timing(config, seconds, folder):
        asked.append((config.learn.threads, config.learn.precision, seconds, folder.name))
        return Figures({"error": "[CFG-001] no\n  fix: this"}, None, 0.0)

    found = timed(load_config("pendulum-td3"), 3, 1.5, tmp_path, said.append, timing)
    assert asked == [
        (1, "float32", 1.5, "learner-0"), (2, "float32", 1.5, "learner-1"), (3, "float32", 1.5, "learner-2"),
        (1, "bfloat16", 1.5, "learner-3"), (2, "bfloat16", 1.5, "learner-4"), (3, "bfloat16", 1.5, "learner-5"),
    ]  # fmt: skip
    assert [way.why_not for way in found] == ["[CFG-001] no"] * 6
    assert said[0] == "timing the learner with 1 thread, float32 for 1.5 s"
    assert [str(way) for way, _ in ways(load_config("cartpole-ppo"), 2)] == [
        "1 thread, float32", "2 threads, float32", "1 thread, float32, compiled",
    ]  # fmt: skip
