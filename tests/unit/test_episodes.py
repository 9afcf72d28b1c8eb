"""Statistics of episodes come from the rows, whatever pieces those arrive in."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.lanes.layout import CUT, FINAL, STEP
from headrace.lanes.replay import Stretch
from headrace.learners.episodes import EpisodeBooks

DTYPE = np.dtype([("reward", "f8"), ("kind", "u1"), ("terminated", "?"), ("truncated", "?")])


def rows(lengths: list[tuple[int, str]]) -> np.ndarray:
    """Episodes of so many steps with reward 1 each, and how each ends."""
    table = []
    for length, end in lengths:
        table += [(1.0, STEP, False, False)] * (length - 1) + [(1.0, STEP, end == "terminated", end == "truncated")]
        if end != "running":
            table.append((0.0, CUT if end == "cut" else FINAL, False, False))
    return np.array(table, DTYPE)


EPISODES = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["terminated", "truncated", "cut"])), max_size=12)


@given(EPISODES, st.integers(0, 4), st.lists(st.integers(0, 80), max_size=6))
def test_counts_do_not_depend_on_how_rows_are_cut_into_pieces(episodes, running, cuts):
    table = rows([*episodes, *([(running, "running")] if running else [])])
    books = EpisodeBooks(lanes=2)
    ended = []
    for piece in np.split(table, sorted(min(cut, len(table)) for cut in cuts)):
        ended += books.add(Stretch(1, [piece[:3], piece[3:]]))
    kinds = [end for _, end in episodes]
    assert books.counts() == {
        "finished": len(kinds) - kinds.count("cut"),
        "terminated": kinds.count("terminated"),
        "truncated": kinds.count("truncated"),
        "cut": kinds.count("cut"),
    }
    whole = [length for length, end in episodes if end != "cut"]
    assert [(episode.lane, episode.reward_sum, episode.length) for episode in ended] == [(1, n, n) for n in whole]
    assert books.mean_return == books.mean_length == (np.mean(whole) if whole else None)


def test_terminated_and_truncated_at_once_is_terminated():
    table = rows([(2, "terminated")])
    table["truncated"][1] = True
    books = EpisodeBooks(lanes=1)
    books.add(Stretch(0, [table]))
    assert (books.terminated, books.truncated, books.finished) == (1, 0, 1)


def test_means_are_over_the_newest():
    books = EpisodeBooks(lanes=1, recent=2)
    books.add(Stretch(0, [rows([(1, "truncated"), (3, "truncated"), (5, "truncated")])]))
    assert books.mean_return == 4.0
