"""The rink: the Box2D world, its bodies, the forces players apply, catching and shooting the puck.

Lengths are in field units (60 pixels of the drawn picture), time in seconds. Side +1 is player one, who
defends the left goal, side -1 is player two; everything either does is the point mirror of the other, so
the formulas are written once, in a racket's own direction (positive = toward the opponent's goal).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from headrace.envs.hockey.field import (
    CENTER_X,
    CENTER_Y,
    FPS,
    GOAL_HALF_HEIGHT,
    HEIGHT,
    KEEP_STEPS,
    MAX_ANGLE,
    MAX_PUCK_SPEED,
    PUCK_RADIUS,
    REACH,
    SCALE,
    WIDTH,
)
from headrace.envs.hockey.starts import Start

with warnings.catch_warnings():
    # The SWIG wrapper's types have no __module__, which Python 3.12 and later complain about.
    warnings.simplefilter("ignore", DeprecationWarning)
    import Box2D

TIME_STEP_S = 1.0 / FPS
VELOCITY_ITERATIONS = 180
POSITION_ITERATIONS = 60

_RACKET = tuple(
    (x * 1.2 / SCALE, y * 1.2 / SCALE)
    for x, y in ((-10, 20), (5, 20), (5, -20), (-10, -20), (-18, -10), (-21, 0), (-18, 10))
)
_WAKE = True
_FORCE = 6000.0
_TORQUE = 400.0
_SHOT_SPEED = 60.0
_MAX_PLAYER_SPEED = 10.0
_CENTER_ZONE = WIDTH / 20.0
_TOP = HEIGHT - 1.2
_BOTTOM = 1.2

# Collision filters. Box2D lets two fixtures collide when each one's category is in the other's mask.
_PUCK_BIT = 0x0001
_SOLID_BIT = 0x0010
_BOTH = _PUCK_BIT | _SOLID_BIT

# Marks on fixtures, so that a contact is recognised by one `or` of two small integers.
_MARK_NONE = 0
_MARK_PUCK = 1
_MARK_ONE = 2
_MARK_TWO = 4
_MARK_GOAL_ONE = 8
_MARK_GOAL_TWO = 16

Points = Sequence[tuple[float, float]]


class Racket:
    """One player's body and the forces on it.

    ``_position`` and ``_velocity`` are Box2D's own vectors (the wrapper hands out references, not
    copies), read on every step without another call; they are valid as long as the rink's world is.

    Args:
        body: The racket's Box2D body.
        side: +1.0 for player one, -1.0 for player two.
    """

    __slots__ = ("_mass", "_position", "_side", "_velocity", "body")

    def __init__(self, body: Any, side: float) -> None:
        self.body = body
        self._side = side
        self._mass: float = body.mass
        self._position = body.position
        self._velocity = body.linearVelocity

    def push(self, action_x: float, action_y: float) -> None:
        """Apply the force of one step, with the speed limit and the bounce at the centre line."""
        side, velocity = self._side, self._velocity
        vx: float = velocity.x
        vy: float = velocity.y
        force_x = side * _FORCE * action_x
        force_y = side * _FORCE * action_y
        own_x = side * (self._position.x - CENTER_X)
        if own_x > -_CENTER_ZONE:
            bounce = -2.0 if side * vx > 0.0 else 0.0
            force_x = (bounce - own_x) * vx * self._mass / TIME_STEP_S
            self.body.linearDamping = 20.0
        elif vx * vx + vy * vy < _MAX_PLAYER_SPEED**2:
            self.body.linearDamping = 5.0
        else:
            self.body.linearDamping = 20.0
            new_vx = vx + force_x * TIME_STEP_S / self._mass
            new_vy = vy + force_y * TIME_STEP_S / self._mass
            if new_vx * new_vx + new_vy * new_vy >= vx * vx + vy * vy:
                return
        self._apply_inside_field(own_x, force_x, force_y)

    def _apply_inside_field(self, own_x: float, force_x: float, force_y: float) -> None:
        # The source means to replace a force that points out of the player's area by minus the velocity, but
        # sets that velocity to zero first (through Box2D's live reference), so what it does is: the
        # component stops dead and no force acts along it. That is the game everybody plays; kept.
        forward = self._side * force_x
        if (own_x < -REACH and forward < 0.0) or (own_x > 0.0 and forward > 0.0):
            self.body.linearVelocity = (0.0, self._velocity.y)
            force_x = 0.0
        y = self._position.y
        if (y > _TOP and force_y > 0.0) or (y < _BOTTOM and force_y < 0.0):
            self.body.linearVelocity = (self._velocity.x, 0.0)
            force_y = 0.0
        # Not a call that may be skipped when zero: it also wakes a sleeping body.
        self.body.ApplyForceToCenter((force_x, force_y), _WAKE)

    def turn(self, action: float) -> None:
        """Apply the torque of one step; beyond 60 degrees a spring-damper pulls back instead."""
        # The source sets "anguarDamping = 1.0" when it creates a racket. The typo makes a new Python
        # attribute and Box2D's damping stays 0, but it could not matter: both branches here set the
        # damping before the world's first step.
        body = self.body
        angle: float = body.angle
        if -MAX_ANGLE <= angle <= MAX_ANGLE:
            body.angularDamping = 2.0
            body.ApplyTorque(_TORQUE * action, _WAKE)
            return
        spin: float = body.angularVelocity
        outward = spin if angle * spin > 0.0 else 0.0
        body.angularDamping = 10.0
        body.ApplyTorque(-0.1 * (outward + angle) * self._mass / TIME_STEP_S, _WAKE)

    def features(self) -> tuple[float, float, float, float, float, float]:
        """Position relative to the centre, angle, velocity, angular velocity."""
        position, velocity, body = self._position, self._velocity, self.body
        return (
            position.x - CENTER_X,
            position.y - CENTER_Y,
            body.angle,
            velocity.x,
            velocity.y,
            body.angularVelocity,
        )


class _Contacts(Box2D.b2ContactListener):  # type: ignore[misc]  # Box2D has no types
    """Tells the rink of goals and catches while the world steps."""

    def __init__(self, rink: Rink) -> None:
        super().__init__()
        self._rink = rink

    def BeginContact(self, contact: Any) -> None:  # noqa: N802 - Box2D's name
        marks = contact.fixtureA.userData | contact.fixtureB.userData
        if marks & _MARK_PUCK:
            self._rink.puck_touched(marks)


class Rink:
    """The two-player game, one step at a time; knows no rewards, limits or opponents.

    Every reset builds a new Box2D world: contacts, solver impulses and the broad phase's tree survive
    in a world whose bodies are replaced, and would let an episode depend on the one before it (it did, in 4 of
    100 seeds tried). A new world costs about 0.1 ms.

    Args:
        keep_mode: Whether a player who touches a slow or approaching puck catches it.
    """

    def __init__(self, *, keep_mode: bool) -> None:
        self.keep_mode = keep_mode
        self.winner = 0
        self.keep_one = 0
        self.keep_two = 0
        self._contacts = _Contacts(self)
        self._world: Any = None
        self._puck: Any = None
        self._puck_position: Any = None
        self._puck_velocity: Any = None
        self._one: Any = None
        self._two: Any = None

    def reset(self, start: Start, *, carry_keep: bool = False) -> None:
        """Put everything where ``start`` says.

        Args:
            start: Positions of player two and the puck, and the puck's shot.
            carry_keep: Leave the keep counters as they are, as the original environment does by mistake.
        """
        self.close()
        self.winner = 0
        if not carry_keep:
            self.keep_one = self.keep_two = 0
        world = Box2D.b2World(gravity=(0.0, 0.0), doSleep=True)
        world.contactListener = self._contacts
        self._world = world
        fixtures = _fixtures()
        for (position, _), wall in zip(_WALLS, fixtures["walls"], strict=True):
            world.CreateStaticBody(position=position, fixtures=wall)
        for (position, _), goal in zip(_GOALS, fixtures["goals"], strict=True):
            world.CreateStaticBody(position=position, fixtures=goal)
        one, two = fixtures["rackets"]
        self._one = Racket(world.CreateDynamicBody(position=_START_ONE, fixtures=one), 1.0)
        self._two = Racket(world.CreateDynamicBody(position=start.player_two, fixtures=two), -1.0)
        puck = world.CreateDynamicBody(position=start.puck, linearDamping=0.05, fixtures=fixtures["puck"])
        self._puck = puck
        self._puck_position = puck.position
        self._puck_velocity = puck.linearVelocity
        if start.shot_direction is not None:
            self._fire(*start.shot_direction)

    def close(self) -> None:
        """Let the world go, and every reference into its memory before it."""
        self._one = self._two = None
        self._puck = self._puck_position = self._puck_velocity = None
        if self._world is not None:
            self._world.contactListener = None
            self._world = None

    def advance(self, one: Sequence[float], two: Sequence[float]) -> None:
        """One step of 1/50 s.

        Args:
            one: Player one's [force x, force y, torque] in [-1, 1], and shoot in keep mode.
            two: The same for player two, from that player's own point of view.
        """
        self._one.push(one[0], one[1])
        self._one.turn(one[2])
        self._two.push(two[0], two[1])
        self._two.turn(two[2])
        velocity = self._puck_velocity
        vx: float = velocity.x
        vy: float = velocity.y
        self._puck.linearDamping = 10.0 if vx * vx + vy * vy > MAX_PUCK_SPEED**2 else 0.05
        if self.keep_mode:
            if self.keep_one > 1:
                self.keep_one = self._hold(self._one.body, 1.0, self.keep_one - 1, one[3])
            if self.keep_two > 1:
                self.keep_two = self._hold(self._two.body, -1.0, self.keep_two - 1, two[3])
        self._world.Step(TIME_STEP_S, VELOCITY_ITERATIONS, POSITION_ITERATIONS)

    def _hold(self, player: Any, side: float, steps_left: int, shoot: float) -> int:
        """Pin the puck to its player, or fire it; the counter's new value."""
        puck = self._puck
        puck.position = player.position
        puck.linearVelocity = player.linearVelocity
        if steps_left > 1 and shoot <= 0.5:
            return steps_left
        angle: float = player.angle
        self._fire(side * math.cos(angle), side * math.sin(angle))
        return 0

    def _fire(self, direction_x: float, direction_y: float) -> None:
        force = self._puck.mass / TIME_STEP_S * _SHOT_SPEED
        self._puck.ApplyForceToCenter((direction_x * force, direction_y * force), _WAKE)

    def puck_touched(self, marks: int) -> None:
        """The puck began to touch something; called by Box2D in the middle of a step.

        Args:
            marks: The marks of both fixtures.
        """
        if marks & _MARK_GOAL_TWO:
            self.winner = 1
        elif marks & _MARK_GOAL_ONE:
            self.winner = -1
        elif not self.keep_mode:
            return
        elif marks & _MARK_ONE:
            if self.keep_one == 0 and self._puck_velocity.x < 0.1:
                self.keep_one = KEEP_STEPS
        elif marks & _MARK_TWO and self.keep_two == 0 and self._puck_velocity.x > -0.1:
            self.keep_two = KEEP_STEPS

    def state(self) -> list[float]:
        """What player one sees: 18 numbers, 16 without keep mode (see `HockeyEnv`)."""
        position, velocity = self._puck_position, self._puck_velocity
        puck = (position.x - CENTER_X, position.y - CENTER_Y, velocity.x, velocity.y)
        if self.keep_mode:
            return [*self._one.features(), *self._two.features(), *puck, float(self.keep_one), float(self.keep_two)]
        return [*self._one.features(), *self._two.features(), *puck]

    def outlines(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]], tuple[float, float]]:
        """For drawing: the corners of racket one and racket two, and the puck's centre, in field units."""
        one, two = (
            [tuple(body.GetWorldPoint(corner)) for corner in body.fixtures[0].shape.vertices]
            for body in (self._one.body, self._two.body)
        )
        return one, two, (self._puck_position.x, self._puck_position.y)


def wall_polygons() -> list[tuple[tuple[float, float], list[tuple[float, float]]]]:
    """Centre and corners (relative to it) of the two bars and the four pieces beside the goals."""
    bar = [(-250.0, 10.0), (-250.0, -10.0), (250.0, -10.0), (250.0, 10.0)]
    rise = (HEIGHT - 1.0) / 2.0 * SCALE - GOAL_HALF_HEIGHT * SCALE
    piece = [(-10.0, rise), (10.0, rise - 7.0), (10.0, -5.0), (-10.0, -5.0)]
    walls = [((CENTER_X, HEIGHT - 0.5), _scaled(bar, 1.0, 1.0)), ((CENTER_X, 0.5), _scaled(bar, 1.0, 1.0))]
    for flip_x in (1.0, -1.0):
        x = CENTER_X - flip_x * 245.0 / SCALE
        walls.append(((x, HEIGHT - 0.5), _scaled(piece, flip_x, -1.0)))
        walls.append(((x, 0.5), _scaled(piece, flip_x, 1.0)))
    return walls


def goal_polygon(side: float) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Centre and corners of the left (side -1) or right (+1) goal."""
    half_width = 10.0 / SCALE
    corners = [
        (-half_width, GOAL_HALF_HEIGHT),
        (half_width, GOAL_HALF_HEIGHT),
        (half_width, -GOAL_HALF_HEIGHT),
        (-half_width, -GOAL_HALF_HEIGHT),
    ]
    return (CENTER_X + side * 255.0 / SCALE, CENTER_Y), corners


def _scaled(points: Points, flip_x: float, flip_y: float) -> list[tuple[float, float]]:
    return [(flip_x * x / SCALE, flip_y * y / SCALE) for x, y in points]


_WALLS = wall_polygons()
_GOALS = [goal_polygon(side) for side in (-1.0, 1.0)]
_START_ONE = (WIDTH / 5.0, CENTER_Y)


@cache
def _fixtures() -> dict[str, Any]:
    """The definitions of all fixtures, made once per process and only read afterwards.

    Box2D's wrapper leaks about 300 bytes with each polygon definition it frees, some 3.6 KB a reset.
    """
    _, goal = _GOALS[1]
    goal_common = {"shape": Box2D.b2PolygonShape(vertices=goal), "friction": 0.1, "categoryBits": _SOLID_BIT}
    return {
        "walls": [
            Box2D.b2FixtureDef(
                shape=Box2D.b2PolygonShape(vertices=corners),
                friction=0.1,
                categoryBits=_BOTH,
                maskBits=_BOTH,
                userData=_MARK_NONE,
            )
            for _, corners in _WALLS
        ],
        # A sensor for the puck, and a solid twin of it that keeps players out.
        "goals": [
            [
                Box2D.b2FixtureDef(maskBits=mask, isSensor=sensor, userData=mark, **goal_common)
                for mask, sensor in ((_PUCK_BIT, True), (_SOLID_BIT, False))
            ]
            for mark in (_MARK_GOAL_ONE, _MARK_GOAL_TWO)
        ],
        "rackets": [_racket_fixture(1.0, _MARK_ONE), _racket_fixture(-1.0, _MARK_TWO)],
        # The source writes "angularSpeed = 0" on the puck each step; Box2D has no such thing, so it spins freely.
        "puck": Box2D.b2FixtureDef(
            shape=Box2D.b2CircleShape(radius=PUCK_RADIUS),
            density=7.0,
            friction=0.1,
            restitution=0.95,
            categoryBits=_PUCK_BIT,
            maskBits=_SOLID_BIT,
            userData=_MARK_PUCK,
        ),
    }


def _racket_fixture(side: float, mark: int) -> Any:
    return Box2D.b2FixtureDef(
        shape=Box2D.b2PolygonShape(vertices=[(side * x, y) for x, y in _RACKET]),
        density=200.0 / 1.2,
        friction=1.0,
        restitution=0.0,
        categoryBits=_SOLID_BIT,
        maskBits=_BOTH,
        userData=mark,
    )
