"""The Modal example without Modal: something in its place whose decorators change nothing."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "modal_app.py"


@pytest.fixture
def modal_example(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module."""
    modal = MagicMock()
    same = lambda *_, **__: lambda one: one  # noqa: E731
    modal.method = modal.exit = modal.App.return_value.cls = modal.App.return_value.local_entrypoint = same
    monkeypatch.setitem(sys.modules, "modal", modal)
    spec = importlib.util.spec_from_file_location("modal_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
