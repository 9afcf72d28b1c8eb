"""One process or three: what is decided from short runs, and how it is told."""

from __future__ import annotations

import json
import shlex

import pytest

from headrace.cli.rl import rl
from headrace.cli.rlargs import overrides_of, parse
from headrace.cli.rlplan import Report, in_words, sentence, to_json
from headrace.core.errors import ConfigError
from headrace.llm.comparing import Tried, Way, at_lag_0, at_work, recommended, steps_of, ways, why_not
from headrace.llm.loading import load_rl_config
from headrace.llm.planning import WarmStart, refuse, short_config
from headrace.telemetry.board import Activity

INLINE, LAG_0, LAG_1 = Way("inline", 0), Way("async", 0), Way("async", 1)


def tried(way, *steps_s, limit="inference", **more):
    shares = {limit: 0.6, "together": 0.3, "waiting": 0.1}
    return Tried(way, steps_s, {"time/generate": 0.5}, shares, **more)


def test_a_lag_that_is_declared_is_a_third_way():
    assert ways(load_rl_config([], {"orchestrator.max_policy_lag": 0})) == [INLINE, LAG_0]
    assert ways(load_rl_config([], {"orchestrator.max_policy_lag": 3})) == [INLINE, LAG_0, Way("async", 3)]


def test_a_foreign_server_has_no_single_process_and_a_shared_one_is_left_alone():
    config = load_rl_config([], {"inference.backend": "vllm", "model.heads": 2})
    assert "inference.backend is vllm" in str(why_not(config, INLINE))
    assert why_not(config, LAG_0) is None
    refuse(config)
    with pytest.raises(ConfigError, match="would be given their weights"):
        refuse(load_rl_config([], {"inference.backend": "external", "inference.url": "http://host:1"}))


def test_a_short_run_has_one_step_before_what_counts_and_the_lag_after_it():
    config = load_rl_config([], {"orchestrator.max_policy_lag": 2, "sft.steps": 50, "run.run_duration_s": 9.0})
    short = short_config(config, Way("async", 2), 5, WarmStart("made", 50, 1.0))
    assert (short.run.steps, short.run.run_duration_s, short.orchestrator.max_policy_lag) == (8, None, 2)
    assert (short.sft.steps, short.sft.checkpoint) == (0, "made")
    assert (short.evaluation.every_steps, short.evaluation.problems, short.evaluation.samples) == (0, 1, 1)
    inline = short_config(config, INLINE, 5, WarmStart("made", 50, 1.0))
    assert (inline.run.schedule, inline.run.steps, inline.orchestrator.max_policy_lag) == ("inline", 6, 0)


@pytest.mark.parametrize(
    ("activities", "found"),
    [
        ({"inference": Activity.GENERATE, "trainer": Activity.WAIT_BATCH}, "inference"),
        ({"inference": Activity.WAIT_REQUESTS, "trainer": Activity.UPDATE}, "trainer"),
        ({"inference": Activity.WAIT_REQUESTS, "trainer": Activity.PUBLISH}, "handover"),
        ({"inference": Activity.GENERATE, "trainer": Activity.UPDATE}, "together"),
        ({"inference": Activity.LOAD_WEIGHTS, "trainer": Activity.PUBLISH}, "handover"),
        ({"orchestrator": Activity.ENV_STEP, "trainer": Activity.WAIT_BATCH}, "environment"),
        ({"orchestrator": Activity.WAIT_COMPLETIONS, "trainer": Activity.WAIT_BATCH}, "waiting"),
        ({"twin": Activity.GENERATE}, "inference"),
    ],
)
def test_who_is_at_work(activities, found):
    assert at_work([(name, activity, 4) for name, activity in activities.items()], 1, 6) == found


def test_moments_before_and_after_the_steps_that_count_are_none():
    for updates, found in ((0, None), (1, "trainer"), (5, "trainer"), (6, None)):
        views = [("trainer", Activity.UPDATE, updates), ("warm-start", Activity.IDLE, 3)]
        assert at_work(views, 1, 6) == found
    assert at_work([("inference", Activity.GENERATE, 3)], 1, 6) is None


def test_steps_lie_between_reports_of_the_trainer():
    lines = [{"step": step, "wall_s": wall_s, "time/step": 9.0, "time/forward_backward": 0.5 * step}
             for step, wall_s in ((1, 10.0), (2, 12.0), (3, 15.0), (4, 15.5))]  # fmt: skip
    lines += [{"step": step, "wall_s": 99.0, "time/generate": 1.0} for step in (1, 2, 3, 4)]
    steps_s, times_s = steps_of(lines, 1, 3)
    assert steps_s == (2.0, 3.0)
    assert times_s == {"time/generate": 1.0, "time/forward_backward": 1.25}
    assert steps_of(lines[:1], 1, 3) == ((), {})


def test_the_simplest_of_equals_wins():
    assert recommended([tried(INLINE, 1.0), tried(LAG_0, 0.98), tried(LAG_1, 0.97)]).way == INLINE
    assert recommended([tried(INLINE, 1.0), tried(LAG_0, 1.2), tried(LAG_1, 0.5)]).way == LAG_1
    assert recommended([Tried(INLINE, why_not="no"), tried(LAG_0, 1.2)]).way == LAG_0
    assert recommended([Tried(INLINE, why_not="no")]) is None


def test_a_median_is_not_moved_by_one_slow_step():
    one = tried(INLINE, 1.0, 1.0, 50.0, 1.0, 1.0)
    assert (one.steps_per_s, one.middle_s) == (1.0, (1.0, 1.0))


def test_what_limits_is_who_works_while_nothing_else_goes_on():
    one = Tried(LAG_1, (1.0,), {}, {"together": 0.7, "trainer": 0.2, "inference": 0.1})
    assert one.limit == "trainer"


def test_work_that_overlaps_is_told_of_before_what_limits_the_rest():
    one = Tried(LAG_1, (1.0,), {}, {"together": 0.7, "trainer": 0.2, "inference": 0.1})
    told = sentence([one])
    assert told.startswith(
        "async, lag 1: nothing else was measured; more than one is at work for 70% of the time, "
        "and the trainer limits the rest (20%); it learns from samples up to 1 version old"
    )


def test_lag_0_is_compared_only_where_both_ran():
    runs = [tried(INLINE, 1.0), tried(LAG_0, 1.3), tried(LAG_1, 0.5)]
    assert at_lag_0(runs).way == INLINE
    assert at_lag_0(runs[1:]) is None


def test_older_samples_are_told_of():
    runs = [tried(INLINE, 1.0, 1.1), tried(LAG_0, 1.3, 1.4), tried(LAG_1, 0.5, 0.6, limit="trainer", lag_mean=0.75)]
    assert sentence(runs) == (
        "async, lag 1: 1.91 times as fast as inline, 2.45 times as fast as async, lag 0; the trainer limits it (60%); "
        "it learns from samples up to 1 version old (0.75 on average here), which the others do not; "
        "at lag 0, where both learn the same bit for bit, inline wins: 1.29 times as fast as async, lag 0"
    )


def test_a_difference_smaller_than_that_between_steps_is_doubted():
    runs = [tried(INLINE, 1.0, 2.0, 3.0), tried(LAG_0, 1.2, 2.2, 3.2)]
    assert sentence(runs) == (
        "inline: 1.10 times as fast as async, lag 0 (their steps differ as much among themselves: raise --steps); "
        "the inference limits it (60%)"
    )
    faster = [tried(INLINE, 1.0), tried(LAG_0, 0.97)]
    assert sentence(faster).startswith("inline: async, lag 0 is 1.03 times as fast, which is not worth its processes;")


def report(*runs, start=None):
    return Report("my.toml", ("trainer.lr=1e-4",), 2, 8, start or WarmStart("made", 440, 25.0), runs)


def test_the_command_can_be_typed_whatever_is_in_it():
    found = Report("my runs/a.toml", ('model.name="a b"',), 2, 8, WarmStart("made", 1, 1.0), ()).command(
        tried(INLINE, 0.5)
    )
    words = ["headrace", "rl", "@", "my runs/a.toml", "--set", 'model.name="a b"', "--schedule", "inline"]
    assert shlex.split(found)[:8] == words


@pytest.mark.parametrize(
    "setting",
    [
        "run.schedule=async", " run.schedule = async", "orchestrator.max_policy_lag=2", "trainer.lr=1e-4",
        'run={schedule="async"}', "orchestrator={max_policy_lag=2}",
    ],
)  # fmt: skip
def test_the_command_is_taken_and_runs_what_is_recommended(setting):
    said = Report("wordle-grpo", (setting,), 2, 8, WarmStart("made", 1, 1.0), ()).command(tried(INLINE, 0.5))
    given = rl.make_context("rl", shlex.split(said)[2:]).params
    sources, dotted = parse(given["words"], "rl")
    config = load_rl_config(sources, overrides_of(given["settings"], given, dotted))
    assert (config.run.schedule, config.orchestrator.max_policy_lag) == ("inline", 0)
    assert ("trainer.lr" in said) == (setting == "trainer.lr=1e-4")


def test_the_report_names_the_command_and_what_was_not_measured():
    told = in_words(report(tried(INLINE, 0.5, 0.5, busy_cores=1.3), Tried(LAG_0, why_not="its port is taken")))
    assert "my.toml on 2 cores: 8 steps of each, evaluations left out" in told
    assert "all 440 steps, made once in 25.0 s and shared" in told
    assert "other work had 1.3 to 1.3 cores" in told
    assert "its port is taken" in told
    assert told.endswith(
        "  headrace rl @ my.toml --set trainer.lr=1e-4 --schedule inline --set orchestrator.max_policy_lag=0"
    )
    assert "none is configured" in in_words(report(tried(INLINE, 0.5), start=WarmStart(None, 0, 0.0)))


def test_programs_read_the_same():
    told = json.loads(json.dumps(to_json(report(tried(INLINE, 0.5), Tried(LAG_0, why_not="its port is taken")))))
    assert told["recommended"]["schedule"] == "inline"
    assert told["warm_start"] == {"steps": 440, "took_s": 25.0, "checkpoint": None}
    inline, other = told["plans"]
    assert (inline["measured_steps_per_s"], inline["limit"]) == (2.0, "inference")
    assert (other["measured_steps_per_s"], other["not_measured"]) == (None, "its port is taken")
