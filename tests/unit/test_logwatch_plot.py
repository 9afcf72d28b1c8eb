"""The picture of a log's numbers."""

from __future__ import annotations

import pytest
from PIL import Image

from headrace.core.errors import ConfigError
from headrace.monitor.lognumbers import Numbers
from headrace.monitor.logplot import (
    HEAD,
    HEIGHT,
    MOST_PANELS,
    PAPER,
    WIDTH,
    bounds,
    check_plot_path,
    draw,
    panels,
    smoothed,
    tick_text,
    ticks,
)


def numbers(rows, at_s=float):
    found = Numbers()
    for i, row in enumerate(rows):
        found.add(i, at_s(i), row)
    return found


def test_panels_are_sorted_by_what_they_say():
    found = numbers({"step": i, "lr": 1 / (i + 1), "loss": i % 3, "fixed": 1.0, "ep_reward": i} for i in range(10))
    assert [panel.title for panel in panels(found)] == ["ep_reward  9", "loss  0", "lr  0.1", "fixed  1"]
    assert {panel.x_label for panel in panels(found)} == {"step"}


def test_without_a_counter_time_is_the_axis():
    [panel] = panels(numbers(({"loss": i % 3} for i in range(5)), at_s=lambda i: 100.0 + i))
    assert (panel.x_label, list(panel.xs)) == ("seconds", [0, 1, 2, 3, 4])


def test_without_counter_and_times_readings_are_counted():
    [panel] = panels(numbers(({"loss": i % 3} for i in range(5)), at_s=lambda i: 100.0))
    assert (panel.x_label, list(panel.xs)) == ("reading", [0, 1, 2, 3, 4])


def test_numbers_that_are_not_finite_are_left_out():
    [panel] = panels(numbers({"loss": value} for value in (1.0, float("nan"), 2.0, float("inf"))))
    assert list(panel.ys) == [1.0, 2.0]


def test_there_are_not_too_many_panels():
    found = numbers({f"n{k}x": float(i) for k in range(40)} for i in range(3))
    assert len(panels(found)) == MOST_PANELS


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_picture_has_room_for_all_panels_and_ink_in_each(tmp_path, count):
    found = numbers({f"n{k}x": float(i * k) for k in range(count)} for i in range(100))
    assert draw(found, tmp_path / "a.png", "training.log")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    with Image.open(tmp_path / "a.png") as picture:
        columns, rows = min(3, count), -(-count // 3)
        assert picture.size == (columns * WIDTH, HEAD + rows * HEIGHT)
        for place in range(count):
            left, top = place % 3 * WIDTH, HEAD + place // 3 * HEIGHT
            colours = picture.crop((left, top, left + WIDTH, top + HEIGHT)).getcolors(WIDTH * HEIGHT)
            assert colours is not None
            assert (11, 98, 164) in {colour for _, colour in colours}


def test_a_restarted_counter_draws_no_line_back(tmp_path):
    found = numbers({"step": i % 50, "loss": float(i)} for i in range(100))
    assert draw(found, tmp_path / "a.png", PAPER)


@pytest.mark.parametrize("value", [0.0003, 5e6, -2.0, 0.0])
def test_a_value_that_never_moves_has_room_of_its_size(value):
    low, high = bounds([value, value], 0.06)
    assert low < value < high
    assert high - low == pytest.approx(abs(value) or 1.0)


def test_nothing_to_draw(tmp_path):
    assert not draw(numbers([{"loss": 1.0}]), tmp_path / "a.png", "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 4, [3, 3.2, 3.4, 3.6, 3.8, 4]),
        (0, 7e6, [0, 2e6, 4e6, 6e6]),
    ],
)
def test_ticks_are_round(low, high, values):
    assert ticks(low, high) == pytest.approx(values)


@pytest.mark.parametrize(
    ("value", "step", "biggest", "text"),
    [
        (0.0, 1.0, 5.0, "0"),
        (0.25, 0.05, 1.0, "0.25"),
        (50_000.0, 50_000.0, 400_000.0, "50k"),
        (1_500_000.0, 500_000.0, 3e6, "1.5M"),
        (2e9, 1e9, 3e9, "2G"),
        (2e-5, 1e-5, 3e-5, "2e-05"),
        (-200.0, 50.0, 200.0, "-200"),
    ],
)
def test_labels_of_ticks(value, step, biggest, text):
    assert tick_text(value, step, biggest) == text


def test_smoothing_keeps_a_line_where_it_is():
    assert smoothed([float(i) for i in range(200)])[100] == pytest.approx(100.0)
    assert smoothed([1.0, 5.0]) == [1.0, 5.0]


def test_a_place_that_cannot_hold_a_picture_is_refused_before_the_watch(tmp_path):
    with pytest.raises(ConfigError, match=r"is no PNG\n  fix: write --plot .*a\.png"):
        check_plot_path(tmp_path / "a.pdf")
    with pytest.raises(ConfigError, match="cannot be written"):
        check_plot_path(tmp_path / "no" / "a.png")
    check_plot_path(tmp_path / "a.png")
