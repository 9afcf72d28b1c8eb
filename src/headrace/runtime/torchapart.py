"""Settings of torch that hold for a whole process, kept apart: the learner's, and those of environments beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self


class TorchApart:
    """What an environment sets in torch holds for environments alone; the learner computes by its own settings.

    Kept apart are the default dtype and device, the number of threads, deterministic algorithms, the precision of
    products, and whether gradients are recorded (inference mode included). For environments, it is as if they had a process of
    their own: what they have set is there when they are called the next time.
    """

    def __init__(self) -> None:
        self._settings = _settings()
        self._theirs: dict[str, Any] = {}
        """What environments have set, by name."""

    @classmethod
    def from_start(cls) -> Self:
        """Of a process that begins to learn: what modules set when they were imported is the environments'.

        Not so faster or deterministic products: whoever has chosen those there has chosen them for the learner, too.
        """
        import torch

        apart = cls()
        for name, fresh in {"dtype": torch.float32, "device": torch.device("cpu"), "grad": True}.items():
            get, put = apart._settings[name]
            if (found := get()) != fresh:
                apart._theirs[name] = found
                put(fresh)
        return apart

    @contextmanager
    def environments(self) -> Iterator[None]:
        """Around every call in which code of an environment may run; not one within another. It takes tens of microseconds."""
        import torch

        settings = self._settings
        ours = {name: get() for name, (get, _) in settings.items()}
        # This guard puts back, when it is left, all that torch keeps about gradients, also what was entered and never left.
        with torch.inference_mode(self._theirs.get("inference", False)):
            began = ours
            if self._theirs:
                for name, (_, put) in settings.items():
                    if (theirs := self._theirs.get(name, ours[name])) != ours[name]:
                        put(theirs)
                began = {name: get() for name, (get, _) in settings.items()}
            try:
                yield
            finally:
                for name, (get, put) in settings.items():
                    if (now := get()) != began[name]:
                        self._theirs[name] = now
                    if now != ours[name]:
                        put(ours[name])
                if torch.is_inference_mode_enabled() != self._theirs.get("inference", False):
                    self._theirs["inference"] = torch.is_inference_mode_enabled()


def _settings() -> Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How each of them is read and put, by name."""
    import torch

    def put_device(device: Any) -> None:
        torch.set_default_device(None if device == torch.device("cpu") else device)  # a given one slows every call

    return {
        "dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "device": (torch.get_default_device, put_device),
        "threads": (torch.get_num_threads, torch.set_num_threads),
        "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
    }
