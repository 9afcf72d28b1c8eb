"""What `headrace check` finds, check by check; the processes it starts are tried in tests/process."""

from __future__ import annotations

import json
import socket
from contextlib import nullcontext

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from headrace.cli.main import main
from headrace.llm import tiny, trying
from headrace.llm.engine.cache import KVCache, Shape
from headrace.llm.engine.sizes import CacheShape, ModelSize, cache_rows
from headrace.llm.finding import Verdict
from headrace.llm.guarding import Guarded, found_dead
from headrace.llm.loading import load_rl_config
from headrace.llm.preflight import (
    check_disk,
    check_memory,
    check_port,
    check_room,
    check_start,
    check_step,
    check_threads,
    gone_again,
    memory_of,
    short_config,
)
from headrace.llm.trying import answer_nonce, tried, try_environment, try_texts
from headrace.monitor.snapshot import Memory
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


def ended(outcome):
    """The summary of a run that made no step."""
    return {"outcome": outcome, "error": None, "steps": 0, "books": None, "policy_version": None}


def test_whoever_interrupts_the_one_step_means_the_check(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.llm.preflight.launch", lambda *_: ended("interrupted"))
    with pytest.raises(KeyboardInterrupt):
        tried("one step", lambda: check_step(config(), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_made_no_step_is_no_sign_that_it_can_be_started(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.llm.preflight.launch", lambda *_: ended("completed"))
    (found,) = check_step(config(), tmp_path)
    assert found.verdict is Verdict.FAILED
    assert found.text.startswith("the run ended without a step of the trainer: completed after ")


def need(**settings):
    made = config(**settings)
    return memory_of(made, ModelSize.of(made.model))


def test_memory_grows_with_slots_and_model():
    small, large = need(), need(inference__slots=2048, model__hidden=512)
    assert large["inference"] > small["inference"]
    assert large["trainer"] > small["trainer"]
    size = ModelSize.of(config().model)
    assert verdicts(check_memory(config(), size, 1_000)) == [Verdict.WARNING]
    assert verdicts(check_memory(config(), size, 10**12)) == [Verdict.OK]


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_what_is_kept_for_sessions_is_a_cache_more(dtype, width):
    """As many bytes as the engine allocates."""
    settings = {"model__dtype": dtype, "inference__slots": 7}
    kept, none = (need(inference__kv_reuse=reuse, **settings)["inference"] for reuse in (True, False))
    section = config().model
    assert kept - none == 7 * section.context_tokens * section.layers * section.hidden * 2 * width
    with torch.random.fork_rng(devices=[]):
        model = tiny.served_copy(tiny.make_model(section, 64, 0), dtype)
    shape = Shape.of(model)
    caches = [KVCache(shape, cache_rows(7, kv_reuse=reuse), section.context_tokens).nbytes for reuse in (True, False)]
    assert kept - none == caches[0] - caches[1]


def test_what_lies_on_a_gpu_needs_no_memory_of_the_machine_but_to_be_loaded():
    here, there = (
        need(inference__slots=2048),
        need(inference__slots=2048, inference__device="cuda", trainer__device="cuda"),
    )
    assert here["inference"] - there["inference"] > 10**8
    assert here["trainer"] - there["trainer"] > 10**6


def test_the_number_of_parameters_is_about_right():
    """162,000 to 168,000 at width 64 and three layers, whatever the characters."""
    assert abs(ModelSize.of(config().model).parameters - 165_000) < 5_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A Llama that is nothing like the default one, in bfloat16, with fewer heads of keys, and its parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("checkpoint")
    shape = LlamaConfig(
        vocab_size=100, hidden_size=48, intermediate_size=40, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(shape).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder, sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_as_large_as_it_says(checkpoint, dtype):
    folder, parameters = checkpoint
    size = ModelSize.of(config(model__path=str(folder), model__dtype=dtype).model)
    assert (size.parameters, size.hidden, size.vocabulary) == (parameters, 48, 100)
    assert size.cache == CacheShape(layers=5, heads=2, head_width=16)
    settings = {"model__path": str(folder), "model__dtype": dtype, "inference__slots": 3}
    kept, none = (need(inference__kv_reuse=reuse, **settings)["inference"] for reuse in (True, False))
    assert kept - none == 3 * 96 * 5 * 2 * 2 * 16 * {"float32": 4, "bfloat16": 2}[dtype]


def test_parts_and_pickled_weights_are_counted_and_what_lies_beside_them_is_not(checkpoint, tmp_path):
    folder, parameters = checkpoint
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    index = {name: f"part-{place % 2}.safetensors" for place, name in enumerate(names)}
    for part in set(index.values()):
        save_file({name: tensors[name] for name in names if index[name] == part}, tmp_path / part)
    save_file(tensors, tmp_path / "consolidated.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    section = config(model__path=str(tmp_path)).model
    assert ModelSize.of(section).parameters == parameters
    (tmp_path / "model.safetensors.index.json").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert parameters <= ModelSize.of(section).parameters < 2 * parameters  # with what the format takes


@pytest.mark.parametrize("there", ["nothing", "no weights", "rubbish"])
def test_a_checkpoint_that_cannot_be_read_is_a_finding(checkpoint, tmp_path, there):
    if there != "nothing":
        (tmp_path / "config.json").write_bytes((checkpoint[0] / "config.json").read_bytes())
    if there == "rubbish":
        (tmp_path / "model.safetensors").write_bytes(b"never a model")
    settings = config(model__path=str(tmp_path))
    (found,) = tried("model", lambda: check_room(settings, tmp_path, 10**12))
    assert (found.name, found.verdict) == ("model", Verdict.FAILED)
    assert found.text.startswith("how large the model is cannot be told")


def test_the_memory_of_a_container_is_what_counts(of_either_kind, monkeypatch):
    monkeypatch.setattr("headrace.monitor.reader.machine_memory", lambda: Memory(5_000, 10_000))
    looked = []
    monkeypatch.setattr("headrace.llm.preflight.check", lambda *_, **more: looked.append(more["available_bytes"]) or [])
    CliRunner().invoke(main, ["check", str(of_either_kind)], standalone_mode=False)
    assert looked == [5_000]


def test_a_disk_that_is_full_is_found(tmp_path, monkeypatch):
    assert verdicts(check_disk(config(), ModelSize.of(config().model), tmp_path / "new")) == [Verdict.OK]
    usage = trying.__class__("usage")
    usage.free = 10
    monkeypatch.setattr("headrace.llm.preflight.shutil.disk_usage", lambda _: usage)
    assert verdicts(check_disk(config(), ModelSize.of(config().model), tmp_path)) == [Verdict.FAILED]


def test_a_short_run_is_short_and_the_same_otherwise(tmp_path):
    whole = load_rl_config([], {"trainer.minibatches": 4, "sft.steps": 440, "trainer.lr": 0.25})
    short = short_config(whole, tmp_path)
    assert (short.run.steps, short.orchestrator.groups_per_step, short.sft.steps) == (1, 2, 1)
    assert (short.trainer.lr, short.env, short.model) == (0.25, whole.env, whole.model)


def test_a_short_run_asks_for_no_more_at_once_than_the_whole_one(tmp_path):
    orchestrator = {"max_policy_lag": 0, "groups_per_step": 3, "group_size": 4, "groups_in_flight": 1}
    few = {"inference.slots": 4, "inference.max_waiting": 0, "evaluation.problems": 1}
    short_config(load_rl_config([], {"orchestrator": orchestrator, **few}), tmp_path)


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
