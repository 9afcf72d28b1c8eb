"""``headrace faults`` itself: real faults in real short runs of an environment of ours."""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import run_envs
from headrace import train
from headrace.ipc.channel import Deadline, poll_fds
from headrace.testing.provoke import Factory, Plan
from run_support import SMALL

pytestmark = pytest.mark.process

HERE = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("headrace"))
CONFIG = '[env]\nfactory = "run_envs:levels"\n[algorithm.actor]\nhidden = [16]\n[algorithm.critic]\nhidden = [16]\n'


def line(folder: Path, *more: str) -> list[str]:
    config = folder / "config.toml"
    config.write_text(CONFIG)
    return [COMMAND, "faults", str(config), *more]


@pytest.mark.table
def test_faults_are_provoked_and_judged_and_nothing_is_kept(tmp_path):
    kinds = ("step-raises", "out-of-range", "parent-killed", "nan-observation")
    more = [part for kind in kinds for part in ("--kind", kind)]
    done = subprocess.run(
        line(tmp_path, *more, "--json"), cwd=HERE, capture_output=True, text=True, timeout=90.0, check=False,
        env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert (done.returncode, told["passed"]) == (0, True), told
    found = {one["kind"]: one for one in told["faults"]}
    assert set(found) == {"none", *kinds}
    assert found["step-raises"]["sentence"] == "[ENV-004] run_envs:levels in lane 1 raised ValueError in step()"
    assert found["out-of-range"]["sentence"].startswith("[ENV-002] obs does not fit")
    assert found["nan-observation"]["skipped"] == "the environment has no such value"
    assert "it was killed" in found["parent-killed"]["sentence"]
    assert list(tmp_path.glob("headrace-faults-*")) == []


@pytest.mark.table
def test_an_environment_that_fails_by_itself_is_told_and_its_run_kept(tmp_path):
    done = subprocess.run(
        line(tmp_path, "--set", "env.factory=run_envs:raises_when_built", "--kind", "step-loop"),
        cwd=HERE, capture_output=True, text=True, timeout=60.0, check=False, env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    first, *promises, last = done.stdout.splitlines()
    assert first.startswith("FAIL  none")
    assert first.endswith("building the environment of lane 0 raised RuntimeError: the map of the park is missing")
    assert any("expected completed, 0" in promise for promise in promises)
    assert last == "1 of 1 faults: a promise did not hold"
    (kept,) = tmp_path.glob("headrace-faults-*/none/summary.json")
    assert "the map of the park is missing" in kept.read_text()


@pytest.mark.table
def test_ctrl_c_ends_it_in_order(tmp_path):
    with subprocess.Popen(
        line(tmp_path, "--kind", "step-loop"), cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"TMPDIR": str(tmp_path)}, process_group=0,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert poll_fds({process.stdout.fileno(): select.POLLIN}, 30.0), "the run without a fault says nothing"
        deadline = Deadline(20.0)
        # The next run has begun when there are processes again; at any moment of it this has to work.
        while not psutil.Process(process.pid).children() and not deadline.passed:
            poll_fds({}, 0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15.0)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(family, timeout=5.0)
    assert not alive
    assert list(tmp_path.glob("headrace-faults-*")) == []


@pytest.mark.table
def test_the_test_in_the_guide_passes_as_it_stands(tmp_path):
    guide = (HERE.parent / "docs" / "guides" / "faults.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "test_guide.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", "kept", "test_guide.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=90.0, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"test_guide.py", "kept"}


def test_the_wrapper_is_called_what_it_is_told(runs, tmp_path):
    plan = Plan(what="wrong-shape", at=3, marker=str(tmp_path / "happened"))
    factory = Factory(run_envs.make, plan, name="park:make_fire")
    run = train(env=factory, settings={**SMALL, "env.lanes": 2}, run_dir=tmp_path / "run")
    assert "\n  environment: park:make_fire\n" in run.summary["error"]


@pytest.mark.table
@pytest.mark.timeout(600)
def test_every_fault_of_a_preset_is_borne():
    done = subprocess.run(
        [COMMAND, "faults", "pendulum-td3"], capture_output=True, text=True, timeout=580.0, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("every promise held (35 faults)\n")
