"""The extras of the package, and what to do where a module of theirs is not there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import MappingProxyType

from headrace.core.errors import ConfigError

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sb3": ("stable_baselines3",),
        "agents": ("pettingzoo",),
        "search": ("sklearn",),
        "mujoco": ("mujoco", "imageio"),
        "lunarlander": ("pygame",),
        "llm": ("transformers", "tokenizers", "starlette", "uvicorn", "httptools", "aiohttp"),
        "peers": ("stable_baselines3", "sbx", "pygame"),
        "fast": ("numba", "llvmlite"),
    }
)
"""What each brings that can be imported. Of several with the same module the first one is told."""


def require_language_models() -> None:
    """Say all that language-model runs lack, before anything is started; nothing is imported.

    Raises:
        ConfigError: Modules of the extra ``llm`` are not there.
    """
    missing = [module for module in EXTRAS["llm"] if not _is_there(module)]
    if missing:
        raise ConfigError(
            "language-model runs need the extra llm", missing=", ".join(missing), fix=_installation("llm")
        )


def remedy(module: str, *named: str | None) -> str:
    """What to do where an environment was to be built and a module was not found.

    Args:
        module: Its full name.
        named: What the configuration names, as ``module:what``; other texts name no module.
    """
    for extra, modules in EXTRAS.items():
        if module in modules:
            return _installation(extra)
    if any(one and f"{one.rpartition(':')[0]}.".startswith(f"{module}.") for one in named):
        return f"run it where Python finds {module}: in the folder that holds it, or with its package installed"
    return f"install the package that has {module}, or correct the import"


def _installation(extra: str) -> str:
    return f"pip install 'PATH_OF_THE_CLONE[{extra}]'"


def _is_there(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:  # of a finder that refuses it
        return False
    except ValueError:  # imported already, from nowhere: somebody put it there
        return True
    return spec is not None and spec.origin is not None  # a folder of that name in the working directory has none
