"""Search for the best order of repairing hosts in CAGE 2: PPO for each order that is tried, a Gaussian process over orders.

Run it with ``python examples/cage2_workflows.py [--quick]``; ``--help`` lists the rest, docs/guides/workflow-search.md explains it.
Called again with the same arguments it goes on where it was ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from cage2.report import Trial, draw, read_outcomes, short, table, write_json
from cage2.trainer import Outcome, Rules, Task, measure_greedy, train_order

from headrace.core import seeding
from headrace.core.errors import HeadraceError
from headrace.envs.cage2.network import TYPES
from headrace.search import Choice, Order, OrderSearch, nearest

QUICK = {"env.lanes": 20, "env.group_size": 20, "run.schedule": "inline", "run.collectors": 1}
"""A run of one process, with rollouts of 20 episodes."""


class Campaign:
    """Asks, trains, tells. Results are told in the order of asking, whoever is done first, so a search can be repeated.

    Args:
        search: Chooses.
        rules: What is the same for every order.
        out: Folder of the runs.
        total_episodes: That may be trained for, all orders together.
        parallel: Orders that are trained at a time.
        seed: Runs get their own from it.
        known: Outcomes of an earlier session, by number; those need no training.
    """

    def __init__(
        self,
        search: OrderSearch,
        rules: Rules,
        out: Path,
        *,
        total_episodes: int,
        parallel: int,
        seed: int,
        known: Mapping[int, Outcome],
    ) -> None:
        self._search, self._rules, self._out = search, rules, out
        self._left, self._parallel, self._seed = total_episodes, parallel, seed
        self._known = known
        self._running: deque[tuple[Choice, Task, Future[Outcome]]] = deque()
        self._trained: dict[Order, Outcome] = {}
        """The newest outcome of each order."""
        self.trials: list[Trial] = []

    def run(self, pool: Executor, told: Callable[[], None]) -> None:
        """Until the budget is spent; ``told`` is called after each result."""
        while self._begin(pool) or self._running:
            while len(self._running) < self._parallel and self._begin(pool):
                pass
            choice, task, future = self._running.popleft()
            outcome = future.result()
            self._left += task.max_episodes - outcome.charged
            self._search.tell(choice.number, outcome.score)
            if outcome.score is not None:
                self._trained[choice.order] = outcome
            self.trials.append(Trial(choice, outcome))
            told()

    def _begin(self, pool: Executor) -> bool:
        """Start another order, if the budget that nobody has in hand allows one evaluation."""
        episodes = min(self._left, self._rules.max_episodes)
        if len(self._running) >= self._parallel or episodes < self._rules.every_episodes:
            return False
        choice = self._search.ask()
        task = self._task(choice, episodes)
        self._left -= episodes
        self._running.append((choice, task, self._submitted(pool, task)))
        return True

    def _submitted(self, pool: Executor, task: Task) -> Future[Outcome]:
        earlier = self._known.get(task.number)
        if earlier is None or earlier.task.order != task.order:
            return pool.submit(train_order, task)
        done: Future[Outcome] = Future()
        done.set_result(earlier)
        return done

    def _task(self, choice: Choice, episodes: int) -> Task:
        task = Task(
            number=choice.number,
            order=choice.order,
            rules=self._rules,
            run_dir=str(_unused(self._out / "runs" / f"{choice.number:03}-{short(choice.order).replace('>', '')}")),
            seed=seeding.integer(self._seed, "order", choice.number),
            max_episodes=episodes,
        )
        scores = {order: outcome.score for order, outcome in self._trained.items() if outcome.score is not None}
        source = nearest(choice.order, scores) if self._rules.inherits else None
        if source is None:
            return task
        outcome = self._trained[source]
        return replace(
            task, begin_from=outcome.checkpoint, inherited_order=source, inherited_episodes=outcome.lineage_episodes
        )


def _unused(path: Path) -> Path:
    """The path itself, or with a number if an earlier session has left a run there that was not finished."""
    names = [path, *(path.with_name(f"{path.name}-{again}") for again in range(1, 100))]
    return next(name for name in names if not name.exists())


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rules = Rules()
    parser.add_argument("--out", type=Path, default=Path("runs/cage2-workflows"), help="folder of everything")
    parser.add_argument("--red", default=rules.red, choices=("b_line", "meander", "sleep"))
    parser.add_argument("--total-episodes", type=int, default=100_000)
    parser.add_argument("--parallel", type=int, default=2, help="orders that are trained at a time")
    parser.add_argument("--without-foothold", action="store_true", help="User0, where red always is, does not count")
    parser.add_argument("--threshold", type=float, default=rules.threshold, help="compliance that is enough")
    parser.add_argument("--patience", type=int, default=rules.patience)
    parser.add_argument("--min-episodes", type=int, default=rules.min_episodes, help="of each order")
    parser.add_argument("--max-episodes", type=int, default=rules.max_episodes, help="of each order")
    parser.add_argument("--every-episodes", type=int, default=rules.every_episodes, help="between two evaluations")
    parser.add_argument("--evaluation-episodes", type=int, default=rules.evaluation_episodes)
    parser.add_argument("--alignment-lambda", type=float, default=rules.alignment_lambda)
    parser.add_argument("--start", type=int, default=6, help="results before which orders are drawn at random")
    parser.add_argument("--beta", type=float, default=2.0, help="deviations that are hoped for")
    parser.add_argument("--no-inheritance", action="store_true", help="every policy begins with fresh networks")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--quick", action="store_true", help="three orders in seconds: whether it runs, not what is best"
    )
    found = parser.parse_args(arguments)
    if found.quick:
        found.total_episodes, found.max_episodes, found.min_episodes, found.every_episodes = 60, 20, 20, 20
        found.evaluation_episodes, found.start, found.parallel = 5, 2, 1
    for name in ("total", "max"):
        episodes = getattr(found, f"{name}_episodes")
        if episodes < found.every_episodes:
            parser.error(
                f"nothing would be trained: --{name}-episodes {episodes} is less than --every-episodes {found.every_episodes}, "
                "after which an order is first evaluated"
            )
    return found


def rules_of(given: argparse.Namespace) -> Rules:
    """What is the same for every order."""
    return Rules(
        red=given.red,
        alignment_lambda=given.alignment_lambda,
        count_foothold=not given.without_foothold,
        threshold=given.threshold,
        patience=given.patience,
        min_episodes=given.min_episodes,
        max_episodes=given.max_episodes,
        every_episodes=given.every_episodes,
        evaluation_episodes=given.evaluation_episodes,
        inherits=not given.no_inheritance,
        settings=QUICK if given.quick else {},
    )


def main(arguments: list[str] | None = None) -> None:
    """Search, and say what came of it."""
    given = parsed(arguments)
    rules, out = rules_of(given), given.out
    search = OrderSearch(TYPES, given.seed, start=given.start, beta=given.beta)
    greedy = measure_greedy(TYPES, rules)
    kept: dict[str, Any] = {name: value for name, value in vars(given).items() if name != "out"}
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.json"
    campaign = Campaign(
        search, rules, out, total_episodes=given.total_episodes, parallel=given.parallel, seed=given.seed,
        known=read_outcomes(results, kept),
    )  # fmt: skip

    def told() -> None:
        write_json(results, kept, search, campaign.trials, greedy)
        print(table(campaign.trials[-1:]).splitlines()[-1], flush=True)

    with ProcessPoolExecutor(given.parallel, mp_context=multiprocessing.get_context("spawn")) as pool:
        campaign.run(pool, told)
    print(f"\n{table(campaign.trials)}\n")
    best = search.best
    if best is not None:
        print(f"best: {short(best)} ({', '.join(best)}), score {search.scores[best]:.1f}")
    print(f"greedy restore on the same episodes: {greedy.return_mean:.1f} ± {greedy.return_half:.1f}")
    print(search.calibration().sentence())
    draw(out / "search.png", search, campaign.trials, greedy, f"Workflows of CAGE 2 against {given.red}")
    print(f"{results}, {out / 'search.png'}, {out / 'runs'}")


if __name__ == "__main__":
    try:
        main()
    except HeadraceError as error:
        sys.exit(str(error))
