"""``headrace``: the commands, and what becomes of an error."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import click

from headrace.cli.debug_run import debug_run
from headrace.cli.doctor import doctor
from headrace.cli.evaluate import evaluate
from headrace.cli.listing import show_list
from headrace.cli.monitor import monitor
from headrace.cli.train import train
from headrace.core.config import nearest
from headrace.core.errors import ConfigError, HeadraceError

USAGE = 2
INTERRUPTED = 130


class Commands(click.Group):
    """The command line as a whole: an error of ours is told in its own words, without a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "headrace",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run one command and leave with its exit code; without ``standalone_mode`` errors are the caller's.

        Exit codes: 0 as declared, 1 the run failed, 2 wrong command or configuration, 3 stalled, 4 books or
        replay differ, 130 interrupted.
        """
        run = functools.partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        sys.exit(_exit_code(run))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("headrace"), prog_name="headrace", message="%(prog)s %(version)s")
def main() -> None:
    """Asynchronous reinforcement learning that does not hang, lose data, or learn something else."""


main.add_command(train)
main.add_command(evaluate)
main.add_command(doctor)
main.add_command(debug_run)
main.add_command(show_list)
main.add_command(monitor)


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        code = command()
        sys.stdout.flush()
    except HeadraceError as error:
        click.echo(str(error), err=True)
        return error.exit_code
    except click.NoSuchOption as error:
        click.echo(str(_unknown_option(error)), err=True)
        return USAGE
    except click.ClickException as error:
        error.show()
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has left. Without this the interpreter would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _unknown_option(error: click.NoSuchOption) -> ConfigError:
    """As click's own message, but with the nearest option first instead of an alphabetical choice."""
    command = error.ctx.command_path if error.ctx is not None else "headrace"
    known = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx is not None else []
    meant = nearest(error.option_name, [name for name in known if name.startswith("-")])
    return ConfigError(
        f"{command} has no option {error.option_name}",
        **({"nearest": meant} if meant else {}),
        fix=f"write {meant}; {command} --help lists every option" if meant else f"{command} --help lists every option",
    )
