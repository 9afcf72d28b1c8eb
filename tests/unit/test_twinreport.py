"""A twin report in words, tables and a picture, from runs made up by hand."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from PIL import Image

from headrace.cli.twinplot import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, DrawnCurve, png, render
from headrace.cli.twinreport import identity_sentence, in_words, learning_sentence, speed_parts, to_json, verdict
from headrace.runtime.comparing import Curve, compare
from headrace.runtime.twin import Identity, TwinRun, Twins
from headrace.telemetry.timeuse import Spent

MARKS = [1_000, 2_000]
LEARNER = Spent("learner", "learner", {"update": 80, "env.step": 20}, 0.98)


def run(schedule, seed, score, speed=500.0, spent=(LEARNER,), weights="a" * 64):
    summary = {
        "outcome": "completed", "schedule": schedule, "seed": seed, "weights_sha256": weights, "wall_s": 12.34,
        "throughput": {"env_steps_per_s": speed, "updates_per_s": 250.0}, "policy_lag": {"mean": 1.5, "max": 4},
        "evaluations": [{"env_steps": 1_000, "mean_reward": 10.0}, {"env_steps": 2_000, "mean_reward": score}],
        "random_baseline": {"mean_reward": 0.0},
    }  # fmt: skip
    return TwinRun(schedule, seed, summary, spent)


def twins(differences=(1.0, -1.0, 0.5), speed=800.0, weights="a" * 64):
    runs = [run("inline", seed, 100.0 + seed) for seed in range(len(differences))]
    runs += [run("async", seed, 100.0 + seed + by, speed) for seed, by in enumerate(differences)]
    return Twins(2_000, (*runs, run("lockstep", 0, 100.0, weights=weights)), 0.1, collectors=2, cores=2)


def sentence(inline, other, random=0.0):
    left, right = (
        [Curve(schedule, seed, ((2_000, score),), random) for seed, score in enumerate(scores)]
        for schedule, scores in (("inline", inline), ("async", other))
    )
    return learning_sentence(compare(left, right, 2_000, 0.1), 2_000)


def test_the_verdict_is_one_sentence():
    assert verdict(twins()) == (
        "lockstep comes to the weights of inline, bit for bit (seed 0); async learns what inline learns: 0.17 apart "
        "(-2.42 to 2.75) after 2,000 steps, 3 seeds; inline gained 101.0 over random play, and up to ±10.10 counts as the same"
    )


def test_other_weights_are_said_first():
    assert verdict(twins(weights="b" * 64)).startswith(
        "lockstep does NOT come to the weights of inline (seed 0), and has to, bit for bit; async learns"
    )
    equal, other = Identity(0, "a", "a"), Identity(3, "a", "b")
    assert identity_sentence([equal, other]) == (
        "lockstep does NOT come to the weights of inline (seed 3), and has to, bit for bit"
    )
    assert identity_sentence([equal, equal]).endswith("(seeds 0 and 0)")


@pytest.mark.parametrize(
    ("inline", "other", "random", "told"),
    [
        (
            [100, 104, 96], [50, 54, 47], 0.0,
            ("async learns less than inline: -49.67 apart (-51.10 to -48.23) after 2,000 steps, 3 seeds; inline gained 100.0 "
             "over random play"),
        ),
        ([100, 104, 96], [150, 154, 147], None, "async learns more than inline: 50.33 apart (48.90 to 51.77) after 2,000 steps, 3 seeds"),
        (
            [100, 104, 96], [120, 104, 80], 0.0,
            ("cannot tell with 3 seeds whether async learns what inline learns: 1.33 apart (-43.47 to 46.14) after 2,000 steps, and "
             "up to ±10.00 would count as the same; if differences go on like that, about 20 seeds would show it"),
        ),
        (
            [100], [103], 0.0,
            ("cannot tell with 1 seed whether async learns what inline learns: 3.00 better after 2,000 steps; one seed says "
             "nothing about the next: add --seeds 5"),
        ),
        (
            [100, 104, 96], [100, 104, 97], None,
            ("cannot tell with 3 seeds whether async learns what inline learns: 0.33 apart (-1.10 to 1.77) after 2,000 steps; "
             "without a gain over random play nothing says how much would be too much (evaluation.random_baseline)"),
        ),
        (
            [1, -1, 0], [0, 1, -1], 0.0,
            ("there is nothing to compare yet: inline itself is not shown to beat random play after 2,000 steps, 3 seeds (0.00, "
             "-2.48 to 2.48 better)"),
        ),
        (
            [100, float("nan")], [100, 104], 0.0,
            ("cannot tell whether async learns what inline learns: no finite evaluation in inline with seed 1 "
             "(evaluation.episodes, evaluation.every_steps)"),
        ),
    ],
)  # fmt: skip
def test_every_finding_has_its_sentence(inline, other, random, told):
    assert sentence(inline, other, random) == told


def test_a_speed_up_is_told_with_what_was_possible():
    found = twins(speed=600.0)
    assert speed_parts(found, found.speed) == [
        "async is 1.20 times as fast as inline in environment steps per second",
        "inline spends 80% of its time learning, so 2 collectors on 2 cores make it 1.25 times as fast by overlapping alone",
    ]


def test_a_busy_machine_is_told_first():
    slow = dataclasses.replace(LEARNER, cpu_share=0.4)
    found = twins(speed=600.0)
    found = dataclasses.replace(found, runs=tuple(dataclasses.replace(one, spent=(slow,)) for one in found.runs))
    assert speed_parts(found, found.speed)[1] == (
        "inline got 40% of a core: other work held the cores, so measure again with nothing beside it"
    )
    assert to_json(found, None)["speed"]["disturbed"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("speed", "head"),
    [
        (505.0, "async is as fast as inline and no faster (1.01 times)"),
        (250.0, "async is slower than inline: 0.50 times as fast as inline in environment steps per second"),
    ],
)
def test_where_it_is_not_faster_the_time_is_told(speed, head):
    collector = Spent("collector-0", "collector", {"wait.credit": 9, "env.step": 1}, 0.125)
    found = twins(speed=speed)
    runs = [
        dataclasses.replace(one, spent=(LEARNER, collector)) if one.schedule == "async" else one for one in found.runs
    ]
    found = dataclasses.replace(found, runs=tuple(runs))
    told, _, *where = speed_parts(found, found.speed)
    assert told == head
    assert where == [
        "under async the learner: update 80%, env.step 20%",
        "under async collectors: wait.credit 90%, env.step 10%",
        "its processes use 1.2 of 2 cores",
    ]


def test_the_report_has_every_part():
    told = in_words(twins(), MARKS, None)
    assert "       0  aaaaaaaaaaaaaaaa  aaaaaaaaaaaaaaaa  equal\n" in told
    assert f"  {'2,000':>12}  {'101.0 (100.0 to 102.0)':>30}  {'100.0':>30}  {'101.2 (100.0 to 102.5)':>30}\n" in told
    assert "        random                            0.00" in told
    assert "       1         101.0         100.0         -1.00\n" in told
    assert "  async          3          12.3           800           250         1.5\n" in told
    assert "  inline    learner    update 80%, env.step 20%   (98% of a core)" in told
    assert told.index("must be equal") < told.index("may differ") < told.index("speed\n") < told.index("verdict\n")


def test_what_is_equal_bit_for_bit_needs_no_statistics():
    exact = dataclasses.replace(twins(differences=(0.0,)), exact=("lockstep", "async"))
    assert verdict(exact) == (
        "lockstep comes to the weights of inline, bit for bit (seed 0); async comes to the weights of inline, bit for bit (seed 0)"
    )
    told = in_words(exact, MARKS, None)
    assert "cannot tell" not in told
    assert "may differ" not in told
    assert "    seed  inline            async\n       0  aaaaaaaaaaaaaaaa  aaaaaaaaaaaaaaaa  equal\n" in told


def test_a_difference_stands_beneath_the_hashes():
    told = in_words(twins(weights="b" * 64), MARKS, {"seed": 0, "sentence": "chunk 12 of group 0 differs"})
    assert "bbbbbbbbbbbbbbbb  DIFFERENT\n  first difference, seed 0: chunk 12 of group 0 differs\n" in told


def test_a_report_without_evaluations_or_async_can_be_drawn():
    bare = run("inline", 0, 0.0, spent=())
    bare.summary["evaluations"], bare.summary["random_baseline"], bare.summary["throughput"] = [], None, None
    other = dataclasses.replace(bare, schedule="async", summary=bare.summary | {"schedule": "async"})
    told = in_words(Twins(2_000, (bare, other), 0.1, 2, 2), MARKS, None)
    assert "no finite evaluation in inline with seed 0 and async with seed 0" in told
    assert "         2,000                               -                               -" in told
    only = Twins(2_000, (bare, dataclasses.replace(bare, schedule="lockstep")), 0.1, 2, 2)
    assert in_words(only, MARKS, None).endswith("lockstep comes to the weights of inline, bit for bit (seed 0)")


def test_json_holds_the_same():
    told = json.loads(json.dumps(to_json(twins(), None)))
    assert (told["identical"], told["first_difference"], told["learning"]["finding"]) == (True, None, "same")
    assert told["learning"]["difference"]["seeds"] == 3
    assert told["speed"]["ratio"] == 1.6
    assert [run["score"] for run in told["runs"]] == [100.0, 101.0, 102.0, 101.0, 100.0, 102.5, 100.0]
    assert told["runs"][0]["time"] == [
        {"component": "learner", "kind": "learner", "samples": {"update": 80, "env.step": 20}, "cpu_share": 0.98}
    ]


# The picture.


def drawn(schedule, *means, spread=0.0):
    points = [(1_000 * (at + 1), mean, mean - spread, mean + spread) for at, mean in enumerate(means)]
    return DrawnCurve(schedule, points, runs=3)


def at(step, value, low, high):
    """The pixel of a point, for axes from 0 to 3,000 steps and from low to high with its margin."""
    room = (high - low) * 0.06
    low, high = low - room, high + room
    x = LEFT + step / 3_000 * (WIDTH - RIGHT - LEFT)
    return round(x), round(HEIGHT - BOTTOM + (value - low) / (high - low) * (TOP - (HEIGHT - BOTTOM)))


def test_curves_are_where_their_values_are():
    picture = render([drawn("inline", 0.0, 50.0, 100.0), drawn("async", 100.0, 20.0, 0.0)], None, "toy")
    assert picture.size == (WIDTH, HEIGHT)
    assert picture.getpixel(at(2_000, 50.0, 0.0, 100.0)) == COLOURS["inline"]
    assert picture.getpixel(at(2_000, 20.0, 0.0, 100.0)) == COLOURS["async"]
    assert picture.getpixel(at(1_000, 50.0, 0.0, 100.0)) not in COLOURS.values()


def test_a_band_is_paler_than_its_curve():
    picture = render([drawn("inline", 50.0, 50.0, 50.0, spread=50.0)], None, "toy")
    red, _, blue = picture.getpixel(at(1_500, 70.0, 0.0, 100.0))
    assert red < blue < 255
    assert picture.getpixel(at(500, 70.0, 0.0, 100.0)) == (255, 255, 255)


def test_random_play_widens_the_axis():
    picture = render([drawn("inline", 0.0, 50.0, 100.0)], -100.0, "toy")
    assert picture.getpixel(at(2_000, 50.0, -100.0, 100.0)) == COLOURS["inline"]


def test_nothing_to_draw_is_no_picture():
    assert render([DrawnCurve("inline", [], 1)], -1.0, "toy") is None
    assert render([], None, "toy") is None


def test_one_point_is_a_picture():
    content = png(render([DrawnCurve("async", [(400, 7.0, 7.0, 7.0)], 1)], None, "toy"))
    with Image.open(io.BytesIO(content)) as picture:
        assert COLOURS["async"] in {colour for _, colour in picture.getcolors(2**16)}
