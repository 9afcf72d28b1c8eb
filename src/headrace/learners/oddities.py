"""The checks for suspicious data: each looks at a window of rows and at what came before, and says what is odd.

The thresholds stand beside the checks and are told in ``docs/guides/not-learning.md``. A check that often finds
something harmless says ``info``; ``warning`` is for what hardly any real environment does.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.lanes.layout import INFO_KEYS
from headrace.learners.evidence import Digests, Finding, Flags, History, Window, in_lanes, listed, mix

ALIKE = 0.005
"""Share of rows from which one same observation counts as repeated."""
DISTINCT = 0.9
"""Share of different values above which values count as continuous: then equal ones are no chance."""
RUN_ROWS = 8
"""Consecutive observations that are compared when a sequence is looked for again."""
NO_END_STEPS = 5_000
"""Steps every lane makes without any end of an episode before that is told."""
SILENT_REWARD_STEPS = 10_000
"""Steps with nothing but reward 0 from which that is a warning."""
FEW_SPACINGS = 4.0
"""Distances of neighbouring float32 numbers; what deviates from its mean by less is hardly seen to move."""
LEAST_MOVE = 1e-11
"""Share of its mean by which a number has to deviate: less is how constants come out of a simulation."""
FAR = 1e3
"""Means from which on an offset may be what hides a number. What comes close to 1, as a cosine does, loses nothing by it."""
LATE_STEPS = 10_000
"""Steps after learning began from which saturated actions are looked at."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the run's configuration says about the data."""

    continuing: bool = False
    """Whether episodes are not expected to end."""
    max_episode_steps: int | None = None
    """Where episodes are truncated."""
    acting_from: int = 0
    """Environment steps after which a trained policy acts."""
    agents: int = 1
    """Lanes of one environment, next to each other: its agents may well see the same."""


Check = Callable[[Window, History, Expected], Iterator[Finding]]


def constant_fields(w: Window, h: History, _: Expected) -> Iterator[Finding]:
    """Columns, or whole observations, that did not change in the window."""
    same = (w.obs == w.obs[0]).all(axis=0)
    places = np.flatnonzero(same)
    before = bool((h.varied & same).any())
    h.varied |= ~same
    where = f"in {w.rows:,} rows of {len(w.lanes)} lanes"
    if same.all() and (w.digest == w.digest[0]).all():
        zero = " and is zero in every field" if w.zero[0] else ""
        text = f"the whole observation did not change {where}{zero}: the policy is shown nothing"
        yield Finding("constant_observation", "warning", text, {"rows": w.rows, "all_zero": bool(zero)}, (bool(zero),))
        return
    yield from _dark_leaves(w, where)
    if len(places) and w.columns.complete:  # of a large picture, single dots that do not change say nothing
        h.constant.update(places.tolist())
        names = [w.columns.names[place] for place in places]
        values = sorted({float(w.obs[0, place]) for place in places})
        told = f" ({'value' if len(values) == 1 else 'values'} {listed([f'{value:g}' for value in values], 3)})"
        text = f"{listed(names)} did not change {where}{told}{', and had changed before' if before else ''}"
        facts = {"fields": names, "rows": w.rows, "lanes": len(w.lanes), "had_changed_before": before}
        yield Finding("constant_field", "info", text, facts, tuple(sorted(h.constant)))


def _dark_leaves(w: Window, where: str) -> Iterator[Finding]:
    """Parts of a larger observation, such as a camera, that are all zero."""
    for place, leaf in enumerate(w.columns.leaves):
        if len(w.columns.chosen[place]) >= 16 and not w.lit[:, place].any():
            text = f"{leaf.path} was all zero {where}, while other parts of the observation changed"
            yield Finding("zero_part", "warning", text, {"field": leaf.path, "rows": w.rows}, subject=leaf.path)


def lost_in_float32(w: Window, _: History, __: Expected) -> Iterator[Finding]:
    """Columns that move in float64, or in large integers, by hardly more than float32 can tell apart there."""
    looked_at = np.flatnonzero(w.columns.rounded)
    if not len(looked_at):
        return
    values = w.obs[:, looked_at]
    mean = values.mean(axis=0)
    moved = np.sqrt(np.square(values - mean).mean(axis=0))
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are too large are refused where they arrive
        seen = values.astype(np.float32)
        spacing = np.spacing(np.abs(mean).astype(np.float32)).astype(np.float64)
    # Integers below 2^24 are the same in float32, however little they move.
    lost = (seen != values).any(axis=0) & (moved > 0.0) & (moved < FEW_SPACINGS * spacing) & (np.abs(mean) >= FAR)
    lost &= (values == np.rint(values)).all(axis=0) | (moved > LEAST_MOVE * np.abs(mean))
    told = []
    for at in np.flatnonzero(lost):
        around, left = values[:, at] - mean[at], len(np.unique(seen[:, at]))
        told.append(
            f"{w.columns.names[looked_at[at]]} (mean {mean[at]:.10g}, from {around.min():+.3g} to {around.max():+.3g} around it) "
            f"has steps of {spacing[at]:g}: of {len(np.unique(around)):,} different values {left:,} {'is' if left == 1 else 'are'} left"
        )
    if told:
        names = [w.columns.names[place] for place in looked_at[lost]]
        text = f"networks see float32, in which {listed(told, 3)}; subtract an offset from it in the environment"
        yield Finding("lost_in_float32", "warning", text, {"fields": names, "rows": w.rows}, (*names,))


def stuck_lanes(w: Window, _: History, __: Expected) -> Iterator[Finding]:
    """Lanes in which every observation is the same, while other lanes move."""
    still = w.still
    if still.all() or not still.any():
        return
    lanes = sorted({int(lane) for lane in w.lane[still]})
    zero = "all zero" if w.zero[still].all() else "one single value"
    text = (
        f"{in_lanes(lanes)}: every observation of the last {int(still.sum()) // len(lanes):,} rows is the same "
        f"({zero}), while other lanes change: the environment there may have failed and be standing in for itself"
    )
    yield Finding("stuck_lane", "warning", text, {"lanes": lanes, "rows": int(still.sum()), "value": zero}, (*lanes,))


def placeholders(w: Window, _: History, __: Expected) -> Iterator[Finding]:
    """One same observation again and again among others that never repeat."""
    judged = _comparable(w)
    if w.obs.shape[1] < 2 or judged.sum() < 100:
        return
    values, places, counts = np.unique(w.digest[judged], return_index=True, return_counts=True)
    often = np.asarray(counts >= max(5, ALIKE * judged.sum()))
    if not 1 <= often.sum() <= 3 or not _distinct(counts[~often], floor=0.95):
        return
    rows = np.flatnonzero(judged)
    for digest, count, place in zip(values[often], counts[often], rows[places[often]], strict=True):
        zero = bool(w.zero[place])
        if zero or not w.columns.at_bounds(w.obs[place : place + 1]).any():  # to rest at a wall is no placeholder
            yield _placeholder(w, judged & (w.digest == digest), int(count), zero=zero)


def _comparable(w: Window) -> Flags:
    """Rows whose observations should differ: not of stuck lanes, and no first ones, which may be fixed."""
    zero = w.zero
    begins = w.t == 0
    odd_starts = begins & zero if (begins & ~zero).any() else np.zeros(w.rows, bool)
    return np.asarray((~begins | odd_starts) & ~w.still)


def _placeholder(w: Window, rows: Flags, count: int, *, zero: bool) -> Finding:
    lanes = sorted({int(lane) for lane in w.lane[rows]})
    rewards = Counter(w.came_with[rows & w.follows].tolist())
    reward, times = rewards.most_common(1)[0] if rewards else (0.0, 0)
    with_reward = f", {times:,} times with reward {reward:g}" if times else ""
    what = "an all-zero observation" if zero else "one same observation"
    text = (
        f"{what} came {count:,} times in {w.rows:,} rows ({in_lanes(lanes)}){with_reward}, while the others never "
        "repeat: the environment may return a placeholder where it fails"
    )
    facts = {"times": count, "rows": w.rows, "lanes": lanes, "all_zero": zero, "reward": reward if times else None}
    return Finding(
        "placeholder_observation", "warning", text, facts, subject="zero" if zero else f"{w.digest[rows][0]:x}"
    )


def repeated_reward(w: Window, _: History, __: Expected) -> Iterator[Finding]:
    """One exact reward among rewards that otherwise never repeat; with near-zero observations it is a stand-in."""
    action_bound = np.asarray(w.actions.at_bounds(w.action).any(axis=1))
    # Where an action is at its bound its cost is one constant; an episode's last reward often is one too.
    judged = w.follows & ~np.r_[True, action_bound[:-1]] & ~np.r_[True, w.ended[:-1]]
    came = w.came_with[judged]
    if len(came) < 100 or not w.obs.shape[1]:
        return
    values, counts = np.unique(came, return_counts=True)
    often = np.asarray((counts >= max(10, ALIKE * len(came))) & (values != 0))
    if not 1 <= often.sum() <= 3 or not _distinct(counts[~often & (values != 0)]):
        return
    for value, count in zip(values[often].tolist(), counts[often].tolist(), strict=True):
        alike = judged & (w.came_with == value)
        # More often it is the reward of an ordinary step; and zeros are told of by `placeholders`.
        if count <= 0.5 * len(came) and not w.zero[alike].all():
            yield _stand_in(w, judged, alike, value)


def _stand_in(w: Window, judged: Flags, alike: Flags, value: float) -> Finding:
    size, count = np.abs(w.obs).max(axis=1), int(alike.sum())
    usual = float(np.median(size[judged & ~alike]))
    largest = float(size[alike].max())
    text = f"the reward was exactly {value:g} in {count:,} of {int(judged.sum()):,} steps and otherwise never repeats"
    facts = {"reward": value, "times": count, "steps": int(judged.sum())}
    if largest >= 0.2 * usual:
        return Finding("repeated_reward", "info", text, facts, subject=f"{value:g}")
    text += (
        f"; the observations it came with are nearly zero (at most {largest:.2g}, others about {usual:.2g}): "
        "the environment may make up data where it fails"
    )
    return Finding(
        "stand_in_step", "warning", text, {**facts, "largest": largest, "usual": usual}, subject=f"{value:g}"
    )


def same_in_lanes(w: Window, _: History, expected: Expected) -> Iterator[Finding]:
    """Lanes of different environments that return the very same observations, though each acts for itself."""
    judged = w.follows & ~w.still
    if judged.sum() < 100 or len(w.lanes) <= expected.agents:
        return
    digest, lane = w.digest[judged], w.lane[judged]
    order = np.lexsort((lane, digest))
    digest, lane = digest[order], lane[order]
    env = lane // expected.agents
    new_value = np.r_[True, digest[1:] != digest[:-1]]
    pairs = int((new_value | np.r_[True, lane[1:] != lane[:-1]]).sum())
    if pairs < DISTINCT * len(digest):
        return  # values repeat within a lane as well: a small space, where meeting is no wonder
    group = np.cumsum(new_value) - 1
    first, last = np.flatnonzero(new_value), np.r_[np.flatnonzero(new_value)[1:] - 1, len(digest) - 1]
    shared = np.not_equal(env[first], env[last])[group]
    # By chance a value meets its like in another lane as much oftener than in its own as there are more of the others.
    by_chance = (1.0 - pairs / len(digest)) * (len(w.lanes) - expected.agents)
    if shared.mean() < max(0.1, 2.0 * by_chance) or _shared_runs(w, expected.agents) < 0.1:
        return
    lanes = sorted({int(number) for number in lane[shared]})
    text = (
        f"{in_lanes(lanes)} return the same observations ({int(shared.sum()):,} of {len(digest):,}): "
        "they seem to use the same seed and to ignore actions, or to return recorded data"
    )
    facts = {"lanes": lanes, "shared": int(shared.sum()), "observations": len(digest)}
    yield Finding("same_in_lanes", "warning", text, facts, (*lanes,))


def _shared_runs(w: Window, agents: int) -> float:
    """Share of sequences of observations that a lane of another environment has as well.

    Where an observation tells the time, none comes twice in a lane, and lanes that are in step still meet by chance as
    often as there are few others at that time; what follows by chance is soon another.
    """
    count = w.rows - RUN_ROWS + 1
    last = slice(RUN_ROWS - 1, None)
    judged = (w.lane[:count] == w.lane[last]) & (w.t[last] - w.t[:count] == RUN_ROWS - 1) & ~w.still[:count]
    if not judged.any():
        return 1.0  # episodes are too short to tell
    which = np.unique(_runs(w.digest, count)[judged], return_inverse=True)[1]
    pairs = np.unique(np.stack([which, w.lane[:count][judged] // agents]), axis=1)[0]
    return float(np.greater(np.bincount(pairs), 1)[which].mean())


def same_starts(w: Window, h: History, expected: Expected) -> Iterator[Finding]:
    """Lanes of different environments whose episodes begin alike, one after the other: the seed is ignored or shared."""
    judged = {lane: list(starts) for lane, starts in sorted(h.starts.items()) if len(starts) >= 5}
    everything = [digest for starts in judged.values() for digest in starts]
    if len(judged) < 2:
        return
    if len(set(everything)) == 1:
        text = f"all of the last {len(everything):,} episodes of {len(judged)} lanes began with the same observation"
        yield Finding("same_start", "info", text, {"episodes": len(everything), "lanes": len(judged)})
        return
    if any(len(set(starts)) < DISTINCT * len(starts) for starts in judged.values()):
        return  # few possible beginnings: meeting is no wonder
    # Pairs, for lanes that draw from the same few hundred beginnings meet often, but not twice in a row.
    pairs = {lane: list(itertools.pairwise(starts)) for lane, starts in judged.items()}
    of_env: dict[int, set[tuple[int, int]]] = {}
    for lane, own in pairs.items():
        of_env.setdefault(lane // expected.agents, set()).update(own)
    owners = Counter(itertools.chain(*of_env.values()))
    shared = {lane: sum(owners[pair] > 1 for pair in own) for lane, own in pairs.items()}
    lanes = [lane for lane, count in shared.items() if count >= 0.5 * len(pairs[lane])]
    if lanes:
        count, total = sum(shared[lane] for lane in lanes), sum(len(pairs[lane]) for lane in lanes)
        text = (
            f"{in_lanes(lanes)} begin the same episodes ({count:,} of {total:,} first observations, each after the same "
            "one): the environment ignores the seed that reset() is given, or seeds itself"
        )
        yield Finding("same_seed", "warning", text, {"lanes": lanes, "shared": count, "episodes": total}, (*lanes,))


def replayed(w: Window, _: History, __: Expected) -> Iterator[Finding]:
    """The same sequence of observations and rewards again in one lane, whatever the actions."""
    count = w.rows - RUN_ROWS + 1
    if count < 100:
        return
    last = slice(RUN_ROWS - 1, None)
    judged = (w.lane[:count] == w.lane[last]) & (w.t[last] - w.t[:count] == RUN_ROWS - 1) & ~w.still[:count]
    judged &= w.t[:count] > 0
    seen = _runs(mix(np.stack([w.digest, _bits(w.reward), w.lane.astype(np.uint64)], axis=1)), count)[judged]
    acted = _runs(mix(_bits(w.action)), count)[judged]
    if len(seen) < 100:
        return
    kind, counts = np.unique(seen, return_inverse=True, return_counts=True)[1:]
    again = np.greater(counts, 1)[kind]
    if again.mean() < 0.2 or len(np.unique(w.digest[:count][judged][again])) < RUN_ROWS:
        return
    if len(np.unique(acted[again])) < DISTINCT * again.sum():
        return  # the actions repeat as well, so that the rest should
    text = (
        f"{int(again.sum()):,} of {len(seen):,} sequences of {RUN_ROWS} observations and rewards came more than once in "
        "one lane, although the actions differ: the environment ignores actions or replays recorded data"
    )
    facts = {"repeated": int(again.sum()), "sequences": len(seen), "length": RUN_ROWS}
    # On a board of few cells short walks do repeat; numbers with many digits do not.
    severity = w.columns.leaves[0].dtype.kind == "f"
    yield Finding("replayed", "warning" if severity else "info", text, facts)


def _bits(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Digests:
    return np.ascontiguousarray(values + 0.0).view(np.uint64)


def _runs(digest: Digests, count: int) -> Digests:
    return mix(np.stack([digest[place : place + count] for place in range(RUN_ROWS)], axis=1))


def _distinct(counts: np.ndarray[tuple[int, ...], np.dtype[np.intp]], floor: float = DISTINCT) -> bool:
    """Whether values that came so often are nearly all different, and are more than a handful."""
    return bool(len(counts) >= 50 and len(counts) >= floor * counts.sum())


def rewards(w: Window, h: History, _: Expected) -> Iterator[Finding]:
    """Rewards that take one value, or few."""
    if h.many_rewards or h.rows == 0:
        return
    total = h.rewards.total()
    values = sorted(h.rewards)
    if values == [0.0]:
        severe = h.rows >= SILENT_REWARD_STEPS
        text = f"the reward was 0 in all of {h.rows:,} steps: there is nothing to learn from yet"
        yield Finding("zero_reward", "warning" if severe else "info", text, {"steps": h.rows}, (severe,))
    elif len(values) == 1:
        text = f"the reward was {values[0]:g} in all of {h.rows:,} steps: only the length of episodes can be learned"
        yield Finding("constant_reward", "info", text, {"reward": values[0], "steps": h.rows}, (values[0],))
    else:
        shares = [f"{value:g} ({100 * count / total:.3g} %)" for value, count in h.rewards.most_common()]
        text = f"the reward takes only {len(values)} values in {h.rows:,} steps: {listed(shares, 9)}"
        facts = {"values": {f"{value:g}": count for value, count in h.rewards.items()}, "steps": h.rows}
        yield Finding("few_rewards", "info", text, facts, (*values,))


def info_keys(w: Window, h: History, _: Expected) -> Iterator[Finding]:
    """Keys of ``info`` by which an environment says that it failed."""
    for place, key in enumerate(INFO_KEYS):
        counts = h.info[:, place]
        lanes = np.flatnonzero(counts).tolist()
        if lanes:
            steps = int(counts.sum())
            text = f'info["{key}"] was set in {steps:,} steps ({in_lanes(lanes)}); those steps are trained on like any other'
            # Time limits and lost games have such names too.
            severity = key in {"timeout", "failed"}
            facts = {"key": key, "steps": steps, "lanes": lanes}
            yield Finding(f"info_{key}", "info" if severity else "warning", text, facts, (*lanes,))


def never_ends(_: Window, h: History, expected: Expected) -> Iterator[Finding]:
    """No episode ends, in any lane, for long."""
    least = int(h.since_end.min())
    if expected.continuing or least < NO_END_STEPS:
        return
    ever = "since the run began" if not h.ends else "any more"
    text = (
        f"no episode has ended {ever}: every one of {h.lanes} lanes has made {least:,} steps or more without an end; "
        "see that terminated and truncated are returned, set env.max_episode_steps, or env.continuing = true if meant"
    )
    yield Finding("no_episode_ends", "warning", text, {"steps_per_lane": least, "ended": h.ends}, (h.ends > 0,))


def limit_terminates(_: Window, h: History, expected: Expected) -> Iterator[Finding]:
    """Episodes of the greatest length terminate: a time limit is taken for an end of the task."""
    if len(h.lengths) < 20:
        return
    length, count = Counter(h.lengths).most_common(1)[0]
    share = count / len(h.lengths)
    known = length == expected.max_episode_steps
    if length < 2 or length < h.longest or share < (0.2 if known else 0.3):
        return
    if not known and share < DISTINCT and len(set(h.lengths)) < 5:
        return  # a short task with few possible lengths
    which = "env.max_episode_steps" if known else "the longest seen"
    text = (
        f"{count:,} of the last {len(h.lengths):,} terminated episodes have exactly {length:,} steps ({which}): if that "
        "is a time limit, it must be reported as truncated, or values are learned as if the task ended there"
    )
    facts = {"length": length, "episodes": count, "terminated": len(h.lengths), "limit_known": known}
    yield Finding("limit_terminates", "warning", text, facts, (length,))


def bounds(w: Window, _: History, __: Expected) -> Iterator[Finding]:
    """Float columns beyond their declared bounds, or on them most of the time."""
    low, high = w.columns.low, w.columns.high
    scale = np.where(np.isfinite(low), np.abs(low), 0.0) + np.where(np.isfinite(high), np.abs(high), 0.0)
    beyond = (w.obs < low - 1e-5 * scale) | (w.obs > high + 1e-5 * scale)
    rows = int(beyond.any(axis=1).sum())
    if rows:
        names = [w.columns.names[place] for place in np.flatnonzero(beyond.any(axis=0))]
        place = int(np.argmax(beyond.sum(axis=0)))
        worst = w.obs[:, place]
        text = (
            f"{rows:,} of {w.rows:,} observations lie outside the declared bounds, in {listed(names)}: {w.columns.names[place]}"
            f" ranges from {worst.min():g} to {worst.max():g}, declared {low[place]:g} to {high[place]:g}"
        )
        often = rows >= 0.01 * w.rows
        facts = {"rows": rows, "of": w.rows, "fields": names}
        yield Finding("outside_bounds", "warning" if often else "info", text, facts, (often,))
    moving = (w.obs != w.obs[0]).any(axis=0)
    shares = w.columns.at_bounds(w.obs).mean(axis=0) * moving
    full = np.flatnonzero(shares > 0.5).tolist()
    if full:
        told = [f"{w.columns.names[place]} ({100 * shares[place]:.0f} %)" for place in full]
        text = f"most observations lie exactly on a declared bound in {listed(told)} of {w.rows:,} rows: clipped?"
        yield Finding("at_bounds", "info", text, {"fields": [w.columns.names[place] for place in full]}, (*full,))


def saturated_actions(w: Window, h: History, expected: Expected) -> Iterator[Finding]:
    """Nearly all actions are at their bounds, long after learning began."""
    at_bounds = w.actions.at_bounds(w.action[w.step])
    if h.rows < expected.acting_from + LATE_STEPS or at_bounds.size == 0 or at_bounds.mean() <= 0.95:
        return
    text = (
        f"{100 * at_bounds.mean():.0f} % of the actions of the last {len(at_bounds):,} steps are at their bounds: "
        "right where all or nothing is best, else the policy's output is saturated"
    )
    yield Finding("saturated_actions", "info", text, {"share": float(at_bounds.mean()), "steps": len(at_bounds)})


OF_THE_WHOLE_RUN = frozenset(
    {"zero_reward", "constant_reward", "few_rewards", "same_start", "no_episode_ends", "limit_terminates"}
)
"""Kinds that speak of more than one window: they hold until the first window in which they are not found."""

CHECKS: Sequence[Check] = (
    constant_fields, lost_in_float32, stuck_lanes, placeholders, repeated_reward, same_in_lanes, same_starts, replayed, rewards,
    info_keys, never_ends, limit_terminates, bounds, saturated_actions,
)  # fmt: skip
