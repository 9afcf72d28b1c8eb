"""What single lines of other people's logs mean."""

from __future__ import annotations

import pytest

from headrace.monitor.logphrases import Kind, kind_of, leaf, normalised, numbers_in, stamp_in


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("step=1000 loss=0.3", {"step": 1000, "loss": 0.3}),
        ("Epoch: 10, loss: 0.0, reward: -1e-3", {"Epoch": 10, "loss": 0, "reward": -0.001}),
        ("step 1000 | loss 0.3 | lr 1e-4", {"step": 1000, "loss": 0.3, "lr": 1e-4}),
        ("|    ep_rew_mean      | 21.5     |", {"ep_rew_mean": 21.5}),
        ("| episodes 5 | fps 120 |", {"episodes": 5, "fps": 120}),
        ("[MetaEp 12] eps=0.500 burned_area=1,000.5", {"MetaEp": 12, "eps": 0.5, "burned_area": 1000.5}),
        ("12:01:02 SUCCESS Step 3 | Time: 3.21s | Rate: 1.2k tokens/s", {"Step": 3, "Time": 3.21, "Rate": 1200}),
        (" 45%|####  | 450/1000 [00:10<00:12, 40it/s, loss=0.25]", {"progress": 450, "loss": 0.25}),
        ('{"step": 5, "train": {"loss": 2.5}, "ok": true, "note": "x"}', {"step": 5, "train/loss": 2.5}),
        (f'{{"step": 2, "seed": 1{"0" * 400}, "loss": 0.5}}', {"step": 2, "loss": 0.5}),
        ("Mean episode reward: -3.5 (std 2)", {"Mean episode reward": -3.5}),
        ("INFO Starting learner lr=0.1", {"lr": 0.1}),
        ("loss=-.5 a=+.25", {"loss": -0.5, "a": 0.25}),
        ("Episode 7/100 finished with return 12.0", {"Episode": 7, "return": 12}),
        ("loss=0.1 loss=0.2", {"loss": 0.1}),
        ("version: 2.1.3 date: 2024-01-01 at 127.0.0.1:8000", {}),
        ("2025-01-01 10:00:05,123 started", {}),
        ("nothing here", {}),
        ("", {}),
    ],
)
def test_numbers_of_a_line(line, numbers):
    assert numbers_in(line) == numbers


def test_not_finite_numbers_are_numbers():
    found = numbers_in("loss=nan grad=inf value=-Infinity")
    assert (str(found["loss"]), found["grad"], found["value"]) == ("nan", float("inf"), float("-inf"))


@pytest.mark.parametrize(
    "line", ["a " * 9000, "abc_" * 4000, "1," * 9000, "| a " * 4000, "[" * 9000, '{"a":' * 3000 + "}"]
)
def test_no_line_takes_long_or_gives_much(line):
    assert len(numbers_in(line)) <= 64
    assert len(normalised(line)) <= 200
    assert kind_of(line) is Kind.OTHER


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("env 3 timed out after 8.0 s", Kind.TIME_OUT),
        ("TimeoutError: no reply", Kind.TIME_OUT),
        ("No heartbeat (552 s) from rollout worker 2", Kind.TIME_OUT),
        ("ValueError: bad shape", Kind.ERROR),
        ("gymnasium.error.ResetNeeded: x", Kind.OTHER),
        ("2025-01-01 ERROR something", Kind.ERROR),
        ("Error in actor process: x", Kind.ERROR),
        ("CUDA out of memory", Kind.ERROR),
        ("Segmentation fault (core dumped)", Kind.ERROR),
        ("worker failed", Kind.ERROR),
        ("Waiting for training batch to arrive", Kind.WAITING),
        ("Experiment completed!", Kind.FINISHED),
        ("Training is done", Kind.FINISHED),
        ("done", Kind.FINISHED),
        ("td_error=0.3 timeout: 10", Kind.OTHER),
        ("env_timeout=8 --timeout 10", Kind.OTHER),
        ("0 errors, no failures", Kind.OTHER),
        ("Traceback (most recent call last):", Kind.OTHER),
        ("episode 3 done", Kind.OTHER),
    ],
)
def test_kinds_of_lines(line, kind):
    assert kind_of(line) is kind


def test_repetitions_look_alike():
    first = normalised("2025-01-01 10:00:00,123 [WARN] env 3 at 0x7f00aa timed out after 8.1 s")
    second = normalised("2025-01-02 23:00:00,999 [WARN] env 60 at 0x7f11bb timed out after 8.0 s")
    assert first == second == "WARN] env # at # timed out after # s"


def test_times_at_the_start_of_a_line():
    assert stamp_in("10:00:05 a") - stamp_in("[09:00:00.5] b") == pytest.approx(3604.5)
    assert stamp_in("2025-01-02T00:00:00 a") - stamp_in("2025-01-01 00:00:00,000 b") == 86400.0
    assert stamp_in("2025-99-99 10:00:00 a") is None
    assert stamp_in("elapsed 3 s") is None


def test_spellings_of_a_name():
    assert leaf("rollout/Ep-Rew mean") == "ep_rew_mean"
