"""Which order to try next: asks are answered, results are told, and each choice says who made it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.core import seeding
from headrace.core.errors import ConfigError
from headrace.search.calibration import Calibration, Forecast
from headrace.search.orders import Order, all_orders, places
from headrace.search.surrogate import Surrogate, require_scikit_learn

Model = Literal["given", "random start", "gaussian process"]


@dataclass(frozen=True, slots=True)
class Choice:
    """An order that is to be tried, and why this one."""

    number: int
    """Counts the asks, from 0; names the choice when its result is told."""
    order: Order
    model: Model
    """given: by the caller. random start: before there are enough results. gaussian process: by the upper bound of what is
    believed."""
    results: int
    """That were known."""
    mean: float | None = None
    """Score that was expected; None: nothing was."""
    std: float | None = None
    """Of the observation that was expected, noise included; as ``mean`` by the results that were known and nothing else."""
    bound: float | None = None
    """Expected score and ``beta`` deviations of the true one, as if what is pending had come as expected: what was highest."""
    kernel: str | None = None
    """As it was fitted."""
    pending: tuple[Order, ...] = ()
    """Orders whose results were awaited."""


class OrderSearch:
    """Finds the order with the highest score among all orders of a few things.

    What is asked depends on the arguments and on what was told, in which order, and on nothing else. The same order may be
    asked for again: results have noise, and are told from it by their repetition. Orders that are being tried count as if what
    is expected of them had come, so that several may be asked for before one is told.

    Args:
        items: What is ordered, 2 to 8 things.
        seed: Of the random start, and of the likelihood's climbs.
        start: Results after which a Gaussian process chooses; until then orders are drawn, each once, and then in turns.
        beta: Deviations above the expected score up to which an order is hoped for.
        given: Orders to try first; those that have failed by then are left out.

    Raises:
        ConfigError: An argument is wrong, or scikit-learn is not installed.
    """

    def __init__(
        self, items: Sequence[str], seed: int = 0, *, start: int = 6, beta: float = 2.0, given: Sequence[Order] = ()
    ) -> None:
        require_scikit_learn()
        self.items = tuple(items)
        self._orders = all_orders(items)
        places(given, items)  # refuses what is no order
        if start < 2 or beta < 0.0:
            raise ConfigError(
                "a search needs two results before it can believe anything, and hopes for no less than it expects",
                start=start,
                beta=beta,
                fix="set start to 2 or more, and beta to 0 or more",
            )
        self._seed, self._start, self._beta = seed, start, beta
        self._given = deque(tuple(order) for order in given)
        drawn = seeding.generator(seed, "order-search").permutation(len(self._orders))
        self._drawn = [self._orders[place] for place in drawn]
        self._asked: list[Choice] = []
        self._waiting: dict[int, Choice] = {}
        self._told: list[tuple[Choice, float]] = []
        self._failed: set[Order] = set()

    @property
    def pending(self) -> tuple[Choice, ...]:
        """Asked for and not told, oldest first."""
        return tuple(self._waiting.values())

    @property
    def results(self) -> tuple[tuple[Choice, float], ...]:
        """What was told, in that order."""
        return tuple(self._told)

    @property
    def scores(self) -> Mapping[Order, float]:
        """Mean of what was told of each order."""
        found: dict[Order, list[float]] = defaultdict(list)
        for choice, score in self._told:
            found[choice.order].append(score)
        return {order: float(np.mean(own)) for order, own in found.items()}

    @property
    def best(self) -> Order | None:
        """The order with the highest mean; None before the first result."""
        scores = self.scores
        return max(scores, key=scores.__getitem__, default=None)

    def ask(self) -> Choice:
        """The next order to try.

        Raises:
            ConfigError: Every order has failed.
        """
        choice = self._choose()
        self._asked.append(choice)
        self._waiting[choice.number] = choice
        return choice

    def tell(self, number: int, score: float | None) -> None:
        """What came of a choice.

        Args:
            number: `Choice.number`.
            score: The higher, the better; None: it could not be found out, and the order is not asked for again.

        Raises:
            ConfigError: Nothing of that number is awaited, or the score is no number.
        """
        if number not in self._waiting or (score is not None and not math.isfinite(score)):
            raise ConfigError(
                "a search is told a finite score, or none, of a choice that it made and was not told of",
                number=number,
                score=score,
                awaited=", ".join(map(str, self._waiting)) or "nothing",
                fix="tell each choice once; None where the order could not be tried",
            )
        choice = self._waiting.pop(number)
        if score is None:
            self._failed.add(choice.order)
        else:
            self._told.append((choice, score))

    def calibration(self) -> Calibration:
        """What was expected of each choice, beside what came; of those of which anything was."""
        return Calibration(
            tuple(
                Forecast(choice.number, choice.order, choice.mean, choice.std, score)
                for choice, score in self._told
                if choice.mean is not None and choice.std is not None
            )
        )

    def _choose(self) -> Choice:
        while self._given:
            order = self._given.popleft()
            if order not in self._failed:
                return self._plain(order, "given")
        if len(self._told) < self._start:
            return self._plain(self._least_asked(), "random start")
        return self._believed()

    def _plain(self, order: Order, model: Model) -> Choice:
        return Choice(len(self._asked), order, model, len(self._told), pending=self._pending_orders)

    @property
    def _pending_orders(self) -> tuple[Order, ...]:
        return tuple(choice.order for choice in self._waiting.values())

    def _least_asked(self) -> Order:
        """Of the orders that may be asked for, that which was asked for least; of several the first that was drawn."""
        asked, found = Counter(choice.order for choice in self._asked), set(self._open())
        return min((order for order in self._drawn if order in found), key=asked.__getitem__)

    def _open(self) -> list[Order]:
        """Orders that may be asked for."""
        busy = {*self._pending_orders, *self._failed}
        found = [order for order in self._orders if order not in busy]
        if not found:
            raise ConfigError(
                "there is no order left to try",
                failed=len(self._failed),
                awaited=len(self._waiting),
                fix="tell what is awaited first; if all have failed, find out why",
            )
        return found

    def _believed(self) -> Choice:
        orders, scores = zip(*((choice.order, score) for choice, score in self._told), strict=True)
        surrogate = Surrogate(
            self.items, orders, scores, seeding.integer(self._seed, "likelihood", len(self._asked)) % 2**32
        )
        candidates, pending = self._open(), self._pending_orders
        belief = surrogate.believe(candidates, pending)
        bounds = belief.mean + self._beta * belief.std
        found = int(bounds.argmax())
        order = candidates[found]
        told = surrogate.believe([order])  # results that are only imagined would make it too certain
        return Choice(
            number=len(self._asked),
            order=order,
            model="gaussian process",
            results=len(self._told),
            mean=float(told.mean[0]),
            std=float(told.observed_std[0]),
            bound=float(bounds[found]),
            kernel=surrogate.described,
            pending=pending,
        )
