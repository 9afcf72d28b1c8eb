"""A language-model run as text."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.rlview import books_line, curve, ending, make_printer
from headrace.core.clock import MonotonicClock
from headrace.llm.launch.chronicle import Chronicle, Line
from headrace.llm.launch.following import LogFollower
from headrace.llm.launch.summary import Tally
from headrace.telemetry.events import EventLog
from headrace.telemetry.metrics import MetricsSink

BOOKS = {
    "requested": 2_050, "completed": 2_040, "failed": {"timeout": 8}, "stale": 2, "cancelled": 0, "in_flight": 0,
    "trained": 2_000, "filtered": {"zero_advantage": 40}, "pending": 0, "balanced": True,
}  # fmt: skip


def test_the_equation_of_the_books_is_told_with_its_reasons():
    assert books_line(BOOKS) == (
        "requested 2,050 = completed 2,040 + failed 8 (timeout 8) + stale 2; "
        "completed 2,040 = trained 2,000 + filtered 40 (zero_advantage 40)"
    )
    retried = BOOKS | {"attempts": 2_300, "failed_attempts": {"timeout": 8, "environment": 252}}
    assert books_line(retried) == f"{books_line(BOOKS)}; of 2,300 attempts 260 failed (timeout 8, environment 252)"
    assert books_line(BOOKS | {"attempts": 2_050, "failed_attempts": {"timeout": 8}}) == books_line(BOOKS)
    assert books_line(BOOKS | {"balanced": False}).endswith("   THE BOOKS DO NOT BALANCE")


def test_a_curve_of_win_rates():
    rows = curve(
        [{"step": 0, "win_rate": 0.25, "mean_reward": 0.5}, {"step": 1_000, "win_rate": 1.0, "mean_reward": 1.5}]
    )
    assert rows == [
        "        step      won   mean reward",
        "           0   25.0 %         0.500  " + "█" * 10,
        "       1,000  100.0 %         1.500  " + "█" * 40,
    ]


def test_the_end_names_what_comes_next():
    summary = {
        "outcome": "failed", "wall_s": 12.25, "steps": 3, "error": "[SUP-001] x", "books": BOOKS, "restarts": 1,
        "policy_lag": {"declared": 1.0, "mean": 0.5, "max": 1.0}, "faults": {"died": 2}, "alarms": [{"text": "entropy"}],
    }  # fmt: skip
    lines = ending(summary, Path("runs/x")).splitlines()
    assert lines[0] == "failed after 12.2 s: 3 steps"
    assert "  policy lag    0.50 mean, 1 max, 1 allowed" in lines
    assert "  faults        died 2" in lines
    assert "  alarm         entropy" in lines
    assert lines[-1].endswith("doctor runs/x    runs/x/logs holds what every process printed")


def test_an_interrupted_run_is_gone_on_with_where_it_left_a_checkpoint_and_begun_again_where_not(tmp_path):
    summary = {"outcome": "interrupted", "wall_s": 1.0, "steps": 0}
    (tmp_path / "config.toml").write_text("[orchestrator]\n")
    lines = ending(summary, tmp_path).splitlines()
    assert "  begin again, with the same command: there is no checkpoint to go on from    " in lines[-1]
    (tmp_path / "weights" / "2").mkdir(parents=True)
    assert "  begin again, with another --run-dir: there is no checkpoint" in ending(summary, tmp_path).splitlines()[-1]
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    (tmp_path / "checkpoints" / "3" / "manifest.json").touch()
    assert f"headrace rl --resume --run-dir {tmp_path}    " in ending(summary, tmp_path).splitlines()[-1]


def test_a_component_alone_is_started_again_alone():
    lines = ending({"outcome": "interrupted", "wall_s": 1.0}, Path("runs/x/alone/inference")).splitlines()
    assert lines[-1].endswith("headrace inference --run-dir runs/x")


def test_a_long_warm_start_is_shown_in_few_lines_and_measured_in_all(tmp_path):
    shown: list[Line] = []
    with (
        EventLog(tmp_path / "events.jsonl", MonotonicClock()) as events,
        MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as metrics,
    ):
        chronicle = Chronicle(events, metrics, Tally(), LogFollower({}), MonotonicClock(), 1, shown.append)
        for step in range(1, 441):
            chronicle.report("warm-start", "sft", {"step": step, "steps": 440, "loss": 1.0})
    assert len(shown) == 21
    assert shown[0].text == "SFT step 1/440 | Loss 1.0000"
    assert shown[-1].text == "SFT step 440/440 | Loss 1.0000"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 440


def test_lines_bear_time_and_name(capsys):
    show = make_printer(colours=False)
    show(Line(12.34, "trainer", "Step 1/3"))
    show(Line(13.0, "orchestrator", "entropy is low", "alarm"))
    assert capsys.readouterr().out.splitlines() == [
        "    12.3 s  trainer       Step 1/3",
        "    13.0 s  orchestrator  ! entropy is low",
    ]
