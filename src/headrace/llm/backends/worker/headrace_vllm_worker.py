"""Loads published weights inside vLLM's workers: ``vllm serve --worker-extension-cls headrace_vllm_worker.HeadraceWorker``.

It runs in vLLM's interpreter, where Headrace is not installed, so it imports nothing of it.

vLLM's own ``reload_weights`` answers 200 and, on a CPU, leaves an output projection that is tied to the embedding as it was:
no tensor of that name is loaded, so the copy of it that was packed for the matrix multiplication at the start is used for
ever. Here every packed copy whose tensor is still there is packed again after loading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file


class HeadraceWorker:
    """Mixed into vLLM's class of workers; each method can be called through ``/collective_rpc``."""

    model_runner: Any

    def headrace_load_weights(self, path: str, sha256: str) -> dict[str, Any]:
        """Load a file of tensors, by the names of its Hugging Face model.

        Args:
            path: Of the safetensors file.
            sha256: What its tensors are recognised by.

        Returns:
            ``{"sha256", "repacked"}``, or ``{"error"}``; an exception would leave the server without a message.
        """
        try:
            tensors = load_file(path)
            found = tensors_sha256(tensors)
            if found != sha256:
                return {"error": f"{path} holds tensors of sha256 {found[:16]}…, not {sha256[:16]}…"}
            self._reload(tensors)
            repacked = repack(self.model_runner.get_model())
        except Exception as error:  # noqa: BLE001 - a process border: the answer is all that the other side sees
            return {"error": f"{type(error).__name__}: {error}"}
        return {"sha256": found, "repacked": repacked}

    def _reload(self, tensors: Mapping[str, torch.Tensor]) -> None:
        reload_weights: Any = self.reload_weights  # type: ignore[attr-defined] # of vLLM's worker
        reload_weights(weights_iterator=iter(tensors.items()), is_checkpoint_format=True)


def repack(model: torch.nn.Module) -> int:
    """Make the packed copies anew of all layers that keep their tensor beside it; returns how many."""
    repacked = 0
    for module in model.modules():
        weight, method = getattr(module, "weight", None), getattr(module, "quant_method", None)
        if not hasattr(module, "cpu_linear") or method is None or weight is None:
            continue
        if weight.dim() == 2 and weight.numel():
            method.process_weights_after_loading(module)
            repacked += 1
    return repacked


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """As `headrace.llm.weights.tensors_sha256`, which cannot be imported here."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu").contiguous()
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name}\0{kind}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
