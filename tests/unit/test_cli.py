"""The command line: exit codes, what is printed where, and that nothing of torch is loaded for it."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shlex
import site
import subprocess
import sys
import sysconfig
import textwrap
import types
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli import ending as ending_module
from headrace.cli import rlview, supervise
from headrace.cli.drawing import LineView, LiveView, curve, line, table
from headrace.cli.ending import books_line, ending, typed
from headrace.cli.main import main
from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentStalled
from headrace.runtime.progress import ComponentProgress, EvaluationPoint, Progress
from resume_support import PastRun

SUMMARY = {
    "outcome": "completed",
    "error": None,
    "exit_code": 0,
    "wall_s": 12.34,
    "env_steps": 15_000,
    "updates": 14_000,
    "books": {
        "produced": 15_045,
        "committed": 15_000,
        "salvaged": 45,
        "rejected": {},
        "in_flight": 0,
        "balanced": True,
    },
    "episodes": {"finished": 75, "terminated": 0, "truncated": 74, "cut": 1},
    "replay_ratio": {"declared": 1.0, "measured": 1.0},
    "policy_lag": {"mean": 1.5, "max": 4},
    "faults": {"killed": 1, "stalled": 0},
    "restarts": 1,
    "throughput": {"env_steps_per_s": 1215.6, "updates_per_s": None},
    "random_baseline": {"mean_reward": -1200.0, "interval": [-1300.0, -1100.0], "episodes": 10},
    "evaluations": [
        {"version": 1, "env_steps": 1500, "mean_reward": -1150.0, "episodes": 10},
        {"version": 9, "env_steps": 15000, "mean_reward": -150.0, "episodes": 10, "interval": [-200.0, -100.0]},
    ],
}


def headrace(arguments):
    """Run the command line; returns its exit code."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


class FakeRun:
    """Stands in for ``headrace.runtime.experiment``."""

    def __init__(self, summary=None, error=None, writes=None, progress=()):
        self.summary, self.error, self.writes, self.progress = summary or SUMMARY, error, writes, progress
        self.config = self.place = self.on_progress = self.resume = None

    def run_experiment(self, config, run_dir, on_progress, env_factory=None, resume=None, make_way=None):
        self.config, self.place, self.on_progress, self.resume = config, run_dir, on_progress, resume
        assert run_dir.is_live()
        for progress in self.progress:
            if on_progress is not None:
                on_progress(progress)
        if self.writes:
            run_dir.write_summary(self.writes)
        if self.error:
            raise self.error
        return self.summary


@pytest.fixture
def fake(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])

    def install(**options):
        run = FakeRun(**options)
        module = types.ModuleType("headrace.runtime.experiment")
        module.run_experiment = run.run_experiment
        monkeypatch.setitem(sys.modules, "headrace.runtime.experiment", module)
        return run

    return install


# train


def test_train_runs_and_prints_the_ending(fake, capsys):
    run = fake()
    assert headrace(["train", "pendulum-td3", "--run-dir", "here"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("completed after 12.3 s: 15,000 environment steps, 14,000 updates\n")
    assert "produced 15,045 = committed 15,000 + salvaged 45\n" in out
    assert "headrace eval here" in out
    assert err == ""
    assert run.place.path == Path("here")
    assert not run.place.is_live()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_file_name_in_another_encoding_ends_no_command_that_prints_it(fake, monkeypatch, encoding):
    fake(progress=[Progress(wall_s=1.0, env_steps=10, message="no such file: caf\udce9 ●")])
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert headrace(["train", "pendulum-td3"]) == 0
    told = out.buffer.getvalue().decode(encoding)
    assert "no such file: caf\\udce9 " + ("●" if encoding == "utf-8" else "\\u25cf") in told
    assert "completed after" in told


def test_options_reach_the_configuration(fake):
    run = fake()
    arguments = "--schedule lockstep --collectors 3 --seed 7 --steps 9000 --run-duration 30 --quiet"
    settings = ["--set", "replay.ratio=0.5", "--set", "algorithm.actor.hidden=[8, 8]", "--set", "learn.device=cpu"]
    assert headrace(["train", "pendulum-td3", *arguments.split(), *settings]) == 0
    config = run.config
    assert (config.run.schedule, config.run.collectors, config.run.seed) == ("lockstep", 3, 7)
    assert (config.run.steps, config.run.run_duration_s) == (9000, 30.0)
    assert (config.replay.ratio, config.algorithm.actor.hidden) == (0.5, [8, 8])


def test_run_is_named_after_its_preset(fake):
    run = fake()
    headrace(["train", "pendulum-td3"])
    assert re.fullmatch(r"runs/pendulum-td3-\d{8}-\d{6}-[0-9a-f]{4}", str(run.place.path))


def test_quiet_prints_nothing_but_the_ending(fake, capsys):
    fake(progress=[Progress(wall_s=1.0, env_steps=10)])
    assert headrace(["train", "pendulum-td3", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("completed after")


def test_progress_is_printed_as_lines_where_there_is_no_terminal(fake, capsys):
    fake(progress=[Progress(wall_s=1.0, env_steps=10, message="collector-0 was replaced")])
    headrace(["train", "pendulum-td3"])
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "     1.0 s  collector-0 was replaced"
    assert second == "     1.0 s  env steps 10"


@pytest.mark.parametrize(
    ("arguments", "first_line"),
    [
        (["pendulm-td3"], "[CFG-001] there is no preset pendulm-td3"),
        (["pendulum-td3", "--step", "3"], "[CFG-001] headrace train has no option --step"),
        (["pendulum-td3", "--resume"], "[CFG-001] --resume does not say which run to go on with"),
        ([], "[CFG-001] there is no CONFIG, so nothing says what to train"),
        (["--resume", "--run-dir", "nowhere"], "[CFG-002] nowhere holds no run"),
        (["pendulum-td3", "--set", "replay.capasity=3"], "[CFG-001] unknown key replay.capasity"),
        (["pendulum-td3", "--set", "replay.capacity"], "[CFG-001] --set replay.capacity sets nothing"),
        (["pendulum-td3", "--set", "run.seed=3", "--seed", "4"], "[CFG-001] run.seed is given twice"),
        (["pendulum-td3", "--collectors", "7"], "[CFG-001] some collectors would have nothing to do: "),
        (["pendulum-td3", "--seed", "-1"], "[CFG-001] run.seed must be at least 0"),
    ],
)
def test_mistake_is_told_without_a_traceback_and_leaves_nothing(fake, capsys, tmp_path, arguments, first_line):
    fake()
    assert headrace(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(first_line)
    assert "fix: " in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_unknown_option_names_the_nearest(capsys):
    assert headrace(["train", "pendulum-td3", "--step", "3"]) == 2
    assert capsys.readouterr().err == (
        "[CFG-001] headrace train has no option --step\n"
        "  nearest: --steps\n"
        "  fix: write --steps; headrace train --help lists every option\n"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trian"], "'train'"),
        (["train"], "CONFIG"),
        (["train", "x", "--schedule", "sync"], "lockstep"),
        (["train", "x", "--steps", "many"], "not a valid integer"),
    ],
)
def test_wrong_command_exits_with_two(capsys, arguments, text):
    assert headrace(arguments) == 2
    assert text in capsys.readouterr().err


def test_failed_start_leaves_nothing_behind(fake, capsys, tmp_path):
    fake(error=ComponentStalled("learner did not start within 60 s", fix="look at its log"))
    assert headrace(["train", "pendulum-td3"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[SUP-002] learner did not start within 60 s\n  fix: look at its log\n"
    assert list(tmp_path.iterdir()) == []


def test_run_that_failed_later_keeps_its_directory_and_prints_its_ending(fake, capsys):
    run = fake(error=ComponentStalled("collector-0 stood still", fix="look"), writes=SUMMARY | {"outcome": "stalled"})
    assert headrace(["train", "pendulum-td3"]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("stalled after")
    assert err.startswith("[SUP-002] collector-0 stood still")
    assert run.place.read_summary()["outcome"] == "stalled"


def test_failure_in_the_summary_goes_to_standard_error(fake, capsys):
    fake(summary=SUMMARY | {"outcome": "failed", "error": "[ENV-004] lane 3 raised", "exit_code": 1})
    assert headrace(["train", "pendulum-td3"]) == 1
    assert capsys.readouterr().err == "[ENV-004] lane 3 raised\n"


def test_interrupt_exits_with_130_and_gives_the_lock_back(fake):
    run = fake(error=KeyboardInterrupt(), writes=SUMMARY)
    assert headrace(["train", "pendulum-td3"]) == 130
    assert not run.place.is_live()


def test_module_in_the_working_directory_can_be_named(fake, tmp_path):
    fake()
    headrace(["train", "pendulum-td3", "--quiet"])
    assert sys.path[0] == str(tmp_path)


def test_nothing_before_the_learner_loads_torch(tmp_path):
    script = """
        import sys, types
        fake = types.ModuleType("headrace.runtime.experiment")
        fake.run_experiment = lambda config, run_dir, on_progress, **rest: {"outcome": "completed", "exit_code": 0}
        sys.modules["headrace.runtime.experiment"] = fake
        from headrace.cli.main import main
        import headrace.telemetry.events, headrace.telemetry.metrics, headrace.envs.contract, headrace.envs.toy
        for arguments in (["train", "pendulum-td3"], ["list"]):
            try:
                main(arguments)
            except SystemExit as exit:
                assert exit.code == 0
        print([name for name in ("torch", "tensorflow", "jax") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


# train --resume


@pytest.fixture
def ended(tmp_path):
    """A run that was interrupted, with a checkpoint."""
    past = PastRun(tmp_path / "run")
    past.learn(3)
    past.checkpoint()
    past.learn()
    return past.end("interrupted")


@pytest.mark.parametrize(
    "arguments", [["--resume", "--run-dir", "run"], ["run", "--resume"], ["run", "--resume", "--run-dir", "./run"],
                  ["pendulum-td3", "--resume", "--run-dir", "run"]],
)  # fmt: skip
def test_run_goes_on_from_its_checkpoint(fake, ended, capsys, arguments):
    run = fake()
    assert headrace(["train", *arguments]) == 0
    assert (run.place.path, run.resume.env_steps, run.resume.lost_env_steps) == (Path("run"), 30, 10)
    assert capsys.readouterr().out.startswith("completed after")  # what is lost is told by the run itself
    assert not run.place.is_live()


def test_flags_change_what_may_change(fake, ended):
    run = fake()
    assert headrace(["train", "run", "--resume", "--steps", "77000", "--set", "evaluation.episodes=2"]) == 0
    assert (run.config.run.steps, run.config.evaluation.episodes) == (77_000, 2)
    assert headrace(["train", "run", "--resume", "--seed", "3"]) == 2


def test_resume_of_nothing_begins_a_run_and_says_so(fake, capsys):
    run = fake()
    assert headrace(["train", "pendulum-td3", "--resume", "--run-dir", "here"]) == 0
    assert run.resume is None
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "here holds no run yet: a new run starts there"
    assert second.startswith("completed after")


def test_two_directories_are_one_too_many(fake, ended, capsys):
    fake()
    assert headrace(["train", "run", "--resume", "--run-dir", "other"]) == 2
    assert capsys.readouterr().err.startswith("[CFG-001] two run directories are named")


def test_two_directories_of_language_models_are_one_too_many(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text("[trainer]\nlr = 1e-4\n")
    assert headrace(["train", "a", "--resume", "--run-dir", "b"]) == 2
    assert capsys.readouterr().err.startswith("[CFG-001] two run directories are named")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ComponentStalled("learner did not start", fix="look")])
def test_resume_that_fails_leaves_a_run_that_can_be_resumed(fake, ended, error):
    fake(error=error)
    assert headrace(["train", "run", "--resume"]) in (3, 130)
    run = fake()
    assert headrace(["train", "run", "--resume"]) == 0
    assert run.resume.env_steps == 30


# eval, list, version


@pytest.fixture
def evaluation(monkeypatch, fake):
    seen = []

    def evaluate_run(run_dir, episodes, version, render_to):
        seen.append((run_dir.path, episodes, version, render_to))
        return {
            "mean_reward": -150.5, "interval": [-200.0, -100.0], "episodes": episodes or 4, "version": 9,
            "returns": [], "render_path": render_to,
        }  # fmt: skip

    module = types.ModuleType("headrace.runtime.evaluation")
    module.evaluate_run = evaluate_run
    monkeypatch.setitem(sys.modules, "headrace.runtime.evaluation", module)
    fake()
    headrace(["train", "pendulum-td3", "--run-dir", "run", "--quiet"])
    return seen


def test_eval_prints_mean_and_interval(evaluation, capsys):
    capsys.readouterr()
    assert headrace(["eval", "run"]) == 0
    assert capsys.readouterr().out == "policy version 9: mean return -150.5 (-200.0 to -100.0) over 4 episodes\n"
    assert evaluation == [(Path("run"), None, None, None)]


def test_eval_passes_its_options_on(evaluation, capsys):
    assert headrace(["eval", "run", "--episodes", "2", "--version", "3", "--render"]) == 0
    assert evaluation == [(Path("run"), 2, 3, Path("run/renders/3.gif"))]
    assert capsys.readouterr().out.endswith("rendered to run/renders/3.gif\n")


def test_eval_of_no_run_is_refused(capsys, tmp_path):
    assert headrace(["eval", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_list_names_presets_environments_and_algorithms(capsys):
    assert headrace(["list"]) == 0
    out = capsys.readouterr().out
    for name in ("hockey-td3", "headrace/Hockey-v0", "headrace.envs.toy:counter", "td3"):
        assert re.search(rf"^  {name} +\S", out, re.MULTILINE), name


def test_version(capsys):
    assert headrace(["--version"]) == 0
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", capsys.readouterr().out)


# Drawing

FULL = Progress(
    wall_s=12.3, env_steps=1234, env_steps_target=15_000, updates=1000, env_steps_per_s=250.4, updates_per_s=99.6,
    replay_ratio=1.0, policy_lag=2.25, episodes=6, mean_return=-1234.5, mean_length=200.0,
    components=(
        ComponentProgress("collector-0", "ready", "wait.credit", 1.25, "learner", 120.0),
        ComponentProgress("learner", "starting"),
    ),
    evaluations=(EvaluationPoint(-1000.0, 10, 1500, 1),),
    message="collector-1 was replaced",
)  # fmt: skip


def drawn(renderable):
    console = Console(file=io.StringIO(), width=110, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_line_with_everything():
    assert line(FULL) == (
        "    12.3 s  env steps 1,234/15,000 (250/s)  updates 1,000 (100/s)  ratio 1.00  lag 2.2  episodes 6"
        "  return -1,234"
    )


def test_what_has_no_source_is_absent_and_not_zero():
    bare = Progress(wall_s=1.0, env_steps=5)
    assert line(bare) == "     1.0 s  env steps 5"
    assert "0" not in drawn(table(bare)).replace("1 s", "")


def test_table_shows_each_component_and_whom_it_waits_for():
    text = drawn(table(FULL))
    assert re.search(r"collector-0 +ready +wait\.credit +1\.2 s +learner +120/s", text)
    assert re.search(r"learner +starting +- +- +- +-", text)
    assert "collector-1 was replaced" in text
    assert re.search(r"mean return +-1,234", text)


def test_live_view_skips_progress_that_comes_too_fast():
    clock = FakeClock()
    console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    with LiveView(console, clock, every_s=0.25) as view:
        for step in (111, 222, 333):
            view.show(Progress(wall_s=0.0, env_steps=step))
            clock.advance(0.2)
    text = console.file.getvalue()
    assert "111" in text
    assert "222" not in text
    assert "333" in text


def test_live_view_ends_with_the_newest_state():
    console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    with LiveView(console, FakeClock()) as view:
        view.show(Progress(wall_s=0.0, env_steps=111))
        view.show(Progress(wall_s=0.0, env_steps=222))
    assert "222" in console.file.getvalue()


def test_line_view_prints_now_and_then_and_news_at_once(capsys):
    clock = FakeClock()
    view = LineView(clock, every_s=5.0)
    view.show(Progress(wall_s=0.0, env_steps=1))
    clock.advance(4.9)
    view.show(Progress(wall_s=4.9, env_steps=2))
    point = EvaluationPoint(2.0, 10, 1500, 1, (1.0, 3.0))
    view.show(Progress(wall_s=4.9, env_steps=3, message="news", evaluations=(point,)))
    view.show(Progress(wall_s=4.9, env_steps=4, message="news", evaluations=(point,)))
    clock.advance(0.1)
    view.show(Progress(wall_s=5.0, env_steps=5, evaluations=(point,)))
    assert capsys.readouterr().out.splitlines() == [
        "     0.0 s  env steps 1",
        "     4.9 s  news",
        "     4.9 s  evaluation at 1,500 steps: mean return 2.00 (1.00 to 3.00) over 10 episodes",
        "     5.0 s  env steps 5",
    ]


def test_curve_in_full():
    points = [EvaluationPoint(0.0, 10, 100), EvaluationPoint(39.0, 10, 2000, interval=(37.0, 39.0))]
    assert curve(points, EvaluationPoint(2.0, 10, interval=(0.0, 4.0))) == [
        "   env steps   mean return  0.00 … 39.00",
        "      random          2.00  ░░▒░░",
        "         100          0.00  ●░░░░",
        "       2,000         39.00  ░░░░░" + " " * 32 + "──●",
    ]


def test_curve_keeps_first_and_last_of_many():
    rows = curve([EvaluationPoint(float(n), 1, n) for n in range(1, 101)])
    assert len(rows) == 13
    assert rows[1].split()[0] == "1"
    assert rows[-1].split()[0] == "100"


def test_curve_survives_equal_and_undefined_returns():
    assert curve([]) == []
    assert len(curve([EvaluationPoint(1.0, 1, 1), EvaluationPoint(1.0, 1, 2)])) == 3
    assert curve([EvaluationPoint(float("nan"), 1, 1)])[-1].strip() == "no finite return"
    assert "nan" in curve([EvaluationPoint(float("nan"), 1, 1), EvaluationPoint(1.0, 1, 2)])[1]


# The ending


def test_what_to_type_next_names_a_command_the_shell_finds(monkeypatch, tmp_path):
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "headrace").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(bin_dir / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert typed("headrace") == "bin/headrace"
    monkeypatch.setenv("PATH", str(bin_dir))
    assert typed("headrace") == "headrace"


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Python in a folder without scripts, and no scripts where installers would have put them."""
    (tmp_path / "pythons").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "pythons" / "python"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "headrace" / "__main__.py")])
    places = {"own": tmp_path / "bin", "posix_user": tmp_path / ".local" / "bin"}
    monkeypatch.setattr(sysconfig, "get_path", lambda _, scheme="own": str(places[scheme]))
    monkeypatch.setattr(sysconfig, "get_preferred_scheme", lambda _: "posix_user")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setenv("PATH", "/usr/bin")
    return tmp_path


def script(folder, command="headrace"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / command).touch(mode=0o755)
    return folder / command


def test_where_no_script_is_found_python_runs_the_module(nowhere):
    """As with PYTHONPATH, or `pip install --target`."""
    python = shlex.quote(sys.executable)
    assert typed("headrace") == f"{python} -m headrace"
    assert typed("tensorboard") == f"{python} -m tensorboard.main"
    for command in ("headrace", "tensorboard.main"):
        assert importlib.util.find_spec(command) is not None
    script(nowhere / "pythons").chmod(0o644)
    assert typed("headrace") == f"{python} -m headrace"


@pytest.mark.parametrize("place", ["bin", ".local/bin"])
def test_scripts_are_found_where_installers_put_them(nowhere, monkeypatch, place):
    made = script(nowhere / place)
    assert typed("headrace") == str(made)
    monkeypatch.setenv("PATH", str(made.parent))
    assert typed("headrace") == "headrace"
    monkeypatch.setenv("PATH", str(script(nowhere / "others").parent))  # of another installation
    assert typed("headrace") == str(made)


def test_a_user_scheme_that_python_does_not_look_into_has_no_commands(nowhere, monkeypatch):
    script(nowhere / ".local" / "bin")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert typed("headrace").endswith(" -m headrace")


def test_the_script_that_was_started_is_named_before_all_others(nowhere, monkeypatch):
    script(nowhere / "bin")
    script(nowhere / "bin", "tensorboard")
    started = script(nowhere / "target" / "bin")
    monkeypatch.setattr(sys, "argv", [str(started)])
    assert typed("headrace") == str(started)
    assert typed("tensorboard") == str(nowhere / "bin" / "tensorboard")
    beside = script(nowhere / "target" / "bin", "tensorboard")
    assert typed("tensorboard") == str(beside)
    (nowhere / "links").mkdir()
    (nowhere / "links" / "headrace").symlink_to(started)
    monkeypatch.setattr(sys, "argv", [str(nowhere / "links" / "headrace")])
    monkeypatch.setenv("PATH", str(nowhere / "links"))
    assert (typed("headrace"), typed("tensorboard")) == ("headrace", str(beside))


def in_a_shell(line):
    """The words of what is recommended, as a shell takes them apart."""
    return shlex.split(line.split("next", 1)[1])


def test_what_is_to_be_typed_can_be_typed_where_a_path_has_spaces(monkeypatch, tmp_path):
    run = Path("my runs/it's")
    headrace = ["a b/headrace"]
    script(tmp_path / "a b")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b" / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert in_a_shell(ending(SUMMARY, run).splitlines()[-1])[:3] == [*headrace, "eval", str(run)]
    failed = {"outcome": "failed", "wall_s": 1.0, "why": "x", "processes": {}, "error": "x"}
    for of in (ending, supervise.ending, rlview.ending):
        words = in_a_shell(of(failed, run).splitlines()[-1])
        assert words[:4] == [*headrace, "doctor", str(run), f"{run}/logs"]
    going_on = rlview.ending({"outcome": "completed", "wall_s": 1.0}, run).splitlines()[-1]
    assert in_a_shell(going_on)[1:] == ["--logdir", f"{run}/tensorboard"]


def test_a_long_name_of_a_process_stays_a_word_of_its_own():
    facts = {"faults": 0, "restarts": 0, "stage": "done", "trouble": None}
    summary = {"outcome": "completed", "wall_s": 1.0, "why": "x", "processes": {"p": facts, "p" * 40: facts}}
    _, short, long, run = supervise.ending(summary, Path("runs/x")).splitlines()
    assert [line.split() for line in (short, long, run)] == [["p", "done"], ["p" * 40, "done"], ["run", "runs/x"]]
    assert short.index("done") == long.index("done") == run.index("runs/x")


@pytest.mark.parametrize(("lanes", "told"), [([3], "lane 3"), ([1, 3, 5], "lanes 1, 3, 5")])
def test_ending_tells_what_the_run_went_on_without(lanes, told):
    degraded = {"lanes": lanes, "collectors": [], "reason": "the environment of lane 3 failed 3 times within 300 s"}
    text = ending({**SUMMARY, "degraded": degraded}, Path("runs/x"))
    assert f"  degraded      went on without {told}: the environment of lane 3 failed 3 times within 300 s\n" in text
    assert "degraded" not in ending({**SUMMARY, "degraded": None}, Path("runs/x"))


def test_ending_tells_what_could_not_be_written():
    text = ending({**SUMMARY, "lost_lines": {"events": 2, "metrics": 1_204}}, Path("runs/x"))
    told = "2 of events and 1,204 of metrics could not be written: the disk was full, or not to be written to"
    assert f"  lost lines    {told}\n" in text
    assert "lost lines" not in ending({**SUMMARY, "lost_lines": {}}, Path("runs/x"))


def test_ending_in_full(monkeypatch):
    monkeypatch.setattr(ending_module, "typed", str)
    text = ending(SUMMARY, Path("runs/x"))
    assert text.splitlines()[:7] == [
        "completed after 12.3 s: 15,000 environment steps, 14,000 updates",
        "  books         produced 15,045 = committed 15,000 + salvaged 45",
        "  speed         1,216 environment steps/s",
        "  replay ratio  1.000 declared, 1.000 measured",
        "  policy lag    1.5 mean, 4.0 max",
        "  episodes      75 finished (0 terminated, 74 truncated, 1 cut)",
        "  faults        killed 1",
    ]
    assert text.splitlines()[-2:] == [
        "  run           runs/x",
        "  next          headrace eval runs/x    tensorboard --logdir runs/x/tensorboard",
    ]


def test_ending_of_an_interrupted_run_tells_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ending_module, "typed", str)
    interrupted = {**SUMMARY, "outcome": "interrupted"}
    (tmp_path / "config.toml").touch()
    (tmp_path / "summary.json").write_text('{"outcome": "interrupted"}')
    assert "--resume" not in ending(interrupted, tmp_path)
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    (tmp_path / "checkpoints" / "7" / "checkpoint.json").touch()
    assert f"  next          headrace train --resume --run-dir {tmp_path}    headrace eval" in ending(
        interrupted, tmp_path
    )
    assert "--resume" not in ending(SUMMARY, tmp_path)


def test_ending_of_a_run_that_hardly_began(monkeypatch):
    monkeypatch.setattr(ending_module, "typed", str)
    assert ending({"outcome": "failed"}, Path("x")) == (
        "failed\n  run           x\n  next          headrace doctor x    x/logs holds what every process printed"
    )


def test_ending_of_a_run_that_was_resumed_says_what_was_lost():
    resumes = [
        {"env_steps": 100, "updates": 40, "lost_env_steps": 1000, "lost_updates": 5},
        {"env_steps": 9000, "updates": 80, "lost_env_steps": 234, "lost_updates": 0},
    ]
    (told,) = [line for line in ending(SUMMARY | {"resumes": resumes}, Path("x")).splitlines() if "sessions" in line]
    assert told == (
        "  sessions      3, this one from step 9,000; 1,234 environment steps and 5 updates were lost between them"
    )
    nothing = {"env_steps": 100, "updates": 40, "lost_env_steps": 0, "lost_updates": 0}
    assert "  sessions      2, this one from step 100\n" in ending(SUMMARY | {"resumes": [nothing]}, Path("x"))


def test_ending_survives_its_own_json():
    text = json.dumps(SUMMARY | {"evaluations": [{"version": 1, "env_steps": 1, "mean_reward": None, "episodes": 1}]})
    assert "nan" in ending(json.loads(text), Path("x"))


def test_books_that_do_not_balance_are_told():
    books = {"produced": 10, "committed": 7, "salvaged": 0, "rejected": {"shape": 1}, "in_flight": 1, "balanced": False}
    assert books_line(books) == (
        "produced 10 ≠ committed 7 + rejected 1 (shape 1) + in flight 1   THE BOOKS DO NOT BALANCE"
    )
