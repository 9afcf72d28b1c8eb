"""What a search came to: a table, a picture, and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from cage2.trainer import Measured, Outcome, Rules, Task
from headrace.core.errors import ConfigError
from headrace.core.files import write_whole
from headrace.monitor.logplot import FAINT, GRID, INK, PAPER, Axis, bounds, font, labelled
from headrace.search import Choice, Order, OrderSearch, StopReason

SHORT: Mapping[str, str] = {"defender": "D", "enterprise": "E", "op_server": "S", "op_host": "H", "user": "U"}
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "given": (60, 130, 70),
    "random start": (11, 98, 164),
    "gaussian process": (207, 92, 24),
}
_BAND = (222, 222, 228)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 540, 90, 24, 84, 64


@dataclass(frozen=True, slots=True)
class Trial:
    """A choice, and what came of it."""

    choice: Choice
    outcome: Outcome


def short(order: Order) -> str:
    """One letter a type, the most important first."""
    return ">".join(SHORT[name] for name in order)


def table(trials: Sequence[Trial]) -> str:
    """One line a trial, in the order of asking."""
    head = (
        f"{'#':>3} {'order':<10}{'episodes':>9}{'lineage':>9}  {'return (95 %)':<17}{'comply':>7}{'fixes':>7}{'none':>5}"
        f"{'score':>9}{'expected':>17}  {'chosen by':<17}{'begun from':<11}ended by"
    )
    return "\n".join([head, *map(_line, trials)])


def _line(trial: Trial) -> str:
    choice, outcome, measured = trial.choice, trial.outcome, trial.outcome.measured
    begun = short(outcome.task.inherited_order) if outcome.task.inherited_order else "-"
    line = f"{choice.number:>3} {short(choice.order):<10}{outcome.episodes:>9,}{outcome.lineage_episodes:>9,}  "
    if measured is None or outcome.score is None:
        return f"{line}failed: {(outcome.error or '').splitlines()[0]}"
    expected = f"{choice.mean:.1f} ± {choice.std:.1f}" if choice.mean is not None else "-"
    returned = f"{measured.return_mean:.1f} ± {measured.return_half:.1f}"
    return (
        f"{line}{returned:<17}{measured.compliance:>7.3f}{measured.fixes:>7.1f}{measured.without_fix:>5}{outcome.score:>9.1f}"
        f"{expected:>17}  {choice.model:<17}{begun:<11}{outcome.reason or 'failure'}"
    )


def write_json(
    path: Path,
    arguments: Mapping[str, Any],
    search: OrderSearch,
    trials: Sequence[Trial],
    greedy: Measured,
) -> None:
    """Everything, in one file that is replaced whole; `read_outcomes` reads it back."""
    calibration = search.calibration()
    values = {
        "arguments": dict(arguments),
        "best": search.best,
        "scores": [{"order": order, "score": score} for order, score in search.scores.items()],
        "greedy_restore": asdict(greedy),
        "calibration": {
            "sentence": calibration.sentence(),
            "coverage": calibration.coverage,
            "mean_error": calibration.mean_error,
            "forecasts": [asdict(one) for one in calibration.forecasts],
        },
        "trials": [
            {"choice": asdict(trial.choice), "outcome": asdict(trial.outcome), "score": trial.outcome.score}
            for trial in trials
        ],
    }
    write_whole(path, [json.dumps(values, indent=1).encode()])


def read_outcomes(path: Path, arguments: Mapping[str, Any]) -> dict[int, Outcome]:
    """Outcomes that an earlier search with the same arguments has written, by number of their choice; failures are left out.

    Raises:
        ConfigError: The search was another one.
    """
    if not path.is_file():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    if values["arguments"] != json.loads(json.dumps(dict(arguments))):
        raise ConfigError(
            f"{path} is of a search with other arguments",
            found=json.dumps(values["arguments"]),
            given=json.dumps(dict(arguments)),
            fix="choose another --out, or give the same arguments to go on with it",
        )
    found = (_outcome(trial["outcome"]) for trial in values["trials"])
    return {one.task.number: one for one in found if one.error is None}


def _outcome(told: Mapping[str, Any]) -> Outcome:
    task = told["task"]
    inherited = task["inherited_order"]
    whole = Task(
        **{
            **task,
            "order": tuple(task["order"]),
            "inherited_order": None if inherited is None else tuple(inherited),
            "rules": Rules(**task["rules"]),
        }
    )
    reason = None if told["reason"] is None else StopReason(told["reason"])
    looks = tuple((episodes, compliance, mean) for episodes, compliance, mean in told["looks"])
    measured = None if told["measured"] is None else Measured(**told["measured"])
    return Outcome(**{**told, "task": whole, "reason": reason, "looks": looks, "measured": measured})


def draw(path: Path, search: OrderSearch, trials: Sequence[Trial], greedy: Measured, title: str) -> None:
    """Scores by number, each beside what was expected of it, and the best so far."""
    scored = [(trial, trial.outcome.score) for trial in trials if trial.outcome.score is not None]
    if not scored:
        return
    values = [score for _, score in scored]
    values += [_edge(trial.choice, side) for trial, _ in scored if trial.choice.mean is not None for side in (-1, 1)]
    x_axis = Axis(-0.5, len(trials) - 0.5, _LEFT, _WIDTH - _RIGHT)
    y_axis = Axis(*bounds([*values, greedy.return_mean], 0.06), _HEIGHT - _BOTTOM, _TOP)
    picture = Image.new("RGB", (_WIDTH, _HEIGHT), PAPER)
    pen = ImageDraw.Draw(picture)
    _draw_axes(pen, x_axis, y_axis, len(trials))
    for x in range(_LEFT, _WIDTH - _RIGHT, 12):
        pen.line([(x, y_axis.at(greedy.return_mean)), (x + 6, y_axis.at(greedy.return_mean))], fill=FAINT, width=2)
    best = float("-inf")
    for trial, score in scored:
        _draw_trial(pen, trial, score, x_axis, y_axis)
        if score > best:
            best = score
            number = trial.choice.number
            pen.text(
                (x_axis.at(number), y_axis.at(score) - 10),
                short(trial.choice.order),
                fill=INK,
                font=font(13),
                anchor="mb",
            )
    pen.text((16, 12), title, fill=INK, font=font(18))
    pen.text((16, 38), search.calibration().sentence(), fill=FAINT, font=font(13))
    _draw_legend(pen)
    picture.save(path, format="PNG")


def _edge(choice: Choice, side: int) -> float:
    assert choice.mean is not None
    assert choice.std is not None
    return choice.mean + side * 1.96 * choice.std


def _draw_trial(pen: ImageDraw.ImageDraw, trial: Trial, score: float, x_axis: Axis, y_axis: Axis) -> None:
    choice, x, y = trial.choice, x_axis.at(trial.choice.number), y_axis.at(score)
    if choice.mean is not None:
        pen.rectangle((x - 7, y_axis.at(_edge(choice, 1)), x + 7, y_axis.at(_edge(choice, -1))), fill=_BAND)
        pen.line([(x - 7, y_axis.at(choice.mean)), (x + 7, y_axis.at(choice.mean))], fill=FAINT, width=2)
    measured = trial.outcome.measured
    obeyed = measured is not None and measured.compliance >= trial.outcome.task.rules.threshold
    colour = COLOURS[choice.model]
    pen.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour if obeyed else PAPER, outline=colour, width=2)


def _draw_axes(pen: ImageDraw.ImageDraw, x_axis: Axis, y_axis: Axis, count: int) -> None:
    small = font(13)
    for value, text in labelled(y_axis):
        pen.line([(x_axis.start, y_axis.at(value)), (x_axis.end, y_axis.at(value))], fill=GRID)
        pen.text((x_axis.start - 8, y_axis.at(value)), text, fill=FAINT, font=small, anchor="rm")
    for number in range(0, count, max(1, count // 10)):
        pen.text((x_axis.at(number), y_axis.start + 8), str(number), fill=FAINT, font=small, anchor="mt")
    pen.line([(x_axis.start, y_axis.end), (x_axis.start, y_axis.start), (x_axis.end, y_axis.start)], fill=FAINT)
    pen.text(((x_axis.start + x_axis.end) / 2, y_axis.start + 30), "orders tried", fill=FAINT, font=small, anchor="mt")


def _draw_legend(pen: ImageDraw.ImageDraw) -> None:
    x, y, small = float(_LEFT), _TOP - 16, font(13)
    for model in ("given", "random start", "gaussian process"):
        pen.ellipse((x, y - 5, x + 10, y + 5), fill=COLOURS[model])
        pen.text((x + 16, y), model, fill=INK, font=small, anchor="lm")
        x += 16 + pen.textlength(model, font=small) + 18
    rest = "hollow: not obeyed; bar: what was expected, 95 %; dashes: greedy restore"
    pen.text((x, y), rest, fill=FAINT, font=small, anchor="lm")
