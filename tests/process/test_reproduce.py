"""Faults of environments in real runs leave a file, and the file provokes them again."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace.core import seeding
from headrace.testing.reproduce import main, read_reproducer, reproduce
from run_support import Runs, events

pytestmark = [pytest.mark.process, pytest.mark.thin(2)]

TESTS = Path(__file__).resolve().parents[1]
RUN = {"supervision__when_spent": "fail", "run__collectors": 1, "env__lanes": 2}


@pytest.fixture(autouse=True)
def modules_of_the_tests(monkeypatch):
    """As if the command were run where the environments' modules lie."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)


def kept(run) -> list[Path]:
    return sorted((run.path / "reproducers").iterdir())


FAULTS = [
    ("fail", "raised", "ValueError: burn map corrupt, tile 7 (in step 3)"),
    ("kill", "signal", "killed by SIGKILL (often the out-of-memory killer) (in step 3)"),
    ("crash", "signal", "killed by SIGSEGV (in step 3)"),
    ("leave", "exit", "exit code 0 (in step 3)"),
]


@pytest.mark.thin(2)
@pytest.mark.parametrize(("fault", "kind", "now"), FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_what_took_a_collector_down_is_kept_and_comes_again(runs: Runs, capfd, fault, kind, now):
    # Step 13 of the environment, which is step 3 of its second episode and in the middle of a chunk.
    run = runs.train("run_envs:make", kwargs={"fault": fault, "at": 13}, supervision__max_restarts=0, **RUN)
    (path,) = kept(run)
    assert path.name == "collector-0-lane-0-0.json"
    found = read_reproducer(path)
    assert (found.call, found.kind, found.lane, found.episode, found.steps) == ("step", kind, 0, 1, 3)
    assert found.seed == seeding.integer(0, "environment", 0, 1)
    assert found.complete
    stored = runs.rows[0]
    done = [row["action"].tolist() for row in stored[(stored["episode"] == 1) & (stored["kind"] == 1)]]
    assert [list(map(float, action)) for action in found.actions["action"][:2]] == done
    (event,) = events(run, "reproducer")
    assert event["text"] == (
        "what led to it is kept: python -m headrace.testing.reproduce reproducers/collector-0-lane-0-0.json "
        "(step of lane 0, episode 1, 3 actions)"
    )
    capfd.readouterr()
    # The fault hangs on the steps since the environment was built; a copy that plays one episode meets it at `at` 3.
    found_again = json.loads(path.read_text()) | {"env": {**found.env, "kwargs": {"fault": fault, "at": 3}}}
    path.write_text(json.dumps(found_again))
    assert main([str(path)]) == 0
    out, err = capfd.readouterr()
    assert out.endswith(f"  now       {now}\nreproduced\n")
    assert ("burn map corrupt, tile 7" in err) == (fault == "fail")


@pytest.mark.table
def test_a_hang_is_kept_and_comes_again_with_its_place(runs: Runs, capfd):
    run = runs.train(
        "poison_envs:make", kwargs={"fault": "hang", "at": 3, "lanes": [1]}, deadlines__step_s=0.5,
        supervision__max_restarts=0, **RUN,
    )  # fmt: skip
    (path,) = kept(run)
    assert main([str(path), "--timeout", "0.5"]) == 0
    out, err = capfd.readouterr()
    assert re.search(r"  recorded  env.step for [\d.]+ s \(limit 0.5 s\), lane 1, step 2 \(in step 3\)\n", out)
    assert "  now       it has not come back for 0.5 s, in run_envs.py:" in out
    assert "in pause\n" in err


def test_a_reset_that_fails_is_kept(runs: Runs, capfd):
    kwargs = {"fault": "kill", "at": 0, "lanes": [1]}
    run = runs.train("poison_envs:make", kwargs=kwargs, supervision__max_restarts=0, **RUN)
    (path,) = kept(run)
    found = read_reproducer(path)
    assert (found.call, found.episode, found.steps) == ("reset", 0, 0)
    assert main([str(path)]) == 0
    assert "(in reset())\nreproduced\n" in capfd.readouterr().out


@pytest.mark.thin(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("at", "call"), [(3, "step"), (0, "reset")])
def test_what_an_environment_raised_comes_again_wherever_it_was_stepped(runs: Runs, capfd, workers, at, call):
    kwargs = {"fault": "fail", "at": at, "lanes": [1]}
    run = runs.train("poison_envs:make", kwargs=kwargs, env__workers=workers, supervision__max_restarts=0, **RUN)
    (path,) = kept(run)
    found = read_reproducer(path)
    assert (found.call, found.kind, found.error) == (call, "raised", "ValueError: burn map corrupt, tile 7")
    assert reproduce(path, 30.0).same_as(found)
    assert main([str(path)]) == 0
    assert capfd.readouterr().out.endswith("reproduced\n")


@pytest.fixture
def file(tmp_path):
    """A reproducer of a fault in step 2, for tests that change it."""
    env = {"factory": "run_envs:make", "kwargs": {"fault": "fail", "at": 2}}
    facts = {
        "component": "collector-0", "incarnation": 0, "lane": 0, "episode": 4, "call": "step", "kind": "raised",
        "what": "it raised", "error": "ValueError: burn map corrupt, tile 7", "env": env, "construct_seed": 1, "seed": 2,
        "global_seeds": [[-1, 3], [1, 4]], "exact": True, "actions": {"action": [[0.0], [0.5]]}, "complete": True,
    }  # fmt: skip

    def write(**changes: object) -> str:
        path = tmp_path / "file.json"
        path.write_text(json.dumps(facts | changes))
        return str(path)

    return write


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("changes", "now"),
    [
        ({"env": {"factory": "run_envs:make"}}, "nothing: every call came back (in step 2)"),
        ({"env": {"factory": "run_envs:make", "kwargs": {"limit": 1}}}, "the episode was over after step 1, and had"),
        ({"error": "KeyError: 3"}, "ValueError: burn map corrupt, tile 7 (in step 2)"),
        ({"kind": "hang", "error": None}, "ValueError: burn map corrupt, tile 7 (in step 2)"),
        ({"actions": {"action": [[0.0]] * 3}}, "ValueError: burn map corrupt, tile 7 (in step 2)"),
        ({"env": {"factory": "no_such_module:make"}}, "EnvironmentNotBuilt: "),
    ],
)
def test_what_does_not_come_again_is_told(file, capfd, changes, now):
    assert main([file(**changes)]) == 1
    out = capfd.readouterr().out
    assert f"  now       {now}" in out
    assert out.endswith("not reproduced\n")


def test_why_it_may_not_come_again_is_told(file, capfd):
    assert main([file(env={"factory": "run_envs:make"}, exact=False, complete=False)]) == 1
    _, _, why = capfd.readouterr().out.partition("not reproduced\n")
    assert "the beginning of the episode had left the lane" in why
    assert "draws from the global generators" in why


def test_what_is_raised_where_nothing_can_be_printed_comes_again(file, capfd):
    env = {"factory": "run_envs:make", "kwargs": {"fault": "fail_mute", "at": 2}}
    assert main([file(env=env)]) == 0, capfd.readouterr()
    assert "ValueError: burn map corrupt, tile 7\n" in capfd.readouterr().err


def test_an_exit_that_was_reported_comes_again(file):
    env = {"factory": "run_envs:make", "kwargs": {"fault": "sys_exit", "at": 2}}
    assert main([file(env=env, error="SystemExit: ")]) == 0


@pytest.mark.parametrize("error", [None, "None"])
def test_an_exception_whose_text_was_not_kept_is_known_by_its_place(file, capfd, error):
    assert main([file(error=error)]) == 0
    assert "  recorded  it raised (in step 2)\n" in capfd.readouterr().out
    assert main([file(error=error, actions={"action": [[0.0]] * 3})]) == 1


@pytest.mark.table
def test_global_generators_are_set_where_they_were(file, capfd):
    # The second step's draw is the first one after the seed of the chunk that begins with it.
    env = {"factory": "poison_envs:gambler", "kwargs": {"worst": random.Random(4).random()}}
    assert main([file(env=env, error="Unlucky: drawn")]) == 0, capfd.readouterr()
    assert main([file(env=env, error="Unlucky: drawn", global_seeds=[[-1, 3]])]) == 1


@pytest.mark.thin(2)
@pytest.mark.parametrize("fault", ["hang", "fail", None])
def test_no_program_of_the_environment_is_left(file, tmp_path, fault):
    pids = tmp_path / "pids"
    kwargs = {"pids": str(pids), "at": 2} | ({"fault": fault} if fault else {})
    # It also limits the construction, which comes first.
    main(
        [file(env={"factory": "run_envs:with_helper", "kwargs": kwargs}), "--timeout", "3" if fault == "hang" else "30"]
    )
    (pid,) = map(int, pids.read_text().split())
    assert not psutil.pid_exists(pid)


def test_the_command_needs_a_file_of_a_run(tmp_path):
    command = [sys.executable, "-m", "headrace.testing.reproduce", str(tmp_path / "none.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"[CFG-001] {tmp_path}/none.json is no reproducer\n")
    assert "Traceback" not in done.stderr
    assert signal.Signals.SIGKILL.name not in done.stdout
