"""On what a run computed: versions, libraries with their threads, the processor; and how another machine differs.

The same bits come out of the same code on the same kind of machine only. A replay that differs looks here first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import threadpoolctl  # type: ignore[import-untyped]

from headrace.core.config import EnvConfig, factory_name
from headrace.core.errors import ConfigError

_PACKAGES = ("headrace", "numpy", "torch", "gymnasium", "safetensors", "box2d")
_NOT_INSTALLED = "not installed"
_COMPUTING = ("numpy", "torch", "mkl", "intel_openmp")
"""Packages whose own libraries compute; scipy, say, brings another copy, which a process may have loaded for other reasons."""
_FEATURES = {
    "avx", "avx2", "fma", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16", "i8mm",
}  # fmt: skip
"""Of a processor: what libraries choose their kernels by, besides everything that begins with avx512."""
_CPUINFO = Path("/proc/cpuinfo")


def fingerprint(environment: Sequence[str] = ()) -> dict[str, Any]:
    """What this process computes with, as JSON knows it.

    Libraries count that are loaded: take it in the process that computes, after torch was imported and its threads were
    set. It takes a few tenths of a second.

    Args:
        environment: Modules of the environment, see `environment_modules`.
    """
    model, features = _processor()
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "environment": {module: _origin(module) for module in environment},
        "libraries": _libraries(),
        "processor": model,
        "features": features,
        "system": " ".join(filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))),
    }


def environment_modules(config: EnvConfig, factory: Callable[..., object] | None = None) -> list[str]:
    """Modules that the environment comes from.

    Args:
        config: The section ``env``. A module that is named in its id is imported.
        factory: The callable that was handed over instead of ``env.id`` and ``env.factory``, if any.
    """
    if factory is not None:
        return [factory_name(factory).partition(":")[0]]
    if config.factory is not None:
        return [config.factory.partition(":")[0]]
    return _registered(config.id) if config.id is not None else []


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """How two fingerprints differ, one sentence each; empty if they do not.

    Args:
        recorded: Of the run.
        here: Of this process.
    """
    before, now = _sayings(recorded), _sayings(here)
    found = []
    for name in [*before, *(name for name in now if name not in before)]:
        was, is_now = before.get(name), now.get(name)
        if was is None:
            found.append(f"{name} {is_now} is here, and was not recorded")
        elif is_now is None:
            found.append(f"{name} {was} was recorded, and is not here")
        elif was != is_now:
            found.append(f"{name} {was} was recorded, {is_now} is here")
    had, has = set(recorded.get("features", ())), set(here.get("features", ()))
    found += [f"the processor of the record had {name}, the one here has not" for name in sorted(had - has)]
    found += [f"the processor here has {name}, the one of the record had not" for name in sorted(has - had)]
    return found


@contextlib.contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Within it, loaded BLAS and OpenMP libraries use so many threads; afterwards as many as before.

    Raises:
        ConfigError: It is below 1.
    """
    if threads < 1:
        raise ConfigError("a number of threads has to be at least 1", threads=threads, fix="raise it")
    with threadpoolctl.threadpool_limits(limits=threads):
        yield


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _NOT_INSTALLED


def _computes(file: str) -> bool:
    """Whether what policies and learners compute may go through a library: not one that another package brought along."""
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1].removesuffix(".libs") in _COMPUTING
    return True


def _libraries() -> list[dict[str, Any]]:
    found = [
        {
            "name": pool["prefix"],
            "version": pool["version"],
            "kernels": pool.get("architecture"),
            "threads": pool["num_threads"],
        }
        for pool in threadpoolctl.threadpool_info()
        if _computes(pool["filepath"])
    ]
    return sorted(found, key=lambda library: [str(value) for value in library.values()])


def _processor() -> tuple[str, list[str]]:
    """Model and features that matter."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):  # not Linux
        first, _, _ = _CPUINFO.read_text().partition("\n\n")
        lines = (line.partition(":") for line in first.splitlines())
        facts = {name.strip().lower(): value.strip() for name, _, value in lines}
    flags = (facts.get("flags") or facts.get("features") or "").split()
    model = facts.get("model name") or platform.processor() or platform.machine()
    return model, sorted({flag for flag in flags if flag in _FEATURES or flag.startswith("avx512")})


def _registered(name: str) -> list[str]:
    """The module that registers an id, if it is named, and the one of the class."""
    import gymnasium

    module, colon, plain_name = name.rpartition(":")
    named = [module] if colon else []
    try:
        if colon:
            importlib.import_module(module)
        entry = gymnasium.spec(plain_name).entry_point
    except (ImportError, gymnasium.error.Error):  # whoever builds it says more about that
        return named
    if entry is None:
        return named
    made_in = (entry if isinstance(entry, str) else factory_name(entry)).partition(":")[0]
    return list(dict.fromkeys([*named, made_in]))


def _origin(module: str) -> str:
    """Distribution and version a module belongs to; if to none, a hash of its code."""
    file = _file(module)
    if file is None:
        return "without a file"
    names = sorted(
        {f"{owner.name} {owner.version}" for owner in importlib.metadata.distributions() if _holds(owner, module, file)}
    )
    return ", ".join(names) or f"not packaged: {_code_sha256(module, file)}"


def _holds(owner: importlib.metadata.Distribution, module: str, file: Path) -> bool:
    """Whether a module's file was installed with a distribution, and does not only have a package's name."""
    listed = owner.read_text("RECORD")  # taking it to pieces takes ten times as long, and most do not hold such a name
    if listed is not None and module.replace(".", "/") not in listed:
        return False
    return any(part.name == file.name and Path(str(part.locate())).resolve() == file for part in owner.files or ())


def _file(module: str) -> Path | None:
    """The file of a module, which is not imported for it; None: there is none, or it cannot be known."""
    if module == "__main__":  # of another process, perhaps
        return None
    spec, path = None, None
    for number, _ in enumerate(parts := module.split("."), start=1):
        name = ".".join(parts[:number])
        spec = importlib.machinery.PathFinder.find_spec(name, path) if path else _top_spec(name)
        path = spec.submodule_search_locations if spec else None
        if path is None and number < len(parts):
            return None
    origin = Path(spec.origin) if spec and spec.origin else None
    return origin.resolve() if origin and origin.is_file() else None


def _top_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__spec__ is None:
        return None
    return importlib.util.find_spec(name)


def _code_sha256(module: str, file: Path) -> str:
    """Of a plain module its file, of one in a package all Python files of its folder and below."""
    if "." not in module and file.name != "__init__.py":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for part in sorted(file.parent.rglob("*.py")):
        whole.update(f"{part.relative_to(file.parent)}\n{part.stat().st_size}\n".encode() + part.read_bytes())
    return whole.hexdigest()


def _sayings(found: Mapping[str, Any]) -> dict[str, str]:
    """Everything of a fingerprint but the features, as words by name."""
    sayings = {name: str(version) for name, version in found.get("versions", {}).items() if version != _NOT_INSTALLED}
    for module, origin in found.get("environment", {}).items():
        sayings[f"environment module {module}"] = f"({origin})"
    for library in found.get("libraries", ()):
        threads = library["threads"]
        words = [library["version"], library["kernels"], f"with {threads} thread{'s' * (threads != 1)}"]
        said, name = " ".join(filter(None, words)), library["name"]
        # Packages bring copies of one library. One that is set up like another computes the same, whoever calls it.
        while sayings.get(name, said) != said:
            name = f"another {name}"
        sayings[name] = said
    for name in ("processor", "system"):
        if name in found:
            sayings[name] = str(found[name])
    return sayings
