"""The end of a component as the error that ends its run: whose fault, how, its last lines."""

from __future__ import annotations

from headrace.core.errors import ComponentDied, ComponentStalled, HeadraceError, RestartBudgetSpent, StaleWeights
from headrace.llm.launch.place import LanguageRun
from headrace.llm.launch.rooting import Root
from headrace.llm.payloads import INFERENCE, ORCHESTRATOR
from headrace.supervision.child import tail
from headrace.supervision.spec import Exited

_LINES = 12


def error_of(event: Exited, reason: str, root: Root | None, place: LanguageRun) -> HeadraceError:
    """Why a run fails.

    Args:
        event: The end of the component.
        reason: Why nobody takes its place.
        root: Whom it had waited for when it gave up; None: it is to blame itself.
        place: The run directory.
    """
    if root is not None and event.error is not None:
        return ComponentStalled(
            root.sentence,
            gave_up=event.error.what,
            **event.error.facts,
            **last_lines(root.culprit, tail(place.log_file(root.culprit), 0)),
            fix=f"see what {root.culprit} did: {place.log_file(root.culprit)}, {place.stacks_dir}",
        )
    error = event.to_error()
    culprit = culprit_of(event, root)
    if culprit != event.id:
        lines = last_lines(culprit, tail(place.log_file(culprit), 0))
        told = type(error)(error.what, **error.facts, **lines, fix=error.fix)
        told.place(component=culprit, found_by=event.id)
        return told
    # Its last lines are that very error where it could report one of ours.
    lines = {} if any(error.what in line for line in event.log_tail) else last_lines(event.id, event.log_tail)
    if "restart" in reason:
        return RestartBudgetSpent(
            f"{event.id} ended and is not started again: {reason}",
            last_time=error.what,
            **error.facts,
            **lines,
            fix=error.fix,
        )
    facts = {name: value for name, value in error.facts.items() if name != "last_line"}
    if event.error is None and event.call is not None:  # only the orchestrator calls environments, one at a time
        facts["inside"] = f"a call of the environment, for rollout g{event.lane}.{event.step}"
    told = type(error)(error.what, **facts, **lines, fix=error.fix)
    told.place(component=event.id)
    return told


def culprit_of(event: Exited, root: Root | None) -> str:
    """Whose fault the end of a component is; arguments as of `error_of`."""
    if root is not None:
        return root.culprit
    if event.id == ORCHESTRATOR and isinstance(event.error, StaleWeights):
        return INFERENCE  # whoever finds that a server does not serve what it was given is well
    return event.id


def gone_for_good(waiter: str, event: Exited, place: LanguageRun) -> HeadraceError:
    """A component has left, as it may, and another one still waits for it.

    Args:
        waiter: Who waits.
        event: How the other one ended.
        place: The run directory.
    """
    return ComponentDied(
        f"{event.id} has ended ({event.how}) while {waiter} waits for it",
        **last_lines(event.id, event.log_tail),
        fix=f"read {place.log_file(event.id)}: it left before all that {waiter} needs was there",
    )


def last_lines(component: str, lines: list[str]) -> dict[str, object]:
    """The last lines of a log, as a fact of an error."""
    if not lines:
        return {}
    return {f"last lines of {component}": "".join(f"\n    {line}" for line in lines[-_LINES:])}
