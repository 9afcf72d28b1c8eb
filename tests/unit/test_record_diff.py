"""The first difference between a record and its replay, and its likely cause, on rows built by hand."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.core.errors import ReplayDiffers
from headrace.core.specs import Leaf
from headrace.lanes import layout
from headrace.record import diff
from headrace.record.causes import UNUSED_BYTES, Clues, Repeat, cause_of_rows, cause_without_rows
from headrace.record.diff import Cause, Divergence, RowDifference, RowFields, first_difference
from headrace.record.learned import cause_of_batch, cause_of_weights

FLOAT = np.dtype(np.float32)
DTYPE = layout.row_dtype([Leaf("obs", FLOAT, (3,))], [Leaf("action", FLOAT, (2,))])
SMALL = layout.row_dtype([Leaf("obs", np.dtype(np.int64), ())], [Leaf("action", np.dtype(np.int64), ())])
"""Of few values: one whole number each."""
FIRST_ROW = 1700
Rows = NDArray[np.void]


def stream(seed: int, *lengths: int, dtype: np.dtype[Any] = DTYPE, values: int = 0) -> Rows:
    """Rows of a lane: whole episodes of these lengths, the last one still running; all values drawn.

    Args:
        seed: Of the draw.
        lengths: Transitions of each episode.
        dtype: Of a row.
        values: Draw whole numbers below this; 0: floats that never repeat.
    """
    draw = np.random.default_rng(seed)
    kinds = [kind for length in lengths for kind in (*[layout.STEP] * length, layout.FINAL)]
    kinds[-1] = diff.UNFINISHED
    rows = np.zeros(len(kinds), dtype)
    for name in ("obs", "action", "reward"):
        shape = rows[name].shape
        rows[name] = draw.integers(values, size=shape) if values else draw.normal(size=shape)
    rows["kind"] = kinds
    rows["version"] = 7
    rows["episode"] = np.repeat(np.arange(len(lengths)), np.array(lengths) + 1)
    rows["t"] = np.concatenate([np.arange(length + 1) for length in lengths])
    rows["transitions"] = np.cumsum(rows["kind"] == layout.STEP)
    over = np.flatnonzero(rows["kind"] == layout.FINAL)
    rows["terminated"][over - 1] = True
    rows["reward"][over] = 0.0
    rows["action"][over] = 0
    for name in set(dtype.names or ()) - {"obs", "kind"}:
        rows[name][-1] = 0
    return rows


def steps(rows: Rows) -> NDArray[np.int64]:
    """Places of the transitions."""
    return np.flatnonzero(rows["kind"] == layout.STEP)


def without(rows: Rows, *places: int) -> Rows:
    return np.delete(rows, places)


def again(rows: Rows, place: int) -> Rows:
    """With a row stored twice."""
    return rows[np.insert(np.arange(len(rows)), place, place)]


def in_order(rows: Rows, *places: int) -> Rows:
    """With the rows at the sorted places put there in the order given; the counters stay where they are."""
    changed = rows.copy()
    for name in rows.dtype.names or ():
        if name not in diff.COUNTERS:
            changed[name][sorted(places)] = rows[name][list(places)]
    return changed


def found(recorded: Rows, replayed: Rows) -> RowDifference:
    difference = first_difference(recorded, replayed, lane=3, first_row=FIRST_ROW)
    assert difference is not None
    return difference


def cause(recorded: Rows, replayed: Rows, **clues: Any) -> Cause:
    return cause_of_rows(found(recorded, replayed), recorded, replayed, Clues(**clues))


# ---- where


def test_kinds_and_fields_are_those_of_a_lane() -> None:
    assert diff.STEP == layout.STEP
    assert diff.UNFINISHED not in (layout.STEP, layout.FINAL, layout.CUT)
    pair = (
        [Leaf("obs.a", FLOAT, ()), Leaf("obs.b", FLOAT, (2, 2))],
        [Leaf("action.x", FLOAT, ()), Leaf("action.y", FLOAT, ())],
    )
    fields = RowFields.of(layout.row_dtype(*pair))
    assert fields == RowFields(("obs.a", "obs.b"), ("action.x", "action.y"))
    assert sorted(fields.in_time()) == sorted(layout.row_dtype(*pair).names or ())
    assert sorted(fields.in_time(transition=False)) == sorted(fields.in_time())


def test_equal_rows_do_not_differ() -> None:
    rows = stream(0, 5, 4)
    rows["reward"][2] = np.nan
    assert first_difference(rows, rows.copy(), lane=0, first_row=0) is None
    assert first_difference(rows[:0], rows[:0], lane=0, first_row=0) is None


def test_the_first_value_is_told_with_its_place() -> None:
    recorded, replayed = stream(0, 5, 4), stream(0, 5, 4)
    recorded["obs"][7, 1], replayed["obs"][7, 1] = 0.5, 0.25
    recorded["reward"][7] += 1
    recorded["obs"][7, 2] += 1
    recorded["obs"][8] += 1
    difference = found(recorded, replayed)
    assert difference == RowDifference(
        lane=3, row=FIRST_ROW + 7, place=7, episode=1, t=1, field="obs", index=(1,), recorded="0.5", replayed="0.25",
        fields=("obs", "reward"), rows=2, recorded_rows=11, replayed_rows=11,
    )  # fmt: skip
    assert difference.value == "obs[1]"


@pytest.mark.parametrize("last", range(1, 9))
def test_of_a_row_the_field_that_was_known_first_is_named(last: int) -> None:
    order = ["obs", "kind", "version", "action", "reward", "terminated", "truncated", "episode", "t", "transitions"]
    recorded, replayed = stream(0, 6), stream(0, 6)
    for name in reversed(order[last:]):
        recorded[name][2] = ~replayed[name][2] if replayed[name].dtype == bool else replayed[name][2] + 1
        assert found(recorded, replayed).field == name
    assert found(recorded, replayed).fields == tuple(order[last:])


def test_an_earlier_row_comes_before_an_earlier_field() -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded["obs"][4] += 1
    recorded["transitions"][3] += 1
    assert (found(recorded, replayed).row, found(recorded, replayed).field) == (FIRST_ROW + 3, "transitions")


def test_zeros_of_different_sign_differ_and_show_it() -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded["reward"][1], replayed["reward"][1] = -0.0, 0.0
    difference = found(recorded, replayed)
    assert (difference.recorded, difference.replayed) == ("-0.0 (-0x0.0p+0)", "0.0 (0x0.0p+0)")


def test_values_that_print_alike_show_their_bits() -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded["obs"][1, 0], replayed["obs"][1, 0] = np.nan, np.array(0x7FC00001, np.uint32).view(np.float32)
    difference = found(recorded, replayed)
    assert (difference.recorded, difference.replayed) == ("nan (bits 0x7fc00000)", "nan (bits 0x7fc00001)")


def test_values_that_hardly_differ_show_their_bits() -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded["obs"][1, 0] = 0.1
    replayed["obs"][1, 0] = np.nextafter(FLOAT.type(0.1), FLOAT.type(1))
    assert found(recorded, replayed).recorded == "0.1 (0x1.99999a0000000p-4)"
    assert found(recorded, replayed).replayed == "0.10000001 (0x1.99999c0000000p-4)"


def test_values_at_the_ends_of_a_float_are_compared_in_silence() -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded["reward"][1], replayed["reward"][1] = 1.7e308, -1.7e308
    assert found(recorded, replayed).recorded == "1.7e+308"
    recorded["reward"][1], replayed["reward"][1] = np.inf, 1.0
    assert cause(recorded, replayed).name == "environment_not_deterministic"


def test_a_side_with_more_rows_is_told_where_it_goes_on() -> None:
    rows = stream(0, 5, 4)
    difference = found(rows, rows[:8])
    assert difference.field == diff.LENGTH
    assert (difference.row, difference.place, difference.t) == (FIRST_ROW + 8, 8, 2)
    assert (difference.recorded, difference.replayed) == ("11 rows", "8 rows")
    assert found(rows[:8], rows).recorded == "8 rows"


def test_lengths_are_told_beside_a_value_that_differs() -> None:
    recorded, replayed = stream(0, 5, 4), stream(0, 5, 4)[:8]
    recorded["obs"][2] += 1
    difference = found(recorded, replayed)
    assert difference.facts()["rows"] == "11 recorded, 8 replayed"
    assert difference.facts()["differing"] == "obs of this row; 1 of 8 rows"


def test_bytes_that_a_row_does_not_use_are_told_as_such() -> None:
    recorded, replayed = stream(0, 5, 4), stream(0, 5, 4)
    recorded["action"][5] = 1.0  # of a FINAL row: left over from the ring's last round
    difference = found(recorded, replayed)
    assert (difference.unused, difference.compared) == (True, "unused bytes")
    assert cause(recorded, replayed) is UNUSED_BYTES
    recorded["transitions"][5] += 1
    assert found(recorded, replayed).field == "transitions"  # what counts comes before what does not


# ---- rows in another place


def test_a_dropped_transition_is_named() -> None:
    replayed = stream(0, 6, 6)
    assert cause(without(replayed, 3), replayed) == Cause(
        "transition_dropped",
        "a transition was dropped: from row 1703 on the record holds what the replay has 1 row later",
        diff.FILE_A_BUG,
        ("it explains 10 of 10 rows",),
    )


def test_a_dropped_transition_is_named_where_the_chunk_was_filled_up() -> None:
    longer = stream(0, 6, 6)
    recorded, replayed = without(longer, 3)[:9], longer[:9]
    for name in diff.COUNTERS:
        recorded[name] = replayed[name]
    assert cause(recorded, replayed).name == "transition_dropped"


def test_what_a_last_row_was_left_with_hides_nothing() -> None:
    replayed = stream(0, 6, 6)
    recorded = without(replayed, 3)
    recorded["action"][5], replayed["action"][6] = 1.0, 2.0  # FINAL: bytes of the ring's last round
    assert cause(recorded, replayed).evidence == ("it explains 10 of 10 rows",)


def test_the_last_transition_dropped_is_named() -> None:
    replayed = stream(0, 6)
    assert cause(without(replayed, 5), replayed).name == "transition_dropped"
    told = cause(replayed[:-2], replayed[:-1])
    assert (told.name, told.evidence) == ("transition_dropped", ())
    assert told.sentence == "transitions were dropped: the record lacks the last 1 row of the replay"


def test_rows_that_are_equal_but_for_a_missing_one_need_no_digits() -> None:
    replayed = stream(0, 6, dtype=SMALL, values=2)
    replayed["reward"][2:5] = 0, 1, 0
    assert cause(without(replayed, 3), replayed).name == "transition_dropped"
    assert cause(again(replayed, 3), replayed).name == "transition_duplicated"


def test_several_dropped_transitions_are_counted() -> None:
    replayed = stream(0, 9)
    assert "what the replay has 3 rows later" in cause(without(replayed, 2, 3, 4), replayed).sentence


def test_a_dropped_transition_is_named_though_another_one_follows() -> None:
    replayed = stream(0, 12)
    told = cause(without(replayed, 2, 8), replayed)
    assert (told.name, told.evidence) == ("transition_dropped", ("it explains 5 of 9 rows",))


def test_a_duplicated_transition_is_named() -> None:
    replayed = stream(0, 6, 6)
    told = cause(again(replayed, 3), replayed)
    assert told.name == "transition_duplicated"
    assert told.sentence == (
        "a transition was stored twice: from row 1704 on the record holds what the replay has 1 row earlier"
    )
    assert cause(again(replayed, 3)[:-1], replayed).name == "transition_duplicated"


def test_a_duplicate_of_the_last_transition_is_named() -> None:
    replayed = stream(0, 6)
    assert cause(again(replayed, 5), replayed).name == "transition_duplicated"
    assert cause(again(replayed[:-1], 5), replayed[:-1]).name == "transition_duplicated"


@pytest.mark.parametrize("twin", [1, 4, 9])
def test_a_transition_stored_over_another_one_is_a_duplicate(twin: int) -> None:
    replayed = stream(0, 10)
    recorded = replayed.copy()
    for name in ("obs", "action", "reward"):
        recorded[name][5] = replayed[name][twin]
    told = cause(recorded, replayed)
    assert told.name == "transition_duplicated"
    assert told.sentence == f"row 1705 holds the transition of row {FIRST_ROW + twin} as well; its own is lost"


def test_a_row_near_the_end_that_holds_the_next_one_is_not_a_dropped_one() -> None:
    replayed = stream(0, 10)[:-1]
    recorded = replayed.copy()
    for name in ("obs", "action", "reward"):
        recorded[name][8] = replayed[name][9]
    assert cause(recorded, replayed).name == "transition_duplicated"  # row 9 is still in its place


@pytest.mark.parametrize("places", [(4, 3), (9, 8), (7, 2), (4, 2, 3), (9, 8, 7, 6, 5)])
def test_reordered_transitions_are_named(places: tuple[int, ...]) -> None:
    replayed = stream(0, 10)[:-1]
    told = cause(in_order(replayed, *places), replayed)
    assert told.name == "transitions_reordered"
    assert told.sentence.startswith(
        f"transitions were reordered: rows {FIRST_ROW + min(places)} to {FIRST_ROW + max(places)} hold the replay's "
    )


def test_an_observation_stored_one_step_late_is_named() -> None:
    replayed = stream(0, 6, 6)
    recorded = replayed.copy()
    recorded["obs"][:-1] = replayed["obs"][1:]
    told = cause(recorded, replayed)
    assert (told.name, told.evidence) == ("observation_shifted", ("it explains 12 of 12 rows",))
    assert told.sentence == "from row 1700 on each action is stored with the observation it led to"


@pytest.mark.parametrize("border", ["its own", "of the next episode"])
def test_a_shifted_observation_is_named_across_episodes(border: str) -> None:
    replayed = stream(0, 4, 4, 4)
    recorded = replayed.copy()
    for place in steps(replayed):
        over = replayed["kind"][place + 1] == layout.FINAL
        beyond = place + 2 if border == "of the next episode" else place
        recorded["obs"][place] = replayed["obs"][beyond if over else place + 1]
    told = cause(recorded, replayed)
    assert (told.name, told.evidence) == ("observation_shifted", ("it explains 12 of 12 rows",))


def test_an_observation_stored_one_step_early_is_named() -> None:
    replayed = stream(0, 6, 6)
    recorded = replayed.copy()
    inside = np.flatnonzero(replayed["t"] > 0)[:-1]
    recorded["obs"][inside] = replayed["obs"][inside - 1]
    told = cause(recorded, replayed)
    assert told.name == "observation_shifted"
    assert told.sentence == "from row 1701 on each action is stored with the observation before the one it answers"


def test_the_last_observation_shifted_is_no_dropped_transition() -> None:
    """Its action is the one that belongs there."""
    replayed = stream(0, 6)
    recorded = replayed.copy()
    recorded["obs"][5] = replayed["obs"][6]
    assert cause(recorded, replayed).name == "observation_shifted"
    for name in ("action", "reward"):
        recorded[name][5] = stream(1, 6)[name][5]
    told = cause(recorded, replayed)
    assert (told.name, told.evidence) == ("transition_dropped", ("it explains 1 of 1 rows",))


def test_a_single_shifted_observation_is_named() -> None:
    replayed = stream(0, 9)
    recorded = replayed.copy()
    recorded["obs"][3] = replayed["obs"][4]
    told = cause(recorded, replayed)
    assert (told.name, told.evidence) == ("observation_shifted", ("it explains 1 of 6 rows",))


def test_a_shift_that_began_before_these_rows_is_named() -> None:
    longer = stream(0, 9)
    replayed, recorded = longer[2:], longer[2:].copy()
    recorded["obs"] = longer["obs"][1:-1]
    assert cause(recorded, replayed).name == "observation_shifted"


@pytest.mark.parametrize("what", [("obs", "action", "reward"), ("obs",), ("action",)])
def test_another_lanes_values_are_named(what: tuple[str, ...]) -> None:
    replayed, other, third = stream(0, 6, 6), stream(1, 6, 6), stream(2, 6, 6)
    recorded = replayed.copy()
    for name in what:
        recorded[name][3] = other[name][3]
    told = cause(recorded, replayed, others={0: third, 1: other})
    thing = {3: "what", 1: f"the {'observation' if what[0] == 'obs' else 'action'} that"}[len(what)]
    assert told.name == "other_lane"
    assert told.sentence == f"row 1703 holds {thing} lane 1 has at step 3 of its episode 0"
    assert told.evidence == ("it explains 11 of 11 rows",)


def test_another_lanes_values_are_named_though_all_differs_from_there_on() -> None:
    replayed, other = stream(0, 12), stream(1, 3, 9)
    recorded = replayed.copy()
    recorded[4:] = stream(2, 12)[4:]
    recorded["obs"][4] = other["obs"][7]
    told = cause(recorded, replayed, others={1: other})
    assert (told.name, told.evidence) == ("other_lane", ("it explains 1 of 9 rows",))


def test_rows_of_another_lane_are_counted() -> None:
    replayed, other = stream(0, 12), stream(1, 12)
    recorded = replayed.copy()
    recorded[4:9] = other[4:9]
    assert cause(recorded, replayed, others={1: other}).sentence.endswith(", and the 4 after it what follows there")


def test_the_longest_run_of_another_lane_is_named() -> None:
    replayed, other = stream(0, 15), stream(1, 15)
    other["obs"][[4, 11]] = other["obs"][6]
    recorded = replayed.copy()
    recorded["obs"][4:7] = other["obs"][6:9]
    assert cause(recorded, replayed, others={1: other}).sentence == (
        "row 1704 holds the observation that lane 1 has at step 6 of its episode 0, and the 2 after it what follows there"
    )


# ---- what only looks like it


def test_noise_is_no_pattern() -> None:
    replayed = stream(0, 6, 6)
    recorded = replayed.copy()
    recorded["obs"][4:] += stream(1, 6, 6)["obs"][4:]
    told = cause(recorded, replayed, others={1: stream(2, 6, 6)})
    assert told.name == "environment_not_deterministic"
    assert told.evidence == ("step() returned another observation after the same seed, actions and values",)


@pytest.mark.parametrize("seed", range(40))
def test_noise_in_few_values_is_no_pattern(seed: int) -> None:
    """Among whole numbers of three values some row is always somewhere else; that proves nothing."""
    replayed = stream(0, 12, 12, dtype=SMALL, values=3)
    recorded = replayed.copy()
    place = seed % 20
    for name in ("obs", "reward"):
        recorded[name][place:] = np.random.default_rng(seed).integers(3, size=len(recorded) - place)
    if first_difference(recorded, replayed, lane=0, first_row=0) is not None:
        assert cause(recorded, replayed, others={1: stream(1, 24, dtype=SMALL, values=3)}).name == (
            "environment_not_deterministic"
        )


def test_a_long_run_of_few_values_is_a_pattern() -> None:
    longer = stream(0, 30, dtype=SMALL, values=4)
    recorded, replayed = without(longer, 3)[:25], longer[:25]
    assert cause(recorded, replayed).evidence == ("it explains 21 of 21 rows",)


def halves(*rewards: int) -> Rows:
    """24 transitions that differ in nothing but their rewards, of which there are few."""
    rows = stream(0, 24, dtype=SMALL, values=2)[:-1]
    rows["obs"], rows["action"], rows["reward"] = 0, 0, np.resize(rewards, 24)
    return rows


def test_few_values_in_another_order_are_no_pattern() -> None:
    """Among millions of orders of zeros and ones, one fits."""
    recorded, replayed = halves(*[1] * 12, *[0] * 12), halves(*[0] * 12, *[1] * 12)
    assert cause(recorded, replayed).name == "environment_not_deterministic"


def test_rows_that_are_in_their_place_speak_for_no_pattern() -> None:
    """Where all rows come again after three, every row is also the one three rows later."""
    recorded, replayed = halves(0, 1, 2), halves(0, 1, 2)
    replayed["reward"][4] = 3
    assert cause(recorded, replayed).name == "environment_not_deterministic"


def clock() -> NDArray[np.float32]:
    return np.arange(13, dtype=np.float32)[:, None] * np.float32(0.37)


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(np.arange(13) + 100.0, id="whole numbers"),
        pytest.param(np.where(np.arange(13) == 4, 0.9, np.resize([0.1, 0.2], 13)), id="few values"),
        pytest.param(np.where(np.arange(13) == 9, 1.48, clock()[:, 0]), id="a value that comes again"),
    ],
)
def test_a_value_that_may_be_anywhere_is_no_other_lanes(column: NDArray[np.float64]) -> None:
    replayed, other = stream(0, 12), stream(1, 12)
    other["obs"] = column[:, None]
    recorded = replayed.copy()
    recorded["obs"][4] = other["obs"][4]
    assert cause(recorded, replayed, others={1: other}).name == "environment_not_deterministic"


def test_a_value_in_its_place_is_no_other_lanes() -> None:
    """Both lanes have seen the same time; what differs is a switch."""
    replayed, other = stream(0, 12), stream(1, 12)
    replayed["obs"] = other["obs"] = clock() * [1, 0, 0]
    other["obs"][4, 1] = 1.0
    recorded = replayed.copy()
    recorded["obs"][4, 1] = 1.0
    assert cause(recorded, replayed, others={1: other}).name == "environment_not_deterministic"


def test_a_single_whole_number_is_no_other_lanes() -> None:
    replayed, other = stream(0, 12, dtype=SMALL, values=9), stream(1, 12, dtype=SMALL, values=9)
    recorded = replayed.copy()
    recorded["obs"][4] = other["obs"][4] = 123
    assert cause(recorded, replayed, others={1: other}).name == "environment_not_deterministic"


def test_a_short_run_of_few_values_is_told_as_chance() -> None:
    replayed = stream(0, 8, dtype=SMALL, values=3)
    replayed["obs"], replayed["action"], replayed["reward"] = 0, 0, [0, 0, 0, 0, 0, 0, 1, 2, 0]
    recorded = replayed.copy()
    recorded["reward"][6:8] = 2, 1
    told = cause(recorded, replayed)
    assert told.name == "environment_not_deterministic"
    assert any(line.startswith("may be chance: transitions were reordered") for line in told.evidence)


def test_a_whole_image_is_no_chance() -> None:
    kind = layout.row_dtype([Leaf("obs", np.dtype(np.uint8), (8, 8))], [Leaf("action", np.dtype(np.int64), ())])
    replayed = stream(0, 8, dtype=kind, values=256)
    recorded = replayed.copy()
    recorded["obs"][5], recorded["action"][5], recorded["reward"][5] = (
        replayed[name][2] for name in ("obs", "action", "reward")
    )
    assert cause(recorded, replayed).name == "transition_duplicated"


def test_a_constant_observation_is_neither_shifted_nor_repeated() -> None:
    replayed = stream(0, 8)
    replayed["obs"] = 0.5
    recorded = replayed.copy()
    recorded["reward"][4] += 0.1
    told = cause(recorded, replayed, others={1: replayed.copy()})
    assert told.name == "environment_not_deterministic"
    assert told.evidence == ("step() returned another reward after the same seed, actions and values",)
    recorded = replayed.copy()
    recorded["action"][4] += 0.1
    assert cause(recorded, replayed).name == "other_weights"


def test_a_constant_observation_is_not_shifted_where_only_an_end_differs() -> None:
    recorded, replayed = stream(0, 4, 6), stream(0, 4, 6)
    recorded["obs"] = replayed["obs"] = 0.5
    recorded["obs"][4] = 0.25  # of a FINAL row
    assert len(cause(recorded, replayed).evidence) == 1


def test_a_constant_observation_does_not_hide_a_dropped_transition() -> None:
    replayed = stream(0, 8)
    replayed["obs"] = 0.5
    assert cause(without(replayed, 3), replayed).name == "transition_dropped"  # the actions tell


def test_rows_that_are_all_alike_tell_no_pattern() -> None:
    replayed = stream(0, 8)
    replayed["obs"], replayed["action"], replayed["reward"] = 0.5, 0.5, 0.5
    recorded = replayed.copy()
    recorded["t"][4:] += 1
    told = cause(recorded, replayed)
    assert (told.name, found(recorded, replayed).compared) == ("bookkeeping_differs", "counters")


def test_lanes_that_are_alike_do_not_hide_a_dropped_transition() -> None:
    replayed = stream(0, 8)
    assert cause(without(replayed, 3), replayed, others={1: replayed.copy()}).name == "transition_dropped"


def test_what_fits_two_causes_is_told_as_ambiguous() -> None:
    replayed = stream(0, 10)
    replayed["action"], replayed["reward"] = 0.0, 0.0
    recorded = without(replayed, 3)[:-1]
    for name in (*diff.COUNTERS, "kind"):
        recorded[name] = replayed[name][: len(recorded)]
    told = cause(recorded, replayed)
    assert told.name == "ambiguous"
    assert told.sentence == "the values fit transition_dropped and observation_shifted alike"
    assert len(told.evidence) == 2


def test_a_single_observation_found_elsewhere_is_told_beside_the_cause() -> None:
    replayed = stream(0, 8)
    recorded = replayed.copy()
    recorded[4:] = stream(1, 8)[4:]
    recorded["obs"][4] = replayed["obs"][5]  # as after a lost row, where a stack of frames changed the actions
    told = cause(recorded, replayed)
    assert told.name == "environment_not_deterministic"
    assert told.evidence[-1] == "the recorded observation of row 1704 is the replay's of row 1705"


# ---- the environment, the policy, the machine


def changed(name: str, place: int, factor: float = 1.5) -> tuple[Rows, Rows]:
    """A record in which a value differs from the replay by a factor."""
    recorded, replayed = stream(0, 4, 6), stream(0, 4, 6)
    recorded[name][place] *= factor
    return recorded, replayed


@pytest.mark.parametrize(("place", "call"), [(5, "reset"), (6, "step")])
def test_another_observation_is_the_environments(place: int, call: str) -> None:
    told = cause(*changed("obs", place))
    assert told.name == "environment_not_deterministic"
    assert told.sentence == "the environment is not deterministic under its seed"
    assert told.evidence[0].startswith(f"{call}() returned another observation")


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_another_end_is_the_environments(name: str) -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded[name][3] = True
    told = cause(recorded, replayed)
    assert told.name == "environment_not_deterministic"
    assert told.evidence[0].startswith("step() returned another end of the episode")


ROUNDED = 1 + 2e-7
OTHER = "torch 2.13.0 was recorded, 2.14.0 is here"


@pytest.mark.parametrize(
    ("factor", "machine", "repeat", "name"),
    [
        (1.5, (), Repeat.NOT_TRIED, "environment_not_deterministic"),
        (1.5, (), Repeat.SAME, "environment_not_deterministic"),
        (1.5, (), Repeat.DIFFERENT, "environment_not_deterministic"),
        (1.5, (), Repeat.SAME_IF_RESEEDED, "global_generator"),
        (1.5, (OTHER,), Repeat.NOT_TRIED, "environment_not_deterministic"),
        (1.5, (OTHER,), Repeat.SAME, "other_machine"),
        (1.5, (OTHER,), Repeat.DIFFERENT, "environment_not_deterministic"),
        (1.5, (OTHER,), Repeat.SAME_IF_RESEEDED, "global_generator"),
        (ROUNDED, (), Repeat.NOT_TRIED, "environment_not_deterministic"),
        (ROUNDED, (), Repeat.SAME, "rounding_differs"),
        (ROUNDED, (), Repeat.DIFFERENT, "environment_not_deterministic"),
        (ROUNDED, (OTHER,), Repeat.NOT_TRIED, "other_machine"),
        (ROUNDED, (OTHER,), Repeat.DIFFERENT, "environment_not_deterministic"),
    ],
)
@pytest.mark.parametrize("field", ["obs", "reward"])
def test_an_environments_cause_follows_from_what_is_known(
    field: str, factor: float, machine: tuple[str, ...], repeat: Repeat, name: str
) -> None:
    told = cause(*changed(field, 7, factor), machine=machine, repeat=repeat)
    assert told.name == name
    assert set(machine) <= set(told.evidence)


def test_an_action_of_other_weights_is_named_with_their_version() -> None:
    recorded, replayed = changed("action", 6)
    policies = {5: stream(5, 4, 6), 6: recorded, 8: replayed}
    told = cause(recorded, replayed, acts=policies.get, versions=[8, 6, 5, 4])
    assert told.name == "other_weights"
    assert told.sentence == "the action fits policy 6, and the record names policy 7"
    assert told.evidence == ("it fits 5 rows in sequence",)


def test_the_policy_that_fits_longest_is_named() -> None:
    recorded, replayed = changed("action", slice(6, 9))  # type: ignore[arg-type]
    short = replayed.copy()
    short["action"][6:8] = recorded["action"][6:8]
    policies = {5: short, 6: {"action": recorded["action"]}, 4: short}
    told = cause(recorded, replayed, acts=policies.get, versions=[5, 6, 4])
    assert told.sentence == "the action fits policy 6, and the record names policy 7"
    del policies[6]
    told = cause(recorded, replayed, acts=policies.get, versions=[5, 6, 4])
    assert told.sentence == "the action fits policy 5 and 4, and the record names policy 7"


def test_a_version_that_differs_is_named() -> None:
    recorded, replayed = stream(0, 6), stream(0, 6)
    recorded["version"][2:] = 6
    told = cause(recorded, replayed)
    assert told.name == "other_weights"
    assert told.sentence == "the record's rows were made by policy 6, the replay's by 7"


def test_an_action_no_policy_chooses_is_explorations() -> None:
    recorded, replayed = changed("action", 6)
    told = cause(recorded, replayed, acts={5: replayed, 6: replayed}.get, versions=[5, 6])
    assert (told.name, told.evidence) == ("exploration_differs", ("tried: policy 5 and 6",))


def test_an_action_its_own_policy_chooses_is_explorations() -> None:
    recorded, replayed = changed("action", 6)
    told = cause(recorded, replayed, acts={7: recorded}.get, versions=[6, 7])
    assert told.name == "exploration_differs"
    assert told.sentence.startswith("policy 7 does choose the recorded action")


def test_without_policies_to_try_other_weights_are_likely() -> None:
    told = cause(*changed("action", 6))
    assert (told.name, told.evidence) == ("other_weights", ("no other policy was tried",))


def test_an_action_chosen_from_another_lanes_stack_is_named() -> None:
    recorded, replayed = changed("action", 6)
    seeing = {1: recorded, 2: replayed}
    told = cause(recorded, replayed, others={1: stream(1, 10), 2: stream(2, 10)}, acts_seeing=seeing.get)
    assert told.name == "other_lane"
    assert told.sentence == "the action fits what lane 1 had seen: its input was built from there"


@pytest.mark.parametrize(("machine", "name"), [((), "rounding_differs"), ((OTHER,), "other_machine")])
def test_an_action_rounded_in_another_way_is_the_machines(machine: tuple[str, ...], name: str) -> None:
    told = cause(*changed("action", 6, ROUNDED), machine=machine, acts={6: stream(1, 4, 6)}.get, versions=[6])
    assert told.name == name
    assert told.evidence[1:] == machine


def test_a_change_just_beyond_rounding_is_no_rounding() -> None:
    assert cause(*changed("action", 6, 1 + 0.9e-5), machine=(OTHER,)).name == "other_machine"
    assert cause(*changed("action", 6, 1 + 1.1e-5), machine=(OTHER,)).name == "other_weights"


def test_a_record_that_goes_on_is_told() -> None:
    rows = stream(0, 8)
    assert cause(rows[:-1], rows[:5]).name == "length_differs"


def test_an_episode_cut_on_one_side_is_told() -> None:
    recorded, replayed = stream(0, 6)[:5], stream(0, 6)[:5]
    recorded["kind"][4] = layout.CUT
    recorded["action"][4] = 0.0
    assert found(recorded, replayed).field == "kind"
    assert cause(recorded, replayed).name == "bookkeeping_differs"


@pytest.mark.parametrize(
    ("clues", "name"),
    [
        (Clues(), "unknown"),
        (Clues(machine=[OTHER]), "other_machine"),
        (Clues(machine=[OTHER], repeat=Repeat.SAME_IF_RESEEDED), "global_generator"),
        (Clues(repeat=Repeat.DIFFERENT), "environment_not_deterministic"),
    ],
)
def test_without_rows_only_what_is_known_beside_them_tells(clues: Clues, name: str) -> None:
    told = cause_without_rows(clues)
    assert told.name == name
    assert told.evidence[0] == "only the checksum was recorded: record.rows kept no rows of it"


# ---- any planted pattern, and nothing else


PLANTED = st.sampled_from(
    ["dropped", "duplicated", "overwritten", "swapped", "shifted", "other row", "other observation", "noise", "reward"]
)
NAMES = {
    "dropped": "transition_dropped", "duplicated": "transition_duplicated", "overwritten": "transition_duplicated",
    "swapped": "transitions_reordered", "shifted": "observation_shifted", "other row": "other_lane",
    "other observation": "other_lane", "noise": "environment_not_deterministic",
    "reward": "environment_not_deterministic",
}  # fmt: skip


def plant(what: str, rows: Rows, other: Rows, place: int, twin: int) -> Rows:
    """Rows with one defect; ``place`` and ``twin`` are transitions that differ."""
    if what == "dropped":
        return without(rows, place)
    if what == "duplicated":
        return again(rows, place)
    if what == "swapped":
        return in_order(rows, max(place, twin), min(place, twin))
    recorded = rows.copy()
    match what:
        case "shifted":
            after = steps(rows)[steps(rows) >= place]
            recorded["obs"][after] = rows["obs"][after + 1]
        case "noise":
            recorded["obs"][place:] *= 1.25
        case "reward":
            recorded["reward"][place] += 0.25
        case _:
            source = rows if what == "overwritten" else other
            for name in ("obs",) if what == "other observation" else ("obs", "action", "reward"):
                recorded[name][place] = source[name][twin]
    return recorded


@given(PLANTED, st.integers(0, 2**32 - 1), st.lists(st.integers(3, 9), min_size=1, max_size=4), st.data())
def test_any_single_planted_defect_is_named(what: str, seed: int, lengths: list[int], data: st.DataObject) -> None:
    rows = stream(seed, *lengths)
    other, third = stream(seed + 1, *lengths), stream(seed + 2, *reversed(lengths))
    inside = [int(place) for place in steps(rows) if not rows["terminated"][place]]
    place = data.draw(st.sampled_from(inside))
    twin = data.draw(st.sampled_from([other for other in inside if other != place]))
    recorded = plant(what, rows, other, place, twin)
    told = cause(recorded, rows, others={1: other, 2: third})
    assert told.name == NAMES[what]
    assert found(recorded, rows).row <= FIRST_ROW + max(place, twin) + 1
    assert not told.evidence or "chance" not in "".join(told.evidence)


# ---- batches and weights


def test_other_places_are_the_samplers() -> None:
    told = cause_of_batch((1, 2), (3, 4), update=410)
    assert told.name == "sampling_differs"
    assert told.sentence == (
        "update 410: the sampler drew other rows: it had another number of them, or its generator was in another state"
    )


@pytest.mark.parametrize(
    ("resident", "why"),
    [((1000, 990), "it had another number of them"), ((9, 9), "its generator was in another state")],
)
def test_how_many_rows_there_were_tells_which(resident: tuple[int, int], why: str) -> None:
    told = cause_of_batch((1, 2), (3, 2), update=410, resident_rows=resident)
    assert told.sentence == f"update 410: the sampler drew other rows: {why}"
    assert told.evidence == (f"rows to draw from: {resident[0]:,} recorded, {resident[1]:,} replayed",)


@pytest.mark.parametrize("committed", [None, True])
def test_other_contents_of_the_same_places_were_being_written(committed: bool | None) -> None:
    told = cause_of_batch((1, 2), (1, 4), update=410, rows_as_committed=committed)
    assert told.name == "row_read_while_written"
    assert told.sentence == "update 410: the batch holds rows that were being written"


def test_rows_that_changed_after_their_commit_are_told_as_such() -> None:
    assert cause_of_batch((1, 2), (1, 4), update=410, rows_as_committed=False).name == "row_changed_after_commit"


def test_a_double_target_update_is_named_with_its_counts() -> None:
    ledger = {"updates": 820, "target_updates": 410, "target_updates_declared": 410}
    told = cause_of_weights(ledger | {"target_updates": 820}, ledger, batches_equal=True, machine=[OTHER])
    assert told.name == "update_rule_differs"
    assert told.sentence == "target updates: 820 recorded, 410 replayed"
    assert told.evidence == ("twice as many as in the replay: each was made twice",)


def test_an_optimiser_made_anew_is_named() -> None:
    ledger = {"updates": 2000, "critic_steps": 2000, "actor_steps": 1000}
    told = cause_of_weights(ledger | {"critic_steps": 12}, ledger, batches_equal=True)
    assert told.sentence == "critic steps: 12 recorded, 2,000 replayed"
    assert told.evidence == (
        "a count of optimiser steps falls when the optimiser is made anew, and its moments are lost with it",
    )


def test_what_was_done_is_told_before_what_was_declared() -> None:
    recorded, replayed = {"b_declared": 1, "actor_updates": 2, "only_here": 1.5}, {"b_declared": 2, "actor_updates": 3}
    told = cause_of_weights(recorded, replayed, batches_equal=True)
    assert told.sentence == "actor updates: 2 recorded, 3 replayed"
    assert told.evidence == ("only here: 1.5 recorded, none replayed", "b declared: 1 recorded, 2 replayed")


def test_a_count_that_is_only_higher_is_neither_double_nor_new() -> None:
    told = cause_of_weights({"critic_steps": 2001}, {"critic_steps": 2000}, batches_equal=True)
    assert (told.sentence, told.evidence) == ("critic steps: 2,001 recorded, 2,000 replayed", ())


def test_a_count_that_is_no_number_equals_itself() -> None:
    ledger = {"epsilon": float("nan")}
    assert cause_of_weights(ledger, {"epsilon": float("nan")}, batches_equal=True).name == "unknown"
    assert cause_of_weights(ledger, {"epsilon": 0.5}, batches_equal=True).name == "update_rule_differs"


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"batches_equal": False, "weights_equal": True}, "batches_differ"),
        ({"batches_equal": True, "weights_equal": True, "machine": [OTHER]}, "other_weights"),
        ({"batches_equal": True, "weights_equal": False, "machine": [OTHER]}, "other_machine"),
        ({"batches_equal": None, "machine": [OTHER]}, "other_machine"),
        ({"batches_equal": True}, "unknown"),
        ({"batches_equal": None}, "unknown"),
    ],
)
def test_equal_counts_leave_other_causes(facts: dict[str, Any], name: str) -> None:
    told = cause_of_weights({"updates": 5}, {"updates": 5}, **facts)
    assert told.name == name


def test_what_is_not_known_is_said() -> None:
    told = cause_of_weights({}, {}, batches_equal=None)
    assert told.sentence == "nothing that was recorded tells why"
    assert told.evidence == ("batches were not recorded", "machine and libraries are as recorded")


# ---- the report


def test_the_report_tells_where_what_and_why() -> None:
    recorded, replayed = stream(0, 30, 30), stream(0, 30, 30)
    recorded["obs"][42, 1], replayed["obs"][42, 1] = 0.5, 0.25
    recorded["reward"][42] += 1
    difference = found(recorded, replayed)
    told = cause_of_rows(difference, recorded, replayed, Clues(repeat=Repeat.DIFFERENT))
    divergence = Divergence(event=1204, kind="chunk 17 of group 3", updates=5120, difference=difference, cause=told)
    assert str(divergence) == (
        "event 1,204 (chunk 17 of group 3), lane 3, row 1742: recorded and replayed observations differ; "
        "the environment is not deterministic under its seed\n"
        "  after: 5,120 updates\n"
        "  at: episode 1, step 11\n"
        "  field: obs[1]\n"
        "  recorded: 0.5\n"
        "  replayed: 0.25\n"
        "  differing: obs, reward of this row; 1 of 62 rows\n"
        "  cause: environment_not_deterministic\n"
        "  evidence: step() returned another observation after the same seed, actions and values\n"
        "    played twice in one process with the same seed and actions, the episode differs as well\n"
        "  fix: draw everything from self.np_random, which reset(seed=...) sets, and let no clock, thread or earlier "
        "episode decide"
    )
    error = divergence.to_error()
    assert str(error) == f"[REC-002] {divergence}"
    assert error.exit_code == 4
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_report_without_rows_shows_the_values() -> None:
    told = cause_of_batch((1, 2), (1, 4), update=410)
    divergence = Divergence(
        event=12, kind="batch of update 410", updates=409, compared="batches", recorded="1f00aa", replayed="1f00ab",
        cause=told,
    )  # fmt: skip
    assert divergence.headline == (
        "event 12 (batch of update 410): recorded and replayed batches differ; "
        "update 410: the batch holds rows that were being written"
    )
    assert divergence.facts()["recorded"] == "1f00aa"
    with pytest.raises(ReplayDiffers, match="REC-002"):
        raise divergence.to_error()


@pytest.mark.parametrize(
    ("field", "plural"),
    [
        ("obs.camera", "observations"), ("action", "actions"), ("reward", "rewards"), ("version", "policy versions"),
        ("truncated", "ends of an episode"), ("kind", "kinds of rows"), ("t", "counters"), ("rows", "numbers of rows"),
    ],
)  # fmt: skip
def test_what_differs_has_a_name(field: str, plural: str) -> None:
    difference = RowDifference(
        lane=0, row=0, place=0, episode=0, t=0, field=field, recorded="", replayed="", recorded_rows=1, replayed_rows=1
    )
    assert difference.compared == plural
