"""Numbers in metrics, JSON and lines; a stream of bytes as lines."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.commands.lines import LINE_BYTES, LineCutter, Shown
from headrace.commands.readings import json_holds, json_number, number_in, prometheus

METRICS = """
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model="a",engine="0"} 1.5e+03
vllm:generation_tokens_total{model="a",engine="1"} 500.0 1700000000
vllm:generation_tokens_total_more 7
broken NaN
"""


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("vllm:generation_tokens_total", 2000.0),
        ('vllm:generation_tokens_total{model="a",engine="1"}', 500.0),
        ('vllm:generation_tokens_total{model="b"}', None),
        ("vllm:generation_tokens", None),
        ("broken", None),
    ],
)
def test_a_metric_is_read(metric, value):
    assert prometheus(METRICS, metric) == value


@pytest.mark.parametrize(
    ("path", "value"), [("a.0.b", 3.0), ("a.1", None), ("n", 2.5), ("yes", None), ("a.0", None), ("a.0.b.c", None)]
)
def test_a_number_in_json_is_found(path, value):
    assert json_number(json.dumps({"a": [{"b": 3}], "n": 2.5, "yes": True}), path) == value


def test_no_json_holds_no_number():
    assert json_number("<html>", "a") is None
    assert json_number(json.dumps({"seed": 10**400}), "seed") is None


@pytest.mark.parametrize(
    ("expected", "held"),
    [
        ({"status": "ok"}, True),
        ({"status": "no"}, False),
        ({"more": {"version": 1}}, True),
        ({"more": {"version": True}}, False),
        ({"missing": None}, False),
        ({}, True),
    ],
)
def test_an_answer_holds_what_is_expected(expected, held):
    assert json_holds('{"status": "ok", "more": {"version": 1, "x": 2}}', expected) is held
    assert not json_holds("not json", expected)


@pytest.mark.parametrize(
    ("pattern", "line", "number"),
    [(r"step (\d+)", "step 12", 12.0), (r"step ([\d,]+)", "step 1,204", 1204.0), ("step", "step 1", None),
     (r"loss (\S+)", "loss nan", None), (r"(?:a|(b))", "a", None)],
)  # fmt: skip
def test_a_line_gives_its_number(pattern, line, number):
    match = re.search(pattern, line)
    assert match is not None
    assert number_in(match) == number


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces):
    whole, cut = LineCutter(), LineCutter()
    at_once = whole.feed(b"".join(pieces)) + whole.end()
    assert [line for piece in pieces for line in cut.feed(piece)] + cut.end() == at_once


def test_a_flood_without_a_line_break_is_cut_and_nothing_is_kept():
    cutter = LineCutter()
    lines = [line for _ in range(100) for line in cutter.feed(b"x" * 100_000)]

    assert {len(line) for line in lines} == {LINE_BYTES}
    assert sum(map(len, lines)) + len("".join(cutter.end())) == 10_000_000


def test_a_progress_bar_is_many_lines():
    assert LineCutter().feed(b"1%\r2%\r\n3%\n\n4%") == ["1%", "2%", "3%"]


def test_what_finds_no_room_is_counted():
    shown = Shown(most_bytes=10, most_lines=3)
    for text in ("aaaa", "bbbb", "cccc", "d", "e"):
        shown.add(1.0, text)

    assert (shown.seen, shown.left_out) == (5, 2)
    assert shown.take(2) == [(1.0, "aaaa"), (1.0, "bbbb")]
    shown.add(2.0, "ffff")
    assert [text for _, text in shown.take(9)] == ["d", "ffff"]
