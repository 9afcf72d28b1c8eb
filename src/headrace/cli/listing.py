"""``headrace list``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable

import click

_LANGUAGE_MODEL_ALGORITHMS = (
    ("grpo", "group-relative policy optimisation, for language models (Shao et al. 2024); also gspo, cispo, icepop"),
)


@click.command("list")
def show_list() -> None:
    """Presets, environments and algorithms, one line each."""
    from headrace.algorithms.registry import algorithms
    from headrace.runtime.presets import presets

    _section("presets", ((preset.name, preset.description) for preset in presets().values()))
    _section("environments", _environments())
    _section("environments for language models", _text_environments())
    _section("algorithms", [*algorithms().items(), *_LANGUAGE_MODEL_ALGORITHMS])


def _environments() -> Iterable[tuple[str, str]]:
    import gymnasium

    from headrace.envs import registration, toy

    registration.register()
    for name, spec in gymnasium.registry.items():
        if name.startswith("headrace/"):
            yield name, _first_line(gymnasium.envs.registration.load_env_creator(str(spec.entry_point)))
    for factory in (toy.counter, toy.stack_probe, toy.target, toy.sampler):
        yield f"{factory.__module__}:{factory.__name__}", _first_line(factory)
    yield "any other", "a Gymnasium id (Pendulum-v1), module:Id, or module:function in env.factory"


def _text_environments() -> Iterable[tuple[str, str]]:
    from headrace.envs.text.building import FACTORIES

    for name, factory in FACTORIES.items():
        module, _, entry = factory.partition(":")
        yield name, _first_line(getattr(importlib.import_module(module), entry))
    yield "any other", "module:function in env.factory, see docs/reference/text-environments.md"


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _section(title: str, rows: Iterable[tuple[str, str]]) -> None:
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    click.echo(title)
    for name, description in listed:
        click.echo(f"  {name:<{width}}  {description}".rstrip())
