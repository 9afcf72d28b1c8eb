"""What is drawn over in place fits the terminal, and what matters is in it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.drawing import LiveView
from headrace.cli.fitting import Part, Picture, even_choice, shared_out
from headrace.cli.watching import Sight
from headrace.core.clock import FakeClock
from headrace.monitor.snapshot import Diagnosis, Stage
from headrace.runtime.progress import ComponentProgress, EvaluationPoint, Progress
from headrace.telemetry.blame import Condition

HEIGHTS = range(10, 25)
NAMES = ("supervisor", "probe", "learner", "collector-0", "collector-1", "evaluator")
SUSPICION = "suspicious: rewards of lane 3 are constant"
BUSY = Progress(
    wall_s=60.0, env_steps=15_000, message=SUSPICION, random_baseline=EvaluationPoint(-1429.0, 10),
    components=tuple(ComponentProgress(name, "running", "update", 0.1, None, 10.0) for name in NAMES),
    evaluations=tuple(EvaluationPoint(-1400.0 + 100 * n, 10, 1500 * (n + 1), n) for n in range(10)),
)  # fmt: skip
NEWEST = "15,000        -500.0"


def terminal(height: int) -> Console:
    return Console(file=io.StringIO(), width=80, height=height, force_terminal=True, color_system=None)


def frame(progress: Progress, height: int) -> list[str]:
    """What the live view shows of it, before its end."""
    console = terminal(height)
    with LiveView(console, FakeClock()) as view:
        view.show(progress)
        return console.file.getvalue().splitlines()


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("message", [SUSPICION, f"{SUSPICION}, {'and so on, ' * 8}to its end"])
def test_message_and_newest_evaluation_are_in_the_frame(height, message):
    lines = frame(replace(BUSY, message=message), height)
    assert len(lines) <= height
    assert any(line.strip().startswith(NEWEST) for line in lines)
    assert message.split() == " ".join(lines)[" ".join(lines).index("suspicious") :].split()


def test_evaluations_give_way_before_components_and_these_are_counted():
    lines = frame(BUSY, 16)
    assert [line.split()[0] for line in lines[5:12]] == ["component", *NAMES]
    assert [line.split()[0] for line in lines[12:15]] == ["env", "random", "15,000"]
    assert [line.strip() for line in frame(BUSY, 12)[5:9]] == [
        "component     state     activity   since   waits on   rate",
        "supervisor    running   update     0.1 s   -          10/s",
        "probe         running   update     0.1 s   -          10/s",
        "and 4 more components",
    ]


def test_the_end_is_drawn_whole():
    console = terminal(12)
    with LiveView(console, FakeClock()) as view:
        view.show(BUSY)
        before = len(console.file.getvalue())
    end = console.file.getvalue()[before:]
    assert all(name in end for name in NAMES)
    assert "1,500" in end
    assert "more components" not in end


VERDICT = (
    "collector-4 has been inside env.step of lane 9, step 412 for 25.1 s (limit 30 s) and uses 0% of a core: it waits "
    "for something outside the run, and learner waits for it"
)
STAGES = tuple(
    Stage(name, "waiting", "wait.completions", 1234.5, "orchestrator", 1000.0, 123456, alive=True)
    for name in ("supervisor", "probe", "learner", *(f"collector-{n}" for n in range(6)), "evaluator")
)
FOUND = Diagnosis(
    VERDICT, "collector-4", Condition.STALLED, STAGES, tuple(f"line {n}" for n in range(12)), "see where it is"
)
NUMBERS = {
    "step": 5_000.0,
    "updates": 4_000.0,
    "time/fps": 1500.0,
    "headrace/policy_lag": 1.0,
    "headrace/episodes": 6.0,
}
SIGHT = Sight(Path("runs/x"), FOUND, NUMBERS, {}, None, over=False)


def drawn(height: int, *sights: Sight) -> list[str]:
    console = terminal(height)
    console.print(Picture([part for sight in sights for part in sight.parts()]))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("others", [0, 2])
def test_every_verdict_is_in_the_frame(height, others):
    lines = drawn(height, SIGHT, *[replace(SIGHT, diagnosis=replace(FOUND, verdict="short"))] * others)
    assert len(lines) <= height
    assert VERDICT in " ".join(line.strip() for line in lines)
    assert lines.count("stalled: short") == others
    if not others:
        assert lines[0] == "run         runs/x"
        assert "  see where it is" in lines
        assert height < 14 or any(re.fullmatch(r"and \d+ more components", line) for line in lines)


def test_a_terminal_that_is_high_enough_shows_what_is_printed_elsewhere():
    narrow = Sight(SIGHT.path, replace(FOUND, stages=STAGES[:0]), NUMBERS, {}, None, over=False)
    lines = drawn(60, narrow)
    assert " ".join(" ".join(lines).split()) == " ".join(narrow.in_words().split())
    assert lines.count("") == narrow.in_words().splitlines().count("")


@pytest.mark.parametrize("height", HEIGHTS)
def test_of_a_component_that_has_ended_beside_others_the_verdict_is_shown_too(height):
    summary = {"outcome": "completed", "wall_s": 9.0, "env_steps": 5, "updates": 2}
    over = Sight(Path("runs/y"), Diagnosis("it is over", None, Condition.FINISHED), {}, {}, summary, over=True)
    lines = drawn(height, over, SIGHT)
    assert len(lines) <= height
    assert "finished: it is over" in lines
    assert VERDICT in " ".join(line.strip() for line in lines)


def test_an_even_choice_keeps_both_ends_and_of_one_the_newest():
    assert even_choice(range(10), 4) == [0, 3, 6, 9]
    assert even_choice(range(10), 1) == [9]
    assert even_choice(range(2), 5) == [0, 1]


def test_room_is_shared_out_by_rank_first_what_is_needed():
    parts = [Part("", 2, least=1), Part("", 0), Part("", 1, least=2)]
    assert shared_out(10, parts, [5, 3, 6]) == [1, 3, 6]
    assert shared_out(12, parts, [5, 3, 6]) == [3, 3, 6]
    assert shared_out(4, parts, [5, 3, 6]) == [0, 3, 1]
    assert shared_out(2, parts, [5, 3, 6]) == [0, 2, 0]
