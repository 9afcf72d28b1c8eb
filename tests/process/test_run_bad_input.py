"""What is wrong with an environment, a setting or a place is told in one paragraph, soon, by the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.cli.main import main
from run_support import Runs, events, summary

pytestmark = [pytest.mark.process, pytest.mark.thin(2)]

HERE = Path(__file__).resolve().parents[1]
LIMIT_S = 30.0


Command = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Case:
    """A command line that cannot work, and what it must say."""

    factory: str = "run_envs:make"
    kwargs: dict[str, object] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    exit_code: int = 1
    says: tuple[str, ...] = ()


BUILDING = {
    "factory raises": Case(
        "run_envs:raises_when_built",
        says=(
            "[ENV-001] building the environment of lane 0 raised RuntimeError: the map of the park is missing",
            "component: probe", "environment: run_envs:raises_when_built", "raised at: ", " in raises_when_built",
        ),
    ),
    "factory returns None": Case(
        "run_envs:returns_none",
        says=("[ENV-001] factory for lane 0 returned None", "expected: an instance of gymnasium.Env", "found: None"),
    ),
    "factory returns a class": Case(
        "run_envs:returns_a_class",
        says=("[ENV-001] factory for lane 0 returned type", "found: <class 'run_envs.Traced'>", "not a class"),
    ),
    "module is missing": Case(
        "no_such_module:make", says=("[ENV-001]", "ModuleNotFoundError: No module named 'no_such_module'"),
    ),
    "function is missing": Case(
        "run_envs:mkae", says=("[ENV-001] module run_envs has no mkae", "nearest: run_envs:make"),
    ),
    "buttons": Case("run_envs:buttons", exit_code=2, says=("[ENV-005]", "action", "Discrete(2)")),
    "boundless": Case("run_envs:boundless", exit_code=2, says=("[ENV-005]", "action", "inf")),
}  # fmt: skip

FIRST_OBSERVATION = {
    "shape": Case(
        kwargs={"fault": "wrong_shape", "at": 0},
        says=("environment: run_envs:make", "field: obs", "expected: float64 array of shape (2,)",
              "found: float64 array of shape (3,)", "lane: 0", "step: 0"),
    ),
    "dtype": Case(
        kwargs={"fault": "wrong_dtype", "at": 0},
        says=("field: obs", "expected: float64 array of shape (2,)", "found: float32 array of shape (2,)"),
    ),
    "range": Case(
        "run_envs:levels", kwargs={"fault": "beyond", "at": 0},
        says=("field: obs", "expected: int64 array of shape (2,), values from 0 to 9", "found: value 10"),
    ),
    "reset raises": Case(
        kwargs={"fault": "fail", "at": 0},
        says=("[ENV-004] run_envs:make in lane 0 raised ValueError in reset()",
              "error: ValueError: burn map corrupt, tile 7"),
    ),
    "process is killed": Case(
        kwargs={"fault": "kill", "at": 0}, says=("[SUP-001] probe ended although nobody asked it to: killed by SIGKILL",),
    ),
}  # fmt: skip

SETTINGS = {
    "unknown key": Case(settings=("replay.capasity=1",), exit_code=2, says=("[CFG-001]", "nearest: replay.capacity")),
    "value out of range": Case(
        settings=("env.lanes=0",), exit_code=2, says=("[CFG-001] env.lanes must be at least 1",)
    ),
    "contradiction": Case(
        settings=("run.collectors=9",), exit_code=2, says=("[CFG-001]", "collectors: 9", "groups: 4")
    ),
}


def train(case: Case, run_dir: Path, folder: Path, command: Command) -> subprocess.CompletedProcess[str]:
    config = folder / "config.toml"
    kwargs = "".join(f"{key} = {json.dumps(value)}\n" for key, value in case.kwargs.items())
    config.write_text(f'[env]\nfactory = "{case.factory}"\nlanes = 4\n[env.kwargs]\n{kwargs}')
    settings = [part for setting in case.settings for part in ("--set", setting)]
    return command("train", str(config), "--run-dir", str(run_dir), *settings)


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [Path(sys.executable).with_name("headrace"), *arguments]
    return subprocess.run(line, cwd=HERE, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.fixture
def here(runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process, its runs from the warm fork server: for what is not about the process."""
    monkeypatch.chdir(HERE)

    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        return subprocess.CompletedProcess(arguments, left.value.code, *capsys.readouterr())

    return called


def assert_says(case: Case, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == case.exit_code, done.stderr
    for text in case.says:
        assert text in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    what, *facts = done.stderr.rstrip("\n").split("\n")
    assert what.startswith("["), done.stderr
    assert all(line.startswith("  ") for line in facts), done.stderr
    assert facts[-1].startswith("  fix: ")


@pytest.mark.thin(12)
@pytest.mark.parametrize("name", [*BUILDING, *FIRST_OBSERVATION])
def test_environment_that_cannot_be_used_at_all(tmp_path, name):
    case = (BUILDING | FIRST_OBSERVATION)[name]
    run_dir = tmp_path / "run"
    done = train(case, run_dir, tmp_path, headrace)
    assert_says(case, done)
    left = summary(run_dir)
    assert left["outcome"] == "failed"
    assert left["exit_code"] == case.exit_code
    assert left["error"] in done.stderr
    assert left["books"]["produced"] == 0


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be(here, tmp_path, name):
    run_dir = tmp_path / "run"
    assert_says(SETTINGS[name], train(SETTINGS[name], run_dir, tmp_path, here))
    assert not run_dir.exists()


def test_unknown_preset(tmp_path):
    case = Case(exit_code=2, says=("[CFG-001] there is no preset pendulum-td", "nearest: pendulum-td3"))
    assert_says(case, headrace("train", "pendulum-td", "--run-dir", str(tmp_path / "run")))


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_place_that_cannot_be_written(here, tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/proc/no-such-process")
    case = Case(exit_code=2, says=("[CFG-002]", str(tmp_path / place)))
    assert_says(case, train(case, tmp_path / place, tmp_path, here))


def test_mended_environment_may_be_tried_again_in_the_same_place(here, tmp_path):
    run_dir, broken = tmp_path / "run", Case("run_envs:returns_none")
    for _ in range(2):
        assert_says(broken, train(broken, run_dir, tmp_path, here))
    assert (run_dir / "earlier" / "1" / "summary.json").is_file()
    mended = train(
        Case(settings=("run.steps=100", "replay.learning_starts=50", "collect.random_steps=50", "evaluation.episodes=0")),
        run_dir, tmp_path, here,
    )  # fmt: skip
    assert (mended.returncode, mended.stderr) == (0, "")
    case = Case(exit_code=2, says=("[CFG-002]", "already holds a finished run", "outcome: completed"))
    assert_says(case, train(case, run_dir, tmp_path, here))


LATER = {
    "shape": ("run_envs:make", "wrong_shape", "found: float64 array of shape (3,)"),
    "dtype": ("run_envs:make", "wrong_dtype", "found: float32 array of shape (2,)"),
    "range": ("run_envs:levels", "beyond", "found: value 10"),
    "reward": ("run_envs:make", "wrong_reward", "found: float64 array of shape (2,)"),
    "nan reward": ("run_envs:make", "nan_reward", "found: nan"),
    "nan observation": ("run_envs:make", "nan_obs", "found: [ 5. nan]"),
}


@pytest.mark.thin(9)
@pytest.mark.parametrize("schedule", ["async", "lockstep", "inline"])
@pytest.mark.parametrize("name", LATER)
def test_environment_that_breaks_its_contract_later(runs, name, schedule, tmp_path):
    factory, fault, found = LATER[name]
    kwargs = {"fault": fault, "at": 5, "marker": str(tmp_path / "marker")}
    run = runs.train(factory, kwargs=kwargs, run__schedule=schedule)
    assert run.summary["exit_code"] == 1
    error = run.summary["error"]
    for text in (
        found.split("[")[0],
        f"  field: {'reward' if 'reward' in name else 'obs'}\n",
        "  lane: ",
        "  step: 5\n",
    ):
        assert text in error
    assert factory in error
    assert run.summary["restarts"] == 0
    assert run.summary["books"]["balanced"]


@pytest.mark.parametrize("at", [0, 7], ids=["from_the_first", "later"])
@pytest.mark.parametrize("schedule", ["inline", "async"])
def test_observations_that_are_converted_are_told_once(runs: Runs, at: int, schedule: str):
    """Whether the probe meets the first one or every environment for itself."""
    run = runs.train(
        kwargs={"fault": "wrong_dtype", "at": at}, env__cast_observations=True, run__schedule=schedule, run__steps=200
    )
    assert run.completed, run.summary["error"]
    (told,) = events(run, "cast")
    assert told["text"] == (
        "run_envs:make: obs is converted on every step, from float32 array of shape (2,) to float64 array of shape (2,)"
    )
