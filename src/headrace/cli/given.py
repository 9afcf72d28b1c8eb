"""Which options are on the command line, so that those that would be ignored can be refused."""

from __future__ import annotations

import click


def given(*names: str) -> dict[str, bool]:
    """Of each option of the present command, by its parameter's name, whether it is on the command line; by its own name."""
    context = click.get_current_context()
    options = {one.name: one.opts[0] for one in context.command.params}
    line = click.core.ParameterSource.COMMANDLINE
    return {options[name]: context.get_parameter_source(name) is line for name in names}
