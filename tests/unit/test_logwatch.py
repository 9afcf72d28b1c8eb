"""What the watch over a log decides: lines and moments in, findings out."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.monitor.logfindings import Finding, Findings, Severity, WatchLimits, duration, number, quoted
from headrace.monitor.lognumbers import MOST_POINTS, MOST_SERIES, Numbers
from headrace.monitor.logwatch import MOST_MESSAGES, LogWatch, date_lines


@pytest.fixture
def log(clock):
    return LogWatch(WatchLimits(), clock.now())


def kinds(log, now_s):
    return {finding.kind for finding in log.findings(now_s)}


def sentence(log, now_s, kind):
    [found] = [finding for finding in log.findings(now_s) if finding.kind == kind]
    return found.sentence


def feed(log, clock, lines, every_s=1.0):
    for line in lines:
        clock.advance(every_s)
        log.feed(line, clock.now())


# silence


def test_silence_begins_after_the_limit_and_ends_with_a_line(log, clock):
    feed(log, clock, ["starting"])
    clock.advance(60.0)
    assert kinds(log, clock.now()) == set()
    clock.advance(0.5)
    assert sentence(log, clock.now(), "silence") == 'no new line for 60 s (limit 60 s); the last one: "starting"'
    feed(log, clock, ["going on"])
    assert kinds(log, clock.now()) == set()


def test_a_log_that_never_says_anything_is_silent(log, clock):
    clock.advance(61.0)
    assert sentence(log, clock.now(), "silence") == "no line at all for 61 s (limit 60 s)"


def test_a_log_that_is_slow_by_habit_gets_more_time(log, clock):
    feed(log, clock, [f"epoch {i}" for i in range(10)], every_s=40.0)
    clock.advance(399.0)
    assert not log.is_silent(clock.now())
    clock.advance(2.0)
    assert sentence(log, clock.now(), "silence").startswith("no new line for 7 min (limit 7 min, usual gap 40 s)")


def test_one_long_gap_does_not_make_a_habit(log, clock):
    feed(log, clock, [f"step {i}" for i in range(40)])
    feed(log, clock, ["step 41"], every_s=59.0)
    assert log.silence_limit_s() == 60.0


def test_growth_without_the_end_of_a_line_is_no_silence(log, clock):
    clock.advance(100.0)
    log.feed_bytes(10, 0, clock.now())
    assert kinds(log, clock.now()) == set()


def test_a_finished_log_may_be_silent(log, clock):
    feed(log, clock, ["step 1 loss=0.5", "Training complete."])
    clock.advance(10_000.0)
    assert kinds(log, clock.now()) == set()


# messages


def test_one_error_is_a_warning_and_three_are_an_error(log, clock):
    feed(log, clock, ["ValueError: shapes differ in batch 1"])
    [found] = log.findings(clock.now())
    assert (found.kind, found.severity) == ("error", Severity.WARNING)
    assert found.sentence == 'error once (line 1): "ValueError: shapes differ in batch 1"'
    feed(log, clock, ["ValueError: shapes differ in batch 2", "fine", "ValueError: shapes differ in batch 3"])
    [found] = log.findings(clock.now())
    assert (found.kind, found.severity) == ("repeated-error", Severity.ERROR)
    assert "3 times in 3.0 s (lines 1 to 4)" in found.sentence


def test_a_traceback_counts_once_by_its_exception(log, clock):
    feed(log, clock, ["Traceback (most recent call last):", 'File "train.py", line 3, in main', "KeyError: 0"])
    assert sentence(log, clock.now(), "error") == 'error once (line 3): "KeyError: 0"'


def test_two_time_outs_are_none(log, clock):
    feed(log, clock, ["env 1 timed out after 8 s", "env 2 timed out after 8 s"])
    assert kinds(log, clock.now()) == set()


def test_a_message_is_over_when_others_come_without_it(log, clock):
    feed(log, clock, ["RuntimeError: boom"] * 3)
    feed(log, clock, ["fine"] * 29, every_s=10.0)
    assert kinds(log, clock.now()) == {"repeated-error"}
    feed(log, clock, ["fine", "fine"], every_s=10.0)
    assert kinds(log, clock.now()) == set()


def test_a_message_that_nothing_follows_stays(log, clock):
    feed(log, clock, ["RuntimeError: boom"])
    clock.advance(9000.0)
    assert kinds(log, clock.now()) == {"error", "silence"}


def test_messages_are_remembered_within_bounds(log, clock):
    feed(log, clock, [f"RuntimeError: {chr(97 + i % 26)}{'x' * (i // 26)}" for i in range(400)], every_s=0.01)
    assert len(log.messages) == MOST_MESSAGES
    assert len(log.findings(clock.now())) == 5


# episodes and progress


def test_no_episode_for_long_while_steps_go_on(log, clock):
    feed(log, clock, [f"step={i * 100} episode={i}" for i in range(10)])
    feed(log, clock, [f"step={1000 + i * 100} episode=9" for i in range(35)], every_s=10.0)
    assert sentence(log, clock.now(), "no-episode") == (
        "no episode has finished for 6 min (limit 5 min), episode=9, while step went from 900 to 4,400"
    )
    feed(log, clock, ["step=9000 episode=10"])
    assert kinds(log, clock.now()) == set()


def test_an_environment_that_never_ends(log, clock):
    feed(log, clock, [f"step={i * 1000} episodes=0" for i in range(250)])
    assert sentence(log, clock.now(), "no-episode") == (
        "no episode has finished in 250 readings, episodes=0, while step went from 0 to 249,000"
    )


def test_episodes_without_a_counter_are_known_by_their_returns(log, clock):
    feed(log, clock, ["Episode finished with return 3.5", "step=1"])
    feed(log, clock, [f"step={i}" for i in range(2, 40)], every_s=10.0)
    assert sentence(log, clock.now(), "no-episode").startswith("no episode has finished for 6 min")


def test_a_log_without_episodes_is_not_asked_for_them(log, clock):
    feed(log, clock, [f"step {i} | loss {1 / (i + 1)}" for i in range(500)], every_s=10.0)
    assert kinds(log, clock.now()) == set()


def test_lines_that_come_while_nothing_moves(log, clock):
    feed(log, clock, [f"step={i * 100} updates={i}" for i in range(10)])
    feed(log, clock, ["heartbeat: alive"] * 13, every_s=5.0)
    assert sentence(log, clock.now(), "no-progress") == (
        'lines still come, but nothing has moved for 65 s (limit 60 s): step=900, updates=9; the last line: "heartbeat:'
        ' alive"'
    )


def test_waiting_again_and_again(log, clock):
    feed(log, clock, [f"Still waiting for rollouts ({i * 10} s)" for i in range(4)])
    [found] = log.findings(clock.now())
    assert (found.kind, found.severity) == ("repeated-waiting", Severity.WARNING)


# values


def test_a_loss_that_is_not_finite(log, clock):
    feed(log, clock, ["step=1 loss=0.5", "step=2 loss=nan", "step=3 loss=nan"])
    assert sentence(log, clock.now(), "not-finite") == "loss is nan since line 2 (2 readings)"
    feed(log, clock, ["step=4 loss=0.5"])
    assert kinds(log, clock.now()) == set()


def test_a_reward_that_stopped_to_vary(log, clock):
    feed(log, clock, [f"step={i} reward={i % 3}" for i in range(10)] + [f"step={i} reward=7" for i in range(10, 30)])
    assert sentence(log, clock.now(), "constant") == (
        "reward is exactly 7 in the last 20 readings; it had other values before"
    )


@pytest.mark.parametrize(
    "name", ["max_reward", "reward_threshold", "target_return", "lr", "reward_scale", "best_score"]
)
def test_numbers_that_are_still_by_nature(log, clock, name):
    feed(log, clock, [f"step={i} {name}=7" for i in range(100)])
    assert kinds(log, clock.now()) == set()


def test_a_file_that_is_no_text(log, clock):
    log.feed_bytes(1000, 300, clock.now())
    assert sentence(log, clock.now(), "not-text").startswith("30% of the file is no text")


# bounded memory


def test_a_series_is_thinned_but_keeps_its_ends():
    numbers = Numbers()
    for i in range(20_000):
        numbers.add(i, float(i), {"step": float(i), "loss": 1.0 / (i + 1)})
    loss = numbers.series["loss"]
    assert len(loss.points) <= MOST_POINTS
    assert (loss.count, loss.points[0].step) == (20_000, 0.0)
    assert loss.points[-1].step == pytest.approx(20_000, rel=0.01)


def test_too_many_names_are_counted_and_left_out():
    numbers = Numbers()
    for i in range(MOST_SERIES + 7):
        numbers.add(i, 0.0, {f"env{i}x": 1.0})
    assert (len(numbers.series), numbers.ignored) == (MOST_SERIES, 7)


def test_the_axis_is_a_counter_of_steps():
    numbers = Numbers()
    for i in range(20):
        numbers.add(i, 0.0, {"steps": float(i % 3), "MetaEp": float(i)})
    axis = numbers.axis()
    assert axis is not None
    assert axis.name == "MetaEp"


def test_counters_that_grow_in_turn_do_not_take_turns_as_the_axis():
    numbers = Numbers()
    for i in range(20):
        for k, found in enumerate(({"iterations": i + 1.0}, {"loss": 0.5}, {"timesteps": i * 2048.0})):
            numbers.add(3 * i + k, 0.0, found)
    steps = [point.step for point in numbers.series["loss"].points]
    assert steps == [None, None, *(i * 2048.0 for i in range(1, 19))]


# dates


def test_lines_without_a_time_came_with_the_one_before():
    lines = ["2025-01-01 10:00:00 a", "b", "2025-01-01 10:00:30 c"]
    assert date_lines(lines, 100.0) == [70.0, 70.0, 100.0]


def test_midnight_and_a_restart_do_not_turn_time_back():
    assert date_lines(["23:59:50 a", "00:00:05 b", "00:00:10 c"], 10.0) == [5.0, 5.0, 10.0]


def test_lines_without_any_time_all_came_last():
    assert date_lines(["a", "b"], 3.0) == [3.0, 3.0]


# findings over time


def finding(text="a"):
    return Finding(kind="k", severity=Severity.ERROR, sentence=text, remedy="r")


def test_a_finding_begins_once_moves_on_and_ends():
    found = Findings()
    [began] = found.update([finding("1 s")], 1.0)
    assert (began.began, began.at_s, began.spell.finding.sentence) == (True, 1.0, "1 s")
    assert found.update([finding("2 s")], 2.0) == []
    [ended] = found.update([], 3.0)
    assert (ended.began, ended.spell.began_s, ended.spell.ended_s) == (False, 1.0, 3.0)
    assert ended.spell.finding.sentence == "2 s"
    assert found


def test_ended_findings_are_kept_within_bounds():
    found = Findings()
    for i in range(Findings.KEPT + 5):
        found.update([finding()], i)
        found.update([], i + 0.5)
    assert (len(found.all()), found.forgotten) == (Findings.KEPT, 5)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="silence_s is 0: the watch would find fault with every log"):
        WatchLimits(silence_s=0.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0.4 s"), (45.2, "45 s"), (119.0, "119 s"), (300.0, "5 min"), (7300.0, "2.0 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1366.0, "1,366"), (-0.05, "-0.05"), (1e20, "1e+20"), (float("nan"), "nan"), (0.0, "0")]
)
def test_numbers_in_sentences(value, text):
    assert number(value) == text


def test_long_lines_are_shortened():
    assert quoted("a" * 500) == '"' + "a" * 159 + '…"'
