"""``headrace``: the commands, and what becomes of an error."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from headrace.cli import early, unheard
from headrace.cli.early import INTERRUPTED
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.garbage import uncollected

LOST, USAGE = 1, 2

_COMMANDS = {
    "bench": "headrace.cli.bench:bench",
    "check": "headrace.cli.check:check",
    "debug-run": "headrace.cli.debug_run:debug_run",
    "doctor": "headrace.cli.doctor:doctor",
    "eval": "headrace.cli.evaluate:evaluate",
    "faults": "headrace.cli.faults:faults",
    "inference": "headrace.cli.rl:inference",
    "list": "headrace.cli.listing:show_list",
    "monitor": "headrace.cli.monitor:monitor",
    "orchestrator": "headrace.cli.rl:orchestrator",
    "plan": "headrace.cli.plan:plan",
    "replay": "headrace.cli.replay:replay",
    "rl": "headrace.cli.rl:rl",
    "sft": "headrace.cli.rl:sft",
    "supervise": "headrace.cli.supervise:supervise",
    "train": "headrace.cli.train:train",
    "trainer": "headrace.cli.rl:trainer",
    "twin": "headrace.cli.twin:twin",
    "verify": "headrace.cli.verify:verify",
}
"""Where each command is. It is imported when it is asked for: the others would only make it slow to answer."""
_NOTHING_TO_END = frozenset({"eval", "list", "replay", "verify"})
"""Commands that may be left at any moment, and import much while they run. Where `eval` begins a process it hands over itself."""


class Commands(click.Group):
    """The command line as a whole: an error of ours is told in its own words, without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None if there is none."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        with uncollected():
            command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with; a usage error, with the nearest names, if there is none."""
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            nearest = " or ".join(map(repr, difflib.get_close_matches(args[0], _COMMANDS)))
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {nearest}?" if nearest else ""))
        found = super().resolve_command(ctx, args)
        if found[0] not in _NOTHING_TO_END:
            early.hand_over()
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Click prints a line when it is interrupted, and is silent about broken pipes, also of our own."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            unheard.hurry()
            raise
        except BrokenPipeError as error:
            raise RuntimeError("a pipe broke inside the command") from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "headrace",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run one command and leave with its exit code; without ``standalone_mode`` errors are the caller's.

        Exit codes: 0 as declared, 1 the run failed, or what it was to leave or to print is lost, 2 wrong command or configuration,
        3 stalled, or nothing came that may be trained on, 4 books or replay differ, 130 interrupted.
        """
        _spell_out_what_cannot_be_shown()
        run = functools.partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        with unheard.outlets():
            code = _exit_code(run)
        sys.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="headrace", prog_name="headrace", message="%(prog)s %(version)s")
def main() -> None:
    """Asynchronous reinforcement learning that does not hang, lose data, or learn something else."""


def _spell_out_what_cannot_be_shown() -> None:
    """A file name in another encoding, or a terminal without our characters, ends no command that prints it."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in {"strict", "surrogateescape"}:
        sys.stdout.reconfigure(errors="backslashreplace")  # as Python has it on standard error


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = _told(command)
        if code == INTERRUPTED:
            unheard.hurry()
        unheard.finish()
        lost = unheard.untold_loss()
        if lost is not None:
            unheard.complain(f"what was to be printed is lost: {lost.strerror}")
            code = code or LOST
        early.leave_from_here()  # what is left to do is Python's own, and would print a traceback when it is interrupted
    except (KeyboardInterrupt, click.Abort):
        early.leave_from_here()  # first of all: there are people who press Ctrl-C twice
        unheard.hurry()
        unheard.complain(early.LINE)
        return INTERRUPTED
    return code


def _told(command: Callable[[], Any]) -> int:
    """Its exit code; what went wrong is told on standard error."""
    try:
        code = command()
    except HeadraceError as error:
        unheard.complain(str(error))
        return error.exit_code
    except click.NoSuchOption as error:
        unheard.complain(str(_unknown_option(error)))
        return USAGE
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return USAGE
    except OSError as error:
        if not unheard.is_lost_output(error):
            raise
        return LOST  # `untold_loss` has why
    return code if isinstance(code, int) else 0


def _unknown_option(error: click.NoSuchOption) -> ConfigError:
    """As click's own message, but with the nearest option first instead of an alphabetical choice."""
    from headrace.core.refusals import nearest  # pydantic takes long, and is needed for a mistake only

    command = error.ctx.command_path if error.ctx is not None else "headrace"
    known = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx is not None else []
    meant = nearest(error.option_name, [name for name in known if name.startswith("-")])
    return ConfigError(
        f"{command} has no option {error.option_name}",
        **({"nearest": meant} if meant else {}),
        fix=f"write {meant}; {command} --help lists every option" if meant else f"{command} --help lists every option",
    )
