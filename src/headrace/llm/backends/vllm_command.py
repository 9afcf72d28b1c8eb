"""How ``vllm serve`` is called, so that a server of completions becomes one that can be trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.llm.config import RLConfig

MODEL_NAME = "policy"
"""What requests call the model."""

WORKER_FOLDER = Path(__file__).parent / "worker"
WORKER_CLASS = "headrace_vllm_worker.HeadraceWorker"

_SERVE = ("vllm", "serve")


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """A program, and what it is told by variables."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Has to have these values."""
    defaults: Mapping[str, str]
    """Has these values unless its user has set others."""


def vllm_command(config: RLConfig, model_folder: Path, port: int, visible: str = "") -> VllmCommand:
    """The command of a server for one run.

    Args:
        config: Of the run.
        model_folder: A Hugging Face folder with configuration, tokenizer and weights.
        port: To listen on; on the host of ``config.inference``.
        visible: ``CUDA_VISIBLE_DEVICES`` as it is here; empty: all are.

    Raises:
        ConfigError: The GPU that is named is none of those.
    """
    section = config.inference
    on_cpu = section.device == "cpu"
    argv = [
        *(section.command or _SERVE), str(model_folder),
        "--host", section.host,
        "--port", str(port),
        "--served-model-name", MODEL_NAME,
        "--dtype", config.model.dtype,
        "--max-model-len", str(config.model.context_tokens),
        "--max-num-seqs", str(section.slots),
        "--enable-prefix-caching" if section.kv_reuse else "--no-enable-prefix-caching",
        # By default log-probabilities are those before temperature and top_p, which nothing was drawn from.
        "--logprobs-mode", "processed_logprobs",
        # Defaults of sampling come from the request alone, not from a file beside the model.
        "--generation-config", "vllm",
        # Tokens in, tokens out, and which weights chose each; without it that route answers 403.
        "--enable-scale-out",
        "--worker-extension-cls", WORKER_CLASS,
        "--disable-uvicorn-access-log",  # a line for each completion
        *(["--enforce-eager"] if on_cpu else []),
    ]  # fmt: skip
    env = {
        "VLLM_SERVER_DEV_MODE": "1",  # routes to pause, load and resume
        "PYTHONPATH": str(WORKER_FOLDER),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    env |= _cpu(section.threads) if on_cpu else _one_gpu(section.device, visible)
    return VllmCommand(tuple(argv), env, _DEFAULTS if on_cpu else {})


def _one_gpu(device: str, visible: str) -> dict[str, str]:
    """Variables: vLLM takes no index, and is shown the one GPU that is meant."""
    _, named, index = device.partition(":")
    if not named:
        return {}
    shown = [one.strip() for one in visible.split(",")] if visible else None
    if shown is not None and int(index) >= len(shown):
        raise ConfigError(
            f"inference.device is {device}, and fewer GPUs may be used here",
            CUDA_VISIBLE_DEVICES=visible,
            fix="count from 0 within CUDA_VISIBLE_DEVICES, or unset it",
        )
    return {"CUDA_VISIBLE_DEVICES": index if shown is None else shown[int(index)]}


def _cpu(threads: int) -> dict[str, str]:
    return {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would take cores that others compute on
        "OMP_NUM_THREADS": str(threads),
        "TORCHDYNAMO_DISABLE": "1",  # parts are compiled in spite of --enforce-eager, 75 s in the first request
    }


_DEFAULTS = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB; not set: 40 % of the memory
