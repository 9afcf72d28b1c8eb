"""An environment that numbers all it returns, and a check that a vector of them loses, mixes up and delays nothing.

`CountingEnv` tells in every observation whose it is, which copy's, which episode's, which step's, and a trace of all
actions of that episode. So each row a vector environment returns can be told to be the true successor of the row
before it: `SuccessorCheck` computes what has to come and compares. The environments misbehave at random, and note
before what they are about to do, so that also what is said about faults is checked, against what was provoked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.testing.provoke import ENDS, REWARDS, note
from headrace.vector.env import VectorEnv
from headrace.vector.options import FaultBudget

Array = npt.NDArray[Any]

ACTIONS = 1000
"""Of a `CountingEnv`: so many that a row with another row's action is noticed."""

DIED = "died"

KINDS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("sleep", "loop", "gil", "sigstop"), ("hung",)),
    **dict.fromkeys(("sigkill", "sigsegv", "exit-0", "exit-3"), (DIED,)),
    **dict.fromkeys(("raises", "unpicklable"), ("raised",)),
    **dict.fromkeys(REWARDS, ("not-finite",)),
}
"""What `headrace.VectorEnv` calls a fault, by what was provoked."""

LOST = "lost-with-worker"
"""What it calls an environment that went down with another one."""

_LONGEST = 60
_MASK = (1 << 62) - 1
_FACTOR = 6364136223846793005


class NotASuccessor(AssertionError):
    """A row was not what had to come; the message says what came and what had to."""


class Place(NamedTuple):
    """Where an environment is; its observation, int64 [5]."""

    env: int
    copy: int
    """Which copy of this environment, from 1 on: a replacement has a higher number."""
    episode: int
    step: int
    trace: int
    """Of everything that led here in this episode."""

    @classmethod
    def beginning(cls, env: int, copy: int, episode: int) -> Place:
        """After a reset."""
        trace = 0
        for number in (env, copy, episode):
            trace = _advance(trace, number)
        return cls(env, copy, episode, 0, trace)

    def after(self, action: int) -> Place:
        """The successor."""
        return self._replace(step=self.step + 1, trace=_advance(self.trace, action))

    def next_episode(self) -> Place:
        """After the reset that follows this episode."""
        return self.beginning(self.env, self.copy, self.episode + 1)

    @property
    def reward(self) -> float:
        """Of the step that led here."""
        return float(self.trace >> 40)

    @property
    def ended(self) -> tuple[bool, bool]:
        """Whether the step that led here terminated or truncated the episode."""
        over = self.step >= 1 + (self.env * 7 + self.episode * 13) % _LONGEST
        return over and self.episode % 2 == 1, over and self.episode % 2 == 0

    @property
    def info(self) -> dict[str, Any]:
        """What comes with it; now and then there is something."""
        return {} if self.trace >> 20 & 7 else {"trace": self.trace}


def _advance(trace: int, number: int) -> int:
    return (trace * _FACTOR + number + 1) & _MASK


@dataclass(frozen=True, slots=True)
class Provocation:
    """What one copy of an environment was about to do."""

    env: int
    copy: int
    what: str
    """A key of `provoke.ENDS` or `provoke.REWARDS`."""
    episode: int
    step: int
    """Steps of the episode that were done."""


class CountingEnv(gymnasium.Env[Array, np.int64]):
    """Observes its own `Place`; episodes of 1 to 60 steps end by termination and truncation in turns.

    Args:
        start: Environment, copy, episode 0.
        due: After so many steps of its life it misbehaves; 0: never.
        what: How: a key of `provoke.ENDS` or `provoke.REWARDS`.
        tell: Called with the provocation just before.
    """

    observation_space = spaces.Box(0, _MASK, (len(Place._fields),), np.int64)
    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, start: Place, due: int, what: str, tell: Callable[[Provocation], object]) -> None:
        self._next, self._place = start, start
        self._left, self._what, self._tell = due, what, tell

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin the next episode."""
        super().reset(seed=seed)
        self._place, self._next = self._next, self._next.next_episode()
        return np.array(self._place, np.int64), self._place.info

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Go on, unless something is due."""
        self._left -= 1
        due = self._left == 0
        if due:
            self._tell(Provocation(self._place.env, self._place.copy, self._what, *self._place[2:4]))
            ENDS.get(self._what, bool)()
        self._place = place = self._place.after(int(action))
        reward = REWARDS[self._what] if due and self._what in REWARDS else place.reward
        return np.array(place, np.int64), reward, *place.ended, place.info


class CountingFactory:
    """Builds one copy after another of the same environment.

    Args:
        env: Index of the environment.
        folder: Where copies are counted and provocations are noted.
        rates: What goes wrong, and how often per step.
        seed: Of the draws of what goes wrong; every copy has its own.
    """

    def __init__(self, env: int, folder: Path, rates: Mapping[str, float], seed: int = 0) -> None:
        self._env, self._folder, self._rates, self._seed = env, str(folder), dict(rates), seed

    def __call__(self) -> CountingEnv:
        """Build the next copy."""
        marker = str(Path(self._folder, f"env-{self._env}"))
        copy = note(marker, "built")
        draws = seeding.generator(self._seed, "counting", self._env, copy)
        due, what = 0, ""
        if self._rates:
            shares = np.array(list(self._rates.values()))
            due = int(draws.geometric(shares.sum()))
            what = str(draws.choice(list(self._rates), p=shares / shares.sum()))
        return CountingEnv(Place.beginning(self._env, copy, 0), due, what, self._tell)

    def _tell(self, provocation: Provocation) -> None:
        target = Path(self._folder, f"provoked-{provocation.env}-{provocation.copy}.json")
        written = target.with_suffix(".part")
        written.write_text(json.dumps({at: getattr(provocation, at) for at in provocation.__slots__}))
        written.rename(target)  # whole or not there: another thread may end this process at any moment


def provocations(folder: Path) -> list[Provocation]:
    """What all copies noted."""
    return [Provocation(**json.loads(path.read_text())) for path in sorted(folder.glob("provoked-*.json"))]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a vector environment returned for some of its environments: lists of the same length, and ``infos``."""

    env_ids: list[int]
    actions: list[int]
    """What was sent for these rows."""
    observations: list[list[int]]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    valid: list[bool]
    infos: Mapping[str, Any]

    @classmethod
    def of(
        cls, env_ids: Array, actions: Array, returned: Sequence[Array], valid: Array, infos: Mapping[str, Any]
    ) -> Rows:
        """From arrays. ``returned`` are observations, rewards, terminations, truncations."""
        observations, rewards, terminations, truncations = (array.tolist() for array in returned)
        lists = env_ids.tolist(), actions.tolist(), observations, rewards, terminations, truncations, valid.tolist()
        return cls(*lists, infos)


def of_row(infos: Mapping[str, Any], key: str, at: int) -> Any:
    """What infos in Gymnasium's form have for one row; None if nothing."""
    mask = infos.get(f"_{key}")
    return infos[key][at] if mask is not None and mask[at] else None


@dataclass(frozen=True, slots=True)
class Told:
    """A fault that a vector environment told of."""

    env: int
    copy: int
    """The copy that was seen last."""
    kind: str
    message: str


@dataclass(slots=True)
class _Seen:
    """What is known of one environment."""

    place: Place
    over: bool = False
    """The next row is a reset."""
    cut: bool = False
    """It was replaced: the next reset is another copy's."""


@dataclass(slots=True)
class SuccessorCheck:
    """Follows every environment and compares each row with what has to come.

    Args:
        mode: How episodes go on after their end.
    """

    mode: AutoresetMode
    counts: Counter[str] = field(default_factory=Counter)
    """Rows that were checked: transitions, resets, cuts; and infos among them."""
    told: list[Told] = field(default_factory=list)
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _copies: set[tuple[int, int]] = field(default_factory=set)

    def begin(self, env_ids: Iterable[int], observations: Array) -> None:
        """Take what a reset that was asked for returned; another copy may have come without anybody telling.

        Raises:
            NotASuccessor: It is not the beginning of the next episode.
        """
        for env, obs in zip(env_ids, observations.tolist(), strict=True):
            self._reset(env, obs, replaced=True)

    def rows(self, rows: Rows) -> None:
        """Check rows.

        Raises:
            NotASuccessor: One of them is not what had to come.
        """
        for at, env in enumerate(rows.env_ids):
            seen = self._seen[env]
            if not rows.valid[at]:
                self._cut(rows, at)
            elif seen.over and self.mode is AutoresetMode.NEXT_STEP:
                fault = _fault(rows, at)
                if fault is not None:  # its reset failed: a replacement's is as good, and nothing was lost
                    self.told.append(Told(env, seen.place.copy, *fault))
                # Between episodes a copy may have gone down with its worker: nothing was lost either.
                self._reset(env, rows.observations[at], replaced=True)
                self._compare(rows, at, self._seen[env].place, (0.0, False, False), fault=fault)
            else:
                self._transition(rows, at, seen)

    def _transition(self, rows: Rows, at: int, seen: _Seen) -> None:
        env, successor = rows.env_ids[at], seen.place.after(rows.actions[at])
        self._demand(not seen.over, "no row after the end of its episode", rows, at)
        self.counts["transitions"] += 1
        ending = (successor.reward, *successor.ended)
        if any(successor.ended) and self.mode is AutoresetMode.SAME_STEP:
            self._final(rows, at, successor)
            self._compare(rows, at, successor.next_episode(), ending)
            self._reset(env, rows.observations[at])
        else:
            self._compare(rows, at, successor, ending)
            self._seen[env] = _Seen(successor, over=any(successor.ended))

    def _compare(
        self, rows: Rows, at: int, place: Place, ending: tuple[float, bool, bool], fault: tuple[str, str] | None = None
    ) -> None:
        came = rows.rewards[at], rows.terminations[at], rows.truncations[at]
        self._demand(tuple(rows.observations[at]) == place, f"the observation {place}", rows, at)
        self._demand(came == ending, f"reward and flags {ending}", rows, at)
        self._demand(of_row(rows.infos, "trace", at) == place.info.get("trace"), f"info {place.info}", rows, at)
        self._demand(_fault(rows, at) == fault, "no fault, as the row is valid", rows, at)
        self.counts["infos"] += bool(place.info)

    def _final(self, rows: Rows, at: int, last: Place, *, info: bool = True) -> None:
        """The last observation of an episode beside the first one of the next."""
        obs = of_row(rows.infos, "final_obs", at)
        self._demand(obs is not None and tuple(obs.tolist()) == last, f"final_obs {last}", rows, at)
        found = of_row(rows.infos.get("final_info", {}), "trace", at)
        self._demand(not info or found == last.info.get("trace"), f"final_info {last.info}", rows, at)

    def _cut(self, rows: Rows, at: int) -> None:
        """A row that is not valid: its episode is over, nothing is made up, and why is told."""
        env = rows.env_ids[at]
        seen, fault = self._seen[env], _fault(rows, at)
        self._demand(fault is not None, "a fault that is told, as the row is not valid", rows, at)
        ending = rows.rewards[at], rows.terminations[at], rows.truncations[at]
        self._demand(ending == (0.0, False, True), "reward 0, not terminated, truncated", rows, at)
        self.told.append(Told(env, seen.place.copy, *(fault or ("", ""))))
        self.counts["cuts"] += 1
        seen.cut = seen.over = True
        if self.mode is AutoresetMode.SAME_STEP:
            self._final(rows, at, seen.place, info=False)
            self._reset(env, rows.observations[at])
        else:
            self._demand(tuple(rows.observations[at]) == seen.place, f"{seen.place} again", rows, at)

    def _reset(self, env: int, obs: list[int], *, replaced: bool = False) -> None:
        """Episode follows upon episode; a copy that was never seen begins with its first one."""
        place, seen = Place(*obs), self._seen.get(env)
        known = 0 if seen is None else seen.place.copy
        anew = place == Place.beginning(env, place.copy, 0) and place.copy > known
        follows = seen is not None and not seen.cut and place == seen.place.next_episode()
        if not (follows or (anew and (seen is None or seen.cut or replaced))):
            raise NotASuccessor(f"env {env}: {place} came as a reset after {seen}")
        self._seen[env] = _Seen(place)
        self._copies.add((env, place.copy))
        self.counts["resets"] += 1

    def _demand(self, holds: bool, wanted: str, rows: Rows, at: int) -> None:
        if not holds:
            came = rows.observations[at], rows.rewards[at], rows.terminations[at], rows.truncations[at]
            env = rows.env_ids[at]
            raise NotASuccessor(
                f"env {env}: wanted {wanted} after {self._seen[env]} and action {rows.actions[at]}; "
                f"came {came}, valid {rows.valid[at]}, fault {_fault(rows, at)}"
            )

    def unaccounted(self, provoked: Iterable[Provocation], *, threaded: bool = False) -> list[str]:
        """Faults provoked and not told, told otherwise, or told and not provoked, in words; empty if all is well.

        Of copies that never returned a row nothing needs to be told, and nothing yet of the copies that were seen last.

        Args:
            provoked: What the environments noted.
            threaded: Whether each has a thread: nobody can say then which of several ended their process.
        """
        others = {LOST, DIED} if threaded else {LOST}
        tellings: dict[tuple[int, int], list[Told]] = {}
        for fault in self.told:
            tellings.setdefault((fault.env, fault.copy), []).append(fault)
        wrong = []
        for cause in provoked:
            key = (cause.env, cause.copy)
            told = tellings.pop(key, [])
            own = [fault.kind for fault in told if fault.kind not in others]
            if not told and key in self._copies and self._seen[cause.env].place.copy != cause.copy:
                wrong.append(f"provoked and not told: {cause}")
            elif len(own) > 1 or not set(own) <= set(KINDS[cause.what]):
                wrong.append(f"provoked: {cause}; told: {own}")
        for told in tellings.values():
            wrong += [f"told and not provoked: {fault}" for fault in told if fault.kind not in others]
        return wrong


def _fault(rows: Rows, at: int) -> tuple[str, str] | None:
    """Kind and message of the fault that was told with a row."""
    ours = rows.infos.get("headrace", {})
    kind = of_row(ours, "fault", at)
    return None if kind is None else (str(kind), str(of_row(ours, "message", at)))


@dataclass(frozen=True, slots=True)
class Soaked:
    """What came of a soak in which every row was right."""

    counts: Counter[str]
    """As in `SuccessorCheck`."""
    provoked: Counter[str]
    told: Counter[str]
    unaccounted: list[str]
    """As `SuccessorCheck.unaccounted` tells; has to be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """Environments that misbehave at random, driven through a `headrace.VectorEnv`, every row of them checked."""

    rows: int
    """Of all environments together."""
    num_envs: int
    mode: AutoresetMode
    rates: Mapping[str, float]
    """What goes wrong, a key of `KINDS`, and how often per step."""
    as_ready: bool
    """Through ``send`` and ``receive``, half of the environments or more at a time; otherwise through ``step``."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what would check nothing, or complain of nothing.

        Raises:
            ConfigError: There are fewer rows than environments, or nobody would reset what has ended.
        """
        if self.rows < self.num_envs:
            raise ConfigError(
                "a soak would check nothing: a step of all environments has more rows",
                rows=self.rows,
                num_envs=self.num_envs,
                fix="raise rows, or lower num_envs",
            )
        if self.as_ready and self.mode is AutoresetMode.DISABLED:
            raise ConfigError(
                "environments that are taken as they are ready have to reset themselves",
                mode=self.mode.name,
                fix="choose another mode, or as_ready = False",
            )

    def run(self, folder: Path, **options: Any) -> Soaked:
        """Do it.

        Args:
            folder: Where the environments keep their notes.
            **options: Of the `headrace.VectorEnv`.

        Raises:
            NotASuccessor: A row was not what had to come.
        """
        factories = [CountingFactory(env, folder, self.rates, self.seed) for env in range(self.num_envs)]
        check, draws = SuccessorCheck(self.mode), seeding.generator(self.seed, "soak")
        budget = FaultBudget(per_env=self.rows, total=self.rows, backoff_s=0.0)  # faults are what this is about
        with VectorEnv(factories, autoreset_mode=self.mode, budget=budget, **options) as envs:
            ids = np.arange(self.num_envs)
            observations, _ = envs.reset(seed=int(draws.integers(1 << 31)))
            check.begin(ids.tolist(), observations)
            (self._take_ready if self.as_ready else self._step_all)(envs, check, draws)
        causes = provocations(folder)
        provoked, told = Counter(cause.what for cause in causes), Counter(fault.kind for fault in check.told)
        threaded = options.get("threads_per_worker", 1) != 1
        return Soaked(check.counts, provoked, told, check.unaccounted(causes, threaded=threaded))

    def _step_all(self, envs: VectorEnv, check: SuccessorCheck, draws: np.random.Generator) -> None:
        ids = np.arange(self.num_envs)
        for _ in range(self.rows // self.num_envs):
            actions = draws.integers(ACTIONS, size=self.num_envs)
            *returned, infos = envs.step(actions)
            check.rows(Rows.of(ids, actions, returned, envs.valid, infos))
            over = returned[2] | returned[3]
            if self.mode is AutoresetMode.DISABLED and over.any():
                observations, _ = envs.reset(options={"reset_mask": over})
                check.begin(ids[over].tolist(), observations[over])

    def _take_ready(self, envs: VectorEnv, check: SuccessorCheck, draws: np.random.Generator) -> None:
        left, open_rows = self.rows, self.num_envs
        sent = draws.integers(ACTIONS, size=self.num_envs)
        envs.send(sent)
        while open_rows:
            got = envs.receive(min(self.num_envs // 2, open_rows))
            count, ids = len(got.env_ids), got.env_ids
            returned = got.observations, got.rewards, got.terminations, got.truncations
            check.rows(Rows.of(ids, sent[ids], returned, got.valid, got.infos))
            left, open_rows = left - count, open_rows - count
            if left > 0:
                sent[ids] = draws.integers(ACTIONS, size=count)
                envs.send(sent[ids], ids)
                open_rows += count
