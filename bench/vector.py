"""`headrace.VectorEnv` beside a plain loop in one process and the vector environments that are installed.

Each measurement is a fresh process under the default scheduler, with a warm-up and one window; the sides take turns,
every round begins with another one. Rates are environment steps a second; resets are not counted.

Ours is measured in several ways: "auto" as it comes, with a barrier; "step" with a worker on each core, and a barrier;
"receive" with a worker on each core, whichever are ready; "beside" with a worker on each core but one, whichever half is
ready, so that this process has a core for its policy. What "auto" chose is printed below the table.

"cores x loop" is what one loop does alone, times the cores; "loops at once" is what a loop on every core does at the same
time, which on a shared machine is less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from _processes import answer, busy_neighbour, end_tidily, interpreters
from _report import Row, compare, less_is_better, options, report
from _vector_envs import Straggler
from _vector_sides import CORES

SIDE_SCRIPT = Path(__file__).with_name("_vector_sides.py")
LIMIT_S = 240.0
"""A process that takes longer is given up: its side has no figure in this row."""

LOOP, AT_ONCE, ALL_CORES, IDEAL, BEST = "loop", "loops at once", "cores x loop", "ideal", "best peer"
GYMNASIUM = ("Gymnasium Sync", "Gymnasium Async")
SB3 = ("SB3 Dummy", "SB3 Subproc (fork)")
PUFFER = ("PufferLib, 1 worker", "PufferLib, as ready")
TIANSHOU = ("tianshou Shmem", "tianshou, as ready")
OURS = ("auto", "step", "receive")


@dataclass(frozen=True)
class Scenario:
    """One row of the table: an environment, how many, and what goes on besides."""

    name: str
    environment: str
    count: int
    ours: tuple[str, ...] = OURS
    peers: tuple[str, ...] = (LOOP, AT_ONCE, *GYMNASIUM, *SB3, *PUFFER)
    targets: tuple[tuple[str, str, float], ...] = ()
    """Which of ours, beside whom, the least ratio."""
    policy_us: float = 0.0
    neighbour: bool = False
    ready_share: int = 2
    """An as-ready side waits for the count divided by this."""


CARTPOLE, CHEETAH = "CartPole-v1", "HalfCheetah-v5"
NOT_SLOWER = (("auto", LOOP, 1.0),)
CHEETAH_TARGETS = (("auto", "Gymnasium Async", 4.5), ("auto", ALL_CORES, 0.7))
WITH_POLICY = ("auto", "step", "beside")
BESIDE_A_POLICY = (("beside", BEST, 1.0),)
BLOCKING = {"ours": ("auto", "auto, receive"), "peers": ("Gymnasium Async", "SB3 Subproc (fork)", *TIANSHOU)}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("cartpole-8", CARTPOLE, 8, targets=NOT_SLOWER),
        Scenario("cartpole-32", CARTPOLE, 32),
        Scenario("cartpole-100", CARTPOLE, 100, targets=(
            ("auto", "Gymnasium Async", 15.0), ("auto", "Gymnasium Sync", 1.3), ("auto", ALL_CORES, 0.6))),
        Scenario("cartpole-32-neighbour", CARTPOLE, 32, neighbour=True, targets=NOT_SLOWER),
        Scenario("cartpole-32-policy-5", CARTPOLE, 32, WITH_POLICY, policy_us=5.0, targets=BESIDE_A_POLICY),
        Scenario("cartpole-32-policy-20", CARTPOLE, 32, WITH_POLICY, policy_us=20.0, targets=BESIDE_A_POLICY),
        Scenario("halfcheetah-8", CHEETAH, 8, targets=CHEETAH_TARGETS),
        Scenario("halfcheetah-32", CHEETAH, 32, targets=CHEETAH_TARGETS),
        Scenario("busycpu-32", "1 ms of CPU", 32, targets=(("auto", ALL_CORES, 0.92),)),
        Scenario("straggler-32", "straggler", 32, **BLOCKING, ready_share=4),
        Scenario("straggler-100", "straggler", 100, **BLOCKING, ready_share=4, targets=(
            ("auto, receive", BEST, 3.0), ("auto, receive", IDEAL, 0.75))),
        Scenario("frames-32", "84x84x4 uint8", 32, targets=(("auto", "Gymnasium Async", 12.0),)),
    )
}  # fmt: skip
FOOTPRINT = Scenario("footprint-100", CARTPOLE, 100, ours=("auto", "step"), peers=(*GYMNASIUM, *SB3, *PUFFER))
LIMITS = {"start_s": ("start", "s", 1.0), "memory_mb": ("memory", "MB beyond one process", 60.0)}
"""What is measured of `FOOTPRINT`: its name, its unit, and the most that is promised."""
NAMES = (*SCENARIOS, FOOTPRINT.name)

Found = dict[str, list[dict[str, Any]]]


class Bench:
    """Runs sides in turns.

    Args:
        pythons: Interpreters to look for a side in, in this order.
        rounds: Windows of each side.
        window_s: Seconds of each; half as much again before it, as warm-up.
    """

    def __init__(self, pythons: Sequence[str], rounds: int, window_s: float) -> None:
        self._pythons, self._rounds, self._window_s = pythons, rounds, window_s
        self.skipped: dict[str, str] = {}
        """Side and row to the reason why it has no figures there."""

    def measure(self, scenario: Scenario) -> Found:
        """What each side found, by its name, in every round."""
        sides = [*scenario.ours, *scenario.peers]
        found: Found = {side: [] for side in sides}
        with busy_neighbour(scenario.neighbour):
            for number in range(self._rounds):
                for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                    if f"{side}, {scenario.name}" not in self.skipped:
                        result = self._run(scenario, side)
                        if result is not None:
                            found[side].append(result)
        return {side: results for side, results in found.items() if results}

    def _run(self, scenario: Scenario, side: str) -> dict[str, Any] | None:
        request = {
            "side": side, "environment": scenario.environment, "count": scenario.count,
            "policy_us": scenario.policy_us, "ready": max(1, scenario.count // scenario.ready_share),
            "window_s": self._window_s, "warm_up_s": self._window_s / 2,
        }  # fmt: skip
        found, reason = answer(self._pythons, SIDE_SCRIPT, request, LIMIT_S)
        if found is None:
            self.skipped[f"{side}, {scenario.name}"] = reason
        return found


def ideal_rate(count: int) -> float:
    """Steps a second of so many stragglers that never wait for each other, from this machine's own waits."""
    import time

    def mean_s(wait_s: float, times: int) -> float:
        began_s = time.perf_counter()
        for _ in range(times):
            time.sleep(wait_s)
        return (time.perf_counter() - began_s) / times

    share = Straggler.LONG_SHARE
    return count / ((1 - share) * mean_s(Straggler.SHORT_S, 500) + share * mean_s(Straggler.LONG_S, 10))


def rates(found: Found, side: str) -> list[float]:
    return [result["rate"] for result in found[side]]


def opponents(scenario: Scenario, found: Found) -> Iterator[tuple[str, str, list[float]]]:
    """Whom ours is compared with: name, version, rates."""
    measured = [side for side in scenario.peers if side in found]
    for side in measured:
        yield side, found[side][0]["version"], rates(found, side)
    if LOOP in found:
        yield ALL_CORES, f"{CORES} cores", [CORES * rate for rate in rates(found, LOOP)]
    if scenario.environment == "straggler":
        yield IDEAL, "mean step time", [ideal_rate(scenario.count)]
    wanted = any(peer == BEST for _, peer, _ in scenario.targets)
    real = [side for side in measured if side not in (LOOP, AT_ONCE)]
    if wanted and real:
        best = max(real, key=lambda side: median(rates(found, side)))
        yield BEST, best, rates(found, best)


def rows(scenario: Scenario, found: Found) -> Iterator[Row]:
    """Each of ours beside everybody."""
    targets = {(ours, peer): least for ours, peer, least in scenario.targets}
    others = max(result["others"] for results in found.values() for result in results)
    besides = " beside a busy neighbour" * scenario.neighbour
    besides += f" with a policy of {scenario.policy_us:g} us a row" * bool(scenario.policy_us)
    for ours in scenario.ours:
        if ours not in found:
            continue
        plans = ", ".join(dict.fromkeys(result["note"] for result in found[ours]))
        note = f"{plans}; others used up to {others:.2f} cores"
        for peer, version, theirs in opponents(scenario, found):
            row = compare(
                f"{scenario.name} {ours}", f"{scenario.count} {scenario.environment}{besides}", (peer, version),
                (rates(found, ours), theirs), "steps/s",
            )  # fmt: skip
            yield replace(row, target=targets.get((ours, peer)), note=note)


def footprint_rows(found: Found) -> Iterator[Row]:
    """Seconds from construction to the first step done, and memory then, beyond the process by itself."""
    for ours in FOOTPRINT.ours:
        for key, (what, unit, limit) in LIMITS.items():
            if ours not in found:
                continue
            mine = [result[key] for result in found[ours]]
            name, environment = f"{FOOTPRINT.name} {ours}, {what}", f"{FOOTPRINT.count} {FOOTPRINT.environment}"
            for peer in FOOTPRINT.peers:
                if peer in found:
                    theirs = [result[key] for result in found[peer]]
                    row = compare(name, environment, (peer, found[peer][0]["version"]), (mine, theirs), unit)
                    yield less_is_better(row)
            row = less_is_better(compare(name, environment, ("promised", "limit"), (mine, [limit]), unit))
            yield replace(row, target=1.0 if ours == "auto" else None)


def main() -> None:
    end_tidily()
    parser = options(__doc__ or "", rounds=3, window_s=2.0)
    parser.add_argument("--peers", action="append", default=[], metavar="PYTHON",
                        help="an interpreter in whose environment peers are installed; may be given several times")  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="ROW", help=f"all without one: {', '.join(NAMES)}")
    given = parser.parse_args()
    for name in given.names:
        if name not in NAMES:
            parser.error(f"there is no row {name}")
    bench = Bench(interpreters(given.peers), given.rounds, given.window_s)
    found: list[Row] = []
    for name in given.names or NAMES:
        if name == FOOTPRINT.name:
            found += footprint_rows(bench.measure(FOOTPRINT))
        else:
            found += rows(SCENARIOS[name], bench.measure(SCENARIOS[name]))
    skipped = [f"{side}: {reason}" for side, reason in bench.skipped.items()]
    report(found, as_json=given.json, scheduler="SCHED_OTHER", skipped=skipped)


if __name__ == "__main__":
    main()
