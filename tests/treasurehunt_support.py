"""A treasure hunt in plain Python, cell by cell, and random numbers that a test chooses."""

from __future__ import annotations

import numpy as np

from headrace.envs.treasurehunt import Draws

MOVES = {0: (-1, 0), 1: (1, 0), 2: (0, -1), 3: (0, 1)}
NAMES = ["empty", "gem", "food", "bone", "wall", "agent"]
"""What the numbers in a world's maps mean."""


class Scripted(Draws):
    """Draws that were written down: for each epoch places [A], fields [turns, cells] and orders [turns, A]."""

    def __init__(self, settings, epochs):
        super().__init__(settings)
        self._epochs = iter(epochs)
        self._fields = self._orders = iter(())

    def places(self):
        places, fields, orders = next(self._epochs)
        self._fields, self._orders = iter(fields), iter(orders)
        return np.array(places)

    def fields(self, turns):
        return np.array([next(self._fields) for _ in range(turns)])

    def orders(self, turns):
        return np.array([next(self._orders) for _ in range(turns)])


def script(settings, rng, epochs=1):
    """Random numbers for some epochs; more of them than are used, because a world draws ahead."""
    turns = settings.max_turns + 64
    return [
        (
            rng.permutation(settings.inner_cells)[: settings.num_agents],
            rng.random((turns, settings.inner_cells)),
            rng.permuted(np.tile(np.arange(settings.num_agents), (turns, 1)), axis=1),
        )
        for _ in range(epochs)
    ]


class PlainWorld:
    """The rules once more, for one epoch of one copy, as slow and as plain as possible."""

    def __init__(self, settings, places, fields, orders):
        self.settings, self.fields, self.orders, self.turn = settings, fields, orders, 0
        self.inner = [(r, c) for r in range(1, settings.height - 1) for c in range(1, settings.width - 1)]
        self.top = {(r, c): "wall" for r in range(settings.height) for c in range(settings.width)}
        self.top |= dict.fromkeys(self.inner, "empty")
        self.places = [self.inner[number] for number in places]
        self.top |= dict.fromkeys(self.places, "agent")

    def step(self, actions):
        s = self.settings
        for cell, number in zip(self.inner, self.fields[self.turn], strict=True):
            if self.top[cell] == "empty":
                if number < s.spawn_prob:
                    self.top[cell] = "gem"
                elif number < s.spawn_prob + s.food_spawn_prob:
                    self.top[cell] = "food"
                elif number < s.spawn_prob + s.food_spawn_prob + s.bone_spawn_prob:
                    self.top[cell] = "bone"
        values = {"gem": s.gem_value, "food": s.food_value, "bone": s.bone_value, "wall": -1.0}
        rewards = [0.0] * s.num_agents
        for agent in self.orders[self.turn] if s.random_order else range(s.num_agents):
            row, column = self.places[agent]
            down, right = MOVES[int(actions[agent])]
            target = (row + down, column + right)
            rewards[agent] = values.get(self.top[target], 0.0)
            if self.top[target] not in ("wall", "agent"):
                self.top[self.places[agent]] = "empty"
                self.top[target] = "agent"
                self.places[agent] = target
        self.turn += 1
        return rewards

    def map(self):
        return [[self.top[r, c] for c in range(self.settings.width)] for r in range(self.settings.height)]

    def observe(self, agent):
        s, (row, column) = self.settings, self.places[agent]
        around = range(-s.vision_radius, s.vision_radius + 1)
        window = [self.top.get((row + down, column + right), "wall") for down in around for right in around]
        shown = ["empty", "wall", "sand", "gem"]
        shown += ["food"] * (s.food_spawn_prob > 0) + ["bone"] * (s.bone_spawn_prob > 0) + ["agent"]
        return [
            int(thing != "wall" if channel == "sand" else thing == channel) for channel in shown for thing in window
        ]
