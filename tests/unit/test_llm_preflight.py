"""What `headrace check` finds, check by check; the processes it starts are tried in tests/process."""

from __future__ import annotations

import socket

from click.testing import CliRunner

from headrace.cli.main import main
from headrace.llm import trying
from headrace.llm.finding import Verdict
from headrace.llm.loading import load_rl_config
from headrace.llm.preflight import (
    check_disk,
    check_memory,
    check_port,
    check_start,
    check_threads,
    memory_of,
    parameters_of,
    short_config,
)
from headrace.llm.trying import answer_nonce, tried, try_environment, try_texts


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
    assert verdicts(try_environment(config()))[0] is Verdict.OK
    missing = config(env__factory="no_such_package.envs:make")
    (found,) = tried("environment", lambda: try_environment(missing))
    assert found.verdict is Verdict.FAILED
    assert "no_such_package" in found.text
    assert "no_such_package" in found.fix


def test_a_warm_start_without_a_teacher_is_found(monkeypatch):
    monkeypatch.setattr("headrace.envs.text.wordle.WordleEnvironment.demonstration", None)
    found = try_environment(config(sft__steps=5))
    assert found[-1].text == "the warm start needs a teacher, and this environment has none"


def test_answers_that_do_not_fit_into_the_context_are_found(tmp_path):
    ok = try_texts(config(), tmp_path)
    assert verdicts(ok) == [Verdict.OK]
    (found,) = try_texts(config(model__context_tokens=8, sampling__max_tokens=8), tmp_path / "other")
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
