"""On what a run computed: nothing that decides about bits is left out, and a difference is one plain sentence."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import json
import platform
import sys

import gymnasium
import pytest
import threadpoolctl

from headrace.core.config import EnvConfig
from headrace.core.errors import ConfigError
from headrace.envs import registration
from headrace.record import machine
from headrace.record.machine import differences, environment_modules, fingerprint, limited_threads

RECORDED = {
    "versions": {"python": "3.11.7", "headrace": "0.1.0", "torch": "2.13.0", "box2d": "not installed"},
    "environment": {"my_env": "my-envs 1.0", "local": "not packaged: aa"},
    "libraries": [
        {"name": "libgomp", "version": None, "kernels": None, "threads": 2},
        {"name": "libopenblas", "version": "0.3.31", "kernels": "Haswell", "threads": 1},
    ],
    "processor": "AMD EPYC",
    "features": ["avx2", "fma"],
    "system": "Linux x86_64 glibc 2.36",
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that modules are imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def origin(module):
    return fingerprint([module])["environment"][module]


# What is noted


def test_a_fingerprint_survives_json():
    found = fingerprint(["gymnasium.envs.classic_control.pendulum"])
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"versions", "environment", "libraries", "processor", "features", "system"}
    assert differences(found, json.loads(json.dumps(found))) == []


def test_versions_are_those_that_are_installed():
    versions = fingerprint()["versions"]
    assert versions.pop("python") == platform.python_version()
    assert set(versions) >= {"headrace", "numpy", "torch", "gymnasium", "safetensors"}
    assert versions == {name: importlib.metadata.version(name) for name in versions}


def test_a_package_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setattr(machine, "_PACKAGES", ("numpy", "there-is-no-such-package"))
    assert fingerprint()["versions"]["there-is-no-such-package"] == "not installed"


def test_libraries_are_noted_with_their_threads():
    with limited_threads(1):
        libraries = fingerprint()["libraries"]
    pools = [pool for pool in threadpoolctl.threadpool_info() if machine._computes(pool["filepath"])]
    assert pools  # numpy brings one
    assert sorted(library["name"] for library in libraries) == sorted(pool["prefix"] for pool in pools)
    assert {library["threads"] for library in libraries} == {1}


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("/env/lib/python3.11/site-packages/numpy.libs/libscipy_openblas64_-32.so", True),
        ("/env/lib/python3.11/site-packages/torch/lib/libgomp.so.1", True),
        ("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", True),
        ("/env/lib/python3.11/site-packages/scipy.libs/libscipy_openblas-6c.so", False),
        ("/usr/lib/python3/dist-packages/sklearn/libgomp.so", False),
    ],
)
def test_a_library_that_another_package_brought_along_changes_no_bit(monkeypatch, file, counts):
    pool = {"filepath": file, "prefix": "it", "version": "1", "num_threads": 1}
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: [pool])
    assert bool(fingerprint()["libraries"]) is counts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu avx avx2 avx512f fma sse2\n\nmodel name\t: Another\nflags\t: sve\n",
            ("Some CPU @ 2.0GHz", ["avx", "avx2", "avx512f", "fma"]),
        ),
        ("processor\t: 0\nFeatures\t: fp asimd sve crc32\nmodel name\t: Arm\n", ("Arm", ["asimd", "sve"])),
    ],
)
def test_a_processor_is_noted_with_what_matters(tmp_path, monkeypatch, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    found = fingerprint()
    assert (found["processor"], found["features"]) == expected


def test_a_processor_that_tells_nothing_has_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "missing")
    found = fingerprint()
    assert found["processor"] in {platform.processor(), platform.machine()}
    assert found["features"] == []


# Where an environment comes from


class Local(gymnasium.Env):
    pass


def test_the_modules_of_an_environment(site):
    (site / "registers_one.py").write_text(
        "import gymnasium\n"
        "gymnasium.register(id='RegistersOne-v0', entry_point='made.elsewhere:Env')\n"
        "gymnasium.register(id='MadeHere-v0', entry_point=lambda: None)\n"
    )
    try:
        assert environment_modules(EnvConfig(id="registers_one:RegistersOne-v0")) == ["registers_one", "made.elsewhere"]
        assert environment_modules(EnvConfig(id="registers_one:MadeHere-v0")) == ["registers_one"]
    finally:
        gymnasium.registry.pop("RegistersOne-v0")
        gymnasium.registry.pop("MadeHere-v0")
    assert environment_modules(EnvConfig(id="Pendulum-v1")) == ["gymnasium.envs.classic_control.pendulum"]
    assert environment_modules(EnvConfig(factory="a.b:make.it")) == ["a.b"]
    assert environment_modules(EnvConfig(id=registration.HOCKEY_ID)) == ["headrace.envs.hockey.env"]
    assert environment_modules(EnvConfig()) == []


def test_a_callable_counts_before_the_section():
    config = EnvConfig(id="Pendulum-v1")
    assert environment_modules(config, Local) == [__name__]
    assert environment_modules(config, functools.partial(Local, 1)) == [__name__]


def test_an_environment_that_is_not_there_is_no_error():
    assert environment_modules(EnvConfig(id="ThereIsNoSuchEnvironment-v0")) == []
    assert environment_modules(EnvConfig(id="there_is_no_such_module:Env-v0")) == ["there_is_no_such_module"]


def test_an_installed_environment_is_named_by_its_distribution():
    version = importlib.metadata.version("gymnasium")
    assert origin("gymnasium.envs.classic_control.pendulum") == f"gymnasium {version}"
    assert origin("gymnasium") == f"gymnasium {version}"


def test_a_plain_file_is_named_by_its_content_and_not_imported(site):
    code = b"raise SystemExit('this must not be imported')\n"
    (site / "plain_env.py").write_bytes(code)
    (site / "beside_it.py").write_bytes(b"a = 1\n")
    assert origin("plain_env") == f"not packaged: {hashlib.sha256(code).hexdigest()}"
    assert "plain_env" not in sys.modules


def test_a_package_is_named_by_all_its_code_and_not_imported(site):
    folder = site / "whole" / "envs"
    folder.mkdir(parents=True)
    (site / "whole" / "__init__.py").write_text("raise SystemExit")
    (folder / "__init__.py").write_text("")
    (folder / "env.py").write_text("from whole.envs import physics")
    (folder / "physics.py").write_text("gravity = 9.81")
    before = origin("whole.envs.env")
    assert before.startswith("not packaged: ")
    (folder / "physics.py").write_text("gravity = 9.82")
    changed = origin("whole.envs.env")
    assert changed != before
    (folder / "physics.py").rename(folder / "forces.py")
    assert origin("whole.envs.env") not in {before, changed}
    (folder / "forces.py").rename(folder / "physics.py")
    (site / "whole" / "other.py").write_text("")
    assert origin("whole.envs.env") == changed
    assert "whole" not in sys.modules


def distribution(site, name, *listed):
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in listed))


def test_a_file_that_only_has_the_name_of_a_package_is_not_it(site):
    (site / "lookalike.py").write_text("")
    distribution(site, "lookalike", "inner/lookalike.py", "lookalike.pyc")
    assert origin("lookalike") == f"not packaged: {hashlib.sha256(b'').hexdigest()}"


def test_all_who_have_installed_a_file_are_named(site):
    (site / "shared_env.py").write_text("")
    distribution(site, "first", "shared_env.py")
    distribution(site, "second", "other.py", "shared_env.py")
    assert origin("shared_env") == "first 1.0, second 1.0"


@pytest.mark.parametrize(
    "module", ["__main__", "there_is_no_such_module", "there.is.no", "json.there_is_no", "json.decoder.deeper", "sys"]
)
def test_what_has_no_file_has_none(module):
    assert origin(module) == "without a file"


# How two machines differ


def changed(**parts):
    return copy.deepcopy(RECORDED) | parts


def library(name, threads, version=None):
    return {"name": name, "version": version, "kernels": None, "threads": threads}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (changed(), []),
        (
            changed(versions=RECORDED["versions"] | {"torch": "2.14.0"}),
            ["torch 2.13.0 was recorded, 2.14.0 is here"],
        ),
        (
            changed(versions=RECORDED["versions"] | {"torch": "not installed"}),
            ["torch 2.13.0 was recorded, and is not here"],
        ),
        (
            changed(versions=RECORDED["versions"] | {"box2d": "2.3.10"}),
            ["box2d 2.3.10 is here, and was not recorded"],
        ),
        (
            changed(environment={"my_env": "my-envs 1.1", "local": "not packaged: bb"}),
            [
                "environment module my_env (my-envs 1.0) was recorded, (my-envs 1.1) is here",
                "environment module local (not packaged: aa) was recorded, (not packaged: bb) is here",
            ],
        ),
        (
            changed(libraries=[library("libgomp", 1), RECORDED["libraries"][1]]),
            ["libgomp with 2 threads was recorded, with 1 thread is here"],
        ),
        (
            changed(libraries=[*RECORDED["libraries"], library("libgomp", 4, "5")]),
            ["another libgomp 5 with 4 threads is here, and was not recorded"],
        ),
        (changed(libraries=[*RECORDED["libraries"], RECORDED["libraries"][0]]), []),
        (
            changed(libraries=[RECORDED["libraries"][0]]),
            ["libopenblas 0.3.31 Haswell with 1 thread was recorded, and is not here"],
        ),
        (
            changed(processor="Intel", features=["avx2", "avx512f"], system="Linux x86_64 glibc 2.40"),
            [
                "processor AMD EPYC was recorded, Intel is here",
                "system Linux x86_64 glibc 2.36 was recorded, Linux x86_64 glibc 2.40 is here",
                "the processor of the record had fma, the one here has not",
                "the processor here has avx512f, the one of the record had not",
            ],
        ),
    ],
)
def test_a_difference_is_one_sentence(here, expected):
    assert differences(RECORDED, here) == expected


def test_a_fingerprint_with_less_in_it_can_be_compared():
    assert differences({}, {}) == []
    assert differences({"versions": {"torch": "2"}}, {}) == ["torch 2 was recorded, and is not here"]


# Threads


def threads():
    return {pool["filepath"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}


def test_threads_are_limited_and_given_back():
    before = threads()
    with limited_threads(1):
        assert set(threads().values()) == {1}
        with limited_threads(2):
            assert set(threads().values()) == {2}
        assert set(threads().values()) == {1}
    assert threads() == before


def test_threads_are_given_back_after_an_error():
    before = threads()
    with pytest.raises(KeyError), limited_threads(1):
        raise KeyError("inside")
    assert threads() == before


def test_no_threads_are_refused():
    with pytest.raises(ConfigError) as caught, limited_threads(0):
        pass
    assert str(caught.value) == ("[CFG-001] a number of threads has to be at least 1\n  threads: 0\n  fix: raise it")
