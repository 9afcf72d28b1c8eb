"""How vLLM is called, and what is refused before it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from headrace.core.errors import ConfigError
from headrace.llm.backends.vllm_command import WORKER_CLASS, WORKER_FOLDER, vllm_command
from headrace.llm.config import RLConfig
from headrace.llm.weights import tensors_sha256


def config(**sections: Any) -> RLConfig:
    return RLConfig.model_validate({"inference": {"backend": "vllm"}, "model": {"heads": 2}} | sections)


def worker_module() -> ModuleType:
    """The worker's module as vLLM imports it: by its file, without a package."""
    name = WORKER_CLASS.partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, WORKER_FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def after(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_it_is_told_what_training_needs() -> None:
    command = vllm_command(config(), Path("/run/served-model"), 8123)
    assert command.argv[:3] == ("vllm", "serve", "/run/served-model")
    assert after(command.argv, "--port") == "8123"
    assert after(command.argv, "--logprobs-mode") == "processed_logprobs"
    assert after(command.argv, "--max-model-len") == "96"
    assert after(command.argv, "--worker-extension-cls") == WORKER_CLASS
    assert {"--enable-scale-out", "--enforce-eager", "--enable-prefix-caching"} <= set(command.argv)
    assert command.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert command.env["VLLM_TARGET_DEVICE"] == "cpu"
    assert Path(command.env["PYTHONPATH"]) == WORKER_FOLDER


def test_a_gpu_is_not_told_what_a_cpu_needs() -> None:
    section = {"backend": "vllm", "device": "cuda", "kv_reuse": False, "command": ["/v/bin/vllm", "serve"]}
    command = vllm_command(config(inference=section, model={}), Path("/m"), 1)
    assert command.argv[:2] == ("/v/bin/vllm", "serve")
    assert "--enforce-eager" not in command.argv
    assert "--no-enable-prefix-caching" in command.argv
    assert "VLLM_TARGET_DEVICE" not in command.env
    assert not command.defaults


@pytest.mark.parametrize(
    ("device", "visible", "shown"),
    [
        ("cuda", "", None),
        ("cuda", "4,5", None),
        ("cuda:1", "", "1"),
        ("cuda:1", "4,5", "5"),
        ("cuda:0", "GPU-a, 7", "GPU-a"),
    ],
)
def test_the_gpu_that_is_named_is_the_one_that_is_used(device: str, visible: str, shown: str | None) -> None:
    section = config(inference={"backend": "vllm", "device": device})
    command = vllm_command(section, Path("/m"), 1, visible)
    assert command.env.get("CUDA_VISIBLE_DEVICES") == shown


def test_a_device_that_it_cannot_use_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"inference\.device is cuda:2, and fewer GPUs may be used here"):
        vllm_command(config(inference={"backend": "vllm", "device": "cuda:2"}), Path("/m"), 1, "4,5")
    with pytest.raises(ConfigError, match="vLLM computes where its build does"):
        config(inference={"backend": "vllm", "device": "mps"})
    config(inference={"backend": "external", "url": "http://a:1", "device": "cuda"})  # of `headrace eval`


def test_heads_that_its_attention_on_a_cpu_cannot_compute_are_refused() -> None:
    with pytest.raises(ConfigError, match="vLLM on a CPU computes no attention with 16 numbers per head"):
        config(model={"hidden": 64, "heads": 4})
    config(model={"path": "/checkpoint"})  # its own heads are not known here


def test_the_twin_has_no_place_for_it() -> None:
    with pytest.raises(ConfigError, match=r"run\.schedule inline runs our own engine"):
        config(run={"schedule": "inline"}, orchestrator={"max_policy_lag": 0})


def test_the_worker_knows_tensors_by_the_same_sum() -> None:
    tensors = {"b.weight": torch.arange(6.0).reshape(2, 3).t(), "a": torch.ones(2, dtype=torch.bfloat16)}
    assert worker_module().tensors_sha256(tensors) == tensors_sha256(tensors)


def test_the_worker_refuses_a_file_of_other_tensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    worker = worker_module().HeadraceWorker()
    answer = worker.headrace_load_weights(str(tmp_path / "model.safetensors"), "f" * 64)
    assert "holds tensors of sha256" in answer["error"]
    assert "error" in worker.headrace_load_weights(str(tmp_path / "absent"), "f" * 64)


def test_only_packed_layers_that_have_kept_their_tensor_are_packed_again() -> None:
    packed = []

    class Method:
        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            packed.append(layer)

    head, linear, plain = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))
    for layer in (head, linear):
        layer.cpu_linear, layer.quant_method = (lambda: None), Method()
    linear.weight = torch.nn.Parameter(torch.empty(0))  # packed when it was loaded, and only there
    assert worker_module().repack(torch.nn.ModuleList([head, linear, plain])) == 1
    assert packed == [head]
