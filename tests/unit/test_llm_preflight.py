"""What `headrace check` finds, check by check; the processes it starts are tried in tests/process."""

from __future__ import annotations

import json
import socket
from contextlib import nullcontext

import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.llm import trying
from headrace.llm.finding import Verdict
from headrace.llm.guarding import Guarded, found_dead
from headrace.llm.loading import load_rl_config
from headrace.llm.preflight import (
    check_disk,
    check_memory,
    check_port,
    check_start,
    check_step,
    check_threads,
    gone_again,
    memory_of,
    parameters_of,
    short_config,
)
from headrace.llm.trying import answer_nonce, tried, try_environment, try_texts
from llm_support import Unguarded


def config(**settings):
    return load_rl_config([], {name.replace("__", "."): value for name, value in settings.items()})


def verdicts(found):
    return [one.verdict for one in found]


def test_threads_beyond_cores_are_warned_about():
    (found,) = check_threads(config(trainer__threads=2), cores=2)
    assert (found.verdict, found.text) == (
        Verdict.WARNING,
        "trainer 2, inference 1: 3 threads compute on 2 cores, and each waits for the others at every step",
    )
    assert verdicts(check_threads(config(), cores=2)) == [Verdict.OK]
    inline = config(trainer__threads=2, run__schedule="inline", orchestrator__max_policy_lag=0)
    assert verdicts(check_threads(inline, cores=2)) == [Verdict.OK]


def test_a_model_that_begins_with_nothing_is_warned_about():
    (found,) = check_start(config())
    assert (found.verdict, found.fix) == (Verdict.WARNING, "set sft.steps, sft.checkpoint or model.path")
    assert verdicts(check_start(config(sft__steps=10))) == [Verdict.OK]
    assert verdicts(check_start(config(sft__checkpoint="runs/x"))) == [Verdict.OK]


def test_limits_of_a_tiny_model_are_noticed_beside_another_one():
    (found,) = check_start(config(model__path="/models/m", sampling__max_tokens=8))
    assert (found.verdict, found.text) == (
        Verdict.WARNING,
        "it is /models/m, with limits meant for a tiny model: model.context_tokens = 96",
    )
    chosen = config(model__path="/models/m", sampling__max_tokens=8, model__context_tokens=96)
    assert verdicts(check_start(chosen)) == [Verdict.OK]


def test_a_port_that_is_taken_is_found():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (found,) = check_port(config(inference__port=port))
        assert (found.verdict, found.text) == (Verdict.FAILED, f"port {port} of 127.0.0.1 is taken by another program")
    assert verdicts(check_port(config())) == [Verdict.OK]
    external = config(inference__backend="external", inference__url="http://a:1")
    assert verdicts(check_port(external)) == [Verdict.OK]


def test_no_step_is_tried_on_a_server_that_others_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.llm.preflight.launch", lambda *_: pytest.fail("a run was begun"))
    external = config(inference__backend="external", inference__url="http://a:1")
    (found,) = check_step(external, tmp_path)
    assert (found.name, found.verdict) == ("one step", Verdict.WARNING)
    assert found.text.startswith("left out: headrace check makes short runs, and inference.backend external would be")
    assert list(tmp_path.iterdir()) == []


def test_memory_grows_with_slots_and_model():
    small, large = memory_of(config()), memory_of(config(inference__slots=2048, model__hidden=512))
    assert large["inference"] > small["inference"]
    assert large["trainer"] > small["trainer"]
    assert verdicts(check_memory(config(), 1_000)) == [Verdict.WARNING]
    assert verdicts(check_memory(config(), 10**12)) == [Verdict.OK]


def test_the_number_of_parameters_is_about_right():
    """162,000 to 168,000 at width 64 and three layers, whatever the characters."""
    assert abs(parameters_of(config()) - 165_000) < 5_000


def test_a_disk_that_is_full_is_found(tmp_path, monkeypatch):
    assert verdicts(check_disk(config(), tmp_path / "new")) == [Verdict.OK]
    usage = trying.__class__("usage")
    usage.free = 10
    monkeypatch.setattr("headrace.llm.preflight.shutil.disk_usage", lambda _: usage)
    assert verdicts(check_disk(config(), tmp_path)) == [Verdict.FAILED]


def test_a_short_run_is_short_and_the_same_otherwise(tmp_path):
    whole = load_rl_config([], {"trainer.minibatches": 4, "sft.steps": 440, "trainer.lr": 0.25})
    short = short_config(whole, tmp_path)
    assert (short.run.steps, short.orchestrator.groups_per_step, short.sft.steps) == (1, 2, 1)
    assert (short.trainer.lr, short.env, short.model) == (0.25, whole.env, whole.model)


def test_an_environment_is_played_and_what_it_raises_is_a_finding():
    assert verdicts(try_environment(config(), Unguarded()))[0] is Verdict.OK
    missing = config(env__factory="no_such_package.envs:make")
    (found,) = tried("environment", lambda: try_environment(missing, Unguarded()))
    assert found.verdict is Verdict.FAILED
    assert "no_such_package" in found.text
    assert "no_such_package" in found.fix


def test_a_warm_start_without_a_teacher_is_found(monkeypatch):
    monkeypatch.setattr("headrace.envs.text.wordle.WordleEnvironment.demonstration", None)
    found = try_environment(config(sft__steps=5), Unguarded())
    assert found[-1].text == "the warm start needs a teacher, and this environment has none"


def test_answers_that_do_not_fit_into_the_context_are_found(tmp_path):
    ok = try_texts(config(), tmp_path, Unguarded())
    assert verdicts(ok) == [Verdict.OK]
    (found,) = try_texts(config(model__context_tokens=8, sampling__max_tokens=8), tmp_path / "other", Unguarded())
    assert found.verdict is Verdict.FAILED
    assert "raise model.context_tokens" in found.fix


def test_a_nonce_is_answered(tmp_path):
    (tmp_path / "nonce").write_bytes(b"abc")
    assert answer_nonce(tmp_path) == []
    assert (tmp_path / "answer").read_bytes() == b"cba"


def test_without_a_network_nothing_can_be_reached(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    monkeypatch.setattr(socket.socket, "connect", socket.socket.connect)
    trying.go_offline()
    (found,) = tried("environment", lambda: socket.create_connection(("example.org", 80), timeout=1.0))
    assert found.text == "OSError: headrace check has no network: training must not depend on a download"


def test_other_configurations_are_told_where_to_go():
    done = CliRunner().invoke(main, ["check", "pendulum-td3"], standalone_mode=False)
    assert "describes no language-model run" in str(done.exception)
    assert done.exception.exit_code == 2


def checked(monkeypatch, *words):
    """What `headrace check` says without looking at anything but the configuration."""
    seen = []
    monkeypatch.setattr("headrace.llm.preflight.check", lambda config, *_, **__: seen.append(config) or [])
    return CliRunner().invoke(main, ["check", *map(str, words)], standalone_mode=False), seen


@pytest.fixture
def of_either_kind(tmp_path):
    path = tmp_path / "min.toml"
    path.write_text('[run]\nsteps = 2\n[env]\nfactory = "mine:make"\n')
    return path


def test_a_file_of_either_kind_is_looked_at_as_a_language_model_and_so_it_is_told(of_either_kind, monkeypatch):
    done, (config,) = checked(monkeypatch, of_either_kind)
    assert (config.run.steps, config.env.factory, done.return_value) == (2, "mine:make", 0)
    assert done.output.splitlines()[0].endswith(
        f"{of_either_kind} has only sections that every run has; it is looked at as headrace rl @ {of_either_kind} "
        "would read it, and headrace train would take it for a run with collectors and a learner"
    )
    assert done.output.endswith("ready to start, 1 warning\n")


def test_a_key_of_a_language_model_settles_the_kind(of_either_kind, monkeypatch):
    done, seen = checked(monkeypatch, of_either_kind, "--trainer.threads", "1")
    assert len(seen) == 1
    assert done.output == "ready to start, 0 warnings\n"


def test_a_file_that_is_of_neither_kind_is_told_in_the_words_of_both(of_either_kind, monkeypatch):
    of_either_kind.write_text('[run]\nsteps = 2\n[env]\nid = "Pendulum-v1"\n')
    done, seen = checked(monkeypatch, of_either_kind)
    assert seen == []
    assert done.exception.facts == {
        "as_language_model": "unknown key env.id",
        "as_collectors_and_learner": "the run would end before its first update",
    }
    of_either_kind.write_text('[run]\nsteps = 20000\n[env]\nid = "Pendulum-v1"\n')
    done, _ = checked(monkeypatch, of_either_kind)
    assert "describes no language-model run" in str(done.exception)


def test_folders_that_were_made_for_the_check_are_gone_again(tmp_path):
    (tmp_path / "mine").mkdir()
    folder = tmp_path / "mine" / "runs" / "a"
    with gone_again(folder):
        folder.mkdir(parents=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert list((tmp_path / "mine").iterdir()) == []
    with gone_again(tmp_path / "mine"):
        pass
    with gone_again(folder):  # never made
        pass
    with gone_again(folder):
        (folder / "run").mkdir(parents=True)  # a run has begun in it
    assert (folder / "run").is_dir()


class Noting:
    """Takes down what a guard is told."""

    def __init__(self):
        self.told = []

    def within(self, what, limit_s, key):
        self.told.append((what, limit_s, key))
        return nullcontext()


def test_every_call_of_an_environment_has_a_limit_and_a_name():
    guard = Noting()
    try_environment(config(deadlines__env_s=7.0, deadlines__start_s=90.0), guard)
    assert guard.told[:3] == [
        ("building the environment wordle", 90.0, "deadlines.start_s"),
        ("looking at what wordle gave", 90.0, "deadlines.start_s"),
        ("dataset('train') of wordle", 7.0, "deadlines.env_s"),
    ]
    calls = {what.partition(" for problem")[0] for what, limit_s, _ in guard.told if limit_s == 7.0}
    assert calls == {
        "dataset('train') of wordle", "dataset('eval') of wordle",
        "step of wordle", "reward of wordle", "demonstration of wordle",
    }  # fmt: skip


def test_a_guarded_environment_is_what_it_was_otherwise():
    class Plain:
        alphabet = "ab"

    guarded = Guarded(Plain(), Noting(), "plain", 1.0)
    assert guarded.alphabet == "ab"
    assert getattr(guarded, "demonstration", None) is None


DUMP = """Timeout (0:00:30)!
Thread 0x00007f (most recent call first):
  File "/x/e6.py", line 18 in reward
  File "/x/headrace/llm/guarding.py", line 9 in call
"""


def test_where_a_process_was_that_left_without_an_answer(tmp_path):
    def dead(returncode, dump, total_s=None):
        call = {
            "what": "reward of e6:make for problem p1", "limit_s": 30.0, "key": "deadlines.env_s", "total_s": total_s,
        }  # fmt: skip
        (tmp_path / "call.json").write_text(json.dumps(call))
        (tmp_path / "stacks").write_text(dump)
        return found_dead(tmp_path, returncode, "its last line").text

    problem = "reward of e6:make for problem p1"
    assert dead(1, DUMP) == f"{problem} did not come back within 30 s; stuck in: e6.py:18 in reward"
    assert dead(1, DUMP, 240.0) == f"it was still being tried after 240 s, with {problem}; stuck in: e6.py:18 in reward"
    assert dead(0, "") == f"{problem} ended the interpreter that tried it, with exit code 0"
    crash = DUMP.replace("Timeout (0:00:30)!", "Fatal Python error: Segmentation fault")
    assert (
        dead(-11, crash) == f"{problem} ended the interpreter that tried it, by SIGSEGV; it was in: e6.py:18 in reward"
    )
    assert dead(None, "") == f"{problem} did not come back, and the interpreter did not end itself"
    (tmp_path / "call.json").unlink()
    told = found_dead(tmp_path, 3, "its last line").text
    assert told == "the interpreter that tried it ended with exit code 3: its last line"
