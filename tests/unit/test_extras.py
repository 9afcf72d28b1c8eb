"""Extras of the package: what each brings, and what is said where it is missing."""

from __future__ import annotations

import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.extras import EXTRAS, remedy, require_language_models
from hiding import hide

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
FOR_OURSELVES = {"dev"}
OTHER_NAMES = {"scikit-learn": ["sklearn"], "sbx-rl": ["sbx"], "gymnasium[mujoco]": ["mujoco", "imageio"]}
"""Distributions that are imported by other names than their own."""


def test_the_table_is_that_of_the_package():
    extras = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    declared = {
        extra: [module for requirement in requirements for module in modules_of(requirement)]
        for extra, requirements in extras.items()
        if extra not in FOR_OURSELVES
    }
    assert {extra: sorted(modules) for extra, modules in EXTRAS.items()} == {
        extra: sorted(modules) for extra, modules in declared.items()
    }


def modules_of(requirement):
    name = re.match(r"[\w.-]+(\[\w+\])?", requirement)[0]
    return OTHER_NAMES.get(name, [name.replace("-", "_")])


def test_all_that_is_missing_is_named_at_once(monkeypatch):
    hide(monkeypatch, "tokenizers", "aiohttp")
    with pytest.raises(ConfigError) as caught:
        require_language_models()
    assert str(caught.value) == (
        "[CFG-001] language-model runs need the extra llm\n"
        "  missing: tokenizers, aiohttp\n"
        "  fix: pip install 'PATH_OF_THE_CLONE[llm]'"
    )


def test_nothing_is_refused_where_all_is_there():
    require_language_models()


def test_a_module_that_somebody_put_there_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", types.ModuleType("tokenizers"))
    require_language_models()


def test_a_folder_of_that_name_is_not_the_package(monkeypatch, tmp_path):
    (tmp_path / "tokenizers").mkdir()
    hide(monkeypatch, *EXTRAS["llm"])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[1:])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError) as caught:
        require_language_models()
    assert "tokenizers" in caught.value.facts["missing"]


FOLDER = "run it where Python finds {}: in the folder that holds it, or with its package installed"


@pytest.mark.parametrize(
    ("module", "named", "fix"),
    [
        ("pygame", ("LunarLander-v3",), "pip install 'PATH_OF_THE_CLONE[lunarlander]'"),
        ("stable_baselines3", (), "pip install 'PATH_OF_THE_CLONE[sb3]'"),
        ("pettingzoo", ("pettingzoo.mpe:env",), "pip install 'PATH_OF_THE_CLONE[agents]'"),
        ("mine", ("mine:make",), FOLDER.format("mine")),
        ("mine", ("mine.envs:make",), FOLDER.format("mine")),
        ("mine.envs", (None, "mine.envs:Mine-v0"), FOLDER.format("mine.envs")),
        ("mine", ("miner:make",), "install the package that has mine, or correct the import"),
        ("mine", ("mine",), "install the package that has mine, or correct the import"),
        ("mine", (None, None), "install the package that has mine, or correct the import"),
    ],
)
def test_what_helps_where_a_module_is_missing(module, named, fix):
    assert remedy(module, *named) == fix
